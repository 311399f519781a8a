"""The sweep finds whatever is missing, of every tenant, and what was lost since it last looked; and little besides."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from jobbing import DAY, SECOND, Shop

from quire.errors import StoreUnavailable
from quire.jobs import Job
from quire.log import SqlStore

MINUTE = 61 * SECOND


class Told(list[Job]):
    """Remembers what it was to defer."""

    async def defer(self, jobs: Sequence[Job]) -> None:
        self.extend(jobs)


async def swept(shop: Shop) -> set[Job]:
    found = Told()
    assert await shop.sweeper.sweep(found.defer) == len(found)
    return set(found)


async def test_what_is_missing_is_found_in_every_tenant(store: SqlStore):
    shop = Shop(store)
    await shop.overfull("full", tenant="a")
    await shop.unshelved("archived", tenant="b")
    shelved = await shop.unshelved("shelved", tenant="c")
    await shop.engine("c").recaller.archives.fill(await shop.engine("c").store.branch(shelved.id))
    shop.clock.ahead = MINUTE
    found = await swept(shop)
    assert found >= {Job("compact", "a", "full"), Job("shelve", "b", "archived"), Job("embed", "c", "shelved")}
    assert {job for job in found if job.kind == "shelve"} == {Job("shelve", "b", "archived")}
    assert {job for job in found if job.kind == "embed"} == {Job("embed", "c", "shelved")}


async def test_a_conversation_in_use_is_left_until_it_is_quiet(store: SqlStore):
    shop = Shop(store)
    await shop.overfull()
    assert await swept(shop) == set()
    shop.clock.ahead = MINUTE
    assert await swept(shop) == {Job("compact", "default", "c")}
    assert await swept(shop) == set()


async def test_a_lost_job_is_found_after_an_hour_and_after_a_day(store: SqlStore):
    shop = Shop(store)
    await shop.overfull()
    lost = {Job("compact", "default", "c")}
    # Once before, so that the later looks have begun.
    assert await swept(shop) == set()
    for ahead, found in ((MINUTE, lost), (2 * MINUTE, set()), (DAY // 24 + MINUTE, lost), (DAY + MINUTE, lost)):
        shop.clock.ahead = ahead
        assert await swept(shop) == found, ahead
    assert await swept(shop) == set()


async def test_one_that_is_used_again_is_looked_at_again(store: SqlStore):
    shop = Shop(store)
    conversation = await shop.overfull()
    shop.clock.ahead = MINUTE
    assert await swept(shop)
    await _pretend_used(store, "c", shop.clock())
    await conversation.append("and now?")
    assert await swept(shop) == set()
    shop.clock.ahead = 3 * MINUTE
    assert await swept(shop) == {Job("compact", "default", "c")}


async def _pretend_used(store: SqlStore, conversation: str, at: int) -> None:
    from sqlalchemy import text

    changed = text("UPDATE quire_conversations SET used_at = :at WHERE conversation = :id AND tenant = :tenant")
    await store._write(  # pyright: ignore[reportPrivateUsage]
        lambda connection, tenant: (
            connection.execute(changed, {"at": at, "id": conversation, "tenant": tenant}) and None
        )
    )


async def test_whoever_sweeps_next_goes_on_from_there(store: SqlStore):
    first, second = Shop(store), Shop(store)
    await first.overfull()
    first.clock.ahead = second.clock.ahead = MINUTE
    assert await swept(first)
    assert await swept(second) == set()
    await second.sweeper.forget()
    assert await swept(second)


async def test_what_could_not_be_deferred_is_found_by_the_next_sweep(store: SqlStore):
    shop = Shop(store)
    await shop.overfull()
    shop.clock.ahead = MINUTE

    async def failing(jobs: Sequence[Job]) -> None:
        raise StoreUnavailable("The database is gone.")

    with pytest.raises(StoreUnavailable):
        await shop.sweeper.sweep(failing)
    assert await swept(shop) == {Job("compact", "default", "c")}


async def test_many_conversations_are_found_page_by_page(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("quire.jobs.sweeping.PAGE", 3)
    shop = Shop(store, retention_days=1)
    for number in range(10):
        await shop.engine("a").store.create_conversation(f"a {number}")
        await shop.engine("b").store.create_conversation(f"b {number}")
    shop.clock.ahead = DAY + MINUTE
    expected = {Job("purge", tenant, f"{tenant} {number}") for tenant in "ab" for number in range(10)}
    assert await swept(shop) == expected
    assert await swept(shop) == set()
    # A purge that was lost comes once more.
    shop.clock.ahead = 2 * DAY + MINUTE
    assert await swept(shop) == expected
    shop.clock.ahead = 9 * DAY
    assert await swept(shop) == set()


async def test_every_branch_is_looked_at(store: SqlStore):
    shop = Shop(store)
    conversation = await shop.overfull()
    await conversation.fork(20)
    shop.clock.ahead = MINUTE
    assert await swept(shop) == {Job("compact", "default", "c", 0), Job("compact", "default", "c", 1)}


async def test_without_a_summarizer_nothing_is_compacted_in_the_background(store: SqlStore):
    shop = Shop(store, context_background_threshold=None)
    await shop.overfull()
    shop.clock.ahead = MINUTE
    assert await swept(shop) == set()


async def test_a_vault_is_looked_through_now_and_then(store: SqlStore, tmp_path: Path):
    shop = Shop(store, vault=tmp_path)
    index, describe = Job("index", "default"), Job("describe", "default")
    assert await swept(shop) == {index, describe}
    shop.clock.ahead = 5 * MINUTE
    assert await swept(shop) == set()
    shop.clock.ahead = 11 * MINUTE
    assert await swept(shop) == {index}
