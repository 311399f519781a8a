"""Usage: of all conversations from the roll-up (`quire scan --usage`), of one from its log (`context show --usage`)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from quire.cli.common import (
    CommandTarget,
    find_branch,
    open_store,
    resolve_conversation_id,
)
from quire.cli.output import (
    WIDE_COLUMNS,
    Result,
    format_local_time,
    make_field_table,
    make_table,
    make_text,
    pluralize,
    show_progress,
    to_one_line,
)
from quire.errors import format_usd

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from quire.log import Branch
    from quire.schemas.stats import StatsSchema, TurnCostSchema, UsageCountsSchema, UsageGroupSchema
    from quire.store import SqlStore
    from quire.usage.report import SubAgentCost
    from quire.usage.rollup import RecountResult

Dimension = Literal["day", "model", "project", "source", "slot", "tool"]

OVERVIEW_ROWS = 5
"""Rows of each dimension in the overview."""
MAX_ROWS = 50
"""Rows of one dimension."""
BAR_COLUMNS = 20
"""Width of a bar."""
OVERVIEW_DAYS = 14
"""Days in the overview: the newest."""
NAME_CHARS = 40
UNNAMED = {"model": "(unknown)", "project": "(none)", "source": "(Quire)"}
"""Text for an empty name of a dimension."""
ADVICE = {
    "pin": "Pin it, or make it a reference of the agent: {share:.0%} of the turns name it.",
    "always": "Include it `always`: {share:.0%} of the requests have it.",
    "remove": "Never used; {tokens:,} tokens. Remove it, or include it in mode `agent`.",
}


ENTRY_BATCH_SIZE = 2_000
"""Entries of a conversation that one read returns."""


async def report_usage(
    overrides: Sequence[str] | None, *, by: "Dimension | None", since: int | None, recount: bool
) -> Result:
    """Usage of all conversations: tokens, cost, cache share, compactions, recall, and what is used most.

    Entries that are not counted yet are counted first.
    """
    from quire.schemas.stats import load_stats
    from quire.usage.report import USAGE_GROUPINGS

    async with open_store(overrides) as store:
        with show_progress("Counting messages") as progress:
            done = 0
            while count := await store.usage.count():
                done += count
                progress.update(done)
        corrections = await store.usage.recount() if recount else None
        stats = await load_stats(
            store,
            since=since,
            groupings=USAGE_GROUPINGS if by is None else (by,),
            limit=OVERVIEW_ROWS if by is None else MAX_ROWS,
        )
    document = dict(stats) if corrections is None else {**dict(stats), "recount": corrections._asdict()}

    def draw(console: "Console") -> "Iterable[RenderableType]":
        if corrections is not None:
            yield make_text(_describe_corrections(corrections))
        bar_columns = BAR_COLUMNS if console.width >= WIDE_COLUMNS else BAR_COLUMNS // 2
        if by is None:
            yield from _draw_overview(stats, bar_columns=bar_columns)
        else:
            yield make_text(_describe_period(stats))
            yield _draw_groups(by, stats.groups[by], bar_columns=bar_columns)

    return Result(document, draw)


def _describe_period(stats: "StatsSchema") -> str:
    """The days that all figures cover, and how to see those before them."""
    if stats.first_day is None or stats.first_day >= stats.since:
        return f"Usage since {stats.since}, in whole UTC days"
    return f"Usage since {stats.since}; for all, since {stats.first_day}: quire scan --usage --since {stats.first_day}"


def _describe_corrections(corrections: "RecountResult") -> str:
    checked = pluralize(corrections.conversations, "conversation")
    wrong, totals = corrections.corrected_conversations, corrections.corrected_totals
    if not wrong and not totals:
        return f"The roll-up equals the log of {checked}."
    return f"Of {checked}, {wrong:,} differed from the log, and {pluralize(totals, 'total')}; all were corrected."


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationStats:
    conversation: str
    branch: int
    created_at: int
    last_entry_at: int | None
    entries: Mapping[str, int]
    messages: Mapping[str, int]
    """Number of messages by role."""
    archived_up_to: int | None
    compactions: int
    pins: int
    branches: int
    purged: int
    replies: int
    """Replies whose usage is known."""
    tokens: Mapping[str, int]
    """`stored`, and by the provider's reports `input`, `output`, `cache_read`."""
    cost_usd: float
    unpriced_requests: int
    unpriced_tokens: int
    sub_agents: "SubAgentCost"


async def show_usage(target: CommandTarget) -> Result:
    """Statistics of one conversation from its log: messages, tokens, compactions, usage and cost of its replies."""
    async with open_store(target.overrides) as store:
        conversation_id = await resolve_conversation_id(store, target.conversation)
        counted = await _count_conversation(store, await find_branch(store, conversation_id, target.branch))
    return Result(counted, lambda _: _draw_conversation(counted))


async def _count_conversation(store: "SqlStore", branch: "Branch") -> ConversationStats:
    kinds, roles, tokens = Counter[str](), Counter[str](), Counter[str](stored=0, input=0, output=0, cache_read=0)
    purged = replies = 0
    last_entry_at = None
    with show_progress("Reading the log") as progress:
        for first in range(1, branch.head_seq + 1, ENTRY_BATCH_SIZE):
            last = min(branch.head_seq, first + ENTRY_BATCH_SIZE - 1)
            for entry in await store.read_range(branch.conversation, branch=branch.number, first=first, last=last):
                last_entry_at = entry.created_at
                kinds[entry.kind] += 1
                purged += entry.purged_at is not None
                if entry.kind != "message":
                    continue
                roles[entry.role or ""] += 1
                tokens["stored"] += entry.tokens or 0
                if (usage := entry.metadata.usage if entry.raw_metadata else None) is not None:
                    replies += 1
                    tokens["input"] += usage.input_tokens
                    tokens["output"] += usage.output_tokens
                    tokens["cache_read"] += usage.cache_read_tokens
            progress.update(last, branch.head_seq)
    active = branch.state.active_compaction
    record = await store.get_conversation(branch.conversation)
    used = await store.usage.read_conversation(branch.conversation)
    sub_agents = await store.usage.read_sub_agents(record)
    return ConversationStats(
        conversation=branch.conversation,
        branch=branch.number,
        created_at=record.created_at,
        last_entry_at=last_entry_at,
        entries=dict(sorted(kinds.items())),
        messages=dict(sorted(roles.items())),
        archived_up_to=active.covers.last if active is not None and active.covers is not None else None,
        compactions=branch.state.compaction_count,
        pins=len(branch.state.pins),
        branches=len(await store.list_branches(branch.conversation)),
        purged=purged,
        replies=replies,
        tokens=dict(tokens),
        cost_usd=await store.get_conversation_cost(branch.conversation),
        unpriced_requests=used.unpriced_requests,
        unpriced_tokens=used.unpriced_tokens,
        sub_agents=sub_agents.total,
    )


def _draw_conversation(stats: ConversationStats) -> "Iterable[RenderableType]":
    yield make_text(f"{stats.conversation}, branch {stats.branch}", style="bold")
    yield make_field_table(
        [
            ("created", format_local_time(stats.created_at)),
            ("last entry", format_local_time(stats.last_entry_at)),
            ("entries", sum(stats.entries.values())),
            ("messages", ", ".join(f"{count:,} {role}" for role, count in stats.messages.items()) or "none"),
            ("archived", f"entries up to #{stats.archived_up_to:,}" if stats.archived_up_to else "nothing"),
            ("compactions", stats.compactions),
            ("pins", stats.pins),
            ("branches", stats.branches),
            ("purged", stats.purged or None),
            ("tokens of all messages", stats.tokens["stored"]),
            ("replies with usage", stats.replies),
            ("input tokens", stats.tokens["input"]),
            ("of these from cache", stats.tokens["cache_read"]),
            ("output tokens", stats.tokens["output"]),
            ("cost", _format_total(stats, format_usd(stats.cost_usd))),
            ("with sub-agents", _format_with_sub_agents(stats)),
        ]
    )


def _draw_overview(stats: "StatsSchema", *, bar_columns: int) -> "Iterable[RenderableType]":
    totals = stats.totals
    yield make_text(_describe_period(stats), style="bold")
    yield make_field_table(
        [
            ("turns", f"{totals.turns:,} in {pluralize(totals.requests, 'request')}"),
            ("input tokens", f"{totals.input_tokens:,}, {totals.cache_share:.0%} from cache"),
            ("output tokens", totals.output_tokens),
            ("cost", _format_total(totals, format_usd(totals.cost_usd, 2))),
            ("of it imported", format_usd(totals.imported_usd, 2) if totals.imported_usd else None),
            ("compactions", f"{totals.compactions:,}, {totals.compacted_tokens:,} tokens freed"),
            ("recall", f"{pluralize(totals.recalled_messages, 'message')}, {totals.recalled_tokens:,} tokens"),
        ]
    )
    for name, groups in stats.groups.items():
        newest = groups[-OVERVIEW_DAYS:] if name == "day" else groups
        if newest:
            yield make_text("")
            yield _draw_groups(name, newest, bar_columns=bar_columns)
    if stats.documents:
        yield make_text("")
        rows = [(_shorten(each.name), each.counts.uses, each.counts.tokens) for each in stats.documents]
        yield make_table("document", "messages", "tokens", rows=rows, right_aligned=("messages", "tokens"))
    unused = stats.unused
    for kind, names in {"rules": unused.rules, "tools": unused.tools, "documents": unused.documents}.items():
        if names:
            more = unused.document_count - len(names) if kind == "documents" else 0
            listed = ", ".join(map(_shorten, names)) + (f" and {more:,} more" if more else "")
            yield make_text(f"{kind} never used: {listed}")
    if stats.turns:
        yield make_text("")
        has_sub_agents = any(each.sub_agents for each in stats.turns)
        turns = [
            (
                "–" if each.cost_usd is None else f"{'≥ ' * bool(each.unpriced_requests)}{format_usd(each.cost_usd)}",
                *([_format_with_sub_agents(each) or ""] if has_sub_agents else []),
                each.tokens,
                f"{each.conversation}{f' --branch {each.branch}' if each.branch else ''} --reply {each.seq}",
                _shorten(each.title),
            )
            for each in stats.turns
        ]
        columns = ("cost", *(["with sub-agents"] if has_sub_agents else []), "tokens", "quire context show …", "title")
        yield make_table(*columns, rows=turns, right_aligned=("cost", "tokens"), wrapped=("quire context show …",))
    for each in stats.suggestions:
        advice = ADVICE[each.action].format(share=each.share, tokens=each.tokens)
        yield make_text(f"{each.kind} {_shorten(each.name)}: {advice}")


def _draw_groups(dimension: str, groups: "Sequence[UsageGroupSchema]", *, bar_columns: int) -> "RenderableType":
    """A table with a bar: of tokens for slots and tools, else of cost, or of input tokens where no price is known."""
    is_item, has_cost = dimension in ("slot", "tool"), any(each.counts.cost_usd for each in groups)
    numbers = ("tokens", "requests", "calls") if dimension == "tool" else ("tokens", "requests")
    if not is_item:
        numbers = ("cost", "input", "cached", "output", "turns")
    sizes = [
        float(each.counts.tokens if is_item else each.counts.cost_usd if has_cost else each.counts.input_tokens)
        for each in groups
    ]
    largest = max(sizes, default=0.0)
    rows: list[Sequence[Any]] = []
    for each, size in zip(groups, sizes, strict=True):
        counts = each.counts
        bar = "█" * max(1, round(bar_columns * size / largest)) if size else ""
        values = (
            (counts.tokens, counts.requests, counts.uses)[: len(numbers)]
            if is_item
            else (
                _format_cost(counts),
                counts.input_tokens,
                f"{counts.cache_share:.0%}",
                counts.output_tokens,
                counts.turns,
            )
        )
        rows.append((_shorten(each.name or UNNAMED.get(dimension, "")), bar, *values))
    return make_table(dimension, "", *numbers, rows=rows, right_aligned=numbers)


def _format_cost(counts: "UsageCountsSchema") -> str:
    if counts.unpriced_requests:
        return f"≥ {format_usd(counts.cost_usd, 2)}" if counts.cost_usd else "–"
    return format_usd(counts.cost_usd, 2)


def _format_total(stats: "UsageCountsSchema | ConversationStats", cost: str) -> str:
    """The cost; where calls have no known price, that it is a lower bound, and what it lacks."""
    if not stats.unpriced_requests:
        return cost
    calls = f"{pluralize(stats.unpriced_requests, 'call')} without a known price or output"
    lacking = f"{calls}, {stats.unpriced_tokens:,} tokens"
    return f"at least {cost}, and {lacking}" if stats.cost_usd else f"not known: {lacking}"


def _format_with_sub_agents(stats: "ConversationStats | TurnCostSchema") -> str | None:
    """The cost with sub-agents, and how many they are; None without any."""
    called = stats.sub_agents
    if called is None or not called.sub_agents:
        return None
    bound = "at least " if stats.unpriced_requests or called.unpriced_requests else ""
    count = pluralize(called.sub_agents, "sub-agent")
    return f"{bound}{format_usd((stats.cost_usd or 0.0) + called.cost_usd)}, {count}"


def _shorten(name: str) -> str:
    return to_one_line(name, NAME_CHARS)
