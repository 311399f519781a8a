"""`quire models`: what is known about a model, and which source says so."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.common import SetOptions
from quire.cli.output import Result, make_table, make_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from quire.engine import EngineConfig

FIELD_LABELS = {
    "window": "context window",
    "output_limit": "output limit",
    "tokenizer": "tokenizer",
    "wire_format": "wire format",
    "input_price": "input price",
    "cache_read_price": "cached input price",
    "output_price": "output price",
}
"""Fields of a model in the order of the table. Prices are in US dollars per million tokens."""


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="The model's name. Default: the model in the settings.", show_default=False
        ),
    ] = None,
    *,
    overrides: SetOptions = None,
) -> Result:
    """Show what is known about a model: window, limits, tokenizer and prices, with the source of each."""
    from quire.cli.engine_setup import load_cli_settings
    from quire.engine import EngineConfig
    from quire.view.model_table import find_sources

    config = EngineConfig.create(load_cli_settings(overrides).settings)
    if name is not None:
        config = config.with_changes(model=name)
    sources = find_sources(config.find_layers(config.settings.model))
    facts: list[dict[str, Any]] = []
    for field, label in FIELD_LABELS.items():
        layer = sources.get(field)
        # A tokenizer that no source names is estimated.
        value = getattr(layer.spec, field) if layer is not None else "estimate" if field == "tokenizer" else None
        source = layer.source if layer is not None else "unknown"
        facts.append({"name": field, "label": label, "value": _to_json(field, value), "source": source})
    endpoint = config.endpoint
    document = {
        "model": config.settings.model,
        "base_url": endpoint.base_url or None,
        "served_model": endpoint.model,
        "window": config.policy.window if config.policy.has_known_window else None,
        "facts": facts,
    }

    def draw(_: "Console") -> "Iterable[RenderableType]":
        rows: list[tuple[str, str, str]] = []
        for each in facts:
            match value := each["value"]:
                case None:
                    text = "unknown"
                case int():
                    text = f"{value:,} tokens"
                case float():
                    text = f"${value:g} per million"
                case _:
                    text = value
            rows.append((each["label"], text, each["source"]))
        yield make_table("", config.settings.model, "from", rows=rows)
        yield make_text(f"Requests use a {describe_window(config)}.")

    return Result(document, draw)


def _to_json(field: str, value: Any) -> Any:
    from quire.errors import UnknownTokenizer
    from quire.wire.tokens import load_tokenizer

    if field == "tokenizer":
        try:
            load_tokenizer(value)
        except UnknownTokenizer:
            return f"{value} (cannot be used; estimate)"
        return str(value)
    return float(value) if field.endswith("price") and value is not None else value


def describe_window(config: "EngineConfig") -> str:
    """The context window of requests, and what bounds it."""
    window, known, limit = config.policy.window, config.model_spec.window, config.settings.context_limit
    if not config.policy.has_known_window:
        return "context window that is not known, so nothing is compacted"
    text = f"context window of {window:,} tokens"
    return f"{text} (context_limit)" if window == limit != known else text
