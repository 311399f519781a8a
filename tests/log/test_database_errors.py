"""Database URLs with several hosts, and errors of databases that cannot be written."""

from pathlib import Path

import pytest
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from infra.builders import make_messages
from quire.db.database import TransactionOptions, map_database_errors
from quire.db.database_url import build_conninfo, is_postgres, parse_database_url
from quire.errors import InvalidConfiguration, StoreFull, StoreReadOnly, error_detail
from quire.store import SqlStore


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "postgresql://app:s%40cret@a:6000,b:6001/log?target_session_attrs=read-write",
            {"host": "a,b", "port": "6000,6001", "user": "app", "password": "s@cret", "dbname": "log"}
            | {"target_session_attrs": "read-write"},
        ),
        ("postgresql://a,b/log", {"host": "a,b", "port": "5432,5432", "dbname": "log"}),
        ("postgresql://[::1]:6000,b/log", {"host": "::1,b", "port": "6000,5432", "dbname": "log"}),
        ("postgresql://app@/log?host=a:1&host=b:2", {"host": "a,b", "port": "1,2", "user": "app", "dbname": "log"}),
        ("postgresql+psycopg://app@a:6000/log", {"host": "a", "port": "6000", "user": "app", "dbname": "log"}),
    ],
)
def test_store_and_queue_understand_the_same_urls(url: str, expected: dict[str, str]):
    assert conninfo_to_dict(build_conninfo(url)) == expected
    assert is_postgres(url)


@pytest.mark.parametrize("url", ["postgresql://app:secret@a:x,b:1/log", "postgresql://app:secret@a:x/log", "secret"])
def test_a_malformed_url_is_refused_without_its_password(url: str):
    with pytest.raises(InvalidConfiguration, match="malformed") as refused:
        parse_database_url(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("error", "expected"), [(errors.DiskFull, StoreFull), (errors.ReadOnlySqlTransaction, StoreReadOnly)]
)
def test_a_postgres_that_cannot_be_written_is_named_without_its_paths(
    error: type[Exception], expected: type[StoreFull | StoreReadOnly]
):
    with pytest.raises(expected) as raised, map_database_errors():
        raise error('could not extend file "base/16384/16500"')
    assert "base/" in str(raised.value)
    assert "base/" not in error_detail(raised.value)


async def test_a_full_disk_under_sqlite_is_reported_as_full(tmp_path: Path):
    async with SqlStore.open(f"sqlite:///{tmp_path}/quire.db") as store:
        await store.create_conversation("c")
        await store.base.database.write(
            lambda connection: connection.exec_driver_sql("PRAGMA max_page_count = 1"), TransactionOptions("t")
        )
        with pytest.raises(StoreFull):
            await store.append("c", *make_messages(2_000))
        await store.base.database.write(
            lambda connection: connection.exec_driver_sql("PRAGMA max_page_count = 1000000"), TransactionOptions("t")
        )
        assert len(await store.append("c", *make_messages(2))) == 2
