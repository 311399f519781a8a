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
from quire.testing.builders import make_messages, property_settings
from quire.testing.strategies import drafts


@contextmanager
def connect_as_owner(admin_url: str) -> Any:
    """A connection that bypasses Quire, as a database client has."""
    url = make_url(admin_url)
    engine = create_engine(url.set(drivername="postgresql+psycopg") if url.get_backend_name() == "postgresql" else url)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def update_entry(connection: Connection, conversation: str, seq: int, column: str, value: object) -> None:
    statement = text(f"UPDATE quire_entries SET {column} = :value WHERE conversation = :conversation AND seq = :seq")
    changed = connection.execute(statement, {"value": value, "conversation": conversation, "seq": seq})
    assert changed.rowcount == 1


async def write_conversation(store: SqlStore) -> str:
    conversation = (await store.create_conversation()).id
    noted = Draft(body=Message.user("word"), tokens=TokenCount(3, "o200k"), usage=Usage(input_tokens=1), created_at=5)
    await store.append(conversation, *make_messages(2), noted, *make_messages(2, start=4), Pin(message=1))
    await store.append(conversation, Compaction(number=1, covers=Span(first=1, last=2), summary="s"))
    return conversation


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("body", Message.user("work").canonical_json()),
        ("kind", "pin"),
        ("role", "assistant"),
        ("author", "tool"),
        ("at", 6),
        ("tokens", 4),
        ("tokens", None),
        ("counter", "o200j"),
        ("notes", None),
        ("notes", Usage(input_tokens=2).canonical_json()),
        ("digest", b"\x01" * 32),
        ("path", b"\x01" * 32),
    ],
)
async def test_a_changed_column_is_named(store: SqlStore, admin_url: str, column: str, value: object):
    conversation = await write_conversation(store)
    with connect_as_owner(admin_url) as connection:
        update_entry(connection, conversation, 3, column, value)
    assert [(fault.branch, fault.seq) for fault in await store.verify_conversation(conversation)] == [(0, 3)]


@property_settings
@given(items=st.lists(drafts(), min_size=1, max_size=4), data=st.data())
async def test_any_changed_byte_of_a_body_is_named(
    store: SqlStore, admin_url: str, items: list[Draft], data: st.DataObject
):
    conversation = (await store.create_conversation()).id
    appended = await store.append(conversation, *items)
    entry = data.draw(st.sampled_from(appended))
    index = data.draw(st.integers(0, len(entry.raw) - 1))
    other = data.draw(st.characters(codec="ascii", exclude_characters=[entry.raw[index], "\x00"]))
    with connect_as_owner(admin_url) as connection:
        update_entry(connection, conversation, entry.seq, "body", entry.raw[:index] + other + entry.raw[index + 1 :])
    assert [fault.seq for fault in await store.verify_conversation(conversation)] == [entry.seq]


@pytest.mark.parametrize("seq", [1, 4, 7])
async def test_a_removed_entry_is_missed(store: SqlStore, admin_url: str, seq: int):
    conversation = await write_conversation(store)
    with connect_as_owner(admin_url) as connection:
        connection.execute(text("DELETE FROM quire_entries WHERE seq = :seq"), {"seq": seq})
    assert (0, seq, "is missing") in await store.verify_conversation(conversation)


@pytest.mark.parametrize(
    ("column", "value"),
    [("head_digest", b"\x01" * 32), ("head_path", b"\x01" * 32), ("head_seq", 6), ("state", '{"compaction_count":0}')],
)
async def test_a_changed_branch_is_noticed(store: SqlStore, admin_url: str, column: str, value: object):
    conversation = await write_conversation(store)
    with connect_as_owner(admin_url) as connection:
        connection.execute(text(f"UPDATE quire_branches SET {column} = :value"), {"value": value})
    assert await store.verify_conversation(conversation)


async def test_a_lost_path_is_noticed(store: SqlStore, admin_url: str):
    conversation = await write_conversation(store)
    with connect_as_owner(admin_url) as connection:
        connection.execute(text("DELETE FROM quire_paths WHERE seq = 2"))
    assert await store.verify_conversation(conversation) == [(0, 2, "cannot be found by its path")]
