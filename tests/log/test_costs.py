"""Costs and spend caps in the store: reservations admit calls below a cap, settlement replaces them, tenants differ."""

import asyncio

import pytest

from infra.builders import make_messages, make_turn
from quire.access import spending as costs
from quire.access.spending import SpendCaps, SpendingKey
from quire.errors import SpendCapReached, SpendReserved, format_usd
from quire.store import SqlStore

KEY = "k" * 26


@pytest.mark.every_database
async def test_a_cost_counts_for_conversation_key_and_tenant(store: SqlStore):
    await store.create_conversation("c")
    await store.record_reply("c", make_turn(*make_messages(2))._replace(cost=0.25, key_id=KEY))
    assert await store.spending.add_cost("c", 0.5, key_id=KEY) == 0.75
    assert await store.spending.add_cost("c", 1.0) == 1.75
    assert await store.spending.sum_by_key() == {KEY: 0.75, "": 1.0}
    assert await store.for_tenant("other").spending.sum_by_key() == {}


@pytest.mark.parametrize(
    ("caps", "scope"),
    [(SpendCaps(conversation=1.0), "conversation"), (SpendCaps(key=1.0), "key"), (SpendCaps(tenant=1.0), "tenant")],
)
async def test_a_cap_admits_calls_until_reservations_and_costs_reach_it(store: SqlStore, caps: SpendCaps, scope: str):
    first = await store.spending.reserve("c", 0.6, caps, key_id=KEY)
    second = await store.spending.reserve("c", 0.6, caps, key_id=KEY)
    with pytest.raises(SpendReserved) as reserved:
        await store.spending.reserve("c", 0.1, caps, key_id=KEY)
    assert (reserved.value.scope, reserved.value.reserved) == (scope, pytest.approx(1.2))
    await store.spending.settle(first, 0.1)
    await store.spending.settle(first, 5.0)
    third = await store.spending.reserve("c", 0.1, caps, key_id=KEY)
    await store.spending.settle(third, 0.0)
    await store.spending.settle(second, 0.9)
    for call in (store.spending.reserve("c", 0.0, caps, key_id=KEY), store.spending.check("c", caps, key_id=KEY)):
        with pytest.raises(SpendCapReached) as reached:
            await call
        assert (reached.value.scope, reached.value.spent) == (scope, pytest.approx(1.0))


@pytest.mark.parametrize(
    ("caps", "scope"),
    [(SpendCaps(conversation=1.0), "conversation"), (SpendCaps(key=1.0), "key"), (SpendCaps(tenant=1.0), "tenant")],
)
async def test_a_call_whose_input_exceeds_what_is_left_is_refused(store: SqlStore, caps: SpendCaps, scope: str):
    await store.create_conversation("c")
    await store.spending.add_cost("c", 0.7, key_id=KEY)
    for call in (
        store.spending.reserve("c", 0.5, caps, key_id=KEY, input_usd=0.4),
        store.spending.check("c", caps, key_id=KEY, input_usd=0.4),
    ):
        with pytest.raises(SpendCapReached, match=r"\$0.3000 is left, and the input .* at \$0.4000") as refused:
            await call
        assert (refused.value.scope, refused.value.estimated) == (scope, 0.4)
    reservation = await store.spending.reserve("c", 0.2, caps, key_id=KEY, input_usd=0.1)
    with pytest.raises(SpendReserved):
        await store.spending.reserve("c", 0.2, caps, key_id=KEY, input_usd=0.2)
    await store.spending.settle(reservation, 0.1)
    await store.spending.reserve("c", 9.0, caps, key_id=KEY, input_usd=0.2)


async def test_a_cap_counts_only_what_belongs_to_it(store: SqlStore):
    caps = SpendCaps(conversation=1.0, key=1.0, tenant=10.0)
    await store.spending.reserve("c", 1.0, caps, key_id=KEY)
    await store.for_tenant("other").spending.reserve("c", 1.0, caps, key_id=KEY)
    await store.spending.reserve("d", 1.0, caps, key_id="another")
    with pytest.raises(SpendReserved, match="conversation"):
        await store.spending.reserve("c", 1.0, caps, key_id="third")
    with pytest.raises(SpendReserved, match="key"):
        await store.spending.reserve("e", 1.0, caps, key_id=KEY)


@pytest.mark.every_database
async def test_another_tenant_cannot_settle_a_reservation(store: SqlStore):
    caps = SpendCaps(key=1.0)
    reservation = await store.spending.reserve("c", 1.0, caps, key_id=KEY)
    await store.for_tenant("other").spending.settle(reservation, 0.0)
    with pytest.raises(SpendReserved):
        await store.spending.reserve("c", 1.0, caps, key_id=KEY)


async def test_recording_a_reply_settles_its_reservation(store: SqlStore):
    await store.create_conversation("c")
    caps = SpendCaps(key=1.0)
    reservation = await store.spending.reserve("c", 1.0, caps, key_id=KEY)
    turn = make_turn(*make_messages(2))._replace(cost=0.25, key_id=KEY, reservation_id=reservation)
    await store.record_reply("c", turn)
    await store.spending.settle(reservation, 9.0)
    assert await store.spending.sum_by_key() == {KEY: 0.25}
    await store.spending.reserve("c", 0.1, caps, key_id=KEY)


@pytest.mark.every_database
async def test_a_reservation_of_a_process_that_died_expires(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    caps = SpendCaps(key=1.0)
    await store.spending.reserve("c", 2.0, caps, key_id=KEY)
    with pytest.raises(SpendReserved):
        await store.spending.reserve("c", 2.0, caps, key_id=KEY)
    later = costs.now() + costs.RESERVATION_SECONDS * 1_000_000
    monkeypatch.setattr(costs, "now", lambda: later)
    await store.spending.reserve("c", 2.0, caps, key_id=KEY)
    monkeypatch.undo()
    with pytest.raises(SpendReserved) as refused:
        await store.spending.reserve("c", 2.0, caps, key_id=KEY)
    assert refused.value.reserved == 2.0


@pytest.mark.every_database
async def test_concurrent_reservations_never_pass_the_cap_by_more_than_one(store: SqlStore):
    caps = SpendCaps(tenant=1.0)
    calls = (store.spending.reserve(f"c{number}", 0.125, caps, key_id=KEY) for number in range(40))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    admitted = [each for each in outcomes if isinstance(each, str)]
    assert len(admitted) == 8
    assert all(isinstance(each, str | SpendReserved) for each in outcomes)


async def test_background_work_is_charged_to_the_key_that_spent_most(store: SqlStore):
    cheap, _ = await store.keys.create("cheap", ["chat"])
    large, _ = await store.keys.create("large", ["chat"], max_spend=2.5)
    await store.create_conversation("c")
    assert await store.spending.find_key("c") is None
    for key_id, cost in ((cheap.id, 0.1), (large.id, 0.2), ("", 9.0)):
        await store.spending.add_cost("c", cost, key_id=key_id)
    assert await store.spending.find_key("c") == SpendingKey(large.id, 2.5)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0.0, "$0.0000"),
        (0.00001, "$0.00001"),
        (0.0000123456, "$0.000012"),
        (0.0012, "$0.0012"),
        (1234.5, "$1,234.5000"),
    ],
)
def test_small_sums_are_written_as_they_are(amount: float, text: str):
    assert format_usd(amount) == text
    assert format_usd(0.004, 2) == "$0.004"
