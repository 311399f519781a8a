"""The status line of an agent's session, from what the agent reports and what Quire has recorded."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from quire.cli.output import pluralize
from quire.errors import format_usd
from quire.usage.contribution import NANOS_PER_DOLLAR
from quire.usage.insights import read_cost_of_today

if TYPE_CHECKING:
    from quire.store import SqlStore

WARNING_SHARE = 0.8
"""Share of the daily budget from which the line warns."""


async def format_status_line(store: "SqlStore", event: object, *, daily_budget: float | None = None) -> str:
    """Window, cache share, cost of the session and of today, compactions; what is not known is left out.

    `event` is what Claude Code writes to the standard input of a status line.
    """
    parts: list[str] = []
    context = _get_object(event, "context_window")
    usage = _get_object(context, "current_usage")
    cached, written, new = (_get_count(usage, f"{name}input_tokens") for name in ("cache_read_", "cache_creation_", ""))
    tokens, window = cached + written + new, _get_count(context, "context_window_size")
    if tokens and window:
        parts.append(f"{tokens:,} of {window:,} tokens ({tokens / window:.0%})")
    if tokens:
        parts.append(f"cache {cached / tokens:.0%}")
    session = _get_object(event).get("session_id")
    recorded = await store.list_session(session) if isinstance(session, str) and session else []
    if recorded:
        # A session that Quire wrote continues the conversation of another one.
        origin = recorded[0].origin
        costs = await store.usage.list_session_costs((origin and origin.session) or str(session))
        total, sub_agents = (
            sum(each.cost_nanos for each in costs if each.is_sub_agent or with_main) / NANOS_PER_DOLLAR
            for with_main in (True, False)
        )
        bound = "at least " if any(each.unpriced_requests for each in costs) else ""
        share = f" (sub-agents {format_usd(sub_agents, 2)})" if sub_agents else ""
        parts.append(f"session {bound}{format_usd(total, 2)}{share}")
    else:
        parts.append("session not recorded")
    today = await read_cost_of_today(store.usage)
    if daily_budget is None:
        parts.append(f"today {format_usd(today, 2)}")
    else:
        warning = "over budget: " if today >= daily_budget else "⚠ " if today >= WARNING_SHARE * daily_budget else ""
        parts.append(f"{warning}today {format_usd(today, 2)} of {format_usd(daily_budget, 2)}")
    compactions = 0
    for record in recorded:
        if record.origin is not None and record.origin.purpose is None:
            branches = await store.list_branches(record.id)
            compactions += max(each.state.compaction_count for each in branches)
    if compactions:
        parts.append(pluralize(compactions, "compaction"))
    return " · ".join(parts)


def _get_object(value: object, name: str | None = None) -> Mapping[str, Any]:
    """An object of the event, or one of its fields; empty if it is missing or something else."""
    found = value if name is None else _get_object(value).get(name)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _get_count(value: Mapping[str, Any], name: str) -> int:
    count = value.get(name)
    return count if isinstance(count, int) and count > 0 else 0
