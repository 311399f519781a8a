"""`quire import`, called as a person calls it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_fixtures import CliHome, invoke_cli, run_json

DATA = Path(__file__).parents[1] / "importers" / "data"


def run_import(*words: str) -> dict[str, int]:
    outcome = invoke_cli("import", *words, "--json")
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)


def test_transcripts_are_imported_once_and_listed(home: CliHome):
    folder = str(DATA / "codex")
    dry = run_import("codex", folder, "--dry-run")
    first = run_import("codex", folder)
    assert (dry["messages"], dry["dry_run"]) == (first["messages"], True)
    assert (first["files"], first["conversations"], first["error_count"]) == (3, 3, 0)
    second = invoke_cli("import", "codex", folder)
    assert second.stdout == (
        f"Imported 0 new messages in 0 conversations from 3 files; {first['messages']} known already.\n"
    )
    assert second.stderr == "Codex does not store: summaries of the provider.\n"
    assert "Greet them." in invoke_cli("conversation", "list", "--all").stdout
    assert invoke_cli("conversation", "verify", "--all").exit_code == 0


def test_transcripts_are_found_in_their_usual_place(home: CliHome, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(DATA / "claude_code", home.path / "config" / "projects")
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(home.path / "config"))
    assert run_import("claude-code")["conversations"] == 3
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(home.path / "nowhere"))
    outcome = invoke_cli("import", "claude-code")
    assert (outcome.exit_code, "stores no conversations in its usual place" in outcome.stderr) == (3, True)


def test_what_a_program_does_not_store_is_said(home: CliHome):
    outcome = invoke_cli("import", "aider", str(DATA / "recorded" / "aider"))
    assert outcome.stderr == "Aider does not store: sub-agents, tool calls, tool results, times.\n"


def test_a_reply_that_is_still_being_written_is_told(home: CliHome):
    path = home.path / "s.jsonl"
    reply = {"role": "assistant", "id": "msg", "content": [{"type": "text", "text": "So f"}], "stop_reason": None}
    prompt = {"role": "user", "content": "One."}
    lines = [("a", None, "user", prompt), ("b", "a", "assistant", reply)]
    path.write_text(
        "".join(
            json.dumps({"uuid": uuid, "parentUuid": parent, "type": kind, "message": message}) + "\n"
            for uuid, parent, kind, message in lines
        )
    )
    outcome = invoke_cli("import", "claude-code", str(path))
    assert outcome.stdout == (
        "1 reply is still being written; the next import reads what is complete.\n"
        "Imported 0 new messages in 0 conversations from 1 file.\n"
    )


def test_items_that_cannot_be_read_are_printed(home: CliHome):
    path = home.path / "rollout-x.jsonl"
    path.write_text("not json\n")
    outcome = invoke_cli("import", "codex", str(path))
    assert outcome.exit_code == 1
    assert "rollout-x.jsonl:1" in outcome.stdout
    assert "Imported 0 new messages" in outcome.stdout


@pytest.mark.parametrize("name", ["", "notes.txt"])
def test_nothing_to_read_is_said(name: str, home: CliHome):
    folder = home.path / "empty"
    folder.mkdir()
    (folder / "notes.txt").write_text("")
    outcome = invoke_cli("import", "codex", str(folder / name))
    assert outcome.exit_code == 1
    assert f"No conversation of Codex was found in {folder / name}" in outcome.stderr
    assert invoke_cli("import", "codex", str(folder), "--since", "2026-01-01").exit_code == 0


def test_a_summary_that_only_the_provider_can_read_is_said(home: CliHome):
    shape = DATA / "shapes" / "codex" / "compaction-that-cannot-be-read.jsonl"
    run_import("codex", str(shape))
    conversation = run_json("conversation", "list", "--all")["conversations"][0]["id"]
    shown = invoke_cli("context", "show", "--summary", conversation)
    assert "The summary cannot be read" in shown.stdout
    assert "made by the provider" in shown.stdout
    resumed = run_json("resume", conversation, "--in", "codex")
    assert resumed["changes"]["messages left out: the provider made their summary, which cannot be read"] == 8
    lines = [json.loads(line) for line in Path(resumed["path"]).read_text().splitlines()]
    said = [line["payload"]["message"] for line in lines if line["payload"].get("type") == "user_message"]
    assert "made by the provider" in said[0]
    assert [text for text in said[1:] if not text.startswith("<")] == [
        "Is the dam sound?",
        "Seal it with clay.",
        "Then fill the pond.",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere",), "is no source"),
        (("codex", "/missing/file"), "There is no file or folder"),
        (("codex", ".", "--since", "yesterday"), "is no time"),
        (("codex", ".", "--watch", "--dry-run"), "without --dry-run"),
    ],
)
def test_a_wrong_argument_is_explained(home: CliHome, words: tuple[str, ...], message: str):
    outcome = invoke_cli("import", *words)
    assert outcome.exit_code != 0
    assert message in outcome.stderr


def test_what_is_older_is_skipped(home: CliHome):
    folder = str(DATA / "codex")
    assert run_import("codex", folder, "--since", "2999-01-01")["messages"] == 0
    assert run_import("codex", folder, "--since", "2000-01-01")["messages"] > 0


def test_a_file_is_followed_as_it_grows(home: CliHome):
    lines = next((DATA / "codex").rglob("*.jsonl")).read_text().splitlines(keepends=True)
    folder = home.path / "sessions"
    folder.mkdir()
    path = folder / "rollout-1-thread.jsonl"
    path.write_text("".join(lines[:8]))
    command = [sys.executable, "-m", "quire", "import", "codex", str(folder), "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("Codex does not store")
        assert process.stderr.readline().startswith("Watching Codex")
        with path.open("a") as stream:
            stream.write("".join(lines[8:]))
        os.utime(path, (time.time() - 60, time.time() - 60))
        deadline = time.monotonic() + 60
        while count_messages() < 10 and time.monotonic() < deadline:
            time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 0
    whole = run_import("codex", str(folder))
    assert (whole["messages"], whole["known_messages"]) == (0, count_messages())


def count_messages() -> int:
    listed = json.loads(invoke_cli("conversation", "list", "--json").stdout)["conversations"]
    return sum(each["entries"] for each in listed if each["id"].startswith("codex-"))
