"""What is publicly known of a model: its window and its prices, from the table that genai-prices carries.

The table is the one inside the installed package; nothing here goes to the network. Without the package, or for a
model that it does not list, every fact is None, and the settings must say.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from quire.model import Usage

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo, ModelPrice


class ModelFacts(NamedTuple):
    """Prices are in US dollars per million tokens, at the rate below any tier for long prompts."""

    window: int | None = None
    input_price: Decimal | None = None
    output_price: Decimal | None = None
    cache_read_price: Decimal | None = None
    cache_write_price: Decimal | None = None

    def cost(self, usage: Usage) -> float | None:
        """Dollars for what a call used; None where no price is known. Cached input has a price of its own."""
        if self.input_price is None or self.output_price is None:
            return None
        cached = self.cache_read_price if self.cache_read_price is not None else self.input_price
        fresh = max(0, usage.input_tokens - usage.cache_read_tokens)
        dollars = fresh * self.input_price + usage.cache_read_tokens * cached + usage.output_tokens * self.output_price
        return float(dollars) / 1_000_000


UNKNOWN = ModelFacts()

# Hosts that run a model on one's own machine: the vendor's window and prices are not theirs.
_OWN_MACHINE = frozenset({"ollama", "ollama_chat", "lm_studio", "lmstudio", "llamacpp", "llamafile", "vllm"})

# Some prices change with the day or the hour. The last announced one, at noon, needs no clock.
_PRICED_AT = datetime(9999, 12, 31, 12, tzinfo=UTC)

# Where a vendor's own entry has no window, the same model's entry at OpenRouter often has.
_OPENROUTER_VENDORS = {"mistral": "mistralai", "meta": "meta-llama", "zai": "z-ai"}


def window_of(model: str) -> int | None:
    return facts(model).window


@lru_cache(maxsize=1024)
def facts(model: str) -> ModelFacts:
    """What is known of a model, by its bare name or with its provider: `gpt-4o`, `openai:gpt-4o`, `azure/gpt-4o`."""
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError:
        return UNKNOWN
    table = get_snapshot()
    for provider, name in _readings(model.strip().lower()):
        if provider in _OWN_MACHINE:
            return UNKNOWN
        found = _find(table, provider, name)
        if found is not None:
            vendor, info = found
            prices = info.get_prices(_PRICED_AT)
            return _facts(_window(table, vendor, name, info), prices)
    return UNKNOWN


def _readings(model: str) -> Iterator[tuple[str | None, str]]:
    """The ways to read a name as provider and model, from the most to the least that is taken as provider's."""
    name = model
    while name:
        cut = min((at for at in (name.find(":"), name.find("/")) if at > 0), default=0)
        if cut:
            yield name[:cut], name[cut + 1 :]
        yield None, name
        name = name[cut + 1 :] if cut else ""


def _find(table: "DataSnapshot", provider: str | None, name: str) -> "tuple[str, ModelInfo] | None":
    try:
        found, info = table.find_provider_model(name, None, provider, None)
    except LookupError:
        return None
    return found.id, info


def _window(table: "DataSnapshot", vendor: str, name: str, info: "ModelInfo") -> int | None:
    if info.context_window is not None:
        return info.context_window
    listed = _find(table, "openrouter", f"{_OPENROUTER_VENDORS.get(vendor, vendor)}/{name}")
    return None if listed is None else listed[1].context_window


def _facts(window: int | None, prices: "ModelPrice") -> ModelFacts:
    return ModelFacts(
        window=window,
        input_price=_base(prices.input_mtok),
        output_price=_base(prices.output_mtok),
        cache_read_price=_base(prices.cache_read_mtok),
        cache_write_price=_base(prices.cache_write_mtok),
    )


def _base(price: object) -> Decimal | None:
    """A price, or the lowest tier of one that depends on the length of the prompt."""
    value = getattr(price, "base", price)
    return value if isinstance(value, Decimal) else None
