"""The look-up of models: which entry of the settings matches, what it overrides, and where each value comes from."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.model.policy import MAX_MODEL_NAME_CHARS
from quire.settings.schema import ModelEntry, Upstream
from quire.view.model_specs import ModelSpec, model_spec_for
from quire.view.model_table import SpecLayer, find_layers, find_sources, merge_layers


def make_entries(**windows: int) -> dict[str, ModelEntry]:
    return {name: ModelEntry(window=window) for name, window in windows.items()}


def find(entries: dict[str, dict[str, Any]], model: str, *, served_model: str | None = None) -> ModelSpec:
    parsed = {name: ModelEntry.model_validate(entry) for name, entry in entries.items()}
    upstream = Upstream(base_url="", model=served_model) if served_model is not None else None
    return merge_layers(find_layers(parsed, model, upstream=upstream))


WINDOWS = {"*": 1, "claude-*": 2, "claude-sonnet-*": 3, "claude-sonnet-4-5": 4, "anthropic:claude-sonnet-4-5": 5}


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("gpt-4o", 1),
        ("claude-opus-4", 2),
        ("claude-sonnet-4", 3),
        ("Claude-Sonnet-4-5", 4),
        ("bedrock/claude-sonnet-4-5", 4),
        ("anthropic:claude-sonnet-4-5", 5),
    ],
)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_the_most_specific_match_wins_in_any_order(model: str, window: int, is_reversed: bool):
    names = sorted(WINDOWS, reverse=is_reversed)
    assert find({name: {"window": WINDOWS[name]} for name in names}, model).window == window


def test_an_entry_overrides_the_public_table_field_by_field():
    spec = find({"gpt-*": {"tokenizer": "qwen3", "output_limit": 700}, "gpt-4o": {"window": 4_096}}, "gpt-4o")
    assert (spec.window, spec.tokenizer, spec.output_limit) == (4_096, "qwen3", 700)
    assert spec.input_price == model_spec_for("gpt-4o").input_price
    public = {"output_limit": 16_384, "tokenizer": "o200k_base", "wire_format": "chat"}
    assert find({}, "gpt-4o") == model_spec_for("gpt-4o")._replace(**public)


def test_prices_come_from_one_source():
    """The cached price of the public table would exceed the input price of the settings."""
    spec = find({"gpt-4o": {"input_price": 0.2, "output_price": 0.8}}, "gpt-4o")
    assert (spec.input_price, spec.output_price, spec.cache_read_price) == (Decimal("0.2"), Decimal("0.8"), None)
    cached = find({"gpt-4o": {"input_price": 0.2, "output_price": 0.8, "cached_input_price": 0.02}}, "gpt-4o")
    assert cached.cache_read_price == Decimal("0.02")


def test_an_alias_is_what_its_upstream_serves_unless_an_entry_names_the_alias():
    entries = {"house": {"output_limit": 900}, "qwen3-*": {"window": 32_768, "output_limit": 8_000}}
    spec = find(entries, "house", served_model="qwen3-30b")
    assert (spec.window, spec.output_limit, spec.tokenizer) == (32_768, 900, "qwen3")
    assert find({}, "gpt-4o", served_model="my-7b").window is None
    assert find({}, "house", served_model="gpt-4o").window == 128_000


def test_the_wire_format_is_that_of_the_entry_else_of_the_name():
    assert find({"house": {"wire_format": "messages"}}, "house").wire_format == "messages"
    assert find({"house": {"wire_format": "responses"}}, "house").wire_format == "responses"
    assert find({}, "openai-responses:gpt-5").wire_format == "responses"
    assert find({"claude-*": {"wire_format": "chat"}}, "claude-sonnet-4-5").wire_format == "chat"
    assert find({}, "claude-sonnet-4-5").wire_format == "messages"


def test_each_value_says_where_it_comes_from():
    sources = find_sources(find_layers(make_entries(**{"gpt-*": 4_096}), "gpt-4o"))
    assert {field: layer.source for field, layer in sources.items()} == {
        "window": 'models."gpt-*"',
        "input_price": "genai-prices",
        "output_price": "genai-prices",
        "cache_read_price": "genai-prices",
        "listed_as": "genai-prices",
        "output_limit": "published limits",
        "tokenizer": "the model's name",
        "wire_format": "the model's name",
    }


def test_a_name_that_is_too_long_matches_no_pattern():
    entries = make_entries(**{"*": 1})
    assert merge_layers(find_layers(entries, "m" * MAX_MODEL_NAME_CHARS)).window == 1
    assert merge_layers(find_layers(entries, "m" * (MAX_MODEL_NAME_CHARS + 1))).window is None


@given(st.lists(st.builds(ModelSpec, window=st.none() | st.integers(1, 9), output_limit=st.none() | st.integers(1, 9))))
def test_the_first_layer_that_has_a_field_supplies_it(specs: list[ModelSpec]):
    merged = merge_layers([SpecLayer("x", spec) for spec in specs])
    assert merged.window == next((spec.window for spec in specs if spec.window is not None), None)
    assert merged.output_limit == next((spec.output_limit for spec in specs if spec.output_limit is not None), None)
