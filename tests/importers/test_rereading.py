"""A home that an earlier version imported is read again by a newer reader, and keeps what a person did in it."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from importers.test_import_writer import ListSource, say
from importers.transcript_files import make_engine, read_texts
from infra.builders import make_turn
from quire.engine.file_import import ImportReport, import_files
from quire.log import ConversationOrigin
from quire.log.imports import make_conversation_id
from quire.log.types import Citation
from quire.model import Compaction, Drop, Message, Pin, Restore, Span, Usage
from quire.sources.base import SourceConversation, SourceMessage
from quire.store import SqlStore

CONVERSATION = make_conversation_id("list", "c")
USAGE = Usage(model="claude-sonnet-4-5-20250929", input_tokens=100_000, output_tokens=2)


class ReadingSource(ListSource):
    """A source whose reader has a version."""

    def __init__(self, reads: int, *messages: SourceMessage, title: str = "") -> None:
        origin = ConversationOrigin(client="list", session="s")
        super().__init__(SourceConversation("c", messages, title=title, origin=origin))
        self.reads = reads


def reply(id_: str, parent: str | None, text: str) -> SourceMessage:
    return say(id_, parent, text, role="assistant", usage=USAGE)


PIECES = (
    say("a", None, "Chart the reef."),
    reply("b", "a", "Charted."),
    say("c", None, "And the shoals."),
    reply("d", "c", "Sounded, too."),
)
"""What an earlier reader made of a session: it lost a parent."""
WHOLE = (
    PIECES[0],
    PIECES[1]._replace(usage=None),
    say("x", "b", "Mind the tide."),
    say("c", "x", "And the shoals."),
    PIECES[3],
    say("e", "d", "Thanks."),
)


async def read(store: SqlStore, source: ReadingSource, *, rereads: bool = True) -> ImportReport:
    async def prepare() -> None:
        prepared.append(True)

    prepared: list[bool] = []
    engine = make_engine(store)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "session"
        path.touch()
        os.utime(path, (1, 1))
        report = await import_files(engine, source, [path], prepare_reread=prepare if rereads else None)
    await engine.runtime.jobs.wait()
    assert bool(prepared) == bool(report.reread) or not report.reread
    for each in await store.list_conversations():
        assert await store.verify_conversation(each.id) == []
    while await store.usage.count():
        pass
    assert (await store.usage.recount()).corrected_conversations == 0
    return report


@pytest.mark.every_database
async def test_a_session_in_pieces_becomes_one(store: SqlStore):
    await read(store, ReadingSource(1, *PIECES))
    assert len(await store.list_branches(CONVERSATION)) == 2
    report = await read(store, ReadingSource(2, *WHOLE, title="Charts"))
    assert [(each.branches_before, each.branches) for each in report.reread.values()] == [(2, 1)]
    assert (report.messages, report.known_messages) == (2, 4)
    expected = ["Chart the reef.", "Charted.", "Mind the tide.", "And the shoals.", "Sounded, too.", "Thanks."]
    assert await read_texts(store, CONVERSATION) == expected
    assert len(await store.list_branches(CONVERSATION)) == 1
    assert (await store.get_conversation(CONVERSATION)).title == "Charts"
    assert (await store.usage.read_conversation(CONVERSATION)).requests == 2
    assert (await store.usage.read_conversation(CONVERSATION)).cost_nanos == 300_030_000
    again = await read(store, ReadingSource(2, *WHOLE))
    assert (again.messages, again.known_messages, again.reread) == (0, 6, {})


async def test_without_leave_nothing_is_read_again(store: SqlStore):
    await read(store, ReadingSource(1, *PIECES))
    report = await read(store, ReadingSource(2, *PIECES, say("e", "d", "Thanks.")), rereads=False)
    assert (report.messages, report.reread) == (1, {})
    assert len(await store.list_branches(CONVERSATION)) == 2
    assert len((await read(store, ReadingSource(2, *WHOLE))).reread) == 1


async def test_edits_and_what_a_person_gave_stay_with_their_messages(store: SqlStore):
    await read(store, ReadingSource(1, *PIECES))
    await store.rename_conversation(CONVERSATION, "Reefs")
    await store.set_tags(CONVERSATION, ["charts"])
    await store.append(CONVERSATION, Pin(message=1), Pin(message=2))
    await store.append(CONVERSATION, Drop(message=2, reason="long"), branch=1)
    memory = await store.memories.add("n", "The shoals were sounded.", citation=Citation(CONVERSATION, 1, 2))
    report = await read(store, ReadingSource(2, *WHOLE, title="Charts"))
    assert [each.lost_edits for each in report.reread.values()] == [0]
    record = await store.get_conversation(CONVERSATION)
    assert (record.title, record.tags) == ("Reefs", ("charts",))
    [branch] = await store.list_branches(CONVERSATION)
    assert branch.state.pins == (1, 2)
    [dropped] = branch.state.dropped
    assert (await store.get_entry(CONVERSATION, dropped)).message.text == "Sounded, too."
    cited = (await store.memories.get(memory.id)).citation
    assert cited is not None
    assert (await store.get_entry(CONVERSATION, cited.seq, branch=cited.branch)).message.text == "Sounded, too."
    assert len(await read_texts(store, CONVERSATION)) == len(WHOLE)
    assert (await read(store, ReadingSource(2, *WHOLE))).messages == 0


async def test_a_summary_of_quire_covers_the_same_messages(store: SqlStore):
    chain = (*PIECES[:2], say("c", "b", "And the shoals."), PIECES[3])
    await read(store, ReadingSource(1, *chain))
    covers = Span(first=1, last=3)
    await store.append(CONVERSATION, Compaction(number=1, covers=covers, summary="Reefs [#3] and all.", sources=(3,)))
    await store.append(CONVERSATION, Compaction(number=2, covers=covers, summary="Better.", supersedes=5))
    await store.append(CONVERSATION, Restore(compaction=6))
    report = await read(store, ReadingSource(2, *WHOLE))
    assert [each.lost_edits for each in report.reread.values()] == [0]
    [branch] = await store.list_branches(CONVERSATION)
    active = branch.state.active_compaction
    assert active is not None
    assert active.covers == Span(first=1, last=4)
    summary = (await store.get_entry(CONVERSATION, active.seq)).body
    assert isinstance(summary, Compaction)
    assert (summary.summary, summary.sources) == ("Reefs [#4] and all.", (4,))


async def test_what_went_on_in_quire_follows_the_same_message(store: SqlStore):
    await read(store, ReadingSource(1, *PIECES))
    turn = make_turn(Message.user("How deep?"), Message.assistant("Two fathoms."))
    await store.record_reply(CONVERSATION, turn, branch=1)
    await store.append(CONVERSATION, Pin(message=3), branch=1)
    fork = await store.fork(CONVERSATION, at=1, name="mine")
    await store.append(CONVERSATION, Message.user("Instead."), branch=fork.number)
    empty = await store.fork(CONVERSATION, at=2, name="later")
    await read(store, ReadingSource(2, *WHOLE))
    texts = {each.name: await read_texts(store, CONVERSATION, branch=each.number) for each in await list_used(store)}
    assert ["Sounded, too.", "How deep?", "Two fathoms."] in [each[4:] for each in texts.values()]
    assert ["Chart the reef.", "Instead."] in texts.values()
    assert empty.name in {each.name for each in await store.list_branches(CONVERSATION)}
    [went_on] = [each for each in await list_used(store) if each.state.pins]
    [pin] = went_on.state.pins
    assert (await store.get_entry(CONVERSATION, pin, branch=went_on.number)).message.text == "How deep?"
    manifest = await store.get_manifest(CONVERSATION, pin + 1, branch=went_on.number)
    assert (manifest.branch, manifest.head) == (went_on.number, pin - 1)


async def list_used(store: SqlStore):
    return [each for each in await store.list_branches(CONVERSATION) if each.head_seq > each.fork_seq]


async def test_a_purged_conversation_and_one_that_the_gateway_continued_stay(store: SqlStore):
    await read(store, ReadingSource(1, *PIECES))
    await store.purge(CONVERSATION, [1])
    assert (await read(store, ReadingSource(2, *WHOLE))).reread == {}
    assert (await read_texts(store, CONVERSATION))[0] == "[purged]"


async def test_a_session_that_the_gateway_continued_stays(store: SqlStore):
    await read(store, ReadingSource(1, *PIECES))
    turn = make_turn(Message.user("How deep?"), Message.assistant("Two fathoms."), body=b"{}")
    await store.record_reply(CONVERSATION, turn, branch=1)
    report = await read(store, ReadingSource(2, *WHOLE))
    assert report.reread == {}
    assert len(await store.list_branches(CONVERSATION)) >= 2
    assert (await read(store, ReadingSource(2, *WHOLE))).messages == 0


async def test_a_search_finds_each_message_once(store: SqlStore):
    engine = make_engine(store)
    await read(store, ReadingSource(1, *PIECES))
    assert len((await engine.search("shoals")).messages) == 1
    await read(store, ReadingSource(2, *WHOLE))
    assert len((await engine.search("shoals")).messages) == 1
    assert len((await engine.search("tide")).messages) == 1
