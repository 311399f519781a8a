"""Summaries on the command line: by the model that answers, unless another is named or none is to be called."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_fixtures import invoke_cli
from scripted_server import ScriptedServer, scripted_server

from quire.compaction.extractive_summary import EXTRACT_HEADING

SUMMARY = "## Task\nThe user counts the sheep of seven fields [#1]."


def answer(newest: str) -> str:
    return SUMMARY if "quire:messages" in newest else "Field counted."


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server(answer) as server:
        server.window = 1_600
        yield server


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("QUIRE_", "XDG_")) or name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> str:
    result = invoke_cli(*words, input="")
    assert result.exit_code == 0, result.output
    return result.stdout


def fill_conversation(*options: str) -> None:
    for number in range(7):
        run("ask", f"Field {number}: {'there are many sheep ' * 20}", "sheep", *options)


def read_summary() -> dict[str, Any]:
    return json.loads(run("context", "show", "--summary", "sheep", "--json"))


def list_summary_requests(server: ScriptedServer) -> list[dict[str, Any]]:
    return [body for body in server.requests if "quire:messages" in body["messages"][-1]["content"]]


def test_a_fresh_installation_summarizes_by_the_model_that_answers(home: Path, server: ScriptedServer) -> None:
    run("init", "--base-url", server.url)
    fill_conversation()
    run("context", "compact", "sheep")
    requests = list_summary_requests(server)
    assert requests
    assert {body["model"] for body in requests} == {"miller-1"}
    assert SUMMARY in json.dumps(read_summary(), ensure_ascii=False).replace("\\n", "\n")


def test_another_model_and_prompt_are_settings(home: Path, server: ScriptedServer) -> None:
    run("init", "--base-url", server.url)
    run("config", "set", "summarizer", "miller-2")
    run("config", "set", "summary_prompt", "Count sheep and nothing else.")
    fill_conversation()
    run("context", "compact", "sheep")
    [*requests] = list_summary_requests(server)
    assert {(body["model"], body["temperature"]) for body in requests} == {("miller-2", 0.3)}
    assert all(body["messages"][0]["content"].startswith("Count sheep and nothing else.") for body in requests)
    assert {body["model"] for body in server.requests if body not in requests} == {"miller-1"}


def test_an_extract_calls_no_model_and_says_that_it_is_one(home: Path, server: ScriptedServer) -> None:
    run("init", "--base-url", server.url)
    run("config", "set", "summarizer", "extract")
    fill_conversation()
    run("context", "compact", "sheep")
    assert list_summary_requests(server) == []
    shown = run("context", "show", "--summary", "sheep")
    assert "Extract, not a summary" in " ".join(shown.split())
    assert "word for word" not in EXTRACT_HEADING


def test_without_an_api_key_every_other_command_works(home: Path) -> None:
    run("init", "--model", "openai:gpt-4o")
    assert json.loads(run("conversation", "list", "--json"))["conversations"] == []
