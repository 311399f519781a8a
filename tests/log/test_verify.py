"""Changing one stored byte makes verification name that entry, and only that one."""

from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import make_url

from quire.log import SqlStore
from quire.model import Compaction, Draft, Message, Pin, Span, TokenCount, Usage
from quire.testing.given import for_any, turns
from quire.testing.strategies import drafts


@contextmanager
def as_owner(admin_url: str) -> Any:
    """A connection past all of Quire, as someone with a database client would have it."""
    url = make_url(admin_url)
    engine = create_engine(url.set(drivername="postgresql+psycopg") if url.get_backend_name() == "postgresql" else url)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def change(connection: Connection, conversation: str, seq: int, column: str, value: object) -> None:
    statement = text(f"UPDATE quire_entries SET {column} = :value WHERE conversation = :conversation AND seq = :seq")
    changed = connection.execute(statement, {"value": value, "conversation": conversation, "seq": seq})
    assert changed.rowcount == 1


async def written(store: SqlStore) -> str:
    conversation = (await store.create_conversation()).id
    noted = Draft(body=Message.user("said"), tokens=TokenCount(3, "o200k"), usage=Usage(input_tokens=1), at=5)
    await store.append(conversation, *turns(2), noted, *turns(2, start=4), Pin(message=1))
    await store.append(conversation, Compaction(number=1, covers=Span(first=1, last=2), summary="s"))
    return conversation


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("body", Message.user("sajd").canonical()),
        ("kind", "pin"),
        ("role", "assistant"),
        ("author", "tool"),
        ("at", 6),
        ("tokens", 4),
        ("tokens", None),
        ("counter", "o200j"),
        ("notes", None),
        ("notes", Usage(input_tokens=2).canonical()),
        ("digest", b"\x01" * 32),
        ("path", b"\x01" * 32),
    ],
)
async def test_a_changed_column_is_named(store: SqlStore, admin_url: str, column: str, value: object):
    conversation = await written(store)
    with as_owner(admin_url) as connection:
        change(connection, conversation, 3, column, value)
    assert [(fault.branch, fault.seq) for fault in await store.verify(conversation)] == [(0, 3)]


@for_any
@given(said=st.lists(drafts(), min_size=1, max_size=4), data=st.data())
async def test_any_changed_byte_of_a_body_is_named(
    store: SqlStore, admin_url: str, said: list[Draft], data: st.DataObject
):
    conversation = (await store.create_conversation()).id
    appended = await store.append(conversation, *said)
    entry = data.draw(st.sampled_from(appended))
    place = data.draw(st.integers(0, len(entry.raw) - 1))
    other = data.draw(st.characters(codec="ascii", exclude_characters=[entry.raw[place], "\x00"]))
    with as_owner(admin_url) as connection:
        change(connection, conversation, entry.seq, "body", entry.raw[:place] + other + entry.raw[place + 1 :])
    assert [fault.seq for fault in await store.verify(conversation)] == [entry.seq]


@pytest.mark.parametrize("seq", [1, 4, 7])
async def test_a_removed_entry_is_missed(store: SqlStore, admin_url: str, seq: int):
    conversation = await written(store)
    with as_owner(admin_url) as connection:
        connection.execute(text("DELETE FROM quire_entries WHERE seq = :seq"), {"seq": seq})
    assert (0, seq, "is missing") in await store.verify(conversation)


@pytest.mark.parametrize(
    ("column", "value"),
    [("head_digest", b"\x01" * 32), ("head_path", b"\x01" * 32), ("head_seq", 6), ("state", '{"compactions":0}')],
)
async def test_a_changed_branch_is_noticed(store: SqlStore, admin_url: str, column: str, value: object):
    conversation = await written(store)
    with as_owner(admin_url) as connection:
        connection.execute(text(f"UPDATE quire_branches SET {column} = :value"), {"value": value})
    assert await store.verify(conversation)


async def test_a_lost_path_is_noticed(store: SqlStore, admin_url: str):
    conversation = await written(store)
    with as_owner(admin_url) as connection:
        connection.execute(text("DELETE FROM quire_paths WHERE seq = 2"))
    assert await store.verify(conversation) == [(0, 2, "cannot be found by its path")]
