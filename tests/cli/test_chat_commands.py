"""Lines that a session takes: commands and messages, on real databases, with a model that follows a script."""

import asyncio
import json
from pathlib import Path

import pytest
from chatting import session_on, shown, until

from quire.agent.approvals import Allow, Approvals
from quire.agent.functions import tool
from quire.agent.runners import FunctionRunner
from quire.cli.chat.commands import COMMANDS, arguments, parsed
from quire.cli.chat.session import Session
from quire.cli.chat.talk import Wanted, find_conversation
from quire.context.vault import Vault
from quire.errors import InvalidRequest, ModelInvalid, ModelUnavailable
from quire.log import SqlStore
from quire.model import Compaction, Message, Restore, ToolCallPart
from quire.model.agents import Agent, Rule
from quire.settings import Settings
from quire.testing.scripted import ScriptedModel, Slow

LONG = "The mill at the ford has three stones and a wheel of oak. " * 20
MEDIUM = LONG[: len(LONG) // 3]


async def take(session: Session, *lines: str) -> list[str]:
    """Only what these lines led to."""
    before = len(shown(session))
    for line in lines:
        await session.take(line)
    return [line for line in shown(session)[before:].splitlines() if line.strip()]


async def test_a_message_is_answered_and_its_meter_follows(store: SqlStore):
    session = await session_on(store, "Hello **you**.")
    said = await take(session, "Hi")
    assert said[0] == "Hello you."
    assert said[1].startswith("#2 · ")
    assert "tokens · window 4,000" in said[1]
    assert [entry.message.text for entry in await session.talk.conversation.messages()] == ["Hi", "Hello **you**."]


async def test_the_number_on_the_meter_is_the_one_that_the_library_reports(store: SqlStore):
    session = await session_on(store, "Hello.")
    said = await take(session, "Hi")
    report = await session.talk.conversation.usage()
    assert f"{report.total:,} of {report.trigger:,} tokens" in said[1]


async def test_an_automatic_compaction_leaves_a_marker_with_true_numbers(store: SqlStore):
    session = await session_on(store, *[MEDIUM] * 8, "Short.", context_limit=1_300)
    said = await take(session, *["Go on"] * 8, "Last")
    marks = [line for line in said if "archived" in line]
    [entry] = await store.range(session.talk.conversation.id, kinds=["compaction"])
    body = entry.body
    assert isinstance(body, Compaction)
    assert body.covers is not None
    covered = await store.range(session.talk.conversation.id, last=body.covers.last, kinds=["message"])
    freed = body.tokens_before - body.tokens_after
    assert [mark.strip() for mark in marks] == [
        f"{len(covered)} messages archived, {freed:,} tokens freed; /undo brings them back"
    ]
    assert said.index(marks[0]) > 3


async def test_compacting_twice_counts_only_what_is_new(store: SqlStore):
    session = await session_on(store, LONG, LONG, LONG, LONG, LONG, LONG)
    first = await take(session, "One", "Two", "Three", "/compact")
    second = await take(session, "Four", "Five", "Six", "/compact")
    counts = [int(line.split()[0]) for line in (*first, *second) if "archived" in line]
    [last] = await store.range(session.talk.conversation.id, kinds=["compaction"], first=8)
    assert isinstance(last.body, Compaction)
    assert last.body.covers is not None
    covered = await store.range(session.talk.conversation.id, last=last.body.covers.last, kinds=["message"])
    assert len(counts) == 2
    assert sum(counts) == len(covered)


async def test_undo_takes_a_compaction_back(store: SqlStore):
    session = await session_on(store, LONG, LONG, LONG)
    await take(session, "One", "Two", "Three")
    before = await session.talk.conversation.usage()
    said = await take(session, "/compact keep the stones", "/undo")
    assert "Compaction #1 is taken back" in said[-1]
    assert (await session.talk.conversation.usage()).total == before.total
    compaction, restore = (await store.range(session.talk.conversation.id, kinds=["compaction", "restore"]))[-2:]
    assert isinstance(compaction.body, Compaction)
    assert compaction.body.instructions == "keep the stones"
    assert isinstance(restore.body, Restore)


async def test_undo_warns_where_the_next_message_would_compact_again(store: SqlStore):
    session = await session_on(store, LONG, LONG, LONG, "Short.", context_limit=1_300)
    said = await take(session, "One", "Two", "Three", "Four", "/undo")
    assert "the next message compacts again" in " ".join(said)


async def test_without_a_compaction_there_is_nothing_to_undo(store: SqlStore):
    session = await session_on(store)
    assert await take(session, "/undo") == ["There is no compaction to undo."]
    assert await take(session, "/compact") == ["There is nothing to compact."]


async def test_context_draws_the_window_that_the_meter_shows(store: SqlStore):
    session = await session_on(store, "Hello.")
    await take(session, "Hi")
    said = await take(session, "/context")
    report = await session.talk.conversation.usage()
    assert said[0].startswith(f"{report.total:,} of 4,000 tokens")
    assert any(line.split()[:2] == ["H", "messages"] for line in said)


async def test_items_are_added_and_removed_by_name(store: SqlStore):
    agent = Agent(name="a", rules=(Rule(name="Tone", text="Be kind."), Rule(name="Always", text="x", include="always")))
    session = await session_on(store, agent=agent)
    assert await take(session, "/add Tone") == ["Added the rule Tone; it is in every request from now on."]
    assert {each.item.name for each in await session.talk.conversation.items()} == {"Tone", "Always"}
    assert await take(session, "/remove Always") == ["Removed the rule Always."]
    assert "'Nothing' is not there" in (await take(session, "/add Nothing"))[0]
    assert await take(session, "/add") == ["Something is missing: /add NAME."]
    given = await arguments(session)
    assert [named.name for named in given["add"]] == ["Always"]
    assert [named.name for named in given["remove"]] == ["Tone"]


async def test_a_message_is_pinned_and_let_go(store: SqlStore):
    session = await session_on(store, "Hello.")
    await take(session, "Hi")
    await take(session, "/pin #2")
    assert (await store.branch(session.talk.conversation.id)).state.pins == (2,)
    assert await take(session, "/unpin 2", "/unpin 2") == ["#2 is not pinned any more.", "#2 is not pinned."]
    assert "is no number: /pin N" in (await take(session, "/pin two"))[0]
    assert "does not stand before it" in (await take(session, "/pin 99"))[0]


async def test_a_branch_goes_another_way_and_one_can_go_back(store: SqlStore):
    session = await session_on(store, "A", "B", "C")
    await take(session, "One", "Two")
    assert await take(session, "/branch 2") == ["Branch 1, from #2 on; /switch 0 goes back to where you were."]
    await take(session, "Another two")
    texts = [entry.message.text for entry in await session.talk.conversation.messages()]
    assert texts == ["One", "A", "Another two", "C"]
    listed = await take(session, "/switch")
    assert ["Two" in listed[0], "▸" in listed[1], "Another two" in listed[1]] == [True, True, True]
    await take(session, "/switch 0")
    assert [entry.message.text for entry in await session.talk.conversation.messages()][-1] == "B"
    assert "has no branch 7" in (await take(session, "/switch 7"))[0]


async def test_a_branch_without_a_number_begins_here(store: SqlStore):
    session = await session_on(store, "A")
    await take(session, "One")
    assert (await take(session, "/branch"))[0].startswith("Branch 1, from #2 on")


async def test_another_reply_is_asked_for_and_the_first_stays_on_its_branch(store: SqlStore):
    session = await session_on(store, "First", "Second")
    await take(session, "One")
    said = await take(session, "/retry")
    assert said[:2] == ["Branch 1, from #1 on; /switch 0 has the reply before.", "Second"]
    assert [entry.message.text for entry in await store.range(session.talk.conversation.id)] == ["One", "First"]
    assert [entry.message.text for entry in await session.talk.conversation.messages()] == ["One", "Second"]


async def test_after_a_failure_the_question_is_kept_and_asked_again_on_the_same_branch(store: SqlStore):
    session = await session_on(store, ModelUnavailable("It is down."), "There.")
    assert "It is down." in await take(session, "One")
    assert (await take(session, "/retry"))[0] == "There."
    assert session.talk.conversation.branch == 0
    assert [entry.message.text for entry in await session.talk.conversation.messages()] == ["One", "There."]
    fresh = await session_on(store)
    assert await take(fresh, "/retry") == ["Nothing was asked yet."]


async def test_another_model_answers_from_then_on(store: SqlStore):
    session = await session_on(store, "A")
    assert (await take(session, "/model"))[0].startswith("gpt-4o answers")
    said = await take(session, "/model gpt-4.1")
    assert said[0] == "gpt-4.1 answers from now on; its window is taken to be 4,000 tokens."
    assert session.talk.engine.policy.model == "gpt-4.1"


async def test_a_model_that_cannot_be_asked_changes_nothing(store: SqlStore):
    session = await session_on(store)

    def refuse(settings: Settings) -> ScriptedModel:
        if settings.model == "gpt-4o":
            return ScriptedModel("A")
        raise ModelInvalid("Unknown model.")

    session.talk._make_model = refuse  # pyright: ignore[reportPrivateUsage]
    assert "nonsense cannot be asked: Unknown model." in (await take(session, "/model nonsense"))[0]
    assert session.talk.engine.settings.model == "gpt-4o"
    assert (await take(session, "Hi"))[0] == "A"


async def test_without_a_model_everything_but_sending_works(store: SqlStore):
    session = await session_on(store)
    session.talk._make_model = _keyless  # pyright: ignore[reportPrivateUsage]
    said = " ".join(await take(session, "Hi"))
    assert "gpt-4o cannot be asked: OPENAI_API_KEY is not set." in said
    assert "`quire init` looks for keys and local servers" in said
    for line in ("/context", "/help", "/branch", "/switch", "/model"):
        assert not any("cannot" in each for each in await take(session, line))


def _keyless(settings: Settings) -> ScriptedModel:
    raise ModelInvalid("Set the `OPENAI_API_KEY` environment variable. And so on.")


async def test_a_conversation_is_exported_whole_and_to_read(store: SqlStore, tmp_path: Path):
    session = await session_on(store, "Hello.")
    await take(session, "Hi")
    await take(session, f"/export {tmp_path / 'a.jsonl'}", f"/export {tmp_path / 'a.md'}")
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["id"] == session.talk.conversation.id
    copy = await store.import_(lines, rename="copy")
    assert [entry.message.text for entry in await store.range(copy.id)] == ["Hi", "Hello."]
    assert "## #1 You\n\nHi\n\n## #2 Model\n\nHello.\n" in (tmp_path / "a.md").read_text()


async def test_an_export_overwrites_nothing(store: SqlStore, tmp_path: Path):
    session = await session_on(store)
    (tmp_path / "a.md").write_text("mine")
    assert "is there already" in " ".join(await take(session, f"/export {tmp_path / 'a.md'}"))
    assert (tmp_path / "a.md").read_text() == "mine"
    assert "cannot be written" in " ".join(await take(session, f"/export {tmp_path / 'no' / 'a.md'}"))


async def test_help_lists_every_command(store: SqlStore):
    text = " ".join(await take(await session_on(store), "/help"))
    for command in COMMANDS:
        assert f"/{command.name} {command.takes}".strip() in text
        assert command.does in " ".join(text.split())


async def test_quit_leaves(store: SqlStore):
    session = await session_on(store)
    await take(session, "/help")
    assert not session.leaving
    await take(session, "/quit")
    assert session.leaving


@pytest.mark.parametrize("line", ["hello", " /help", "/usr/bin/env is a path", "/", "// comment", "/2 cups", "a /help"])
def test_what_is_no_command_is_a_message(line: str):
    assert parsed(line) is None


@pytest.mark.parametrize(
    ("line", "given"), [("/pin 3", "3"), ("/compact a\nb ", "a\nb"), ("/help", ""), ("/help  ", "")]
)
def test_a_command_has_what_follows_it(line: str, given: str):
    call = parsed(line)
    assert call is not None
    assert call.given == given


def test_a_command_that_is_not_there_names_the_nearest():
    with pytest.raises(InvalidRequest, match="did you mean /compact"):
        parsed("/compat")


async def test_an_empty_line_does_nothing(store: SqlStore):
    assert await take(await session_on(store), "", "   ") == []


async def test_stopping_keeps_what_had_come_and_goes_on(store: SqlStore):
    session = await session_on(store, "one two three " * 2_000, "And on.")
    taking = asyncio.create_task(session.take("Count"))
    await until(lambda: session.screen._reply._open)  # pyright: ignore[reportPrivateUsage]
    session.stop()
    await taking
    assert "Stopped; what had come is kept as #2, marked as unfinished." in shown(session)
    [_, reply] = await session.talk.conversation.messages()
    assert reply.notes.unfinished
    assert 0 < len(reply.message.text) < len("one two three " * 2_000)
    assert (await take(session, "Go on"))[0] == "And on."


async def test_stopping_a_command_ends_the_command_alone(store: SqlStore):
    slow = ScriptedModel(Slow(60, "A summary."))
    session = await session_on(store, LONG, LONG, LONG, summarizer=slow)
    await take(session, "One", "Two", "Three")
    taking = asyncio.create_task(session.take("/compact"))
    await until(lambda: slow.prompts)
    session.stop()
    await asyncio.wait_for(taking, 10)
    assert "Stopped." in shown(session)
    assert await store.range(session.talk.conversation.id, kinds=["compaction"]) == []


async def test_a_compaction_in_the_background_is_told_of_aside(store: SqlStore):
    summarizer = ScriptedModel(Slow(0.5, "Task: the mill [#1]."), repeat=True)
    asides: list[str] = []
    session = await session_on(
        store, LONG, LONG, LONG, summarizer=summarizer, context_limit=1_800, context_background_threshold=0.3
    )

    async def aside(show: object) -> None:
        asides.append("aside")
        show()  # type: ignore[operator]

    session._aside = aside  # pyright: ignore[reportPrivateUsage]
    await take(session, "One", "Two")
    await session.talk.engine.settle()
    await until(lambda: asides and not session._asides)  # pyright: ignore[reportPrivateUsage]
    assert "archived" in shown(session)


async def test_tools_are_run_asked_about_and_shown(store: SqlStore):
    @tool(needs_approval=True)
    def weigh(sacks: int) -> str:
        """Weighs sacks."""
        return f"{sacks * 50} kg"

    asked: list[str] = []

    async def ask(call: ToolCallPart) -> Allow:
        asked.append(call.name)
        return Allow()

    call = Message(role="assistant", parts=(ToolCallPart(id="1", name="weigh", arguments='{"sacks": 3}'),))
    session = await session_on(
        store, call, "150 kg.", tools=[weigh.definition], runners=[FunctionRunner([weigh])], approvals=Approvals(ask)
    )
    said = await take(session, "How heavy?")
    assert said[:5] == ["Run weigh?", "  {", '    "sacks": 3', "  }", "✓ weigh(sacks=3) 6 characters"]
    assert said[5] == "150 kg."
    assert asked == ["weigh"]


async def test_linked_notes_are_found_even_if_they_were_written_meanwhile(store: SqlStore, tmp_path: Path):
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "Mill.md").write_text("# Mill\n\nIt grinds.\n")
    session = await session_on(store, "A", "B", vault=Vault(notes))
    await session.refresh()
    (notes / "Stone.md").write_text("---\naliases: [grit]\n---\nIt is hard.\n")
    said = await take(session, "What of [[Stone]] and @Mill.md?")
    assert said[1:5] == ["Documents", "  • [[Stone]] (Stone.md)", "    It is hard.", "  • @Mill.md (Mill.md)"]
    choices = await session.choices()
    assert [named.name for named in choices.notes] == ["Mill", "Stone", "Stone|grit"]
    assert sorted(choices.files) == ["Mill.md", "Stone.md"]
    assert [named.name for named in choices.arguments("pin")] == ["2", "1"]


async def test_the_conversation_and_branch_used_last_are_resumed(store: SqlStore):
    first = await session_on(store, "A", "B")
    await take(first, "One")
    second = await session_on(store, "C")
    await take(second, "Two")
    engine = first.talk.engine
    found = await find_conversation(engine, Wanted(resume=True))
    assert found.id == second.talk.conversation.id
    await take(first, "/branch 1", "Three")
    found = await find_conversation(engine, Wanted(resume=True))
    assert (found.id, found.branch) == (first.talk.conversation.id, 1)
    assert (await find_conversation(engine, Wanted(conversation=found.id))).branch == 1
    known = {each.id for each in await store.conversations()}
    assert (await find_conversation(engine, Wanted(resume=True, new=True))).id not in known
    assert (await find_conversation(engine, Wanted())).id not in known
    assert (await find_conversation(engine, Wanted(conversation="tuesday"))).id == "tuesday"
