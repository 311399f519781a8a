"""`quire serve` and `quire worker` wait for PostgreSQL when they start, for a bounded time."""

from pathlib import Path

import pytest

from infra.postgres import find_free_port
from quire.cli.engine_setup import wait_for_database
from quire.errors import StoreUnavailable
from quire.store import SqlStore


async def test_a_database_that_stays_away_is_an_error_after_the_bounded_wait():
    url = f"postgresql://quire@127.0.0.1:{find_free_port()}/quire"
    with pytest.raises(StoreUnavailable):
        await wait_for_database(url, report=lambda *_: None, max_seconds=1.0)


async def test_the_wait_ends_when_the_database_is_there(
    store: SqlStore, database_url: str, monkeypatch: pytest.MonkeyPatch
):
    original, failures = SqlStore.check, [StoreUnavailable(), StoreUnavailable()]
    reports: list[StoreUnavailable] = []

    async def check(self: SqlStore, **options: float) -> None:
        if failures:
            raise failures.pop()
        await original(self, **options)

    monkeypatch.setattr(SqlStore, "check", check)
    monkeypatch.setattr("quire.db.database_url.is_postgres", lambda _: True)
    await wait_for_database(database_url, report=lambda error, _: reports.append(error))
    assert len(reports) == 2


async def test_a_file_that_cannot_be_opened_is_reported_at_once(tmp_path: Path):
    (tmp_path / "quire.db").mkdir()
    with pytest.raises(StoreUnavailable):
        await wait_for_database(f"sqlite:///{tmp_path}/quire.db", report=lambda *_: pytest.fail("it waits"))
