"""Context window, prices and output limits of public models.

Windows and prices are from the table in the package genai-prices. The table is part of the installed package. Nothing
is downloaded. Without the package, or for a model that it does not list, every field is None, and the settings must
provide the values (`quire.view.model_table` combines the two).

That table has no output limits. They are listed here, with the tokens that a model may use for thinking before it
answers. A model that is not listed gets `DEFAULT_OUTPUT_TOKENS`, which every chat model accepts.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from quire.model import Usage
from quire.model.policy import MAX_MODEL_NAME_CHARS, WireFormatName
from quire.view.call_prices import PRICE_DATE, UNKNOWN_COST, Cost, TokenPrices, price_listed_call
from quire.wire.billed_calls import BilledCall, list_billed_calls

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo


class ModelSpec(NamedTuple):
    """Prices are in US dollars per million tokens, below any tier for long prompts; `compute_cost` knows the tiers."""

    window: int | None = None
    input_price: Decimal | None = None
    output_price: Decimal | None = None
    cache_read_price: Decimal | None = None
    cache_write_price: Decimal | None = None
    output_limit: int | None = None
    """Maximum tokens of one reply."""
    tokenizer: str | None = None
    """Vocabulary, or the path of a tokenizer.json, or None if tokens are estimated."""
    wire_format: WireFormatName | None = None

    listed_as: str | None = None
    """The entry of genai-prices that the prices are from, such as `openai:gpt-4o`, or None for prices set by hand."""

    @property
    def has_price(self) -> bool:
        return self.input_price is not None and self.output_price is not None

    def compute_cost(self, usage: Usage, *, at: datetime = PRICE_DATE) -> Cost:
        """Cost of a call at a time, with all that the provider bills for it.

        A listed model costs what `calc_price` of genai-prices says, with its tiers for long prompts. Prices set by hand
        have no tiers, and writing to the cache costs as much as other input.
        """
        return self.add_up(list_billed_calls(usage), at=at)

    def add_up(self, calls: Iterable[BilledCall], *, at: datetime = PRICE_DATE) -> Cost:
        """Cost of the calls that a provider bills for one response."""
        if self.input_price is None or self.output_price is None:
            return UNKNOWN_COST
        total, is_complete = Decimal(0), True
        for call in calls:
            spec = self if call.model is None else model_spec_for(call.model)
            if spec.input_price is None or spec.output_price is None:
                is_complete = False
            elif spec.listed_as is not None:
                dollars, is_known = price_listed_call(spec.listed_as, call, at)
                total, is_complete = total + dollars, is_complete and is_known
            else:
                own, output = spec.input_price, spec.output_price
                read = spec.cache_read_price if spec.cache_read_price is not None else own
                total += TokenPrices(own, output, read, own, own, reasoning=output).add_up(call)
        return Cost(float(total), is_complete)


UNKNOWN_MODEL = ModelSpec()
MAX_PROVIDER_PREFIXES = 8
"""Maximum prefixes such as `openrouter/` that are removed from a name, because each one costs two table lookups."""

# Local hosts: the vendor's window and prices do not apply to them.
_LOCAL_PROVIDERS = frozenset({"ollama", "ollama_chat", "lm_studio", "lmstudio", "llamacpp", "llamafile", "vllm"})

_BEDROCK_NAME = re.compile(r"(?:[a-z-]{2,8}\.)?[a-z0-9]{2,20}\.[\w.-]+-v\d+(?::\d+)?")
"""Bedrock's own names: an optional region, vendor, model and version, such as `us.anthropic.claude-…-v1:0`."""
_SNAPSHOT_DATE = re.compile(r"[-@]20\d{2}-?(?:0[1-9]|1[0-2])-?(?:[0-2]\d|3[01])$")
"""The date of a snapshot at the end of a name. A provider that charges another price for one lists it by its date."""
_NON_CHAT_NAME = re.compile(r"audio|embed|image|moderation|realtime|rerank|transcribe|tts|^ft:|-$")

# If a vendor's entry has no window, the entry of the same model at OpenRouter often has one.
_OPENROUTER_VENDORS = {"mistral": "mistralai", "meta": "meta-llama", "zai": "z-ai"}


@lru_cache(maxsize=1024)
def is_local_model(model: str) -> bool:
    """Whether the name begins with a local provider, such as `ollama:`, whose models have no price."""
    provider, _ = next(split_provider(model.strip().lower()), (None, ""))
    return provider in _LOCAL_PROVIDERS


@lru_cache(maxsize=1024)
def model_spec_for(model: str) -> ModelSpec:
    """Looks a model up by its name, with or without provider: `gpt-4o`, `openai:gpt-4o`, `azure/gpt-4o`."""
    if len(model) > MAX_MODEL_NAME_CHARS:
        return UNKNOWN_MODEL
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError:
        return UNKNOWN_MODEL
    table, whole = get_snapshot(), model.strip().lower()
    # OpenRouter's and opencode's names of a variant without a price.
    is_variant = whole.endswith("-free") or ("/" in whole and whole.endswith(":free"))
    if is_variant and not is_local_model(whole):
        free = Decimal(0)
        return ModelSpec(model_spec_for(whole[: -len("-free")]).window, free, free, free, free)
    names = [("bedrock", whole)] if _BEDROCK_NAME.fullmatch(whole) else list(split_provider(whole))
    # A snapshot that is not listed costs as much as the model of which it is one.
    names += [(provider, _SNAPSHOT_DATE.sub("", name)) for provider, name in names if _SNAPSHOT_DATE.search(name)]
    for provider, name in names:
        if provider in _LOCAL_PROVIDERS:
            return UNKNOWN_MODEL
        # Google lists new models as previews first, and keeps their prices.
        names = (name, f"{name}-preview") if name.startswith("gemini-") else (name,)
        match = next(filter(None, (_find_model(table, provider, each) for each in names)), None)
        if match is not None:
            vendor, info = match
            window = info.context_window
            if window is None:
                listed = _find_model(table, "openrouter", f"{_OPENROUTER_VENDORS.get(vendor, vendor)}/{name}")
                window = _find_published_window(name) if listed is None else listed[1].context_window
            prices = info.get_prices(PRICE_DATE)
            return ModelSpec(
                window=window,
                input_price=_base_price(prices.input_mtok),
                output_price=_base_price(prices.output_mtok),
                cache_read_price=_base_price(prices.cache_read_mtok),
                cache_write_price=_base_price(prices.cache_write_mtok),
                listed_as=f"{vendor}:{name}",
            )
    window = _find_published_window(_strip_provider(model))
    return ModelSpec(window=window) if window is not None else UNKNOWN_MODEL


def _find_published_window(name: str) -> int | None:
    return next((tokens for pattern, tokens in _WINDOW_PATTERNS if pattern.match(name)), None)


def list_priced_models(model: str) -> list[str]:
    """Names of the chat models that the table lists at the provider of `model`, with the prefix that `model` has."""
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError:
        return []
    table = get_snapshot()
    for provider, name in split_provider(model.strip().lower()):
        match = _find_model(table, provider, name)
        if match is not None and provider not in _LOCAL_PROVIDERS:
            prefix = model[: len(model) - len(name)]
            vendor = next(each for each in table.providers if each.id == match[0])
            # A chat model has a price of output, and no name of another kind of model or of a family.
            chat_models = [
                each
                for each in vendor.models
                if each.get_prices(PRICE_DATE).output_mtok is not None and _NON_CHAT_NAME.search(each.id) is None
            ]
            names = [prefix + each.id for each in chat_models]
            # Some entries describe a family, and their name matches no model.
            return [each for each in names if model_spec_for(each).window is not None]
    return []


def split_provider(model: str) -> Iterator[tuple[str | None, str]]:
    """Ways to split a name into provider and model, from the first separator to the last that counts."""
    name = model
    for _ in range(MAX_PROVIDER_PREFIXES + 1):
        cut = min((at for at in (name.find(":"), name.find("/")) if at > 0), default=0)
        if cut:
            yield name[:cut], name[cut + 1 :]
        yield None, name
        name = name[cut + 1 :] if cut else ""
        if not name:
            return


def _find_model(table: "DataSnapshot", provider: str | None, name: str) -> "tuple[str, ModelInfo] | None":
    try:
        vendor, info = table.find_provider_model(name, None, provider, None)
    except LookupError:
        return None
    return vendor.id, info


def _base_price(price: object) -> Decimal | None:
    """The price, or its lowest tier if it depends on the length of the prompt."""
    value = getattr(price, "base", price)
    return value if isinstance(value, Decimal) else None


_WINDOW_PATTERNS = ((re.compile(r"gemini-(?:1\.5|2|[3-9])"), 1_048_576),)
"""Windows of families whose new models are in use before the table lists them."""

DEFAULT_OUTPUT_TOKENS = 2_048
"""Output limit of a model whose limit is unknown: the smallest one that a provider publishes for a chat model."""
DEFAULT_THINKING_OUTPUT_TOKENS = 8_192
"""Output limit of a thinking model whose limit is unknown: the smallest one that a provider publishes for one."""
THINKING_TOKENS = 8_192
"""Tokens reserved for the thinking before a summary."""

# The first match counts. The names are without a provider's prefix.
_OUTPUT_LIMITS: tuple[tuple[str, int], ...] = (
    (r"gpt-4o-2024-05-13|gpt-4-(?:turbo|1106|0125|vision)|gpt-3\.5", 4_096),
    (r"gpt-4o-(?:audio|realtime|transcribe|search)|gpt-4-32k", 4_096),
    (r"(?:chatgpt-)?gpt-4o|chatgpt-4o|gpt-4\.5|gpt-[5-9][\w.]*-chat", 16_384),
    (r"gpt-4\.1", 32_768),
    (r"gpt-4(?![\w.])", 8_192),
    (r"gpt-[5-9]", 128_000),
    (r"o1-preview", 32_768),
    (r"o1-mini", 65_536),
    (r"o[134](?![\w.])", 100_000),
    (r"claude-(?:2|instant|3-(?:opus|sonnet|haiku))", 4_096),
    (r"claude-3[.-]5", 8_192),
    (r"claude-(?:opus-4(?:-1|-0|-2025|$)|4-opus)", 32_000),
    (r"claude-(?:3[.-]7|[a-z]+-\d|4)", 64_000),
    (r"gemini-(?:1\.5|2\.0)", 8_192),
    (r"gemini-(?:2\.5|[3-9])", 65_535),
    (r"deepseek-chat", 8_192),
)
_OUTPUT_LIMIT_PATTERNS = tuple((re.compile(pattern), tokens) for pattern, tokens in _OUTPUT_LIMITS)

_THINKING_NAME = re.compile(
    r"o[134](?![\w.])|gpt-[5-9](?![\w.]*-chat)|gpt-oss|deepseek-(?:r1|reasoner)|qwq|qwen-?3|magistral|glm-(?:4\.[5-9]|[5-9])"
    r"|gemini-(?:2\.5|[3-9])|grok-(?:3-mini|4)|kimi-k2-thinking|minimax-m"
)
_THINKING_WORDS = ("thinking", "reasoning", "reasoner")


def output_limit_for(model: str) -> int:
    """Maximum tokens of one answer of this model, with its thinking."""
    published = published_output_limit_for(model)
    if published is not None:
        return published
    return DEFAULT_THINKING_OUTPUT_TOKENS if thinking_tokens_for(model) else DEFAULT_OUTPUT_TOKENS


def published_output_limit_for(model: str) -> int | None:
    name = _strip_provider(model)
    return next((tokens for pattern, tokens in _OUTPUT_LIMIT_PATTERNS if pattern.match(name)), None)


def thinking_tokens_for(model: str) -> int:
    """Tokens to reserve for thinking, or 0 for a model that answers at once."""
    name = _strip_provider(model)
    thinks = _THINKING_NAME.match(name) is not None or any(word in name for word in _THINKING_WORDS)
    return THINKING_TOKENS if thinks and "non-reasoning" not in name else 0


@lru_cache(maxsize=1024)
def _strip_provider(model: str) -> str:
    """The name without prefixes such as `openai:`, `openrouter/openai/` and `us.anthropic.`. Empty if it is too
    long."""
    if len(model) > MAX_MODEL_NAME_CHARS:
        return ""
    name = model.strip().lower().rpartition("/")[2]
    provider, colon, rest = name.partition(":")
    name = rest if colon and not any(map(str.isdigit, provider)) else name
    *prefixes, last = re.split(r"\.(?=[a-z])", name)
    return last if all(prefix.isalpha() for prefix in prefixes) else name
