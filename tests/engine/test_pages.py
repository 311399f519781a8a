"""Python on the pages runs as it stands there, and prints what stands below it; the pages' defaults are the program's.

A page's blocks are one program. Counts depend a little on the day, by the tokens of its name, so numbers are compared
to three in a hundred.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import quire.sync
from quire.agent.outcomes import LARGEST_RESULT
from quire.context.imports import ImportLimits
from quire.context.vault.paths import LIMIT_BYTES
from quire.engine.shelving import LONGEST as INDEXED
from quire.settings import Settings
from quire.view.policies import UNKNOWN_WINDOW
from quire.view.shapes.media import PAGE_TOKENS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PYTHON = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n^```text\n(?P<printed>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
PARTED = "\x1f"


def ran(blocks: list[str], folder: Path, *, typed: str = "", **variables: str) -> list[str]:
    """What each block prints."""
    program = f"\nprint({PARTED!r}, end='', flush=True)\n".join(blocks)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        env={**os.environ, "OPENAI_API_KEY": "none", **variables},
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(PARTED)


def check_printed(came: str, expected: str) -> None:
    assert NUMBER.sub("0", " ".join(came.split())) == NUMBER.sub("0", " ".join(expected.split())), came
    numbers = [[float(each.replace(",", "")) for each in NUMBER.findall(text)] for text in (came, expected)]
    assert numbers[0] == [pytest.approx(each, rel=0.03) for each in numbers[1]], came


class _Provider(BaseHTTPRequestHandler):
    asked: list[list[dict[str, Any]]]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(body["messages"])
        message = {"role": "assistant", "content": f"Reply {len(self.asked)}."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        said = {"id": "1", "object": "chat.completion", "created": 1, "model": body["model"], "usage": usage}
        data = json.dumps({**said, "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def provider() -> Iterator[tuple[str, list[list[dict[str, Any]]]]]:
    """An OpenAI-compatible server on loopback, and the messages that it was sent."""
    handler = type("Handler", (_Provider,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1", handler.asked
        finally:
            server.shutdown()


@pytest.mark.slow
def test_the_first_program_of_the_readme_talks_and_goes_on_where_it_was(tmp_path: Path):
    code = PYTHON.findall((ROOT / "README.md").read_text())[0][0]
    assert "OpenAI()" in code
    with provider() as (url, asked):
        first = ran([code], tmp_path, typed="One?\nTwo?\n\n", OPENAI_BASE_URL=url)
        again = ran([code], tmp_path, typed="Three?\n\n", OPENAI_BASE_URL=url)
    assert (first, again) == (["> Reply 1.\n> Reply 2.\n> "], ["> Reply 3.\n> "])
    said = [(message["role"], message["content"]) for message in asked[-1]]
    assert said == [
        ("system", "Be brief."),
        ("user", "One?"),
        ("assistant", "Reply 1."),
        ("user", "Two?"),
        ("assistant", "Reply 2."),
        ("user", "Three?"),
    ]


def test_what_the_readme_calls_is_there():
    names = re.findall(r"^ *(?:\w+ = )?conversation\.(\w+)\(", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert {"prepare", "record", "plan", "compact", "undo", "why", "replay"} <= set(names)
    assert [name for name in names if not hasattr(quire.sync.Conversation, name)] == []


@pytest.mark.slow
def test_the_page_on_strategies_runs_and_prints_what_it_says(tmp_path: Path):
    blocks = list(PYTHON.finditer((DOCS / "strategies.md").read_text()))
    assert len(blocks) >= 4
    for block, came in zip(blocks, ran([each["code"] for each in blocks], tmp_path), strict=True):
        check_printed(came, block["printed"] or "")


def test_the_page_on_strategies_has_the_defaults_that_the_settings_have():
    rows = re.findall(r"^\| `(\w+)` \| (?:`([^`]+)`)? ?\|", (DOCS / "strategies.md").read_text(), re.MULTILINE)
    shown = {name: default or "None" for name, default in rows if name in Settings.model_fields}
    assert len(shown) >= 10
    assert shown == {name: str(Settings.model_fields[name].default) for name in shown}


@pytest.mark.parametrize(
    "said",
    [
        f"PDFs** count {PAGE_TOKENS:,} tokens a page",
        f"the window is {UNKNOWN_WINDOW:,}",
        f"only the first {INDEXED:,} characters",
        f"Files over {LIMIT_BYTES // 1_000_000} MB are not read, and files imported with `@` not over "
        f"{ImportLimits().file_bytes // 1_000} kB. `@` brings {ImportLimits().files} files at most",
        f"keeps {LARGEST_RESULT // 1_000_000} million characters",
        f"up to `recall_tokens`, {Settings().recall_tokens:,} by default",
        f"at most {Settings().max_steps} replies (`max_steps`)",
        f"silent for {Settings().model_timeout:g} s (`model_timeout`)",
        f"may take {Settings().tool_timeout:g} s (`tool_timeout`)",
        f"{Settings().server_timeout:g} s to start (`server_timeout`)",
    ],
)
def test_the_page_on_limits_has_the_limits_that_the_program_has(said: str):
    assert said in " ".join((DOCS / "limits.md").read_text().split())
