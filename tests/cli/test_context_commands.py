"""`quire context`: changes can be undone, and read commands change nothing."""

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from cli_fixtures import GREETING_ID, TIDES_ID, CliHome, invoke_cli, run_json

from quire.cli.context_changes import format_waiting_edits
from quire.log import ConversationOrigin
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
from quire.proxy.edit_effects import RestoredCounts
from quire.schemas.context import EditEffectSchema
from quire.store import SqlStore


def test_without_an_id_the_most_recently_used_conversation_is_selected(home: CliHome):
    assert run_json("context", "show")["conversation"] == TIDES_ID

    async def greet() -> None:
        async with SqlStore.open(home.url) as store:
            await store.append(GREETING_ID, Message.user("Still there?"))

    asyncio.run(greet())
    assert run_json("context", "show")["conversation"] == GREETING_ID
    listed = run_json("conversation", "list")["conversations"]
    assert [each["id"] for each in listed] == [GREETING_ID, TIDES_ID]
    assert [each["updated_at"] > each["created_at"] for each in listed] == [True, True]


def count_entries() -> int:
    return sum(run_json("context", "show", "--usage", TIDES_ID)["entries"].values())


def load_manifest(*words: str) -> Any:
    return run_json("context", "show", *words)["manifest"]


def load_window() -> Any:
    manifest = load_manifest()
    return manifest["total_tokens"], manifest["decisions"]


def load_summary() -> str:
    return run_json("context", "show", "--summary")["active"]["compaction"]["summary"]


def list_decisions(manifest: Any, *, included: bool) -> list[Any]:
    return [row for row in manifest["decisions"] if row["included"] is included]


def test_an_id_selects_another_conversation(home: CliHome):
    assert run_json("context", "show")["conversation"] == TIDES_ID
    assert run_json("context", "show", GREETING_ID)["conversation"] == GREETING_ID


def test_the_slots_add_up_to_the_total_and_every_candidate_has_a_reason(home: CliHome):
    manifest = load_manifest()
    included = sum(row["tokens"] for row in list_decisions(manifest, included=True))
    assert sum(slot["used"] for slot in manifest["slots"]) == manifest["total_tokens"]
    assert manifest["total_tokens"] - included == 3  # The tokens that prime the reply belong to no candidate.
    assert all(row["reason"] == "archived" for row in list_decisions(manifest, included=False))


def test_the_window_of_an_earlier_request_is_drawn_from_its_record(home: CliHome):
    past = run_json("context", "show", "--reply", "7")
    assert past["reply"] == 7
    [excluded] = list_decisions(past["manifest"], included=False)
    assert (excluded["name"], excluded["reason"]) == ("harbour", "not_added")
    assert [row["reason"] for row in past["manifest"]["decisions"] if row["slot"] == "newest"] == ["newest"]
    drawn = invoke_cli("context", "show", "--reply", "7").stdout
    assert "the request that #7 answered" in drawn
    assert "not added" in drawn
    assert "archived" not in drawn
    words = " ".join(drawn.split())
    assert "below the compaction threshold" in words
    assert "next request" not in words
    assert "until it compacts" not in words


def test_looking_changes_nothing(home: CliHome):
    before = count_entries()
    for words in ("show", "show --summary", "items", "diff", "show --request", "why 2", "compact --preview"):
        assert invoke_cli("context", *words.split()).exit_code == 0
    for words in ("export", "context show --usage Tides"):
        assert invoke_cli(*words.split()).exit_code == 0
    assert count_entries() == before


def test_clearing_archives_everything_but_pins_and_undo_brings_it_back(home: CliHome):
    before = load_window()
    cleared = run_json("context", "compact", "--clear")["entry"]["body"]
    assert (cleared["covers"], cleared["summary"]) == ({"first": 1, "last": 12}, None)
    messages = [row for row in list_decisions(load_manifest(), included=True) if row["slot"] == "messages"]
    assert [row["reason"] for row in messages] == ["pinned"]
    assert run_json("context", "undo")["active"]["compaction"]["number"] == 1
    assert load_window() == before


def test_an_empty_conversation_has_nothing_to_clear(home: CliHome):
    run_json("context", "compact", "--clear", GREETING_ID)
    assert run_json("context", "compact", "--clear", GREETING_ID)["entry"] is not None
    run_json("context", "undo", GREETING_ID)
    run_json("context", "undo", GREETING_ID)
    assert invoke_cli("context", "undo", GREETING_ID).exit_code == 1


def test_what_to_keep_is_handed_to_the_summary(home: CliHome):
    assert run_json("context", "compact", "--keep", "the depth over the bar")["entry"]["body"]["covers"]["last"] > 6
    output = run_json("context", "show", "--messages")
    assert output["entries"][-1]["body"]["instructions"] == "the depth over the bar"


def test_a_preview_says_what_compacting_then_does(home: CliHome):
    planned = run_json("context", "compact", "--preview")["plan"]
    assert run_json("context", "compact")["entry"]["body"]["covers"] == planned["covers"]


def test_a_conversation_with_nothing_to_compact_says_so(home: CliHome):
    assert run_json("context", "compact", GREETING_ID)["entry"] is None
    for words in (["--preview"], []):
        said = invoke_cli("context", "compact", *words, GREETING_ID).stdout
        assert said == "Nothing is compacted: that would free no tokens.\n"


def test_a_summary_is_edited_by_text_by_pipe_and_in_an_editor(
    home: CliHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run_json("context", "edit", "--text", "By text [#2]")
    assert load_summary() == "By text [#2]"
    run_json("context", "edit", "--text", "-", input="By pipe\n")
    assert load_summary() == "By pipe"
    monkeypatch.setenv("EDITOR", write_editor(tmp_path, 'sed -i s/pipe/hand/ "$1"'))
    run_json("context", "edit")
    assert load_summary() == "By hand"
    run_json("context", "undo")
    assert load_summary() == "By pipe"


def test_an_edit_that_fails_or_changes_nothing_leaves_the_log_alone(
    home: CliHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before = count_entries()
    monkeypatch.setenv("EDITOR", write_editor(tmp_path, "exit 7"))
    failed = invoke_cli("context", "edit")
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert "exited with 7" in failed.stderr
    monkeypatch.setenv("EDITOR", str(tmp_path / "missing"))
    assert invoke_cli("context", "edit").exit_code == 1
    monkeypatch.setenv("EDITOR", "true")
    assert run_json("context", "edit")["entry"] is None
    assert invoke_cli("context", "edit", "--text", "  ").exit_code == 1
    assert count_entries() == before


def test_without_a_summary_there_is_none_to_edit(home: CliHome):
    failed = invoke_cli("context", "edit", GREETING_ID, "--text", "x")
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert "There is no summary to edit" in failed.stderr


def write_editor(folder: Path, does: str) -> str:
    script = folder / "editor.sh"
    script.write_text(f"#!/bin/sh\n{does}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def test_an_export_comes_back_the_same(home: CliHome):
    lines = invoke_cli("export").stdout
    assert run_json("import", "-", "--as", "again", input=lines)["conversation"] == "again"
    again = invoke_cli("export", "again").stdout
    renamed = lines.replace(f'"conversation":"{TIDES_ID}"', '"conversation":"again"')
    assert again.splitlines()[1:] == renamed.splitlines()[1:]
    assert [json.loads(line) for line in again.splitlines()] == run_json("export", "again")["lines"]


def test_an_export_overwrites_no_file(home: CliHome):
    existing = home.project / "existing.jsonl"
    existing.write_text("mine")
    assert invoke_cli("export", "--output", str(existing)).exit_code == 1
    assert existing.read_text() == "mine"
    existing.unlink()
    assert run_json("export", "--output", str(existing))["lines"] == len(existing.read_text().splitlines())
    assert invoke_cli("export", "--output", str(home.project / "no/such/folder")).exit_code == 1
    assert not list(home.project.glob("*.part"))


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"", 1), (b"{}\n", 1), (b"\xff\xfe\n", 1), (None, 3)],
    ids=["empty", "no export", "no text", "no file"],
)
def test_what_is_no_export_is_not_imported(home: CliHome, content: bytes | None, code: int):
    file = home.project / "broken.jsonl"
    if content is not None:
        file.write_bytes(content)
    failed = invoke_cli("import", str(file), "--json")
    assert (failed.exit_code, failed.stdout) == (code, "")
    assert len(run_json("conversation", "list")["conversations"]) == 2


def test_a_request_whose_text_was_purged_does_not_come_out_again(home: CliHome):
    assert run_json("context", "show", "--request", "--reply", "7")["matches"]
    run_json("conversation", "purge", TIDES_ID, "--message", "3", "--yes")
    replayed = invoke_cli("context", "show", "--request", "--reply", "7", "--json")
    assert replayed.exit_code == 1
    assert json.loads(replayed.stdout)["matches"] is False
    assert json.loads(replayed.stdout)["missing"] == ["#3"]
    assert json.loads(replayed.stdout)["mismatch"] == "content was purged"
    shown = invoke_cli("context", "show", "--request", "--reply", "7").stderr
    assert "DIFFERS" in shown
    assert "content was purged" in shown


def test_the_request_itself_can_be_read(home: CliHome):
    request = json.loads(invoke_cli("context", "show", "--request").stdout)
    assert request["messages"][-1]["content"] == "So what is the plan?"


def test_two_requests_are_compared_by_their_replies(home: CliHome):
    compared = run_json("context", "diff", "--from", "3", "--to", "5")
    assert (compared["reply"], compared["other"]) == (3, 5)
    assert [change["span"] for change in compared["changes"]] == [
        {"first": 2, "last": 2},
        {"first": 3, "last": 3},
        {"first": 4, "last": 4},
    ]
    assert run_json("context", "diff", "--from", "5", "--to", "5")["changes"] == []
    assert "Nothing changed." in invoke_cli("context", "diff", "--from", "5", "--to", "5").stdout


def test_requests_that_are_not_on_record_are_not_found(home: CliHome):
    for words in (
        ["show", "--request", GREETING_ID],
        ["diff", GREETING_ID],
        ["show", "--request", "--reply", "2"],
        ["show", "--reply", "99"],
    ):
        assert invoke_cli("context", *words).exit_code == 3, words


@pytest.mark.parametrize(
    ("item", "reason"), [("2", "archived"), ("#4", "pinned"), ("harbour", "manual"), ("AGENTS.md", "memory")]
)
def test_why_finds_messages_by_number_and_items_by_name(home: CliHome, item: str, reason: str):
    assert run_json("context", "why", item)["decision"]["reason"] == reason


def test_why_names_the_compaction_and_the_messages_around(home: CliHome):
    decisions = run_json("context", "show")["manifest"]["decisions"]
    compaction = next(each["span"]["first"] for each in decisions if each["kind"] == "summary")
    archived = invoke_cli("context", "why", "2").stdout
    assert f"archived: the summary of compaction #{compaction} replaces it" in " ".join(archived.split())
    run = run_json("context", "why", "2")["decision"]["span"]
    assert run["first"] < run["last"]
    assert f"#2, in #{run['first']} to #{run['last']}" in archived


def test_why_can_ask_about_an_earlier_request(home: CliHome):
    assert run_json("context", "why", "2", "--reply", "7")["decision"]["reason"] == "recent"
    assert invoke_cli("context", "why", "99").exit_code == 3
    assert invoke_cli("context", "why", "nobody").exit_code == 3


def test_items_and_pins_are_changed_by_name_and_number(home: CliHome):
    changed = run_json("context", "items", "--remove", "harbour")
    assert [item["name"] for item in changed["items"]] == ["plain"]
    assert changed["pins"] == [4]
    assert run_json("context", "pin", "2")["pins"] == [2, 4]
    assert run_json("context", "pin", "4", "--off")["pins"] == [2]
    assert run_json("context", "items")["pins"] == [2]
    assert invoke_cli("context", "pin", "4", "--off").exit_code == 1
    assert invoke_cli("context", "pin", "99").exit_code == 1
    assert [item["name"] for item in run_json("context", "items", "--add", "harbour")["items"]] == ["plain", "harbour"]
    assert invoke_cli("context", "items", "--add", "nothing of the kind").exit_code == 1


def test_a_priority_is_set_and_reset(home: CliHome):
    assert run_json("context", "pin", "7", "--priority", "9")["priorities"] == [{"message": 7, "priority": 9}]
    assert "Set priority 9 on #7" in invoke_cli("context", "show", "--messages").stdout
    assert run_json("context", "pin", "7", "--priority", "0")["priorities"] == []
    assert invoke_cli("context", "pin", "7", "--priority", "11").exit_code == 2
    assert invoke_cli("context", "pin", "99", "--priority", "9").exit_code == 3
    archived = invoke_cli("context", "pin", "2", "--priority", "9")
    assert archived.exit_code == 1
    assert "#2 is archived" in archived.stderr


async def append_entries(home: CliHome, *items: Draft | Body) -> None:
    async with SqlStore.open(home.url) as store:
        await store.append(TIDES_ID, *items)


def test_numbers_add_up_what_the_provider_reported(home: CliHome):
    reply = Message.assistant("Aye.")
    used = [Usage(input_tokens=100, output_tokens=7, cache_read_tokens=60), Usage(input_tokens=50, output_tokens=3)]
    asyncio.run(append_entries(home, *(Draft(body=reply, usage=each) for each in used)))
    output = run_json("context", "show", "--usage", TIDES_ID)
    assert output["replies"] == 2
    assert {name: output["tokens"][name] for name in ("input", "output", "cache_read")} == {
        "input": 150,
        "output": 10,
        "cache_read": 60,
    }


def test_a_transcript_shows_calls_results_thoughts_and_what_was_changed(home: CliHome):
    call = ToolCallPart(id="c", name="tide", arguments='{"day": 18}')
    parts = (ThinkingPart(text="Let me look."), TextPart(text="Looking."), call)
    asyncio.run(
        append_entries(
            home,
            Message(role="assistant", parts=parts),
            Message.tool("c", "no such day", is_error=True),
            Message(role="user", parts=(ImagePart(url="https://example.org/a.png"),), name="Ada"),
            Unpin(message=4),
            ContextChange(action="remove", item=ContextItem(type="reference", name="harbour")),
            Restore(compaction=8),
        )
    )
    full = invoke_cli("context", "show", "--messages", "--full").stdout
    assert '→ tide({"day": 18})\n' in full
    assert "✗ no such day\n" in full
    output = invoke_cli("context", "show", "--messages").stdout
    for line in (
        "(thinking) Let me look.\nLooking.\n",
        "✗ tide(day=18) no such day",
        "user Ada",
        "[image https://example.org/a.png]",
        "Unpinned #4",
        "Removed reference harbour",
        "Undid the compaction in #8",
    ):
        assert line in output
    assert "(archived" not in output


def test_a_branch_has_numbers_of_its_own(home: CliHome):
    output = run_json("context", "show", "--usage", "Tides", "--branch", "1")
    assert (output["branch"], output["archived_up_to"], output["messages"]) == (1, None, {"assistant": 2, "user": 2})
    assert run_json("context", "show", "--usage", GREETING_ID)["messages"] == {"user": 1}


def test_the_agents_own_model_decides_how_large_the_window_is(home: CliHome):
    home.settings.write_text(home.settings.read_text().replace("context_limit = 1600\n", ""))
    home.agent.write_text(f'model = "gpt-3.5-turbo"\n{home.agent.read_text()}')
    assert load_manifest()["policy"]["model"] == "gpt-3.5-turbo"
    assert load_manifest("--set", "model=gpt-4o")["policy"]["model"] == "gpt-4o"
    assert load_manifest("--set", "recent_messages_to_keep=4")["policy"]["model"] == "gpt-3.5-turbo"


def test_a_conversation_is_named_by_id_title_or_the_beginning_of_its_id(home: CliHome):
    for name in (TIDES_ID, "Tides", "tides", TIDES_ID[:8]):
        assert run_json("context", "show", "--summary", name)["conversation"] == TIDES_ID
        assert run_json("search", "tide", name)["messages"][0]["conversation"]["id"] == TIDES_ID
    assert run_json("conversation", "purge", "Tides", "--message", "3", "--yes")["conversation"] == TIDES_ID
    ambiguous = invoke_cli("context", "show", "--summary", TIDES_ID[:6])
    assert (ambiguous.exit_code, ambiguous.stdout) == (1, "")
    assert f"names 2 conversations: {TIDES_ID}, {GREETING_ID}" in ambiguous.stderr
    assert invoke_cli("context", "show", "--summary", "Tide").exit_code == 3
    assert invoke_cli("context", "show", "--summary", "").exit_code == 3


def test_a_conversation_is_named_by_the_session_of_an_agent(home: CliHome):
    async def record() -> None:
        async with SqlStore.open(home.url) as store:
            for purpose in (None, "title"):
                origin = ConversationOrigin(client="claude-code", session="b7c1", purpose=purpose)
                await store.create_conversation(purpose or "main", origin=origin)

    asyncio.run(record())
    assert run_json("context", "show", "--summary", "b7c1")["conversation"] == "main"


@pytest.mark.parametrize(
    ("moment", "rewritten", "expected"),
    [
        (
            "cold_cache",
            40_100,
            "It takes effect at your next message after the prompt cache has expired (in 214 s). With --now: 40,100 "
            "tokens written to the prompt cache again, $0.2500 for the input instead of $0.0200.",
        ),
        ("next_turn", 0, "It takes effect with your next message."),
        ("next_request", 0, "It takes effect with the next request."),
    ],
)
def test_an_edit_says_what_it_does_and_when(moment: Any, rewritten: int, expected: str):
    waiting = EditEffectSchema(
        drops=[3], restores=[], quotes=[], compaction=None, moment=moment, cold_in_seconds=214, removed_tokens=4_010,
        added_tokens=0, prompt_tokens=40_500, rewritten_tokens=rewritten, cost_usd=0.25, unedited_cost_usd=0.02,
        restored=None, thinking_blocks=0,
    )  # fmt: skip
    change = "Next request: −4,010 tokens, about 40,500 in all before your message."
    assert list(format_waiting_edits(waiting)) == [change, expected]
    partial = RestoredCounts(messages=12, all_messages=30, results=2, all_results=8)
    planned, thinking, *_ = format_waiting_edits(
        waiting.model_copy(update={"restored": partial, "thinking_blocks": 25})
    )
    assert planned.startswith(
        "Planned: 12 of 30 messages and 2 of 8 tool results come back; the summary stays for the rest."
    )
    assert thinking.startswith("25 blocks of signed reasoning go too")


def test_an_edit_names_what_it_changed_and_asks_where_two_agents_run(home: CliHome):
    async def record(*names: str) -> None:
        async with SqlStore.open(home.url) as store:
            for name in names:
                origin = ConversationOrigin(client="claude-code", session=name)
                await store.create_conversation(name, title=f"About {name}", origin=origin)
                await store.append(name, Message.user("Which port?"), Message.assistant("8300."))

    asyncio.run(record("tides"))
    assert "In “About tides” (claude-code, tides):" in invoke_cli("context", "drop", "2").output
    asyncio.run(record("mills"))
    refused = invoke_cli("context", "drop", "2")
    assert refused.exit_code == 1
    assert "2 agents were running in the last 15 minutes. Name the conversation to change:" in refused.output
    assert "“About mills” (claude-code, mills)" in refused.output
    assert "“About tides” (claude-code, tides)" in refused.output
    assert "In “About mills” (claude-code, mills):" in invoke_cli("context", "drop", "2", "mills").output


def test_an_edit_of_an_imported_copy_names_the_conversation_that_the_agent_goes_on_in(home: CliHome):
    async def record() -> None:
        async with SqlStore.open(home.url) as store:
            for name in ("claude-code-copy", "live"):
                origin = ConversationOrigin(client="claude-code", session="s1")
                await store.create_conversation(name, title="Tides", origin=origin)
                await store.append(name, Message.user("Which port?"), Message.assistant("8300."))

    asyncio.run(record())
    for words in (("drop", "2"), ("undo",), ("restore", "1")):
        refused = invoke_cli("context", *words, "claude-code-copy")
        assert refused.exit_code == 1
        assert (
            "claude-code-copy was imported, and nothing was changed. The agent's requests are in live" in refused.output
        )
        assert "`quire import claude-code --dry-run`" in refused.output
    assert "In “Tides” (claude-code, live):" in invoke_cli("context", "drop", "2", "live").output
    assert "In “Tides” (claude-code, live):" in invoke_cli("context", "pin", "2", "s1").output
