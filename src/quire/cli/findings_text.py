"""Texts of findings for people: costs, days, evidence and the names of agents and projects."""

import os
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path

from quire.cli.output import pluralize, to_one_line
from quire.errors import format_usd
from quire.findings.report import Evidence
from quire.usage.contribution import UsageCounts
from quire.usage.report import UsageGroup

NAME_CHARS = 26
MAX_EVIDENCE_CHARS = 200
MIN_PRINTED_USD = 0.005


def list_days(days: Sequence[UsageGroup], limit: int) -> list[tuple[str, float]]:
    """The newest days up to the last with a request, each with its cost; days without one cost nothing."""
    if not days:
        return []
    costs, last = {each.name: each.counts.cost_usd for each in days}, date.fromisoformat(days[-1].name)
    count = min(limit, (last - date.fromisoformat(days[0].name)).days + 1)
    names = [(last - timedelta(days=age)).isoformat() for age in reversed(range(count))]
    return [(name, costs.get(name, 0.0)) for name in names]


def format_days(days: Sequence[UsageGroup]) -> str:
    """The first and the last day, or the only one."""
    return " to ".join(dict.fromkeys(each.name for each in (*days[:1], *days[-1:])))


def format_total_cost(totals: UsageCounts) -> str:
    cost = format_usd(totals.cost_usd, 2)
    if not totals.unpriced_requests:
        return cost
    return f"At least {cost} ({pluralize(totals.unpriced_requests, 'request')} without a known price or output)"


def name_agents(agents: Sequence[UsageGroup]) -> list[UsageGroup]:
    """The groups of sources by the names that people know."""
    from quire.sources.registry import SOURCES

    return [each._replace(name=SOURCES[each.name].title) if each.name in SOURCES else each for each in agents]


def format_evidence(evidence: Evidence) -> str:
    """The evidence with its cost and its project, on one line."""
    text = to_one_line(evidence.text.replace(f"{Path.home()}{os.sep}", "~/"), MAX_EVIDENCE_CHARS)
    if evidence.cost_usd >= MIN_PRINTED_USD and "$" not in text:
        text = f"{text}, {format_usd(evidence.cost_usd, 2)}"
    return f"{text} · {shorten_name(evidence.project)}" if evidence.project else text


def shorten_name(name: str) -> str:
    """The end of a path or name, more specific than its beginning."""
    home = str(Path.home())
    name = f"~{name.removeprefix(home)}" if name == home or name.startswith(f"{home}{os.sep}") else name
    return to_one_line(name if len(name) <= NAME_CHARS else f"…{name[1 - NAME_CHARS :]}", NAME_CHARS)
