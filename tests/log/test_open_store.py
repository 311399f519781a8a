"""Opening a store, and the errors when that fails."""

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.builders import make_messages
from quire.db import migrate
from quire.errors import MissingExtra, StoreError, StoreUnavailable
from quire.store import SqlStore

pytestmark = pytest.mark.every_database


async def test_a_new_sqlite_file_is_made_with_its_folder(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/a/b/quire.db"
    async with SqlStore.open(url) as store:
        await store.create_conversation("c")
        await store.append("c", *make_messages(3))
    async with SqlStore.open(url) as store:
        assert len(await store.read_range("c")) == 3


@pytest.fixture
def usual_umask() -> Iterator[None]:
    """The usual umask, under which new files are readable by everyone."""
    previous = os.umask(0o022)
    yield
    os.umask(previous)


@pytest.mark.usefixtures("usual_umask")
@pytest.mark.parametrize("upgrade_first", [False, True])
async def test_only_its_owner_can_read_a_new_sqlite_log(tmp_path: Path, *, upgrade_first: bool):
    folder = tmp_path / "new"
    url = f"sqlite:///{folder}/quire.db"
    if upgrade_first:
        migrate.upgrade(url)
    async with SqlStore.open(url) as store:
        await store.create_conversation("c")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == dict.fromkeys(["quire.db", "quire.db-wal", "quire.db-shm"], 0o600)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.usefixtures("usual_umask")
async def test_permissions_of_an_existing_sqlite_log_stay_as_they_are(tmp_path: Path):
    """A group may share a log on purpose."""
    path = tmp_path / "quire.db"
    path.touch(mode=0o640)
    tmp_path.chmod(0o750)
    async with SqlStore.open(f"sqlite:///{path}"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o750


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
