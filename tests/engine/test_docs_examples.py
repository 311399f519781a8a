"""Python in the docs runs as written and prints the documented output; documented defaults are those of the program."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import quire.sync
from infra.docs_programs import DOCS, PYTHON, ROOT, assert_printed, run_blocks
from infra.sizes import IS_FULL_SIZE
from quire.agent.limits import MCPLimits
from quire.agent.tool_results import MAX_RESULT_CHARS
from quire.context.file_imports import ImportLimits
from quire.context.vault.paths import MAX_FILE_BYTES
from quire.engine.message_index import MAX_INLINE_ENTRIES
from quire.engine.recall import MIN_RECALL_TOKENS
from quire.engine.reported_windows import MIN_REPORTED_WINDOW_TOKENS
from quire.model.state import MAX_BRANCH_PRIORITIES
from quire.search.segments import MAX_EMBEDDED_WORDS
from quire.settings import Settings
from quire.settings.schema import ModelEntry
from quire.wire.media import PDF_PAGE_TOKENS


class _FakeProviderHandler(BaseHTTPRequestHandler):
    requests: list[list[dict[str, Any]]]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.requests.append(body["messages"])
        message = {"role": "assistant", "content": f"Reply {len(self.requests)}."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        completion = {"id": "1", "object": "chat.completion", "created": 1, "model": body["model"], "usage": usage}
        data = json.dumps({**completion, "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def start_fake_provider() -> Iterator[tuple[str, list[list[dict[str, Any]]]]]:
    """An OpenAI-compatible server on loopback, and the messages that it received."""
    handler = type("Handler", (_FakeProviderHandler,), {"requests": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1", handler.requests
        finally:
            server.shutdown()


@pytest.mark.slow
def test_the_first_program_of_the_readme_talks_and_continues_where_it_was(tmp_path: Path):
    code = PYTHON.findall((ROOT / "README.md").read_text())[0][0]
    assert "OpenAI()" in code
    with start_fake_provider() as (url, requests):
        first = run_blocks([code], tmp_path, typed="One?\nTwo?\n\n", OPENAI_BASE_URL=url)
        again = run_blocks([code], tmp_path, typed="Three?\n\n", OPENAI_BASE_URL=url)
    assert (first, again) == (["> Reply 1.\n> Reply 2.\n> "], ["> Reply 3.\n> "])
    messages = [(message["role"], message["content"]) for message in requests[-1]]
    assert messages == [
        ("system", "Be brief."),
        ("user", "One?"),
        ("assistant", "Reply 1."),
        ("user", "Two?"),
        ("assistant", "Reply 2."),
        ("user", "Three?"),
    ]


def test_what_the_readme_calls_is_there():
    names = re.findall(r"^ *(?:\w+ = )?conversation\.(\w+)\(", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert {"prepare", "record", "plan_compaction", "compact", "undo_compaction", "why", "replay"} <= set(names)
    assert [name for name in names if not hasattr(quire.sync.SyncConversation, name)] == []


@pytest.mark.slow
def test_the_library_tutorial_runs_and_prints_what_it_says(tmp_path: Path):
    blocks = list(PYTHON.finditer((DOCS / "library.md").read_text()))
    assert len(blocks) >= 5
    for block, output in zip(blocks, run_blocks([each["code"] for each in blocks], tmp_path), strict=True):
        assert_printed(output, block["printed"] or "")


@pytest.mark.slow
def test_the_page_on_strategies_runs_and_prints_what_it_says(tmp_path: Path):
    """At full size the journeys of 200 days too; otherwise they take 20, and what they print is not compared."""
    blocks = list(PYTHON.finditer((DOCS / "strategies.md").read_text()))
    assert len(blocks) >= 4
    programs = [each["code"] if IS_FULL_SIZE else each["code"].replace("DAYS = 200", "DAYS = 20") for each in blocks]
    for program, block, output in zip(programs, blocks, run_blocks(programs, tmp_path), strict=True):
        if IS_FULL_SIZE or "tried(" not in program:
            assert_printed(output, block["printed"] or "")


def test_the_page_on_search_runs_and_prints_what_it_says(tmp_path: Path):
    [block] = PYTHON.finditer((DOCS / "search.md").read_text())
    [printed] = run_blocks([block["code"]], tmp_path)
    assert printed == block["printed"]
    assert f"up to {MAX_INLINE_ENTRIES:,} entries" in (DOCS / "search.md").read_text()


def test_the_page_on_models_runs_and_has_every_field(tmp_path: Path):
    page = (DOCS / "models.md").read_text()
    [block] = PYTHON.finditer(page)
    [output] = run_blocks([block["code"]], tmp_path)
    assert output == block["printed"]
    table = page.partition("| field | |")[2].partition("\n\n")[0]
    assert all(f"`{name}`" in table for name in ModelEntry.model_fields)
    assert f"below {MIN_REPORTED_WINDOW_TOKENS} tokens" in page


def test_the_page_on_strategies_has_the_defaults_that_the_settings_have():
    rows = re.findall(r"^\| `(\w+)` \| (?:`([^`]+)`)? ?\|", (DOCS / "strategies.md").read_text(), re.MULTILINE)
    documented = {name: default or "None" for name, default in rows if name in Settings.model_fields}
    assert len(documented) >= 10
    assert documented == {name: str(Settings.model_fields[name].default) for name in documented}


@pytest.mark.parametrize(
    "text",
    [
        f"PDFs** count {PDF_PAGE_TOKENS:,} tokens a page",
        f"only the first {MAX_EMBEDDED_WORDS} words of a message",
        f"Files over {MAX_FILE_BYTES // 1_000_000} MB are not read, and files imported with `@` not over "
        f"{ImportLimits().max_file_bytes // 1_000} kB. `@` brings {ImportLimits().max_files} files at most",
        f"keeps {MAX_RESULT_CHARS // 1_000_000} million characters",
        f"up to `recall_tokens`, {Settings().recall_tokens:,} by default",
        f"**It needs {MIN_RECALL_TOKENS} tokens**",
        f"at most {Settings().max_steps} replies (`max_steps`)",
        f"silent for {Settings().model_timeout:g} s (`model_timeout`)",
        f"may take {Settings().tool_timeout:g} s (`tool_timeout`)",
        f"an MCP server {MCPLimits().start_seconds:g} s to start",
        f"at most {MAX_BRANCH_PRIORITIES:,} messages with a priority",
    ],
)
def test_the_page_on_limits_has_the_limits_that_the_program_has(text: str):
    page = re.sub(r"<!--.*?-->", "", (DOCS / "limits.md").read_text())
    assert text in " ".join(page.split())


@pytest.mark.slow
def test_the_library_reference_runs_and_has_every_public_name(tmp_path: Path):
    text = (DOCS / "api.md").read_text()
    blocks = list(PYTHON.finditer(text))
    for block, output in zip(blocks, run_blocks([each["code"] for each in blocks], tmp_path), strict=True):
        assert_printed(output, block["printed"] or "")
    described = re.findall(r"^::: quire\.(\w+)$", text, re.MULTILINE)
    assert sorted(described) == sorted([*quire.__all__, "events", "types"])
    program = "\n".join(each["code"] for each in blocks)
    implicit = {"Conversation", "Engine", "Entry", "Request", "Settings"}
    assert [name for name in quire.__all__ if f"quire.{name}" not in program and name not in implicit] == []
