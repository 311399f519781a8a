"""`quire stats`: usage of all conversations from the roll-up: tokens, cost, cache, recall, documents, rules, turns."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from quire.cli.common import AsJson, Limit, SetOptions, make_target, open_store, run_async
from quire.cli.output import (
    make_field_table,
    make_table,
    make_text,
    pluralize,
    print_result,
    show_progress,
    to_one_line,
)
from quire.cli.search import parse_time

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from quire.log import SqlStore
    from quire.log.usage.report import UsageGrouping
    from quire.log.usage.rollup import RecountResult
    from quire.schemas.stats import StatsSchema, UsageCountsSchema, UsageGroupSchema

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


def _parse_since(text: str) -> int:
    return parse_time(text, end_of_day=False)


def command(
    *,
    by: Annotated[
        Literal["day", "model", "project", "source", "slot", "tool"] | None,
        typer.Option(help="Print the rows of one dimension instead of the overview.", show_default=False),
    ] = None,
    since: Annotated[
        int | None,
        typer.Option(
            metavar="TIME",
            parser=_parse_since,
            help="From this date, time or age (7d) on, in whole days of UTC; default: 30d.",
            show_default=False,
        ),
    ] = None,
    limit: Limit = 5,
    recount: Annotated[
        bool, typer.Option("--recount", help="Compare the roll-up with the whole log first, and correct it.")
    ] = False,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """Print usage of all conversations: tokens, cost, cache share, compactions, recall, and what is used most.

    Entries that are not counted yet are counted first.
    """
    stats, corrections = run_async(_read_stats(overrides or (), by=by, since=since, limit=limit, recount=recount))
    document = stats.model_dump(mode="json")
    if corrections is not None:
        document["recount"] = corrections._asdict()

    def draw(_: "Console") -> "Iterable[RenderableType]":
        if corrections is not None:
            yield make_text(_format_recount(corrections))
        if by is None:
            yield from _draw_overview(stats)
        else:
            yield _draw_groups(by, stats.groups[by])

    print_result(document, draw, as_json=as_json)


async def _read_stats(
    overrides: Sequence[str], *, by: "UsageGrouping | None", since: int | None, limit: int, recount: bool
) -> "tuple[StatsSchema, RecountResult | None]":
    from quire.log.usage.insights import read_insights
    from quire.log.usage.report import USAGE_GROUPINGS
    from quire.schemas.stats import StatsSchema

    async with open_store(make_target(overrides=overrides)) as store:
        await _count_pending(store)
        corrections = await store.recount_usage() if recount else None
        groupings = USAGE_GROUPINGS if by is None else (by,)
        insights = await read_insights(store, since=since, groupings=groupings, limit=limit)
        ids = sorted({turn.conversation for turn in insights.report.turns})
        records = await store.fill_titles(*[await store.get_conversation(each) for each in ids])
        return StatsSchema.from_insights(insights, records), corrections


async def _count_pending(store: "SqlStore") -> None:
    with show_progress("Counting messages") as progress:
        done = 0
        while counted := await store.count_usage():
            done += counted
            progress.update(done)


def _format_recount(corrections: "RecountResult") -> str:
    checked = pluralize(corrections.conversations, "conversation")
    wrong, totals = corrections.corrected_conversations, corrections.corrected_totals
    if not wrong and not totals:
        return f"The roll-up equals the log of {checked}."
    return f"Of {checked}, {wrong:,} differed from the log, and {pluralize(totals, 'total')}; all were corrected."


def _draw_overview(stats: "StatsSchema") -> "Iterable[RenderableType]":
    totals = stats.totals
    yield make_text(f"Usage since {stats.since}", style="bold")
    yield make_field_table(
        [
            ("turns", f"{totals.turns:,} in {pluralize(totals.requests, 'request')}"),
            ("input tokens", f"{totals.input_tokens:,}, {totals.cache_share:.0%} from cache"),
            ("output tokens", totals.output_tokens),
            ("cost", _describe_cost(totals)),
            ("compactions", f"{totals.compactions:,}, {totals.compacted_tokens:,} tokens freed"),
            ("recall", f"{pluralize(totals.recalled_messages, 'message')}, {totals.recalled_tokens:,} tokens"),
        ]
    )
    for name, groups in stats.groups.items():
        newest = groups[-OVERVIEW_DAYS:] if name == "day" else groups
        if newest:
            yield make_text("")
            yield _draw_groups(name, newest)
    if stats.documents:
        yield make_text("")
        rows = [(_shorten(each.name), each.counts.uses, each.counts.tokens) for each in stats.documents]
        yield make_table("document", "messages", "tokens", rows=rows, right_aligned=("messages", "tokens"))
    yield from _draw_unused(stats)
    if stats.turns:
        yield make_text("")
        yield _draw_turns(stats)
    for each in stats.suggestions:
        advice = ADVICE[each.action].format(share=each.share, tokens=each.tokens)
        yield make_text(f"{each.kind} {_shorten(each.name)}: {advice}")


def _draw_unused(stats: "StatsSchema") -> "Iterable[RenderableType]":
    unused = stats.unused
    lists = {"rules": unused.rules, "tools": unused.tools, "documents": unused.documents}
    for kind, names in lists.items():
        if names:
            more = unused.document_count - len(names) if kind == "documents" else 0
            listed = ", ".join(map(_shorten, names)) + (f" and {more:,} more" if more else "")
            yield make_text(f"{kind} never used: {listed}")


def _draw_groups(dimension: str, groups: "Sequence[UsageGroupSchema]") -> "RenderableType":
    """A table with a bar: of cost, or of tokens where no price is known."""
    if dimension in ("slot", "tool"):
        return _draw_items(dimension, groups)
    has_cost = any(each.counts.cost_usd for each in groups)
    sizes = [each.counts.cost_usd if has_cost else float(each.counts.input_tokens) for each in groups]
    largest = max(sizes, default=0.0)
    rows = [
        (
            _shorten(each.name or UNNAMED.get(dimension, "")),
            _draw_bar(size, largest),
            _format_cost(each.counts),
            each.counts.input_tokens,
            f"{each.counts.cache_share:.0%}",
            each.counts.output_tokens,
            each.counts.turns,
        )
        for each, size in zip(groups, sizes, strict=True)
    ]
    numbers = ("cost", "input", "cached", "output", "turns")
    return make_table(dimension, "", *numbers, rows=rows, right_aligned=numbers)


def _draw_items(dimension: str, groups: "Sequence[UsageGroupSchema]") -> "RenderableType":
    largest = max((each.counts.tokens for each in groups), default=0)
    numbers = ("tokens", "requests", "calls") if dimension == "tool" else ("tokens", "requests")
    rows = [
        (
            _shorten(each.name),
            _draw_bar(each.counts.tokens, largest),
            each.counts.tokens,
            each.counts.requests,
            each.counts.uses,
        )[: len(numbers) + 2]
        for each in groups
    ]
    return make_table(dimension, "", *numbers, rows=rows, right_aligned=numbers)


def _draw_turns(stats: "StatsSchema") -> "RenderableType":
    rows: list[tuple[Any, ...]] = [
        (
            "–" if each.cost_usd is None else f"${each.cost_usd:,.4f}",
            each.tokens,
            f"{each.conversation}{f' --branch {each.branch}' if each.branch else ''} --reply {each.seq}",
            to_one_line(each.title, NAME_CHARS),
        )
        for each in stats.turns
    ]
    columns = ("cost", "tokens", "quire context show …", "title")
    return make_table(*columns, rows=rows, right_aligned=("cost", "tokens"), wrapped=("quire context show …",))


def _describe_cost(totals: "UsageCountsSchema") -> str:
    if not totals.unpriced_turns:
        return _format_cost(totals)
    unpriced = f"{pluralize(totals.unpriced_turns, 'turn')} without a known price"
    return f"${totals.cost_usd:,.2f}, and {unpriced}" if totals.cost_usd else f"not known: {unpriced}"


def _format_cost(counts: "UsageCountsSchema") -> str:
    return "–" if counts.unpriced_turns and not counts.cost_usd else f"${counts.cost_usd:,.2f}"


def _draw_bar(size: float, largest: float) -> str:
    return "█" * max(1, round(BAR_COLUMNS * size / largest)) if size and largest else ""


def _shorten(name: str) -> str:
    return to_one_line(name, NAME_CHARS)
