"""The cost of a call by the price list of genai-prices, and what that list lacks.

genai-prices knows the prices of each kind of token by date, length of the prompt, processing tier and hour, and of
searches. It lacks the discount of batches for older models, Anthropic's fast mode, and its surcharge for inference in
one geography. `price_listed_call` adds these. Where a price is not published, the cost is a lower bound.
"""

from bisect import bisect_left
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from quire.wire.billed_calls import BilledCall

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice

PRICE_DATE = datetime(9999, 12, 31, 12, tzinfo=UTC)
"""Date of the last announced prices, at noon. Some prices change with the day or the hour."""
TOKENS_PER_PRICE = 1_000_000

_HALF_PRICE_BATCHES = frozenset({"anthropic", "openai"})
"""Providers that charge half the price of all tokens in a batch, for every model that accepts one."""
_PRICED_TIERS = frozenset({"batch", "fast", "flex", "priority", "scale"})
"""Names of tiers that differ from the standard one in price. Anthropic's `priority` does not: its capacity is
committed in advance."""
_FAST_FACTORS = {"claude-opus-4-6": 6, "claude-opus-4-7": 6, "claude-opus-4-8": 2}
"""Factor of Anthropic's fast mode, on the price of all tokens."""
_US_FACTOR = Decimal("1.1")
"""Factor of Anthropic's inference in the US only, on the price of all tokens."""


class Cost(NamedTuple):
    """US dollars; a lower bound unless `is_complete`."""

    usd: float = 0.0
    is_complete: bool = True

    @property
    def exact_usd(self) -> float | None:
        """None if only a lower bound is known."""
        return self.usd if self.is_complete else None


UNKNOWN_COST = Cost(0.0, is_complete=False)


def sum_costs(costs: Iterable[Cost]) -> Cost:
    """The sum, which is a lower bound if any of the costs is."""
    each = list(costs)
    return Cost(sum(cost.usd for cost in each), all(cost.is_complete for cost in each))


class TokenPrices(NamedTuple):
    """US dollars for a million tokens of each kind, and for each search and request."""

    input: Decimal
    output: Decimal
    cache_read: Decimal
    cache_write: Decimal
    cache_write_1h: Decimal
    reasoning: Decimal
    web_search: Decimal = Decimal(0)
    file_search: Decimal = Decimal(0)
    request: Decimal = Decimal(0)

    def add_up(self, call: BilledCall, *, token_factor: Decimal = Decimal(1)) -> Decimal:
        read, written = call.cache_read_tokens, call.cache_write_tokens
        tokens = (
            (call.input_tokens - read - written) * self.input
            + read * self.cache_read
            + (written - call.cache_write_1h_tokens) * self.cache_write
            + call.cache_write_1h_tokens * self.cache_write_1h
            + (call.output_tokens - call.reasoning_tokens) * self.output
            + call.reasoning_tokens * self.reasoning
        )
        searches = call.web_searches * self.web_search + call.file_searches * self.file_search
        return self.request + searches + tokens * token_factor / TOKENS_PER_PRICE


def price_listed_call(listed_as: str, call: BilledCall, at: datetime) -> tuple[Decimal, bool]:
    """Dollars for a call to a model of the table at a time, and whether every price of it is known."""
    provider, info, is_own = _find_listed(listed_as)
    prices, factor, is_complete = _select_prices(provider, info, call.service_tier, at, is_own=is_own)
    if provider == "anthropic":
        if call.is_fast:
            factor *= _FAST_FACTORS.get(info.id, 1)
            is_complete = is_complete and info.id in _FAST_FACTORS
        if call.geography == "us":
            factor *= _US_FACTOR
    starts, tiers = _load_tiers(prices)
    selected = tiers[bisect_left(starts, call.input_tokens)]
    if (call.web_searches and not selected.web_search) or (call.file_searches and not selected.file_search):
        is_complete = False
    return selected.add_up(call, token_factor=factor), is_complete


@lru_cache(maxsize=1024)
def _find_listed(listed_as: str) -> "tuple[str, ModelInfo, bool]":
    """Provider and model, and whether the model is the provider's own: hosts of it have no prices of its tiers."""
    from genai_prices.data_snapshot import get_snapshot

    provider_id, _, model = listed_as.partition(":")
    provider, info = get_snapshot().find_provider_model(model, None, provider_id, None)
    return provider.id, info, any(info is each for each in provider.models)


def _select_prices(
    provider: str, info: "ModelInfo", tier: str | None, at: datetime, *, is_own: bool
) -> "tuple[ModelPrice, Decimal, bool]":
    """The prices of a processing tier, a factor for its tokens, and whether the tier's price is known."""
    standard, factor = info.get_prices(at), Decimal(1)
    if tier not in _PRICED_TIERS or (provider == "anthropic" and tier == "priority"):
        return standard, factor, True
    context = {"processing": "batch"} if tier == "batch" else {"service_tier": tier}
    variants = [each for each in info.price_variants or () if each.when == context] if is_own else []
    if any(each.constraint is None or each.constraint.active(at) for each in variants):
        return info.get_prices(at, context), factor, True
    if variants and info.get_prices(PRICE_DATE) == standard:
        # The list has the tier's price from a later day on; the standard price was the same before.
        return info.get_prices(PRICE_DATE, context), factor, True
    if tier == "batch" and provider in _HALF_PRICE_BATCHES:
        return standard, factor / 2, True
    return standard, factor, False


_tiers: dict[tuple[tuple[str, int], ...], tuple[list[int], list[TokenPrices]]] = {}


def _load_tiers(prices: "ModelPrice") -> tuple[list[int], list[TokenPrices]]:
    """The input tokens above which each further tier starts, and the prices of every tier.

    `calc_price` takes about 200 microseconds, too long for every request that the gateway records. A price is linear in
    the tokens of each kind within a tier, so it is called once for each of them.
    """
    # The values are objects of the table, which stay where they are.
    key = tuple((name, id(price)) for name, price in vars(prices).items())
    if key in _tiers:
        return _tiers[key]
    from genai_prices import Usage as PricedUsage
    from genai_prices.types import TieredPrices

    tiered = [price for price in vars(prices).values() if isinstance(price, TieredPrices)]
    starts = sorted({tier.start for price in tiered for tier in price.tiers})

    def calculate(**counts: int) -> Decimal:
        return prices.calc_price(PricedUsage(**counts))["total_price"]

    request = calculate(input_tokens=0)
    tiers: list[TokenPrices] = []
    for start in (0, *starts):
        count, million = start + 1, TOKENS_PER_PRICE
        all_input = calculate(input_tokens=count)
        scale = Decimal(TOKENS_PER_PRICE) / count

        def price_input(count: int = count, scale: Decimal = scale, **counts: int) -> Decimal:
            return (calculate(input_tokens=count, **counts) - request) * scale

        tiers.append(
            TokenPrices(
                input=price_input(),
                output=calculate(input_tokens=count, output_tokens=million) - all_input,
                cache_read=price_input(cache_read_tokens=count),
                cache_write=price_input(cache_write_tokens=count),
                cache_write_1h=price_input(cache_write_tokens=count, cache_write_1h_tokens=count),
                reasoning=calculate(input_tokens=count, output_tokens=million, output_reasoning_tokens=million)
                - all_input,
                web_search=calculate(input_tokens=count, web_searches=1) - all_input,
                file_search=calculate(input_tokens=count, storage_searches=1) - all_input,
                request=request,
            )
        )
    _tiers[key] = starts, tiers
    return starts, tiers
