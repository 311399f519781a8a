"""Insights: usage from the roll-up, with suggestions for what to pin, to include always, or to remove.

The roll-up follows the log in a background job. Readers count what is missing first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from quire.model.ids import now
from quire.usage.contribution import DAY_MICROSECONDS, EPOCH, format_day
from quire.usage.report import USAGE_GROUPINGS, RollupReport, UsageGroup, UsageGrouping, UsageRollup

DEFAULT_DAYS = 30
TODAY_BATCHES = 1
"""Batches of the log that are counted before the day is summed up."""
"""Days of a report, unless it says otherwise."""
MIN_SUGGESTION_REQUESTS = 20
"""Turns or requests below which there is no suggestion."""
PIN_SHARE = 0.2
"""Share of turns from which a document that messages reference is suggested to be pinned."""
ALWAYS_SHARE = 0.5
"""Share of requests from which an item that is included only sometimes is suggested to be `always`."""

SuggestedAction = Literal["pin", "always", "remove"]


@dataclass(frozen=True, slots=True)
class UsageSuggestion:
    """A change of the configuration that the usage suggests."""

    action: SuggestedAction
    kind: Literal["document", "rule", "reference", "tool"]
    name: str
    share: float
    """Share of the turns that reference a document, or of the requests that include an item."""
    tokens: int
    """Tokens that it took in requests."""


class Insights(NamedTuple):
    since: str
    """The first day."""
    report: RollupReport
    suggestions: tuple[UsageSuggestion, ...]


async def count_usage(usage: UsageRollup, *, max_batches: int | None = None) -> int:
    """Counts what the roll-up lacks, at most this number of batches. Returns the number of counted branches."""
    count = batches = 0
    while max_batches is None or batches < max_batches:
        counted = await usage.count()
        if not counted:
            break
        count, batches = count + counted, batches + 1
    return count


async def read_cost_of_today(usage: UsageRollup) -> float:
    """US dollars of all calls since midnight UTC. A long backlog is left to the background."""
    await count_usage(usage, max_batches=TODAY_BATCHES)
    insights = await read_insights(usage, since=now(), groupings=(), limit=1)
    return insights.report.totals.cost_usd


async def read_insights(
    usage: UsageRollup,
    *,
    since: int | None = None,
    groupings: Sequence[UsageGrouping] = USAGE_GROUPINGS,
    limit: int = 10,
) -> Insights:
    """Reads the roll-up from the day of `since` (microseconds since 1970) on; by default the last 30 days."""
    since_day = default_since_day() if since is None else since // DAY_MICROSECONDS
    report = await usage.read_report(since_day=since_day, groupings=groupings, limit=limit)
    return Insights(format_day(since_day), report, tuple(suggest_changes(report)))


def suggest_changes(report: RollupReport) -> Iterator[UsageSuggestion]:
    """What to pin, to include always, or to remove. Nothing before there is enough usage."""
    turns, requests = report.totals.turns, report.totals.requests
    if turns >= MIN_SUGGESTION_REQUESTS:
        for name, counts in report.documents:
            if counts.uses >= PIN_SHARE * turns:
                yield UsageSuggestion("pin", "document", name, counts.uses / turns, counts.tokens)
    if requests >= MIN_SUGGESTION_REQUESTS:
        sometimes: list[tuple[Literal["rule", "reference"], UsageGroup]] = [
            *(("rule", group) for group in report.rules),
            *(("reference", group) for group in report.references),
        ]
        for kind, (name, counts) in sometimes:
            if ALWAYS_SHARE * requests <= counts.requests < counts.candidates:
                yield UsageSuggestion("always", kind, name, counts.requests / requests, counts.tokens)
        for name, counts in report.unused_rules:
            if counts.candidates >= MIN_SUGGESTION_REQUESTS:
                yield UsageSuggestion("remove", "rule", name, 0.0, 0)
        for name, counts in report.unused_tools:
            if counts.requests >= MIN_SUGGESTION_REQUESTS:
                yield UsageSuggestion("remove", "tool", name, counts.requests / requests, counts.tokens)


def default_since_day() -> int:
    return (datetime.now(UTC).date() - EPOCH).days - DEFAULT_DAYS + 1
