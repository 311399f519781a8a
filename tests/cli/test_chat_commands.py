"""Chat session: slash commands and messages, on real databases, with a scripted model."""

import asyncio
import json
from pathlib import Path

import pytest
from chat_harness import make_session, read_session_output, wait_until
from rich.console import Group

from quire.agent.approvals import Allow, Approvals
from quire.agent.function_tools import FunctionToolRunner, tool
from quire.cli.chat.commands import COMMANDS, load_argument_items, parse_command
from quire.cli.chat.runtime import ChatOptions, open_chosen_conversation
from quire.cli.chat.session import ChatSession
from quire.cli.context import draw_explanation
from quire.context.vault import Vault
from quire.engine import Conversation
from quire.errors import InvalidRequest, ModelRequestRejected, ModelUnavailable
from quire.ledger import find_decision
from quire.llm import Model
from quire.model import Compaction, Message, Priority, Restore, ToolCallPart
from quire.model.agents import Agent, Reference, Rule
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import DelayedReply, ScriptedModel

LONG_TEXT = "The mill at the ford has three stones and a wheel of oak. " * 20
MEDIUM_TEXT = LONG_TEXT[: len(LONG_TEXT) // 3]


async def handle_lines(session: ChatSession, *lines: str) -> list[str]:
    """Only what these lines led to."""
    before = len(read_session_output(session))
    for line in lines:
        await session.handle_line(line)
    return [line for line in read_session_output(session)[before:].splitlines() if line.strip()]


async def test_a_message_is_answered_and_its_meter_follows(store: SqlStore):
    session = await make_session(store, "Hello **you**.")
    lines = await handle_lines(session, "Hi")
    assert lines[0] == "Hello you."
    assert lines[1].startswith("#2 · ")
    assert "tokens · window 4,000" in lines[1]
    assert [entry.message.text for entry in await session.runtime.conversation.messages()] == ["Hi", "Hello **you**."]


async def test_the_number_on_the_meter_is_the_one_that_the_library_reports(store: SqlStore):
    session = await make_session(store, "Hello.")
    lines = await handle_lines(session, "Hi")
    report = await session.runtime.conversation.usage()
    assert f"{report.total_tokens:,} of {report.trigger_tokens:,} tokens" in lines[1]


async def test_an_automatic_compaction_leaves_a_marker_with_true_numbers(store: SqlStore):
    session = await make_session(store, *[MEDIUM_TEXT] * 8, "Short.", context_limit=1_300)
    lines = await handle_lines(session, *["Go on"] * 8, "Last")
    marks = [line for line in lines if "archived" in line]
    [entry] = await store.read_range(session.runtime.conversation.id, kinds=["compaction"])
    body = entry.body
    assert isinstance(body, Compaction)
    assert body.covers is not None
    covered = await store.read_range(session.runtime.conversation.id, last=body.covers.last, kinds=["message"])
    freed = body.tokens_before - body.tokens_after
    assert [mark.strip() for mark in marks] == [
        f"{len(covered)} messages archived, {freed:,} tokens freed; undo with /undo"
    ]
    assert lines.index(marks[0]) > 3


async def test_compacting_twice_counts_only_what_is_new(store: SqlStore):
    session = await make_session(store, LONG_TEXT, LONG_TEXT, LONG_TEXT, LONG_TEXT, LONG_TEXT, LONG_TEXT)
    first = await handle_lines(session, "One", "Two", "Three", "/compact")
    second = await handle_lines(session, "Four", "Five", "Six", "/compact")
    counts = [int(line.split()[0]) for line in (*first, *second) if "archived" in line]
    [last] = await store.read_range(session.runtime.conversation.id, kinds=["compaction"], first=8)
    assert isinstance(last.body, Compaction)
    assert last.body.covers is not None
    covered = await store.read_range(session.runtime.conversation.id, last=last.body.covers.last, kinds=["message"])
    assert len(counts) == 2
    assert sum(counts) == len(covered)


async def test_undo_reverts_a_compaction(store: SqlStore):
    session = await make_session(store, LONG_TEXT, LONG_TEXT, LONG_TEXT)
    await handle_lines(session, "One", "Two", "Three")
    before = await session.runtime.conversation.usage()
    lines = await handle_lines(session, "/compact keep the stones", "/undo")
    assert "Compaction 1 undone" in lines[-1]
    assert (await session.runtime.conversation.usage()).total_tokens == before.total_tokens
    compaction, restore = (await store.read_range(session.runtime.conversation.id, kinds=["compaction", "restore"]))[
        -2:
    ]
    assert isinstance(compaction.body, Compaction)
    assert compaction.body.instructions == "keep the stones"
    assert isinstance(restore.body, Restore)


async def test_undo_warns_where_the_next_message_would_compact_again(store: SqlStore):
    session = await make_session(store, LONG_TEXT, LONG_TEXT, LONG_TEXT, "Short.", context_limit=1_300)
    lines = await handle_lines(session, "One", "Two", "Three", "Four", "/undo")
    assert "the next message compacts again" in " ".join(lines)


async def test_without_a_compaction_there_is_nothing_to_undo(store: SqlStore):
    session = await make_session(store)
    assert await handle_lines(session, "/undo") == ["There is no compaction to undo."]
    assert await handle_lines(session, "/compact") == ["Nothing is compacted: that would free no tokens."]


async def test_context_draws_the_window_that_the_meter_shows(store: SqlStore):
    session = await make_session(store, "Hello.")
    await handle_lines(session, "Hi")
    lines = await handle_lines(session, "/context")
    report = await session.runtime.conversation.usage()
    assert lines[0].startswith(f"{report.total_tokens:,} of 4,000 tokens")
    assert any(line.split()[:2] == ["H", "messages"] for line in lines)


async def test_items_are_added_and_removed_by_name(store: SqlStore):
    agent = Agent(name="a", rules=(Rule(name="Tone", text="Be kind."), Rule(name="Always", text="x", include="always")))
    session = await make_session(store, agent=agent)
    assert await handle_lines(session, "/add Tone") == ["Added the rule Tone; every request includes it from now on."]
    assert {each.item.name for each in await session.runtime.conversation.items()} == {"Tone", "Always"}
    assert await handle_lines(session, "/remove Always") == ["Removed the rule Always."]
    assert "'Nothing' is not an item" in (await handle_lines(session, "/add Nothing"))[0]
    assert await handle_lines(session, "/add") == ["The argument is missing; usage: /add NAME."]
    items = await load_argument_items(session)
    assert [each.name for each in items["add"]] == ["Always"]
    assert [each.name for each in items["remove"]] == ["Tone"]


async def test_a_message_is_pinned_and_unpinned(store: SqlStore):
    session = await make_session(store, "Hello.")
    await handle_lines(session, "Hi")
    await handle_lines(session, "/pin #2")
    assert (await store.get_branch(session.runtime.conversation.id)).state.pins == (2,)
    assert await handle_lines(session, "/unpin 2", "/unpin 2") == ["Unpinned #2.", "#2 is not pinned."]
    assert "is not a number; usage: /pin SEQ" in " ".join(await handle_lines(session, "/pin two"))
    assert "is not an earlier entry" in (await handle_lines(session, "/pin 99"))[0]


async def test_what_the_question_names_and_the_context_lacks_is_suggested_in_one_line(store: SqlStore):
    references = tuple(Reference(name=name, text=f"About {name}.", include="manual") for name in ("tides", "ports"))
    session = await make_session(store, "I do not know.", repeat=True, agent=Agent(name="a", references=references))
    lines = await handle_lines(session, "What do the tides say?")
    assert lines[-1] == ("The question names 'tides', which is not in the context. Type /add tides.")
    assert "Type /add" not in " ".join(await handle_lines(session, "And the tides now?"))
    await handle_lines(session, "/add ports")
    lines = [line for turn in range(5) for line in await handle_lines(session, f"Question {turn}?")]
    assert lines[-1] == "No answer of the last 5 turns used the reference 'ports'. Type /remove ports."
    assert lines.count(lines[-1]) == 1


async def test_why_names_what_was_learned(store: SqlStore):
    rule = Rule(name="lights", description="Lights of the harbour.", text="Name lights by colour.", include="agent")
    session = await make_session(store, "I do not know.", repeat=True, agent=Agent(name="a", rules=(rule,)))
    for _ in range(5):
        await handle_lines(session, "Which lights has the harbour?")
        await session.runtime.engine.runtime.jobs.wait()
    conversation = session.runtime.conversation
    manifest = await conversation.preview("Which lights has the harbour?")
    session.screen.show_block(Group(*draw_explanation("lights", find_decision(manifest, "lights"), manifest)))
    assert "score × 0.8: in 5 requests, and no reply used it" in read_session_output(session)


async def test_a_priority_is_set_and_reset(store: SqlStore):
    session = await make_session(store, "Hello.")
    await handle_lines(session, "Hi")
    assert await handle_lines(session, "/priority #2 9") == ["#2 has priority 9."]
    state = (await store.get_branch(session.runtime.conversation.id)).state
    assert state.priorities == (Priority(message=2, priority=9),)
    assert await handle_lines(session, "/priority 2 0") == ["#2 has the default priority."]
    assert "from 1 to 10" in (await handle_lines(session, "/priority 2 11"))[0]
    assert "usage: /priority SEQ PRIORITY" in " ".join(await handle_lines(session, "/priority 2"))


async def test_a_branch_diverges_and_one_can_switch_back(store: SqlStore):
    session = await make_session(store, "A", "B", "C")
    await handle_lines(session, "One", "Two")
    assert await handle_lines(session, "/branch 2") == ["Now on branch 1, forked from #2; to go back, type /switch 0."]
    await handle_lines(session, "Another two")
    texts = [entry.message.text for entry in await session.runtime.conversation.messages()]
    assert texts == ["One", "A", "Another two", "C"]
    listed = await handle_lines(session, "/switch")
    assert ["Two" in listed[0], "▸" in listed[1], "Another two" in listed[1]] == [True, True, True]
    await handle_lines(session, "/switch 0")
    assert [entry.message.text for entry in await session.runtime.conversation.messages()][-1] == "B"
    assert "has no branch 7" in (await handle_lines(session, "/switch 7"))[0]


async def test_a_branch_without_a_number_forks_at_the_head(store: SqlStore):
    session = await make_session(store, "A")
    await handle_lines(session, "One")
    assert (await handle_lines(session, "/branch"))[0].startswith("Now on branch 1, forked from #2")


async def test_retry_gets_another_reply_and_the_first_stays_on_its_branch(store: SqlStore):
    session = await make_session(store, "First", "Second")
    await handle_lines(session, "One")
    lines = await handle_lines(session, "/retry")
    assert lines[:2] == ["Now on branch 1, forked from #1; the old reply is on /switch 0.", "Second"]
    assert [entry.message.text for entry in await store.read_range(session.runtime.conversation.id)] == ["One", "First"]
    assert [entry.message.text for entry in await session.runtime.conversation.messages()] == ["One", "Second"]


async def test_a_question_that_failed_before_it_was_recorded_is_retried(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    def refuse(settings: Settings) -> Model:
        raise ModelRequestRejected("OPENAI_API_KEY is not set.")

    session = await make_session(store, "There.")
    with monkeypatch.context() as without_key:
        without_key.setattr(session.runtime, "_make_model", refuse)
        assert "OPENAI_API_KEY is not set." in "".join(await handle_lines(session, "One"))
    assert (await handle_lines(session, "/retry"))[0] == "There."
    assert [entry.message.text for entry in await session.runtime.conversation.messages()] == ["One", "There."]


async def test_after_a_failure_the_question_is_retried_on_the_same_branch(store: SqlStore):
    session = await make_session(store, ModelUnavailable("It is down."), "There.")
    assert "It is down." in await handle_lines(session, "One")
    assert (await handle_lines(session, "/retry"))[0] == "There."
    assert session.runtime.conversation.branch == 0
    assert [entry.message.text for entry in await session.runtime.conversation.messages()] == ["One", "There."]
    fresh = await make_session(store)
    assert await handle_lines(fresh, "/retry") == ["There is no question to retry yet."]


async def test_another_model_answers_from_then_on(store: SqlStore):
    session = await make_session(store, "A")
    assert (await handle_lines(session, "/model"))[0].startswith("The model is gpt-4o;")
    lines = await handle_lines(session, "/model gpt-4.1")
    assert lines[0] == "gpt-4.1 answers from now on; context window of 4,000 tokens (context_limit)."
    assert session.runtime.engine.policy.model == "gpt-4.1"


@pytest.mark.parametrize(
    ("model", "window", "text"),
    [
        ("gpt-4", 8_192, "context window of 8,192 tokens"),
        ("my-own", 128_000, "context window of 128,000 tokens (context_limit)"),
        ("small-7b", 2_048, "context window of 2,048 tokens"),
    ],
)
async def test_another_model_brings_its_own_window(store: SqlStore, model: str, window: int, text: str):
    """`context_limit` is an upper limit: it was set for the first model, and does not widen the window of another."""
    session = await make_session(
        store, "hello", model="gpt-4o", context_limit=128_000, models={"small-*": {"window": 2_048}}
    )
    lines = await handle_lines(session, f"/model {model}")
    assert lines[0] == f"{model} answers from now on; {text}."
    assert session.runtime.engine.policy.window == window
    assert (await session.runtime.conversation.usage()).window == window
    await handle_lines(session, "/model gpt-4o")
    assert session.runtime.engine.policy.window == 128_000


async def test_a_summary_for_a_larger_window_is_shortened_and_the_old_one_can_be_restored(store: SqlStore):
    session = await make_session(
        store, "hello", model="gpt-4o", context_limit=60_000, models={"small-*": {"window": 1_400}}
    )
    conversation = session.runtime.conversation
    for number in range(200):
        await conversation.append(f"{number} is the number of sack {number * 7}. {LONG_TEXT}", Message.assistant("ok"))
    await conversation.compact()
    long_summary = "\n".join(
        f"- Sack {number * 7} was counted as number {number} [#{number}]." for number in range(1, 150)
    )
    await conversation.edit_summary(long_summary)
    before = (await conversation.preview()).total_tokens
    lines = await handle_lines(session, "/model small-7b")
    assert any("The summary did not fit this window" in line for line in lines)
    assert (await session.runtime.conversation.preview()).total_tokens < 1_400 < before
    await handle_lines(session, "/undo", "/model gpt-4o")
    window = await store.read_window(conversation.id, max_tokens=0)
    assert window.compaction is not None
    assert isinstance(window.compaction.body, Compaction)
    assert window.compaction.body.summary == long_summary


async def test_a_question_is_answered_where_the_summary_does_not_fit(store: SqlStore):
    session = await make_session(store, "hello", model="gpt-4o", context_limit=60_000)
    conversation = session.runtime.conversation
    for number in range(200):
        await conversation.append(f"{number} is the number of sack {number * 7}. {LONG_TEXT}", Message.assistant("ok"))
    await conversation.compact()
    await conversation.edit_summary("\n".join(f"- Sack {number} was counted [#{number}]." for number in range(1, 250)))
    session.runtime.conversation = Conversation(
        session.runtime.engine.with_changes(context_limit=1_400), conversation.id
    )
    await handle_lines(session, "Where are we?")
    assert (await session.runtime.conversation.messages())[-1].message.text == "hello"


async def test_an_unusable_model_changes_nothing(store: SqlStore):
    session = await make_session(store)

    def refuse(settings: Settings) -> ScriptedModel:
        if settings.model == "gpt-4o":
            return ScriptedModel("A")
        raise ModelRequestRejected("Unknown model.")

    session.runtime._make_model = refuse  # pyright: ignore[reportPrivateUsage]
    refused = await handle_lines(session, "/model nonsense")
    assert "The model nonsense cannot be used: Unknown model." in refused[0]
    assert session.runtime.engine.settings.model == "gpt-4o"
    assert (await handle_lines(session, "Hi"))[0] == "A"


async def test_an_unusable_model_is_named_before_the_first_question(store: SqlStore):
    session = await make_session(store)
    session.runtime._make_model = _raise_missing_key  # pyright: ignore[reportPrivateUsage]
    session.check_model()
    await wait_until(lambda: "OPENAI_API_KEY is not set" in read_session_output(session))
    assert await session.runtime.conversation.messages() == []


async def test_without_a_model_everything_but_sending_works(store: SqlStore):
    session = await make_session(store)
    session.runtime._make_model = _raise_missing_key  # pyright: ignore[reportPrivateUsage]
    text = " ".join(await handle_lines(session, "Hi"))
    assert "gpt-4o cannot be used: OPENAI_API_KEY is not set." in text
    assert "`quire init` detects API keys and local servers" in text
    for line in ("/context", "/help", "/branch", "/switch", "/model"):
        assert not any("cannot" in each for each in await handle_lines(session, line))


def _raise_missing_key(settings: Settings) -> ScriptedModel:
    raise ModelRequestRejected("Set the `OPENAI_API_KEY` environment variable. And so on.")


async def test_a_conversation_is_exported_whole_and_to_read(store: SqlStore, tmp_path: Path):
    session = await make_session(store, "Hello.")
    await handle_lines(session, "Hi")
    await handle_lines(session, f"/export {tmp_path / 'a.jsonl'}", f"/export {tmp_path / 'a.md'}")
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["id"] == session.runtime.conversation.id
    copy = await store.import_conversation(lines, as_id="copy")
    assert [entry.message.text for entry in await store.read_range(copy.id)] == ["Hi", "Hello."]
    transcript = (tmp_path / "a.md").read_text()
    assert "\n\nHi\n" in transcript
    assert "\n\nHello.\n" in transcript
    assert "0 secrets masked" in transcript


async def test_an_export_overwrites_nothing(store: SqlStore, tmp_path: Path):
    session = await make_session(store)
    (tmp_path / "a.md").write_text("mine")
    assert "already exists" in " ".join(await handle_lines(session, f"/export {tmp_path / 'a.md'}"))
    assert (tmp_path / "a.md").read_text() == "mine"
    assert "cannot be written" in " ".join(await handle_lines(session, f"/export {tmp_path / 'no' / 'a.md'}"))


async def test_help_lists_every_command(store: SqlStore):
    text = " ".join(await handle_lines(await make_session(store), "/help"))
    for command in COMMANDS:
        assert f"/{command.name} {command.usage}".strip() in text
        assert command.description in " ".join(text.split())


@pytest.mark.parametrize("command", ["/quit", "/exit"])
async def test_quit_leaves(store: SqlStore, command: str):
    session = await make_session(store)
    await handle_lines(session, "/help")
    assert not session.is_quitting
    await handle_lines(session, command)
    assert session.is_quitting


@pytest.mark.parametrize("line", ["hello", " /help", "/usr/bin/env is a path", "/", "// comment", "/2 cups", "a /help"])
def test_what_is_no_command_is_a_message(line: str):
    assert parse_command(line) is None


@pytest.mark.parametrize(
    ("line", "given"), [("/pin 3", "3"), ("/compact a\nb ", "a\nb"), ("/help", ""), ("/help  ", "")]
)
def test_a_command_has_what_follows_it(line: str, given: str):
    call = parse_command(line)
    assert call is not None
    assert call.argument == given


def test_a_command_that_is_not_there_names_the_nearest():
    with pytest.raises(InvalidRequest, match="did you mean /compact"):
        parse_command("/compat")


async def test_an_empty_line_does_nothing(store: SqlStore):
    assert await handle_lines(await make_session(store), "", "   ") == []


async def test_stopping_records_the_partial_reply_and_the_session_continues(store: SqlStore):
    session = await make_session(store, "one two three " * 2_000, "And on.")
    taking = asyncio.create_task(session.handle_line("Count"))
    await wait_until(lambda: session.screen._stream._pending)  # pyright: ignore[reportPrivateUsage]
    session.stop()
    await taking
    assert "Stopped; the partial reply is recorded as #2 (incomplete)." in read_session_output(session)
    [_, reply] = await session.runtime.conversation.messages()
    assert reply.metadata.incomplete
    assert 0 < len(reply.message.text) < len("one two three " * 2_000)
    assert (await handle_lines(session, "Go on"))[0] == "And on."


async def test_stopping_a_command_ends_the_command_alone(store: SqlStore):
    slow = ScriptedModel(DelayedReply(60, "A summary."))
    session = await make_session(store, LONG_TEXT, LONG_TEXT, LONG_TEXT, summarizer=slow)
    await handle_lines(session, "One", "Two", "Three")
    taking = asyncio.create_task(session.handle_line("/compact"))
    await wait_until(lambda: slow.prompts)
    session.stop()
    await asyncio.wait_for(taking, 10)
    assert "Stopped." in read_session_output(session)
    assert await store.read_range(session.runtime.conversation.id, kinds=["compaction"]) == []


async def test_a_background_compaction_is_printed_above_the_prompt(store: SqlStore):
    summarizer = ScriptedModel(DelayedReply(0.5, "Task: the mill [#1]."), repeat=True)
    asides: list[str] = []
    session = await make_session(
        store,
        LONG_TEXT,
        LONG_TEXT,
        LONG_TEXT,
        summarizer=summarizer,
        context_limit=1_300,
        context_background_threshold=0.3,
    )

    async def aside(show: object) -> None:
        asides.append("aside")
        show()  # type: ignore[operator]

    session._print_above_prompt = aside  # pyright: ignore[reportPrivateUsage]
    await handle_lines(session, "One", "Two")
    await session.runtime.engine.wait_for_background()
    await wait_until(lambda: asides and not session._tasks)  # pyright: ignore[reportPrivateUsage]
    assert "archived" in read_session_output(session)


async def test_tools_are_run_asked_about_and_shown(store: SqlStore):
    @tool(needs_approval=True)
    def weigh(sacks: int) -> str:
        """Weighs sacks."""
        return f"{sacks * 50} kg"

    calls: list[str] = []

    async def ask(call: ToolCallPart) -> Allow:
        calls.append(call.name)
        return Allow()

    call = Message(role="assistant", parts=(ToolCallPart(id="1", name="weigh", arguments='{"sacks": 3}'),))
    session = await make_session(
        store,
        call,
        "150 kg.",
        tools=[weigh.definition],
        runners=[FunctionToolRunner([weigh])],
        approvals=Approvals(ask),
    )
    lines = await handle_lines(session, "How heavy?")
    assert lines[:5] == ["Run weigh?", "  {", '    "sacks": 3', "  }", "✓ weigh(sacks=3) 6 characters"]
    assert lines[5] == "150 kg."
    assert calls == ["weigh"]


async def test_linked_notes_are_found_even_if_they_were_written_meanwhile(store: SqlStore, tmp_path: Path):
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "Mill.md").write_text("# Mill\n\nIt grinds.\n")
    session = await make_session(store, "A", "B", vault=Vault(notes))
    await session.refresh_vault()
    (notes / "Stone.md").write_text("---\naliases: [grit]\n---\nIt is hard.\n")
    lines = await handle_lines(session, "What of [[Stone]] and @Mill.md?")
    assert lines[1:5] == ["Documents", "  • [[Stone]] (Stone.md)", "    It is hard.", "  • @Mill.md (Mill.md)"]
    choices = await session.load_completions()
    assert [named.name for named in choices.notes] == ["Mill", "Stone", "Stone|grit"]
    assert sorted(choices.files) == ["Mill.md", "Stone.md"]
    assert [named.name for named in choices.arguments("pin")] == ["2", "1"]


async def test_the_conversation_and_branch_used_last_are_resumed(store: SqlStore):
    first = await make_session(store, "A", "B")
    await handle_lines(first, "One")
    second = await make_session(store, "C")
    await handle_lines(second, "Two")
    engine = first.runtime.engine
    found = await open_chosen_conversation(engine, ChatOptions(resume=True))
    assert found.id == second.runtime.conversation.id
    await handle_lines(first, "/branch 1", "Three")
    found = await open_chosen_conversation(engine, ChatOptions(resume=True))
    assert (found.id, found.branch) == (first.runtime.conversation.id, 1)
    assert (await open_chosen_conversation(engine, ChatOptions(conversation=found.id))).branch == 1
    known = {each.id for each in await store.list_conversations()}
    assert (await open_chosen_conversation(engine, ChatOptions(resume=True, new=True))).id not in known
    assert (await open_chosen_conversation(engine, ChatOptions())).id not in known
    assert (await open_chosen_conversation(engine, ChatOptions(conversation="tuesday"))).id == "tuesday"


async def test_the_chat_proposes_a_compaction_once_and_waits_for_the_user(store: SqlStore):
    session = await make_session(store, *[MEDIUM_TEXT] * 10, context_limit=1_300, compact_when="ask")
    lines = await handle_lines(session, *["Go on"] * 8)
    text = " ".join(" ".join(lines).split())
    assert text.count("Compact the history?") == 1
    assert "Type /compact to compact, or continue without." in text
    assert "oldest messages omitted until you run /compact" in text
    assert await store.read_range(session.runtime.conversation.id, kinds=["compaction"]) == []
    agreed = await handle_lines(session, "/compact")
    assert any("archived" in line for line in agreed)
    assert "Compact the history?" not in " ".join(await handle_lines(session, "Go on"))


async def test_calls_lists_every_call_of_the_last_turn(store: SqlStore):
    @tool
    def read_module(path: str) -> str:
        """Read a module."""
        return f"text of {path}"

    calls = [
        Message(role="assistant", parts=(ToolCallPart(id=str(n), name="read_module", arguments=f'{{"path": "{n}"}}'),))
        for n in range(12)
    ]

    async def allow(call: ToolCallPart) -> Allow:
        return Allow()

    session = await make_session(
        store,
        *calls,
        "Read.",
        tools=[read_module.definition],
        runners=[FunctionToolRunner([read_module])],
        approvals=Approvals(allow),
    )
    answered = await handle_lines(session, "Read them all")
    assert "… 4 more calls (/calls lists them): read_module 4" in answered
    listed = await handle_lines(session, "/calls")
    assert [line.split()[1:3] for line in listed] == [["✓", f'read_module(path="{n}")'] for n in range(12)]
    assert [line.split()[0] for line in listed] == [f"#{3 + 2 * n}" for n in range(12)]
