"""`quire context`: what it changes can be taken back, what it only shows changes nothing."""

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from world import Home, run

from quire.log import SqlStore
from quire.model import (
    Body,
    ContextChange,
    ContextItem,
    Draft,
    ImagePart,
    Message,
    Restore,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    Unpin,
    Usage,
)

TIDES = "01ke6p8kt00000000000000003"
GREETING = "01ke6p6s700000000000000002"


def asked(*words: str, input: str | None = None) -> Any:
    """The JSON document of a command that succeeds."""
    outcome = run(*words, "--json", input=input)
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)


def test_without_an_id_the_conversation_used_last_is_meant(home: Home):
    assert asked("context", "show")["conversation"] == TIDES

    async def greet() -> None:
        async with SqlStore.open(home.url) as store:
            await store.append(GREETING, Message.user("Still there?"))

    asyncio.run(greet())
    assert asked("context", "show")["conversation"] == GREETING
    listed = asked("conversation", "list")["conversations"]
    assert [each["id"] for each in listed] == [GREETING, TIDES]
    assert [each["used_at"] > each["created_at"] for each in listed] == [True, True]


def entries() -> int:
    return sum(asked("context", "stats")["entries"].values())


def window() -> Any:
    shown = asked("context", "show")
    return shown["total"], shown["included"], shown["left_out"]


def test_the_newest_conversation_is_meant_where_none_is_named(home: Home):
    assert asked("context", "show")["conversation"] == TIDES
    assert asked("context", "show", GREETING)["conversation"] == GREETING


def test_the_slots_add_up_to_the_total_and_every_candidate_has_a_reason(home: Home):
    shown = asked("context", "show")
    included = sum(row["tokens"] for row in shown["included"])
    assert sum(slot["used"] for slot in shown["slots"]) == included
    assert 0 <= shown["total"] - included <= 3  # What the provider adds around any request belongs to no slot.
    assert all(row["reason"] == "archived" for row in shown["left_out"])


def test_the_window_of_an_earlier_request_is_drawn_from_its_record(home: Home):
    past = asked("context", "show", "--reply", "7")
    assert past["reply"] == 7
    assert past["left_out"] == []
    assert [row["reason"] for row in past["included"] if row["slot"] == "newest"] == ["newest"]
    drawn = run("context", "show", "--reply", "7").stdout
    assert "the request that #7 answered" in drawn
    assert "Left out" not in drawn


def test_looking_changes_nothing(home: Home):
    before = entries()
    for words in ("show", "summary", "memory", "items", "diff", "replay", "why 2", "compact --preview", "export"):
        assert run("context", *words.split()).exit_code == 0
    assert entries() == before


def test_clearing_archives_everything_but_pins_and_undo_brings_it_back(home: Home):
    before = window()
    cleared = asked("context", "clear")["compaction"]
    assert (cleared["covers"], cleared["summary"]) == ({"first": 1, "last": 12}, None)
    messages = [row for row in asked("context", "show")["included"] if row["slot"] == "messages"]
    assert [row["reason"] for row in messages] == ["pinned"]
    assert asked("context", "undo")["active"] == 1
    assert window() == before


def test_an_empty_conversation_has_nothing_to_clear(home: Home):
    asked("context", "clear", GREETING)
    assert asked("context", "clear", GREETING)["compaction"] is not None  # A clearing can be cleared, and taken back.
    asked("context", "undo", GREETING)
    asked("context", "undo", GREETING)
    assert run("context", "undo", GREETING).exit_code == 1


def test_what_to_keep_is_handed_to_the_summary(home: Home):
    assert asked("context", "compact", "--keep", "the depth over the bar")["compaction"]["covers"]["last"] > 6
    shown = asked("conversation", "show")
    assert shown["entries"][-1]["body"]["instructions"] == "the depth over the bar"


def test_a_preview_says_what_compacting_then_does(home: Home):
    planned = asked("context", "compact", "--preview")["plan"]
    assert asked("context", "compact")["compaction"]["covers"] == planned["covers"]


def test_a_conversation_with_nothing_to_compact_says_so(home: Home):
    assert asked("context", "compact", GREETING)["compaction"] is None
    assert "There is nothing to compact." in run("context", "compact", GREETING).stdout


def test_a_summary_is_edited_by_text_by_pipe_and_in_an_editor(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked("context", "edit", "--text", "By text [#2]")
    assert asked("context", "summary")["compaction"]["summary"] == "By text [#2]"
    asked("context", "edit", "--text", "-", input="By pipe\n")
    assert asked("context", "summary")["compaction"]["summary"] == "By pipe"
    monkeypatch.setenv("EDITOR", editor(tmp_path, 'sed -i s/pipe/hand/ "$1"'))
    asked("context", "edit")
    assert asked("context", "summary")["compaction"]["summary"] == "By hand"
    asked("context", "undo")
    assert asked("context", "summary")["compaction"]["summary"] == "By pipe"


def test_an_edit_that_fails_or_changes_nothing_leaves_the_log_alone(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before = entries()
    monkeypatch.setenv("EDITOR", editor(tmp_path, "exit 7"))
    failed = run("context", "edit")
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert "ended with 7" in failed.stderr
    monkeypatch.setenv("EDITOR", str(tmp_path / "missing"))
    assert run("context", "edit").exit_code == 1
    monkeypatch.setenv("EDITOR", "true")
    assert asked("context", "edit")["compaction"] is None
    assert run("context", "edit", "--text", "  ").exit_code == 1
    assert entries() == before


def test_without_a_summary_there_is_none_to_edit(home: Home):
    failed = run("context", "edit", GREETING, "--text", "x")
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert "There is no summary to edit" in failed.stderr


def editor(folder: Path, does: str) -> str:
    script = folder / "editor.sh"
    script.write_text(f"#!/bin/sh\n{does}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def test_an_export_comes_back_the_same(home: Home):
    lines = run("context", "export").stdout
    assert asked("context", "import", "-", "--as", "again", input=lines)["conversation"] == "again"
    again = run("context", "export", "again").stdout
    assert again.splitlines()[1:] == lines.splitlines()[1:]
    assert [json.loads(line) for line in again.splitlines()] == asked("context", "export", "again")["lines"]


def test_an_export_overwrites_nothing_unless_told_to(home: Home):
    kept = home.project / "kept.jsonl"
    kept.write_text("mine")
    assert run("context", "export", "--output", str(kept)).exit_code == 1
    assert kept.read_text() == "mine"
    assert asked("context", "export", "--output", str(kept), "--force")["lines"] == len(kept.read_text().splitlines())
    assert run("context", "export", "--output", str(home.project / "no/such/folder")).exit_code == 1
    assert not list(home.project.glob("*.part"))


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"", 1), (b"{}\n", 1), (b"\xff\xfe\n", 1), (None, 3)],
    ids=["empty", "no export", "no text", "no file"],
)
def test_what_is_no_export_is_not_imported(home: Home, content: bytes | None, code: int):
    file = home.project / "broken.jsonl"
    if content is not None:
        file.write_bytes(content)
    failed = run("context", "import", str(file), "--json")
    assert (failed.exit_code, failed.stdout) == (code, "")
    assert len(asked("conversation", "list")["conversations"]) == 2


def test_a_request_whose_text_was_purged_does_not_come_out_again(home: Home):
    assert asked("context", "replay", "--reply", "7")["matches"]
    asked("conversation", "purge", TIDES, "--message", "3", "--yes")
    replayed = run("context", "replay", "--reply", "7", "--json")
    assert replayed.exit_code == 1
    assert json.loads(replayed.stdout)["matches"] is False
    assert json.loads(replayed.stdout)["missing"] == ["#3"]
    assert "DIFFERS" in run("context", "replay", "--reply", "7").stdout


def test_the_request_itself_can_be_read(home: Home):
    request = json.loads(run("context", "replay", "--request").stdout)
    assert request["messages"][-1]["content"] == "So what is the plan?"


def test_two_requests_are_compared_by_their_replies(home: Home):
    compared = asked("context", "diff", "--from", "3", "--to", "5")
    assert (compared["from"], compared["to"]) == (3, 5)
    assert [change["span"] for change in compared["changes"]] == [
        {"first": 2, "last": 2},
        {"first": 3, "last": 3},
        {"first": 4, "last": 4},
    ]
    assert asked("context", "diff", "--from", "5", "--to", "5")["changes"] == []
    assert "Nothing changed." in run("context", "diff", "--from", "5", "--to", "5").stdout


def test_requests_that_are_not_on_record_are_not_found(home: Home):
    for words in (["replay", GREETING], ["diff", GREETING], ["replay", "--reply", "2"], ["show", "--reply", "99"]):
        assert run("context", *words).exit_code == 3, words


@pytest.mark.parametrize(
    ("item", "reason"), [("2", "archived"), ("#4", "pinned"), ("harbour", "manual"), ("AGENTS.md", "memory")]
)
def test_why_tells_messages_by_number_and_items_by_name(home: Home, item: str, reason: str):
    assert asked("context", "why", item)["decision"]["reason"] == reason


def test_why_can_ask_about_an_earlier_request(home: Home):
    assert asked("context", "why", "2", "--reply", "7")["decision"]["reason"] == "recent"
    assert run("context", "why", "99").exit_code == 3
    assert run("context", "why", "nobody").exit_code == 3


def test_items_and_pins_are_changed_by_name_and_number(home: Home):
    changed = asked("context", "items", "--remove", "harbour", "--unpin", "4", "--pin", "2")
    assert [item["name"] for item in changed["items"]] == ["plain"]
    assert changed["pins"] == [2]
    assert [item["name"] for item in asked("context", "items", "--add", "harbour")["items"]] == ["plain", "harbour"]
    assert run("context", "items", "--add", "nothing of the kind").exit_code == 1


async def append(home: Home, *items: Draft | Body) -> None:
    async with SqlStore.open(home.url) as store:
        await store.append(TIDES, *items)


def test_numbers_add_up_what_the_provider_reported(home: Home):
    reply = Message.assistant("Aye.")
    used = [Usage(input_tokens=100, output_tokens=7, cache_read_tokens=60), Usage(input_tokens=50, output_tokens=3)]
    asyncio.run(append(home, *(Draft(body=reply, usage=each) for each in used)))
    shown = asked("context", "stats")
    assert shown["replies"] == 2
    assert {name: shown["tokens"][name] for name in ("input", "output", "cache_read")} == {
        "input": 150,
        "output": 10,
        "cache_read": 60,
    }


def test_a_transcript_shows_calls_results_thoughts_and_what_was_changed(home: Home):
    call = ToolCallPart(id="c", name="tide", arguments='{"day": 18}')
    parts = (ThinkingPart(text="Let me look."), TextPart(text="Looking."), call)
    asyncio.run(
        append(
            home,
            Message(role="assistant", parts=parts),
            Message.tool("c", "no such day", is_error=True),
            Message(role="user", parts=(ImagePart(url="https://example.org/a.png"),), name="Ada"),
            Unpin(message=4),
            ContextChange(action="remove", item=ContextItem(type="reference", name="harbour")),
            Restore(compaction=8),
        )
    )
    shown = run("conversation", "show").stdout
    for line in (
        "(thinking) Let me look.",
        '→ tide({"day": 18})',
        "✗ no such day",
        "user Ada",
        "[image https://example.org/a.png]",
        "Unpinned #4",
        "Removed reference harbour",
        "Took the compaction in #8 back",
    ):
        assert line in shown
    assert "(archived" not in shown


def test_a_branch_has_numbers_of_its_own(home: Home):
    shown = asked("context", "stats", "--branch", "1")
    assert (shown["branch"], shown["archived_up_to"], shown["messages"]) == (1, None, {"assistant": 2, "user": 2})
    assert asked("context", "stats", GREETING)["messages"] == {"user": 1}


def test_memory_is_read_from_the_project_and_the_agent(home: Home):
    shown = asked("context", "memory")["memory"]
    assert [(row["name"], row["included"]) for row in shown] == [("AGENTS.md", True), ("memories", True)]
    assert "Gannet" in shown[0]["text"]
    assert asked("context", "memory", "--set", "memory_integration=false")["memory"] == []


def test_the_agents_own_model_decides_how_large_the_window_is(home: Home):
    home.settings.write_text(home.settings.read_text().replace("context_limit = 1600\n", ""))
    home.agent.write_text(f'model = "gpt-3.5-turbo"\n{home.agent.read_text()}')
    assert asked("context", "show")["model"] == "gpt-3.5-turbo"
    assert asked("context", "show", "--set", "model=gpt-4o")["model"] == "gpt-4o"
    assert asked("context", "show", "--set", "recent_messages_to_keep=4")["model"] == "gpt-3.5-turbo"
