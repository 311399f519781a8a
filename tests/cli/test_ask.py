"""`quire ask`, called as a script calls it: the reply on standard output, everything else on standard error."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from chat_harness import QUIRE_PROGRAM
from cli_fixtures import invoke_cli
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import ScriptedServer, scripted_server
from test_startup import RUN_COMMAND, list_imports
from typer.testing import Result

from quire.cli.ask import build_question, fence_text
from quire.context.vault import Vault
from quire.errors import InvalidRequest
from quire.schemas.turn_events import AnswerSchema
from quire.wire.labels import LABEL_PREFIX


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server(lambda newest: f"You said {len(newest)} characters.") as server:
        yield server


@pytest.fixture
def home(tmp_path: Path, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose settings name the server."""
    for name in [name for name in os.environ if name.startswith(("QUIRE_", "XDG_")) or name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("QUIRE_BASE_URL", server.url)
    monkeypatch.setenv("QUIRE_MODEL", "miller-1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ask(*words: str, piped: str = "") -> Result:
    return invoke_cli("ask", *words, input=piped)


def test_the_reply_is_all_that_goes_to_standard_output(home: Path):
    done = ask("Hello")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "You said 5 characters.\n", "")


def test_a_local_model_needs_no_package_of_a_provider(home: Path):
    modules = list_imports(RUN_COMMAND, "ask", "Hello")
    assert "httpx2" in modules
    assert not modules & {"pydantic_ai", "openai", "anthropic", "aiohttp", "httpx"}


def test_what_is_piped_in_alone_is_the_question(home: Path, server: ScriptedServer):
    assert ask(piped="Hello there\n").stdout == "You said 11 characters.\n"
    assert server.requests[0]["messages"][-1]["content"] == "Hello there"


def test_what_is_piped_in_with_a_question_is_labelled_data(home: Path, server: ScriptedServer):
    ask("What is this?", piped="a,b\n1,2\n")
    sent = server.requests[0]["messages"][-1]["content"]
    assert sent.startswith("What is this?\n\n<quire:input key=")
    assert 'source="standard input">\n```\na,b\n1,2\n```\n</quire:input' in sent


def test_without_a_question_the_error_says_how_to_ask(home: Path):
    done = ask()
    assert (done.exit_code, done.stdout) == (1, "")
    assert 'pass it as `quire ask "…"`, or pipe it in' in done.stderr


def test_the_document_for_programs_fits_its_schema(home: Path):
    (home / "Mill.md").write_text("It grinds.\n")
    done = ask("What of [[Mill]]?", "tuesday", "--json", "--set", f"vault={home}")
    document = json.loads(done.stdout)
    jsonschema.validate(document, AnswerSchema.model_json_schema(mode="serialization"))
    assert document["reply"].startswith("You said")
    assert (document["conversation"], document["seq"], document["reason"]) == ("tuesday", 2, "answered")
    assert [each["path"] for each in document["references"]] == ["Mill.md"]
    assert document["usage"]["output_tokens"] > 0
    assert {row["kind"] for row in document["manifest"]["decisions"]} == {"message", "document"}


def test_the_context_is_printed_on_standard_error(home: Path):
    (home / "Mill.md").write_text("It grinds.\n")
    done = ask("What of [[Mill]] and [[No]]?", "--show-context", "--set", f"vault={home}")
    assert done.stdout.startswith("You said")
    lines = done.stderr.splitlines()
    assert lines[0].startswith("Context: about ")
    assert "  - 1 message, newest (" in done.stderr
    assert any(line.startswith("  - 1 document, referenced (") and line.endswith(": Mill.md") for line in lines)
    assert "  - left out (not found): document [[No]]" in lines
    assert lines[-1] == "Documents: Mill.md, [[No]]"


def test_each_question_is_a_conversation_of_its_own_unless_it_continues_one(home: Path, server: ScriptedServer):
    first = json.loads(ask("One", "--json").stdout)
    second = json.loads(ask("Two", "--json").stdout)
    third = json.loads(ask("Three", "--json", "--continue").stdout)
    fourth = json.loads(ask("Four", first["conversation"], "--json").stdout)
    assert second["conversation"] != first["conversation"]
    assert third["conversation"] == second["conversation"]
    assert fourth["seq"] == 4
    assert [len(each["messages"]) for each in server.requests] == [1, 1, 3, 3]
    assert "Name a conversation, or" in ask("Five", "tuesday", "--continue").stderr


def test_a_model_that_cannot_be_reached_fails_with_one_line(home: Path):
    done = ask("Hello", "--set", "base_url=http://127.0.0.1:1/v1")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("quire: ")
    assert "Traceback" not in done.stderr


def test_without_a_key_the_error_says_what_to_do(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("QUIRE_BASE_URL")
    done = ask("Hello", "--set", "model=gpt-4o")
    assert done.exit_code == 1
    assert done.stderr == (
        "quire: The model gpt-4o cannot be used: OPENAI_API_KEY is not set. Set its provider's API key in the "
        "environment, or choose another model; `quire init` detects API keys and local servers.\n"
    )


def test_without_a_key_no_conversation_is_created(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("QUIRE_BASE_URL")
    assert ask("Hello", "--set", "model=gpt-4o").exit_code == 1
    listed = invoke_cli("conversation", "list", "--json")
    assert json.loads(listed.stdout)["conversations"] == []


def test_an_empty_reply_has_a_code_of_its_own(home: Path, server: ScriptedServer):
    server.script = lambda newest: ""
    done = ask("Hello")
    assert (done.exit_code, done.stdout, done.stderr) == (4, "", "The reply is empty.\n")


def test_a_server_that_does_not_start_is_reported_on_standard_error(home: Path):
    (home / "helper.toml").write_text('[servers.gone]\ncommand = "no-such-program"\n')
    done = ask("@helper.toml", "Hello")
    assert (done.exit_code, done.stdout) == (0, "You said 5 characters.\n")
    assert done.stderr.startswith("The server gone: it cannot be started")


def test_an_agent_that_is_not_there_is_not_found(home: Path):
    assert ask("@nobody", "Hello").exit_code == 3


def test_an_agent_brings_its_instructions_and_its_model(home: Path, server: ScriptedServer):
    (home / "helper.toml").write_text('instructions = "Be brief."\nmodel = "miller-2"\n')
    ask("@helper.toml", "Hello")
    ask("@helper.toml", "Hello", "--set", "model=miller-3")
    assert [each["model"] for each in server.requests] == ["miller-2", "miller-3"]
    assert server.requests[0]["messages"][0] == {"role": "system", "content": "Be brief."}


def test_ctrl_c_stops_the_reply_and_keeps_what_had_come(home: Path, server: ScriptedServer):
    server.script, server.delay_seconds = (lambda newest: "word " * 500), 0.1
    process = subprocess.Popen([QUIRE_PROGRAM, "ask", "Go", "c"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.read(4) == "word"
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    [note] = errors.splitlines()
    assert note.startswith("No table lists the model")
    assert output.endswith("\n")
    assert time.monotonic() - began < 30
    server.script, server.delay_seconds = (lambda newest: "Done."), 0.0
    ask("And?", "c")
    partial_reply = server.requests[-1]["messages"][1]
    assert partial_reply["role"] == "assistant"
    assert partial_reply["content"].startswith("word")
    assert f"word{output}".startswith(partial_reply["content"].rstrip()[:10])


@given(st.text(alphabet=st.sampled_from("`~[]@a./\n <>:#-!\\$%"), max_size=60))
def test_nothing_that_is_piped_in_refers_to_anything(tmp_path: Path, piped: str):
    """Links and paths in data are no references; those in the question are."""
    (tmp_path / "a.md").write_text("x")
    found = Vault(tmp_path).find_references(build_question("See [[a]].", f"{piped} [[a]] @a.md"))
    assert [each.reference.link for each in found] == ["[[a]]"]


@given(st.text(max_size=80))
def test_what_is_piped_in_cannot_forge_the_end_of_its_label(piped: str):
    message = build_question("Q", f"x{piped}")
    key = message.partition("key=")[2].partition(" ")[0]
    assert message.count(f"</{LABEL_PREFIX}:input key={key}>") == 1
    assert message.endswith(f"</{LABEL_PREFIX}:input key={key}>")


@given(st.text(alphabet="`a\n", max_size=40))
def test_a_fence_is_longer_than_any_within(text: str):
    fence, _, rest = fence_text(text).partition("\n")
    assert set(fence) == {"`"}
    assert fence not in rest.removesuffix(fence)


def test_an_empty_question_is_none():
    with pytest.raises(InvalidRequest):
        build_question(" ", " \n")
