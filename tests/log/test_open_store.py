"""Opening a store, and the errors when that fails."""

import sys
from pathlib import Path

import pytest

from quire.errors import MissingExtra, StoreError, StoreUnavailable
from quire.log import SqlStore
from quire.testing.builders import make_messages


async def test_a_new_sqlite_file_is_made_with_its_folder(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/a/b/quire.db"
    async with SqlStore.open(url) as store:
        await store.create_conversation("c")
        await store.append("c", *make_messages(3))
    async with SqlStore.open(url) as store:
        assert len(await store.read_range("c")) == 3


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
async def test_a_log_in_memory_works(url: str):
    async with SqlStore.open(url) as store:
        await store.create_conversation("c")
        await store.append("c", *make_messages(3))
        assert len((await store.read_window("c")).messages) == 3


async def test_a_long_read_on_sqlite_does_not_block_the_event_loop(tmp_path: Path):
    """A read of more than 1,000 rows moves to a thread and returns the same rows."""
    async with SqlStore.open(f"sqlite:///{tmp_path}/quire.db") as store:
        await store.create_conversation("c")
        await store.append("c", *make_messages(1_500))
        assert [entry.seq for entry in (await store.read_window("c")).messages] == list(range(1, 1_501))


async def test_tenants_share_a_database_and_nothing_else(store: SqlStore):
    await store.create_conversation("c", title="mine")
    other = store.for_tenant("other")
    await other.create_conversation("c", title="theirs")
    assert (await store.get_conversation("c")).title == "mine"


async def test_an_odd_tenant_name_is_only_a_name(store: SqlStore):
    odd = store.for_tenant("o'; DROP TABLE quire_blobs; -- %s \\")
    await odd.create_conversation("c")
    assert [conversation.id for conversation in await odd.list_conversations()] == ["c"]


async def test_a_server_that_is_not_there_is_unavailable():
    with pytest.raises(StoreUnavailable):
        async with SqlStore.open("postgresql://user@127.0.0.1:1/none"):
            pass


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path):
    (tmp_path / "quire.db").write_bytes(b"this is not a database, whatever its name says" * 30)
    with pytest.raises(StoreError):
        async with SqlStore.open(f"sqlite:///{tmp_path}/quire.db"):
            pass


async def test_another_database_is_refused():
    with pytest.raises(StoreError, match="SQLite or PostgreSQL"):
        async with SqlStore.open("mysql://localhost/x"):
            pass


async def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"quire\[postgres\]"):
        async with SqlStore.open("postgresql://localhost/x"):
            pass
