"""One look-up of what is known about a model: the settings' `models`, then public tables, then the name itself.

A look-up is a list of layers, the most specific first, so that every value can be traced to its source.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import NamedTuple

from quire.model.policy import MAX_MODEL_NAME_CHARS
from quire.settings.schema import ModelEntry, Settings, Upstream, upstream_for
from quire.view.model_specs import ModelSpec, model_spec_for, published_output_limit_for, split_provider
from quire.wire import WireFormatName, infer_wire_format
from quire.wire.tokens import vocabulary_for

PRICE_FIELDS = ("input_price", "output_price", "cache_read_price", "cache_write_price", "listed_as")
"""Fields that one layer supplies together: the cached price of one source does not fit the input price of another."""
GENAI_PRICES_SOURCE, LIMITS_SOURCE, NAME_SOURCE = "genai-prices", "published limits", "the model's name"
PUBLIC_SOURCES = (GENAI_PRICES_SOURCE, LIMITS_SOURCE, NAME_SOURCE)
"""Sources outside the settings."""
_GLOB_CHARS = frozenset("*?[]")


class SpecLayer(NamedTuple):
    """What one source knows about a model."""

    source: str
    spec: ModelSpec


def find_layers(entries: Mapping[str, ModelEntry], model: str, *, upstream: Upstream | None = None) -> list[SpecLayer]:
    """Layers of a model, the most specific first.

    The upstream may have another name for it. An entry for the client's name comes before one for the upstream's. The
    public table is searched for the upstream's name only.
    """
    served = upstream.model or model if upstream is not None else model
    names = dict.fromkeys([*_match_entries(entries, model), *_match_entries(entries, served)])
    wire_format = infer_wire_format(model, upstream.speaks if upstream is not None else ())
    layers: list[SpecLayer] = []
    for name in names:
        entry = entries[name]
        spec = _to_price_spec(entry)._replace(
            window=entry.window,
            output_limit=entry.output_limit,
            tokenizer=entry.tokenizer,
            wire_format=entry.wire_format,
        )
        layers.append(SpecLayer(f'models."{name}"', spec))
    return [
        *layers,
        SpecLayer(GENAI_PRICES_SOURCE, model_spec_for(served)),
        SpecLayer(LIMITS_SOURCE, ModelSpec(output_limit=published_output_limit_for(served))),
        SpecLayer(NAME_SOURCE, ModelSpec(tokenizer=vocabulary_for(served), wire_format=wire_format)),
    ]


def find_wire_format(settings: Settings, model: str) -> WireFormatName:
    """The format in which requests for a model are counted and sent."""
    layers = find_layers(settings.models, model, upstream=upstream_for(settings, model))
    return settings.wire_format or merge_layers(layers).wire_format or "chat"


def merge_layers(layers: Sequence[SpecLayer]) -> ModelSpec:
    """Each field from the first layer that has it. All prices from the first layer that has prices."""
    sources = find_sources(layers)
    return ModelSpec(**{field: getattr(layer.spec, field) for field, layer in sources.items()})


def find_sources(layers: Sequence[SpecLayer]) -> dict[str, SpecLayer]:
    """The layer that supplies each known field."""
    priced = next((layer for layer in layers if layer.spec.has_price), None)
    sources: dict[str, SpecLayer] = {}
    for field in ModelSpec._fields:
        candidates = layers if field not in PRICE_FIELDS else [priced] if priced is not None else []
        source = next((layer for layer in candidates if getattr(layer.spec, field) is not None), None)
        if source is not None:
            sources[field] = source
    return sources


def _to_price_spec(entry: ModelEntry) -> ModelSpec:
    if entry.input_price is None or entry.output_price is None:
        return ModelSpec()
    cached = entry.cached_input_price
    return ModelSpec(
        input_price=Decimal(str(entry.input_price)),
        output_price=Decimal(str(entry.output_price)),
        cache_read_price=None if cached is None else Decimal(str(cached)),
    )


def _match_entries(entries: Mapping[str, ModelEntry], model: str) -> list[str]:
    """Keys of the entries that match, the most specific first.

    The exact name comes before the name without its provider (`openai:gpt-4o` is `gpt-4o`), and that before patterns,
    the one with the most literal characters first.
    """
    if len(model) > MAX_MODEL_NAME_CHARS:
        return []
    # In lower case, then without each prefix such as `openai:`.
    splits = split_provider(model.strip().lower())
    names = list(dict.fromkeys(name for provider, name in splits if provider is None))
    ranked: list[tuple[tuple[int, int], str]] = []
    for key in entries:
        pattern = key.strip().lower()
        if pattern in names:
            ranked.append(((0, names.index(pattern)), key))
        elif any(fnmatchcase(name, pattern) for name in names):
            ranked.append(((1, -sum(char not in _GLOB_CHARS for char in pattern)), key))
    return [key for _, key in sorted(ranked, key=lambda each: each[0])]
