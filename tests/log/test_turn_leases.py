"""Turn leases: one process at a time runs the turn of a branch, and one that lost its lease records nothing."""

import asyncio

import pytest

from infra.builders import make_turn
from quire.errors import TurnLeaseLost
from quire.log.types import TurnLease
from quire.model import Message
from quire.store import SqlStore
from quire.turns import leases as turn_leases
from quire.turns.leases import IdempotencyKey, LeaseGrant, LeaseState

KEY = IdempotencyKey(0, b"digest of the question")


@pytest.fixture
async def log(store: SqlStore) -> SqlStore:
    await store.create_conversation("c")
    return store


async def acquire(store: SqlStore, owner: str = "one", *, branch: int = 0) -> TurnLease:
    granted = await store.leases.acquire("c", branch, owner=owner, idempotency_key=KEY)
    assert isinstance(granted, LeaseGrant)
    return granted.lease


async def acquire_expired(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> TurnLease:
    """A lease whose process did not renew it in time."""
    with monkeypatch.context() as patch:
        patch.setattr(turn_leases, "LEASE_SECONDS", -1)
        return await acquire(store)


@pytest.mark.every_database
async def test_a_running_turn_has_the_branch_for_itself(log: SqlStore):
    await log.append("c", Message.user("a"))
    granted = await log.leases.acquire("c", 0, owner="one", idempotency_key=KEY)
    assert isinstance(granted, LeaseGrant)
    assert granted.head_seq == 1
    held = await log.leases.acquire("c", 0, owner="two")
    assert held == LeaseState(granted.lease, KEY, True, False, None, None, None)
    assert isinstance(await log.for_tenant("elsewhere").leases.get("c", 0), type(None))


@pytest.mark.every_database
async def test_of_concurrent_attempts_one_acquires_the_lease(log: SqlStore):
    attempts = await asyncio.gather(*(log.leases.acquire("c", 0, owner=str(number)) for number in range(10)))
    [granted] = [each for each in attempts if isinstance(each, LeaseGrant)]
    assert {each.lease for each in attempts} == {granted.lease}


@pytest.mark.every_database
async def test_an_expired_lease_is_taken_over_and_fences_its_old_owner(log: SqlStore, monkeypatch: pytest.MonkeyPatch):
    old = await acquire_expired(log, monkeypatch)
    new = await acquire(log, "two")
    turn = make_turn(Message.user("a question"), Message.assistant("an answer"))
    with pytest.raises(TurnLeaseLost):
        await log.append("c", Message.user("a question"), lease=old)
    with pytest.raises(TurnLeaseLost):
        await log.record_reply("c", turn._replace(lease=old, ends_turn=True))
    with pytest.raises(TurnLeaseLost):
        await log.leases.request_approval(old, "call")
    assert await log.leases.renew([old.turn]) == []
    await log.leases.end(old, outcome="{}")
    assert (await log.get_branch("c")).head_seq == 0
    await log.record_reply("c", turn._replace(lease=new, ends_turn=True))
    assert (await log.get_branch("c")).head_seq == 2
    assert await log.leases.get("c", 0) is None


async def test_an_expired_lease_that_no_process_took_over_is_renewed(log: SqlStore, monkeypatch: pytest.MonkeyPatch):
    lease = await acquire_expired(log, monkeypatch)
    assert [state.is_running for state in await log.leases.list([lease.turn])] == [False]
    assert not await log.leases.request_stop("c", 0)
    [renewed] = await log.leases.renew([lease.turn, "another"])
    assert (renewed.lease, renewed.is_running) == (lease, True)


async def test_a_write_of_the_turn_renews_its_lease(log: SqlStore, monkeypatch: pytest.MonkeyPatch):
    lease = await acquire_expired(log, monkeypatch)
    await log.append("c", Message.user("a question"), lease=lease)
    assert isinstance(await log.leases.acquire("c", 0, owner="two"), LeaseState)


async def test_a_failed_write_does_not_end_the_lease(log: SqlStore):
    lease = await acquire(log)
    turn = make_turn(Message.user("a question"), Message.assistant("an answer"))
    with pytest.raises(ZeroDivisionError):
        await log.record_reply("c", turn._replace(lease=lease, ends_turn=True, build_manifest=lambda _: 1 // 0))
    assert isinstance(await log.leases.acquire("c", 0, owner="two"), LeaseState)


async def test_the_outcome_of_a_turn_without_an_answer_is_readable_until_the_next_turn(log: SqlStore):
    lease = await acquire(log)
    await log.leases.end(lease, outcome='{"event": "turn_failed"}')
    ended = await log.leases.get("c", 0)
    assert ended is not None
    assert (ended.lease, ended.is_running, ended.outcome) == (lease, False, '{"event": "turn_failed"}')
    await acquire(log, "two")
    running = await log.leases.get("c", 0)
    assert running is not None
    assert (running.is_running, running.outcome) == (True, None)


async def test_old_outcomes_are_deleted(log: SqlStore, monkeypatch: pytest.MonkeyPatch):
    await log.fork("c", at=0)
    await log.leases.end(await acquire(log), outcome="{}")
    monkeypatch.setattr(turn_leases, "OUTCOME_SECONDS", -turn_leases.LEASE_SECONDS - 1)
    await log.leases.end(await acquire(log, branch=1), outcome="{}")
    assert await log.leases.get("c", 0) is None


async def test_a_purge_deletes_outcomes_but_no_running_turn(log: SqlStore):
    await log.fork("c", at=0)
    await log.append("c", Message.user("the secret of the house"))
    await log.leases.end(await acquire(log), outcome='{"detail": "the secret of the house"}')
    running = await acquire(log, branch=1)
    assert (await log.purge_value("the secret of the house")).remaining == ()
    assert await log.leases.get("c", 0) is None
    assert [state.lease for state in await log.leases.list([running.turn])] == [running]


async def test_a_stop_reaches_only_a_running_turn(log: SqlStore):
    assert not await log.leases.request_stop("c", 0)
    lease = await acquire(log)
    assert await log.leases.request_stop("c", 0)
    assert [state.stop_requested for state in await log.leases.list([lease.turn])] == [True]
    await log.leases.end(lease, outcome="{}")
    assert not await log.leases.request_stop("c", 0)
    again = await acquire(log)
    assert [state.stop_requested for state in await log.leases.list([again.turn])] == [False]


async def test_the_first_decision_on_a_call_counts(log: SqlStore):
    lease = await acquire(log)
    assert await log.leases.decide_approval("c", 0, "call", approve=True) is None
    approval = await log.leases.request_approval(lease, "call\x00")
    assert await log.leases.decide_approval("c", 0, "another", approve=True) is None
    decisions = [log.leases.decide_approval("c", 0, "call\x00", approve=approve) for approve in (True, False, True)]
    assert sorted(each or "" for each in await asyncio.gather(*decisions)) == ["", "", approval]
    [state] = await log.leases.list([lease.turn])
    assert state.approval == approval
    assert state.is_approved is not None
    repeated = await log.leases.request_approval(lease, "call\x00")
    [state] = await log.leases.list([lease.turn])
    assert (state.approval, state.is_approved) == (repeated, None)
    assert repeated != approval
