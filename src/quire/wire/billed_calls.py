"""What a provider bills for a call: its tokens by price, its server tools, and its processing tier.

`Usage` has the counts that every provider reports. The rest is in its provider fields, as the provider named it, so
that calls recorded earlier are read by the same rules.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from quire.model import Usage
from quire.model.json_values import filter_objects, get_object, get_text

MAX_COUNT = 10**10
"""Larger counts are read as 0: a provider states any number."""
MAX_ITERATIONS = 1_000
SERVER_TOOLS_FIELD = "server_tool_use"
WEB_SEARCHES_FIELD, FILE_SEARCHES_FIELD = "web_search_requests", "file_search_requests"


class BilledCall(NamedTuple):
    """One sampling of a model. `input_tokens` includes cached tokens, `cache_write_tokens` all lifetimes."""

    model: str | None = None
    """The model that was sampled if it is not the one that answers, such as an advisor."""
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    """Written for one hour instead of the default lifetime."""
    reasoning_tokens: int = 0
    """Part of `output_tokens`."""
    web_searches: int = 0
    file_searches: int = 0
    service_tier: str | None = None
    """`batch`, `flex`, `priority`, `fast` or a name for the standard tier."""
    is_fast: bool = False
    """Anthropic's fast mode, which has a separate price."""
    geography: str | None = None
    """Where inference had to run, such as `us`."""


def list_billed_calls(usage: Usage) -> list[BilledCall]:
    """The calls that the provider bills for one response.

    Anthropic's top-level counts leave out the samplings for a compaction and for an advisor: `iterations` lists them.
    They also add up the samplings between server tools, of which each has its own prompt length. Where a fallback
    model answered, they are the counts of its sampling. A model that declined is billed if it had begun its reply.
    """
    fields = usage.provider_fields or {}
    answer = _read_answer(usage, fields)
    iterations = filter_objects(fields.get("iterations"))[:MAX_ITERATIONS]
    messages = [_read_iteration(each, answer) for each in iterations if each.get("type", "message") == "message"]
    if any(each.get("type") == "fallback_message" for each in iterations):
        declined = [each for each in messages if each.model != usage.model and each.output_tokens]
        return [answer, *declined]
    messages = [each._replace(model=None) if each.model == usage.model else each for each in messages]
    others = [_read_iteration(each, answer) for each in iterations if each.get("type", "message") != "message"]
    if iterations and not messages:
        # The provider stopped after the compaction: there was no answer.
        return others
    if len(messages) > 1 and _sum_tokens(messages) == _sum_tokens([answer]):
        searches = {"web_searches": answer.web_searches, "file_searches": answer.file_searches}
        return [messages[0]._replace(**searches), *messages[1:], *others]
    return [answer, *others]


def count_reasoning_tokens(usage: Usage) -> int:
    fields = usage.provider_fields or {}
    details = get_object(fields, "output_tokens_details", "completion_tokens_details")
    values: tuple[object, ...] = (
        details.get("reasoning_tokens"), details.get("thinking_tokens"), fields.get("reasoning_output_tokens"),
        fields.get("thoughtsTokenCount"),
    )  # fmt: skip
    return min(max(map(_read_count, values)), usage.output_tokens)


def _read_count(value: object) -> int:
    """A count that a provider states, or 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT else 0


def _read_answer(usage: Usage, fields: Mapping[str, Any]) -> BilledCall:
    searches = get_object(fields, SERVER_TOOLS_FIELD)
    tier = get_text(fields, "service_tier") or get_text(get_object(fields, "response"), "service_tier")
    return BilledCall(
        input_tokens=max(usage.input_tokens, usage.cache_read_tokens + usage.cache_write_tokens),
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cache_write_1h_tokens=min(_read_1h_tokens(fields), usage.cache_write_tokens),
        reasoning_tokens=count_reasoning_tokens(usage),
        web_searches=_read_count(searches.get(WEB_SEARCHES_FIELD)),
        file_searches=_read_count(searches.get(FILE_SEARCHES_FIELD)),
        service_tier=tier,
        is_fast=get_text(fields, "speed") == "fast",
        geography=get_text(fields, "inference_geo"),
    )


def _read_iteration(counts: Mapping[str, Any], answer: BilledCall) -> BilledCall:
    read, written = (
        _read_count(counts.get(name)) for name in ("cache_read_input_tokens", "cache_creation_input_tokens")
    )
    return answer._replace(
        model=get_text(counts, "model"),
        input_tokens=_read_count(counts.get("input_tokens")) + read + written,
        output_tokens=_read_count(counts.get("output_tokens")),
        cache_read_tokens=read,
        cache_write_tokens=written,
        cache_write_1h_tokens=min(_read_1h_tokens(counts), written),
        reasoning_tokens=0,
        web_searches=0,
        file_searches=0,
    )


def _read_1h_tokens(fields: Mapping[str, Any]) -> int:
    return _read_count(get_object(fields, "cache_creation").get("ephemeral_1h_input_tokens"))


def _sum_tokens(calls: list[BilledCall]) -> tuple[int, ...]:
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cache_write_1h_tokens")
    return tuple(sum(getattr(call, name) for call in calls) for name in names)
