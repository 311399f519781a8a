"""SqlStore contract for transcripts of agents, and for the purge of a value."""

import asyncio
from collections.abc import Sequence

import pytest

from quire.log.transcripts import TranscriptKey, TranscriptLine
from quire.model import Message
from quire.store import SqlStore

pytestmark = pytest.mark.every_database

KEY = TranscriptKey("project", "session")
LEAKED = "a-leaked-value"


def _fold_lines(before: str | None, lines: Sequence[str], at: int) -> str:
    assert at > 0
    return (before or "") + "".join(lines)


async def test_a_transcript_reads_back_in_order(store: SqlStore) -> None:
    assert await store.transcripts.load(KEY) is None
    lines = [TranscriptLine(None if number % 3 else f"id {number}", f"line {number}") for number in range(20)]
    assert await store.transcripts.append(KEY, lines[:5]) == 5
    assert await store.transcripts.append(KEY, lines[5:]) == 15
    assert await store.transcripts.load(KEY) == [line.text for line in lines]


async def test_a_line_with_a_known_id_is_not_stored_again(store: SqlStore) -> None:
    line = TranscriptLine("id", "first")
    assert await store.transcripts.append(KEY, [line, line]) == 1
    assert await store.transcripts.append(KEY, [TranscriptLine("id", "second"), TranscriptLine(None, "no id")]) == 1
    assert await store.transcripts.load(KEY) == ["first", "no id"]


async def test_concurrent_appends_all_succeed(store: SqlStore) -> None:
    await asyncio.gather(
        *(store.transcripts.append(KEY, [TranscriptLine(f"id {number}", str(number))]) for number in range(10))
    )
    assert sorted(await store.transcripts.load(KEY) or [], key=int) == [str(number) for number in range(10)]


async def test_a_summary_is_folded_from_new_lines(store: SqlStore) -> None:
    for text in ("a", "b", "b"):
        await store.transcripts.append(KEY, [TranscriptLine(text, text)], fold_summary=_fold_lines)
    [record] = await store.transcripts.list("project")
    assert (record.session, record.summary) == ("session", "ab")
    assert await store.transcripts.list("another") == []


async def test_a_session_is_deleted_with_its_sub_agents(store: SqlStore) -> None:
    keys = [KEY, *(KEY._replace(subpath=f"subagents/{name}") for name in "ab"), KEY._replace(session="other")]
    for key in keys:
        await store.transcripts.append(key, [TranscriptLine("id", "line")])
    assert await store.transcripts.list_subpaths("project", "session") == ["subagents/a", "subagents/b"]
    await store.transcripts.delete(keys[1])
    assert await store.transcripts.list_subpaths("project", "session") == ["subagents/b"]
    await store.transcripts.delete(KEY)
    assert [await store.transcripts.load(key) for key in keys] == [None, None, None, ["line"]]


async def test_a_purge_deletes_the_transcript_of_its_conversation(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", Message.user("One."))
    await store.transcripts.append(KEY, [TranscriptLine("id", "One.")])
    await store.transcripts.link(KEY, "c")
    await store.purge("c", [1])
    assert await store.transcripts.load(KEY) is None


async def test_a_value_is_purged_wherever_it_is(store: SqlStore) -> None:
    for name in ("c", "d"):
        await store.create_conversation(name)
        await store.append(name, Message.user("Nothing."), Message.user(f"It is {LEAKED}."))
    await store.transcripts.append(KEY, [TranscriptLine("id", f"It is {LEAKED}.")])
    assert await store.find_value(LEAKED) == {"entries": 2, "transcript_lines": 1}
    purged = await store.purge_value(LEAKED)
    assert (purged.entries, purged.remaining) == ((("c", 0, 2), ("d", 0, 2)), ())
    assert await store.find_value(LEAKED) == {}
    assert (await store.get_entry("d", 1)).message.text == "Nothing."
    assert await store.verify_conversation("d") == []
