"""Costs and spend caps in the store: reservations admit calls below a cap, settlement replaces them, tenants differ."""

import asyncio

import pytest

from quire.errors import SpendCapReached, SpendReserved
from quire.log import SqlStore, costs
from quire.log.costs import SpendCaps, SpendingKey
from quire.testing.builders import make_messages, make_turn

KEY = "k" * 26


async def test_a_cost_counts_for_conversation_key_and_tenant(store: SqlStore):
    await store.create_conversation("c")
    await store.record_reply("c", make_turn(*make_messages(2))._replace(cost=0.25, key_id=KEY))
    assert await store.add_cost("c", 0.5, key_id=KEY) == 0.75
    assert await store.add_cost("c", 1.0) == 1.75
    assert await store.get_spending() == {KEY: 0.75, "": 1.0}
    assert await store.for_tenant("other").get_spending() == {}


@pytest.mark.parametrize(
    ("caps", "scope"),
    [(SpendCaps(conversation=1.0), "conversation"), (SpendCaps(key=1.0), "key"), (SpendCaps(tenant=1.0), "tenant")],
)
async def test_a_cap_admits_calls_until_reservations_and_costs_reach_it(store: SqlStore, caps: SpendCaps, scope: str):
    first = await store.reserve_spend("c", 0.6, caps, key_id=KEY)
    second = await store.reserve_spend("c", 0.6, caps, key_id=KEY)
    with pytest.raises(SpendReserved) as reserved:
        await store.reserve_spend("c", 0.1, caps, key_id=KEY)
    assert (reserved.value.scope, reserved.value.reserved) == (scope, pytest.approx(1.2))
    await store.settle_spend(first, 0.1)
    await store.settle_spend(first, 5.0)
    third = await store.reserve_spend("c", 0.1, caps, key_id=KEY)
    await store.settle_spend(third, 0.0)
    await store.settle_spend(second, 0.9)
    for call in (store.reserve_spend("c", 0.0, caps, key_id=KEY), store.check_spend("c", caps, key_id=KEY)):
        with pytest.raises(SpendCapReached) as reached:
            await call
        assert (reached.value.scope, reached.value.spent) == (scope, pytest.approx(1.0))


async def test_a_cap_counts_only_what_belongs_to_it(store: SqlStore):
    caps = SpendCaps(conversation=1.0, key=1.0, tenant=10.0)
    await store.reserve_spend("c", 1.0, caps, key_id=KEY)
    await store.for_tenant("other").reserve_spend("c", 1.0, caps, key_id=KEY)
    await store.reserve_spend("d", 1.0, caps, key_id="another")
    with pytest.raises(SpendReserved, match="conversation"):
        await store.reserve_spend("c", 1.0, caps, key_id="third")
    with pytest.raises(SpendReserved, match="key"):
        await store.reserve_spend("e", 1.0, caps, key_id=KEY)


async def test_another_tenant_cannot_settle_a_reservation(store: SqlStore):
    caps = SpendCaps(key=1.0)
    reservation = await store.reserve_spend("c", 1.0, caps, key_id=KEY)
    await store.for_tenant("other").settle_spend(reservation, 0.0)
    with pytest.raises(SpendReserved):
        await store.reserve_spend("c", 1.0, caps, key_id=KEY)


async def test_recording_a_reply_settles_its_reservation(store: SqlStore):
    await store.create_conversation("c")
    caps = SpendCaps(key=1.0)
    reservation = await store.reserve_spend("c", 1.0, caps, key_id=KEY)
    turn = make_turn(*make_messages(2))._replace(cost=0.25, key_id=KEY, reservation_id=reservation)
    await store.record_reply("c", turn)
    await store.settle_spend(reservation, 9.0)
    assert await store.get_spending() == {KEY: 0.25}
    await store.reserve_spend("c", 0.1, caps, key_id=KEY)


async def test_a_reservation_of_a_process_that_died_expires(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    caps = SpendCaps(key=1.0)
    await store.reserve_spend("c", 2.0, caps, key_id=KEY)
    with pytest.raises(SpendReserved):
        await store.reserve_spend("c", 2.0, caps, key_id=KEY)
    later = costs.now() + costs.RESERVATION_SECONDS * 1_000_000
    monkeypatch.setattr(costs, "now", lambda: later)
    await store.reserve_spend("c", 2.0, caps, key_id=KEY)
    monkeypatch.undo()
    with pytest.raises(SpendReserved) as refused:
        await store.reserve_spend("c", 2.0, caps, key_id=KEY)
    assert refused.value.reserved == 2.0


async def test_concurrent_reservations_never_pass_the_cap_by_more_than_one(store: SqlStore):
    caps = SpendCaps(tenant=1.0)
    calls = (store.reserve_spend(f"c{number}", 0.125, caps, key_id=KEY) for number in range(40))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    admitted = [each for each in outcomes if isinstance(each, str)]
    assert len(admitted) == 8
    assert all(isinstance(each, str | SpendReserved) for each in outcomes)


async def test_background_work_is_charged_to_the_key_that_spent_most(store: SqlStore):
    cheap, _ = await store.create_key("cheap", ["chat"])
    large, _ = await store.create_key("large", ["chat"], max_spend=2.5)
    await store.create_conversation("c")
    assert await store.find_spending_key("c") is None
    for key_id, cost in ((cheap.id, 0.1), (large.id, 0.2), ("", 9.0)):
        await store.add_cost("c", cost, key_id=key_id)
    assert await store.find_spending_key("c") == SpendingKey(large.id, 2.5)
