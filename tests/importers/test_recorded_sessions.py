"""A transcript of a session that the gateway recorded: only what the log lacks is imported, at its place."""

from pathlib import Path

import pytest

from importers.test_import_writer import ListSource, say
from importers.transcript_files import import_path, make_engine, read_texts
from quire.engine import file_import
from quire.engine.file_import import ImportOptions, ImportReport, import_files
from quire.log import ConversationOrigin
from quire.model import Compaction, Message, Pin, Span, Usage
from quire.model.ids import now
from quire.model.messages import TextPart, ToolCallPart
from quire.settings.schema import TenantMasking
from quire.sources.base import SourceCompaction, SourceConversation, SourceMessage
from quire.store import SqlStore
from secret_samples import SecretGenerator

ORIGIN = ConversationOrigin(client="list", session="s")
REMINDER = "<system-reminder>\nBe brief.\n</system-reminder>\n"
USAGE = Usage(model="claude-sonnet-5-5", input_tokens=10, output_tokens=2)


def answer(id_: str, parent: str, text: str) -> SourceMessage:
    return say(id_, parent, text, role="assistant", usage=USAGE)


def make_call(call_id: str) -> Message:
    return Message(role="assistant", parts=(ToolCallPart(id=call_id, name="Bash", arguments="{}"),))


async def record(store: SqlStore, *messages: Message | Compaction, origin: ConversationOrigin = ORIGIN) -> None:
    await store.create_conversation("live", origin=origin)
    if messages:
        await store.append("live", *messages)


async def import_transcript(
    store: SqlStore,
    *messages: SourceMessage,
    origin: ConversationOrigin = ORIGIN,
    may_delete: bool = False,
    dry_run: bool = False,
) -> ImportReport:
    async def prepare() -> None:
        pass

    source = ListSource(SourceConversation("c", messages, origin=origin))
    engine = make_engine(store)
    options, prepare_reread = ImportOptions(dry_run=dry_run), prepare if may_delete else None
    report = await import_files(engine, source, [Path()], options, prepare_reread=prepare_reread)
    await engine.runtime.jobs.wait()
    for each in await store.list_conversations():
        assert await store.verify_conversation(each.id) == []
    return report


GREETING = (Message(role="user", parts=(TextPart(text=REMINDER), TextPart(text="Greet."))), Message.assistant("Ahoy."))
"""As a gateway records a turn: what the agent adds is a part of the question."""
GREETING_ITEMS = (say("a", None, "Greet."), say("r", "a", REMINDER), answer("b", "r", "Ahoy."))
"""The same turn in the transcript."""


@pytest.mark.every_database
async def test_a_recorded_session_does_not_appear_twice(store: SqlStore):
    await record(store, *GREETING)
    report = await import_transcript(store, *GREETING_ITEMS)
    assert (report.messages, report.known_messages, report.live_conversations) == (0, 3, 1)
    assert [each.id for each in await store.list_conversations()] == ["live"]
    assert (await store.usage.read_conversation("live")).input_tokens == 0


async def test_a_recorded_session_with_masked_secrets_does_not_appear_twice(database_url: str):
    token = SecretGenerator(1).chars(36)
    question, reply = f"Use ghp_{token} now.", f"I used ghp_{token} today."
    async with SqlStore.open(database_url, masking={"*": TenantMasking()}) as store:
        await record(store, Message.user(question), Message.assistant(reply))
        report = await import_transcript(store, say("a", None, question), answer("b", "a", reply))
        assert (report.messages, report.known_messages, report.live_conversations) == (0, 2, 1)
        assert "[masked GitHub token]" in "".join(await read_texts(store, "live"))


async def test_what_was_said_without_the_gateway_is_added_at_the_end(store: SqlStore):
    await record(store, *GREETING)
    alone = (say("c", "b", "Alone."), answer("d", "c", "Still here."))
    assert (await import_transcript(store, *GREETING_ITEMS, *alone)).messages == 2
    assert (await import_transcript(store, *GREETING_ITEMS, *alone)).messages == 0
    more = (say("e", "d", "More."), answer("f", "e", "Sure."))
    assert (await import_transcript(store, *GREETING_ITEMS, *alone, *more)).messages == 2
    assert (await read_texts(store, "live"))[1:] == ["Ahoy.", "Alone.", "Still here.", "More.", "Sure."]
    assert [each.id for each in await store.list_conversations()] == ["live"]


async def test_what_is_recorded_between_two_imports_is_there_once(store: SqlStore):
    await import_transcript(store, *GREETING_ITEMS)
    [record] = await store.list_conversations()
    await store.append(record.id, Message.user("More."), Message.assistant("Sure."))
    more = (say("c", "b", "More."), answer("d", "c", "Sure."), say("e", "d", "Alone."), answer("f", "e", "Yes."))
    imported = [(await import_transcript(store, *GREETING_ITEMS, *more)).messages for _ in range(2)]
    assert imported == [2, 0]
    assert len(await store.list_branches(record.id)) == 1
    assert (await read_texts(store, record.id))[2:] == ["Ahoy.", "More.", "Sure.", "Alone.", "Yes."]


async def test_batches_may_end_anywhere(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_import, "BATCH_MESSAGES", 1)
    await record(store, *GREETING)
    alone = (
        say("c", "b", "Alone."),
        answer("d", "c", "Still here."),
        say("e", "d", "More."),
        answer("f", "e", "Sure."),
    )
    assert (await import_transcript(store, *GREETING_ITEMS, *alone)).messages == 4
    assert (await read_texts(store, "live"))[1:] == ["Ahoy.", "Alone.", "Still here.", "More.", "Sure."]


async def test_a_compaction_at_the_end_of_the_log_begins_no_branch(store: SqlStore):
    await record(store, *GREETING, Compaction(number=1, covers=Span(first=1, last=2), summary="S", trigger="client"))
    await import_transcript(store, *GREETING_ITEMS, say("c", "b", "Alone."), answer("d", "c", "Still here."))
    assert len(await store.list_branches("live")) == 1


async def test_what_diverges_is_a_branch(store: SqlStore):
    await record(store, *GREETING, Message.user("Left."), Message.assistant("Port."))
    right = (say("c", "b", "Right."), answer("d", "c", "Starboard."))
    assert (await import_transcript(store, *GREETING_ITEMS, *right)).messages == 2
    assert (await import_transcript(store, *GREETING_ITEMS, *right)).messages == 0
    assert (await read_texts(store, "live", branch=1))[1:] == ["Ahoy.", "Right.", "Starboard."]
    assert (await read_texts(store, "live"))[1:] == ["Ahoy.", "Left.", "Port."]


async def test_a_recorded_reply_has_its_input_recorded_too(store: SqlStore):
    """The agent compacted without the gateway: the log has the summary as a part of the next question."""
    await record(store, *GREETING, Message.user("Summary: greeted.\n\nBack again."), make_call("toolu_1"))
    items = (
        *GREETING_ITEMS,
        say("c", "b", "Alone."),
        answer("d", "c", "Still here."),
        say("s", "d", "Summary: greeted.", compaction=SourceCompaction("Summary: greeted.")),
        say("e", "s", "Back again."),
        SourceMessage("f", "e", make_call("toolu_1"), at=1_000, usage=USAGE),
    )
    assert (await import_transcript(store, *items)).messages == 2
    assert (await import_transcript(store, *items)).messages == 0
    assert (await read_texts(store, "live"))[2:] == ["Summary: greeted.\n\nBack again.", "Bash"]
    assert (await read_texts(store, "live", branch=1))[2:] == ["Alone.", "Still here."]


async def test_a_question_waits_for_its_reply(store: SqlStore):
    """The gateway records a question with its reply, so a request that is under way is in the transcript alone."""
    await record(store, *GREETING)
    question = say("c", "b", "Slow?")
    assert (await import_transcript(store, *GREETING_ITEMS, question)).messages == 0
    await store.append("live", Message.user("Slow?"), Message.assistant("Yes."))
    assert (await import_transcript(store, *GREETING_ITEMS, question, answer("d", "c", "Yes."))).messages == 0
    assert len(await store.list_branches("live")) == 1


async def test_a_sub_agent_is_merged_with_its_own_conversation(store: SqlStore):
    origin = ORIGIN.model_copy(update={"agent": "x", "purpose": "subagent"})
    await record(store, *GREETING, origin=origin)
    await import_transcript(store, say("a", None, "Task."), answer("b", "a", "Done."), origin=origin)
    assert len(await store.list_conversations()) == 2
    other = ListSource(SourceConversation("d", GREETING_ITEMS, origin=origin))
    assert (await import_path(store, other, Path())).messages == 0


async def test_a_purged_message_does_not_come_back(store: SqlStore):
    await record(store, *GREETING)
    await store.purge("live")
    later = (say("c", "b", "Later.", at=2**55), answer("d", "c", "Yes.")._replace(at=2**55))
    assert (await import_transcript(store, *GREETING_ITEMS, *later)).messages == 2
    assert (await read_texts(store, "live"))[1:] == ["[purged]", "Later.", "Yes."]


async def test_a_session_whose_first_reply_is_under_way_is_not_imported(store: SqlStore):
    at = now()
    question, said = say("a", None, "Greet.", at=at), answer("b", "a", "Ahoy.")._replace(at=at)
    assert (await import_transcript(store, question)).messages == 0
    assert await store.list_conversations() == []
    await record(store, *GREETING)
    await import_transcript(store, question, said)
    assert [each.id for each in await store.list_conversations()] == ["live"]
    # Without a gateway, the session is imported with its first reply, or when nothing came.
    other = ConversationOrigin(client="list", session="t")
    old = ListSource(SourceConversation("d", [say("a", None, "Greet.", at=at - 2 * 3_600_000_000)], origin=other))
    assert (await import_path(store, old, Path())).messages == 1


@pytest.mark.every_database
async def test_a_session_that_was_imported_first_is_deleted_when_all_of_it_is_recorded(store: SqlStore):
    await import_transcript(store, *GREETING_ITEMS)
    await record(store, *GREETING, Message.user("More."), Message.assistant("Sure."))
    more = (say("c", "b", "More."), answer("d", "c", "Sure."))
    assert (await import_transcript(store, *GREETING_ITEMS, *more)).messages == 0
    assert len(await store.list_conversations()) == 2
    [copy] = await store.imports.list_doubles()
    for _ in range(2):
        planned = await import_transcript(store, *GREETING_ITEMS, *more, dry_run=True)
        assert (planned.merged, len(await store.list_conversations())) == ({copy: "live"}, 2)
    report = await import_transcript(store, *GREETING_ITEMS, *more, may_delete=True)
    assert (list(report.merged.values()), report.unmerged) == (["live"], {})
    assert [each.id for each in await store.list_conversations()] == ["live"]
    assert await store.imports.list_doubles() == {}
    assert (await import_transcript(store, *GREETING_ITEMS, *more)).messages == 0
    assert [each.id for each in await store.list_conversations()] == ["live"]


async def test_what_was_imported_before_the_gateway_recorded_the_session_stays_where_it_is(store: SqlStore):
    await import_transcript(store, *GREETING_ITEMS)
    # The agent compacted before it went through the gateway.
    await record(store, Message.user("Summary: greeted. More."), make_call("toolu_1"))
    call = SourceMessage("d", "c", make_call("toolu_1"), at=1_000, usage=USAGE)
    more = (say("c", "b", "More."), call, say("e", "d", "Alone."), answer("f", "e", "Yes."))
    report = await import_transcript(store, *GREETING_ITEMS, *more, may_delete=True)
    assert (report.messages, report.merged, list(report.unmerged.values())) == (2, {}, ["live"])
    texts = {each.id: await read_texts(store, each.id) for each in await store.list_conversations()}
    assert texts.pop("live") == ["Summary: greeted. More.", "Bash", "Alone.", "Yes."]
    assert list(texts.values()) == [["Greet.", REMINDER, "Ahoy."]]


async def test_a_twin_with_an_edit_stays(store: SqlStore):
    await import_transcript(store, *GREETING_ITEMS)
    [twin] = await store.list_conversations()
    await store.append(twin.id, Pin(message=1))
    await record(store, *GREETING)
    for planned in (True, False):
        report = await import_transcript(store, *GREETING_ITEMS, may_delete=True, dry_run=planned)
        assert (report.merged, report.unmerged) == ({}, {twin.id: "live"})
    assert len(await store.list_conversations()) == 2
