"""A call costs what its provider's price page says, with everything that is billed for it; else its cost is a bound."""

from datetime import UTC, datetime, time
from random import Random

import pytest
from published_prices import make_case

from quire.model import Usage
from quire.view.model_specs import model_spec_for
from quire.wire import wire_format_for

NOW = datetime(2026, 11, 17, tzinfo=UTC)
CENT_THOUSANDTH = 0.00001


def test_generated_usages_cost_what_the_price_pages_say():
    random, models = Random(33), set[str]()
    for number in range(240):
        case = make_case(random)
        reply = wire_format_for(case.wire_format).parse_reply(case.body)  # pyright: ignore[reportArgumentType]
        assert reply.usage is not None
        model = reply.usage.model or ""
        models.add(model)
        at = datetime.combine(case.day, time(12), tzinfo=UTC)
        cost = model_spec_for(model).compute_cost(reply.usage, at=at)
        assert cost.usd == pytest.approx(case.cost_usd, rel=0, abs=CENT_THOUSANDTH), (number, case)
        assert cost.is_complete, case
    assert len(models) >= 12


def make_usage(**fields: object) -> Usage:
    return Usage(
        input_tokens=101_000,
        output_tokens=500,
        cache_write_tokens=100_000,
        provider_fields=fields or None,  # pyright: ignore[reportArgumentType]
    )


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (make_usage(), 0.3855),
        (make_usage(cache_creation={"ephemeral_5m_input_tokens": 100_000}), 0.3855),
        (make_usage(cache_creation={"ephemeral_1h_input_tokens": 100_000}), 0.6105),
        (make_usage(cache_creation={"ephemeral_5m_input_tokens": 40_000, "ephemeral_1h_input_tokens": 60_000}), 0.5205),
        (
            make_usage(
                iterations=[
                    {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500},
                    {"type": "message", "input_tokens": 1_000, "cache_creation_input_tokens": 100_000},
                ]
            ),
            0.3855 + 0.54 + 0.0525,
        ),
    ],
)
def test_cache_writes_cost_by_lifetime_and_a_compaction_by_the_provider_is_billed(usage: Usage, cost: float):
    found = model_spec_for("claude-sonnet-4-5").compute_cost(usage, at=NOW)
    assert found == (pytest.approx(cost, rel=0, abs=1e-9), True)


def test_an_advisor_is_billed_at_the_price_of_its_own_model():
    message = {"type": "message", "input_tokens": 101_000, "output_tokens": 500}
    advisor = {"type": "advisor_message", "model": "claude-opus-4-8", "input_tokens": 1_000, "output_tokens": 100}
    usage = Usage(input_tokens=101_000, output_tokens=500, provider_fields={"iterations": [message, advisor]})
    spec = model_spec_for("claude-sonnet-4-5")
    assert spec.compute_cost(usage, at=NOW) == (pytest.approx(0.303 + 0.0075 + 0.005 + 0.0025), True)
    usage = Usage(input_tokens=1_000_000, provider_fields={"iterations": [message, {**advisor, "model": "unheard-of"}]})
    assert spec.compute_cost(usage, at=NOW).is_complete is False


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("claude-opus-5", {"speed": "fast"}),
        ("gpt-4o", {"response": {"service_tier": "flex"}}),
        ("gpt-4o", {"response": {"service_tier": "scale"}}),
        ("grok-4", {"server_tool_use": {"web_search_requests": 2}}),
    ],
)
def test_a_cost_is_a_lower_bound_where_a_price_is_not_published(model: str, fields: dict[str, object]):
    spec, usage = model_spec_for(model), Usage(input_tokens=1_000, output_tokens=10)
    known = spec.compute_cost(usage, at=NOW)
    bound = spec.compute_cost(usage.model_copy(update={"provider_fields": fields}), at=NOW)
    assert known.is_complete
    assert bound == (known.usd, False)


def test_a_call_is_priced_by_the_list_of_its_day():
    usage, spec = Usage(input_tokens=1_000_000, output_tokens=1_000_000), model_spec_for("o3")
    assert spec.compute_cost(usage, at=datetime(2025, 6, 9, tzinfo=UTC)).usd == 50
    assert spec.compute_cost(usage, at=datetime(2025, 6, 10, tzinfo=UTC)).usd == 10


@pytest.mark.parametrize("count", [-1, 1.5, "7", True, None, 10**11, [1]])
def test_counts_of_a_hostile_provider_are_ignored(count: object):
    fields = {
        "cache_creation": {"ephemeral_1h_input_tokens": count},
        "server_tool_use": {"web_search_requests": count},
        "iterations": [{"type": "message", "input_tokens": count}, {"type": "compaction", "input_tokens": count}, 7],
        "output_tokens_details": {"reasoning_tokens": count},
    }
    spec = model_spec_for("claude-sonnet-4-5")
    usage = make_usage().model_copy(update={"provider_fields": fields})
    assert spec.compute_cost(usage, at=NOW) == spec.compute_cost(make_usage(), at=NOW)


def test_reasoning_beside_the_output_is_billed_as_output():
    message = {"message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
    counts = {"prompt_tokens": 32, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 300}}
    for total, output in ((341, 309), (41, 9)):
        body = {"model": "grok-4", "choices": [message], "usage": {**counts, "total_tokens": total}}
        usage = wire_format_for("chat").parse_reply(body).usage
        assert usage is not None
        assert usage.output_tokens == output
