"""`quire models`: what is known about a model, and which source says so."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.common import AsJson, SetOptions
from quire.cli.output import make_table, make_text, print_result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from quire.engine import EngineConfig

ModelName = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="The model's name; default: the model in the settings.", show_default=False),
]
FIELD_LABELS = {
    "window": "context window",
    "output_limit": "output limit",
    "tokenizer": "tokenizer",
    "provider": "wire format",
    "input_price": "input price",
    "cache_read_price": "cached input price",
    "output_price": "output price",
}
"""Fields of a model in the order of the table. Prices are in US dollars per million tokens."""
UNKNOWN_VALUES = {"tokenizer": "estimate"}
"""Values that are used for unknown fields."""


def command(name: ModelName = None, *, as_json: AsJson = False, overrides: SetOptions = None) -> None:
    """Show what is known about a model: window, limits, tokenizer and prices, with the source of each."""
    config = _load_config(name, overrides or ())
    facts = _list_facts(config)
    document = {"model": config.settings.model, **_locate(config), "facts": facts}

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield make_table(
            "", config.settings.model, "from",
            rows=[(each["label"], _format_value(each["value"]), each["source"]) for each in facts],
        )  # fmt: skip
        yield make_text(f"Requests use a {describe_window(config)}.")

    print_result(document, draw, as_json=as_json)


def _load_config(model: "str | None", overrides: "Iterable[str]") -> "EngineConfig":
    from quire.cli.engine_setup import load_cli_settings, to_overrides
    from quire.engine import EngineConfig

    config = EngineConfig.create(load_cli_settings(to_overrides(tuple(overrides))).settings)
    return config if model is None else config.with_changes(model=model)


def _locate(config: "EngineConfig") -> dict[str, Any]:
    endpoint = config.endpoint
    return {"base_url": endpoint.base_url or None, "served_model": endpoint.model, "window": config.policy.window}


def _list_facts(config: "EngineConfig") -> list[dict[str, Any]]:
    from quire.view.model_table import find_sources

    sources = find_sources(config.find_layers(config.settings.model))
    facts: list[dict[str, Any]] = []
    for field, label in FIELD_LABELS.items():
        layer = sources.get(field)
        value = getattr(layer.spec, field) if layer is not None else UNKNOWN_VALUES.get(field)
        facts.append(
            {
                "name": field,
                "label": label,
                "value": _to_json(field, value),
                "source": layer.source if layer is not None else "unknown",
            }
        )
    return facts


def _to_json(field: str, value: Any) -> Any:
    from quire.view.model_table import WIRE_FORMAT_PROVIDERS

    if field == "provider":
        return next((name for name, provider in WIRE_FORMAT_PROVIDERS.items() if provider == value), None)
    if field == "tokenizer":
        return _describe_tokenizer(value)
    return float(value) if field.endswith("price") and value is not None else value


def _format_value(value: Any) -> str:
    match value:
        case None:
            return "unknown"
        case int():
            return f"{value:,} tokens"
        case float():
            return f"${value:g} per million"
        case _:
            return str(value)


def _describe_tokenizer(value: Any) -> str:
    from quire.errors import UnknownTokenizer
    from quire.view.tokens import load_tokenizer

    try:
        load_tokenizer(value)
    except UnknownTokenizer:
        return f"{value} (cannot be used; estimate)"
    return str(value)


def describe_window(config: "EngineConfig") -> str:
    """The context window of requests, and what bounds it."""
    window, known, limit = config.policy.window, config.model_spec.window, config.settings.context_limit
    text = f"context window of {window:,} tokens"
    if known is None and limit is None:
        return f"{text} (assumed, because no table lists the model)"
    return f"{text} (context_limit)" if window == limit != known else text
