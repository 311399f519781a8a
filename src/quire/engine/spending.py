"""Spend caps of an engine's calls: checked before a request is built, reserved before it is sent."""

from quire.access.spending import NO_CONVERSATION, SpendCaps, SpendingKey, SpendReservation, StorageDemand
from quire.engine.state import EngineState
from quire.errors import DailyBudgetReached
from quire.model import Usage
from quire.settings import Settings
from quire.settings.schema import tenant_quota_for
from quire.usage.insights import read_cost_of_today


def spend_caps_for(settings: Settings, *, tenant: str, key: SpendingKey | None) -> SpendCaps:
    """The caps on the cost of a tenant's calls with this API key."""
    return SpendCaps(
        conversation=settings.max_spend,
        key=key.max_spend if key is not None else None,
        tenant=tenant_quota_for(settings, tenant).max_spend,
    )


def _find_caps(engine: EngineState, conversation: str) -> SpendCaps:
    config = engine.config
    caps = spend_caps_for(config.settings, tenant=engine.store.tenant, key=config.spending_key)
    return caps if conversation != NO_CONVERSATION else caps._replace(conversation=None)


def has_spend_cap(engine: EngineState, conversation: str) -> bool:
    return _find_caps(engine, conversation).exist


def needs_reservation(engine: EngineState, conversation: str) -> bool:
    """Whether a call may be refused before it is sent: by a spend cap, the daily budget or the quota of storage."""
    settings = engine.config.settings
    return (
        has_spend_cap(engine, conversation)
        or engine.store.base.max_stored_bytes is not None
        or (settings.daily_budget is not None and settings.daily_budget_stops)
    )


async def check_spend_cap(engine: EngineState, conversation: str, *, input_tokens: int = 0) -> None:
    """Raises `SpendCapReached` if a cap is spent or what is left of it cannot pay this input, and `UnknownPrice` if it
    cannot hold."""
    config, caps = engine.config, _find_caps(engine, conversation)
    if caps.exist:
        config.require_prices()
        input_usd = config.compute_cost(Usage(input_tokens=input_tokens), engine.policy.model).usd
        await engine.store.spending.check(conversation, caps, key_id=config.key_id, input_usd=input_usd)


async def reserve_spend(
    engine: EngineState, conversation: str, *, model: str, input_tokens: int, output_tokens: int, stored_bytes: int = 0
) -> SpendReservation | None:
    """Reserves the estimated cost of a call, and the bytes that it will store, or None if no cap or quota applies.

    Raises `SpendCapReached` if a cap or the daily budget is spent or a cap cannot pay the input, and `SpendReserved` if
    calls in progress may spend what it needs. Likewise `StorageQuotaReached`, and `TooManyRequests` if calls in
    progress may store the rest of the quota.
    """
    if not needs_reservation(engine, conversation):
        return None
    config, caps, quota = engine.config, _find_caps(engine, conversation), engine.store.base.max_stored_bytes
    budget = config.settings.daily_budget
    if budget is not None and config.settings.daily_budget_stops:
        # The figure of the status line. Calls in progress are not in it, so that several at once may pass it.
        spent = await read_cost_of_today(engine.store.usage)
        if spent >= budget:
            raise DailyBudgetReached(spent=spent, cap=budget)
    storage = StorageDemand(stored_bytes, quota) if stored_bytes and quota is not None else None
    if not caps.exist and storage is None:
        return None
    input_usd = config.compute_cost(Usage(input_tokens=input_tokens), model).usd
    amount_usd = config.compute_cost(Usage(input_tokens=input_tokens, output_tokens=output_tokens), model).usd
    # Otherwise the calls of one tenant that wait for the same cap would hold all connections of the pool.
    async with engine.runtime.spend_lock:
        reservation = await engine.store.spending.reserve(
            conversation, amount_usd, caps, key_id=config.key_id, input_usd=input_usd, storage=storage
        )
    return SpendReservation(reservation, input_usd)
