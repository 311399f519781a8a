"""Context windows and prices: from the installed table, by any spelling of a model, and None if unknown."""

import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal

import pytest

from quire.view.model_specs import UNKNOWN_MODEL, model_spec_for


@pytest.fixture(autouse=True)
def clear_spec_cache() -> Iterator[None]:
    model_spec_for.cache_clear()
    yield
    model_spec_for.cache_clear()


@pytest.mark.parametrize("model", ["gpt-4o", "GPT-4o", "openai:gpt-4o", "openai/gpt-4o", "openrouter/openai/gpt-4o"])
def test_a_model_is_found_with_and_without_its_provider(model: str):
    assert model_spec_for(model)[:4] == (128_000, Decimal("2.5"), Decimal(10), Decimal("1.25"))


def test_the_provider_decides_the_price():
    assert model_spec_for("bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0") != model_spec_for(
        "anthropic:claude-sonnet-4-5"
    )


def test_a_proxy_that_is_not_in_the_table_does_not_hide_the_model():
    assert model_spec_for("my-proxy/gpt-4o") == model_spec_for("gpt-4o")


@pytest.mark.parametrize("model", ["ollama/gpt-oss-20b", "ollama:deepseek-r1", "vllm/gpt-4o"])
def test_a_model_on_ones_own_machine_has_no_vendors_price(model: str):
    assert model_spec_for(model) == UNKNOWN_MODEL


def test_prices_with_tiers_or_hours_are_one_number():
    tiered, by_the_hour = model_spec_for("claude-sonnet-4-5"), model_spec_for("deepseek-chat")
    assert tiered.input_price == Decimal(3)
    assert tiered.cache_write_price == Decimal("3.75")
    assert by_the_hour.input_price is not None


def test_a_window_that_the_vendor_does_not_list_is_taken_from_openrouter():
    assert model_spec_for("gemini-2.5-pro").window == 1_048_576
    assert model_spec_for("gemini-2.5-pro").input_price == Decimal("1.25")


@pytest.mark.parametrize(
    "model", ["no such model", "", " ", "/", ":", "a/", ":b", "openai:", "//x::y", "openai:nothing"]
)
def test_an_unknown_model_has_no_facts(model: str):
    assert model_spec_for(model) == UNKNOWN_MODEL
    assert model_spec_for(model).window is None


def test_without_the_package_nothing_is_known(monkeypatch: pytest.MonkeyPatch):
    for name in ("genai_prices", "genai_prices.data_snapshot"):
        monkeypatch.setitem(sys.modules, name, None)
    assert model_spec_for("gpt-4o") == UNKNOWN_MODEL


def test_importing_the_module_does_not_import_the_package():
    program = (
        "import sys, quire.view.model_specs, quire.view.tokens; print({'genai_prices', 'splintr'} & {*sys.modules})"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"
