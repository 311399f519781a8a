"""`quire backtest`: replays stored conversations under other strategies, context windows and models."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli.common import SetOptions, complete_conversation_ids, resolve_conversation_id
from quire.cli.output import NARROW_COLUMNS, Result, make_table, make_text, pluralize, sanitize, show_progress

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from quire.lab.schemas import BacktestSchema, EstimateSchema, SeriesPointSchema

DEFAULT_STRATEGIES = ("discard", "summarize", "hybrid")
DEFAULT_SAMPLE = 100
"""Conversations that are drawn where neither conversations nor a project are named."""
MIN_PLOTTED_TURNS = 5
MAX_REQUESTS_PER_TURN = 3
"""With fewer turns, or more requests in each, the plot is by request: an agent's turn may have a thousand steps."""

MAX_COLUMNS = 120
"""Columns of the bars; a wider terminal is not filled, because long rows are hard to compare."""
MIN_COLUMNS = 20
ROWS, COMPACT_ROWS = 6, 3
"""Rows of a chart; the smaller number where more than `MAX_TALL_CHARTS` are drawn."""
MAX_TALL_CHARTS = 4
MAX_BAR_COLUMNS, MIN_GAPPED_COLUMNS = 8, 3
"""Columns of one bar, where there are few, and the number from which the last of them is a gap."""

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_CACHED = "░"
_NEW_STYLE, _CACHED_STYLE = "cyan", "dim cyan"

ConversationNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONVERSATION...",
        help="IDs, their first characters, or titles. Default: a random sample of all conversations.",
        show_default=False,
        autocompletion=complete_conversation_ids,
    ),
]


async def command(
    conversations: ConversationNames = None,
    *,
    project: Annotated[str | None, typer.Option(help="All conversations of a project.", show_default=False)] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Draw this many conversations at random.", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Draw the same sample again.", show_default=False)] = None,
    strategy: Annotated[
        list[str] | None, typer.Option(help="A strategy. Repeatable. Default: Quire's three.", show_default=False)
    ] = None,
    window: Annotated[
        list[int] | None,
        typer.Option(min=500, help="A context window in tokens. Repeatable. Default: the model's.", show_default=False),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model. Repeatable. Default: the one in the settings.", show_default=False),
    ] = None,
    overrides: SetOptions = None,
) -> Result:
    """Replay stored conversations under other strategies, context windows and models, without calling a model.

    For each combination: tokens sent, the share that a prompt cache can serve, compactions, cost, and the regret: of
    what the replies cited, quoted or read from the history, the share that the request did not have in view.
    """
    from quire.backtest import combine_variants, run_backtest, select_conversations
    from quire.cli.engine_setup import open_engine_from_settings
    from quire.lab.schemas import BacktestSchema

    variants = combine_variants(strategy or DEFAULT_STRATEGIES, windows=window or (), models=model or ())
    if not conversations and project is None and sample is None:
        sample = DEFAULT_SAMPLE
    async with open_engine_from_settings(overrides) as engine:
        ids = [await resolve_conversation_id(engine.store, each) for each in conversations or ()]
        selection = await select_conversations(engine.store, ids=ids, project=project, sample=sample, seed=seed)
        with show_progress("Replaying conversations") as bar:
            report = await run_backtest(engine, variants, selection, on_progress=bar.update)
    document = BacktestSchema.from_report(report)
    return Result(document, lambda console: _draw(document, console))


def _draw(document: "BacktestSchema", console: "Console") -> "Iterable[RenderableType]":
    if not document.conversations:
        yield make_text("No conversation has a reply, so there is nothing to replay.")
        return
    first, count = document.variants[0], pluralize(document.conversations, "conversation")
    size = f"{_format(first.turns)} turns and {_format(first.requests)} requests"
    if document.is_sample:
        yield make_text(f"Means of {count} drawn at random, each of {size}; ± 95 % confidence interval.")
    elif document.conversations > 1:
        yield make_text(f"Means of {count}, each of {size}.")
    else:
        yield make_text(f"{count.capitalize()} of {size}.")
    yield _draw_variants(document, is_narrow=console.width < NARROW_COLUMNS)
    if first.needed:
        needed = pluralize(first.needed, "needed message")
        yield make_text(f"Regret: share of {needed} that the request did not have in view.")
    for variant in document.variants:
        if variant.matching_requests:
            yield make_text(
                f"{variant.name}: {variant.matching_requests:,} of {variant.recorded_requests:,} recorded requests are "
                "repeated byte for byte."
            )
        if variant.failed_requests:
            failed = pluralize(variant.failed_requests, "request")
            yield make_text(f"{variant.name}: {failed} failed: {variant.first_error}")
    if document.skipped:
        yield make_text(f"Skipped {pluralize(document.skipped, 'conversation')} without a reply.")
    turns, requests = first.turns, first.requests
    is_chat = turns is not None and requests is not None and requests.value <= MAX_REQUESTS_PER_TURN * turns.value
    unit = "turn" if is_chat and len(first.by_turn) >= MIN_PLOTTED_TURNS else "request"
    charts = [(each.name, each.by_turn if unit == "turn" else each.by_request) for each in document.variants]
    yield make_text("")
    yield from draw_plot(charts, unit=unit, width=console.width)


def _draw_variants(document: "BacktestSchema", *, is_narrow: bool) -> "RenderableType":
    columns = ["variant", "tokens", "cached", "compactions", "cost", "regret"]
    if is_narrow:
        columns.remove("compactions")
    if len({(each.model, each.window) for each in document.variants}) > 1 and not is_narrow:
        columns.insert(1, "window")
    rows: list[list[str]] = []
    for variant in document.variants:
        cells = {
            "variant": variant.name,
            "window": f"{variant.window:,}",
            "tokens": _format(variant.tokens),
            "cached": _format_share(variant.cached_share),
            "compactions": _format(variant.compactions, digits=1),
            "cost": "no price" if variant.cost_usd is None else f"${_format(variant.cost_usd, digits=4)}",
            "regret": "none needed" if variant.regret is None else _format_share(variant.regret),
        }
        rows.append([cells[name] for name in columns])
    return make_table(*columns, rows=rows, right_aligned=columns[1:])


def _format(estimate: "EstimateSchema | None", *, digits: int = 0) -> str:
    if estimate is None:
        return ""
    interval = "" if estimate.plus_minus is None else f" ± {estimate.plus_minus:,.{digits}f}"
    return f"{estimate.value:,.{digits}f}{interval}"


def _format_share(estimate: "EstimateSchema | None") -> str:
    if estimate is None:
        return ""
    interval = "" if estimate.plus_minus is None else f" ± {100 * estimate.plus_minus:.0f}"
    return f"{100 * estimate.value:.0f}{interval} %"


def draw_plot(charts: "Sequence[tuple[str, Sequence[SeriesPointSchema]]]", *, unit: str, width: int) -> "list[Text]":
    """Lines of the charts: a title, the bars with their scale, and below the last one the axis.

    The charts are below each other on the same scale, so that they can be compared without colors.
    """
    from rich.text import Text

    top = max((point.tokens for _, points in charts for point in points), default=0.0)
    if not top:
        return []
    label_columns = len(f"{round(top):,}")
    longest = max(len(points) for _, points in charts)
    columns = max(MIN_COLUMNS, min(width - label_columns - 3, MAX_COLUMNS))
    bar_columns = max(1, min(columns // longest, MAX_BAR_COLUMNS))
    rows = ROWS if len(charts) <= MAX_TALL_CHARTS else COMPACT_ROWS
    lines = [Text.assemble(
        f"Tokens sent by {unit}: ", ("█", _NEW_STYLE), " new, ", (_CACHED, _CACHED_STYLE), " repeats the request before"
    )]  # fmt: skip
    for name, points in charts:
        lines.append(Text(sanitize(name), style="bold"))
        bars = _fit_bars(points, columns // bar_columns)
        lines += _draw_chart(bars, top=top, rows=rows, bar_columns=bar_columns, label_columns=label_columns)
    last = max((points[-1].position for _, points in charts if points), default=1)
    used = min(longest, columns // bar_columns) * bar_columns
    end, indent = f"{unit} {last:,}", label_columns + 2
    axis = f"1 to {end}" if used < len(end) + 3 else f"1{end:>{used - 1}}"
    lines.append(Text(f"{'':>{indent}}{axis}", style="dim"))
    return lines


def _fit_bars(points: "Sequence[SeriesPointSchema]", count: int) -> list[tuple[float, float]]:
    """Tokens and cached tokens of at most `count` bars; neighbouring points share a bar and are averaged."""
    if len(points) <= count:
        return [(point.tokens, point.cached_tokens) for point in points]
    bars: list[tuple[float, float]] = []
    for index in range(count):
        shared = points[index * len(points) // count : (index + 1) * len(points) // count]
        bars.append(
            (
                sum(point.tokens for point in shared) / len(shared),
                sum(point.cached_tokens for point in shared) / len(shared),
            )
        )
    return bars


def _draw_chart(
    bars: Sequence[tuple[float, float]], *, top: float, rows: int, bar_columns: int, label_columns: int
) -> "list[Text]":
    from rich.text import Text

    lines: list[Text] = []
    for row in reversed(range(rows)):
        is_labelled = row in (rows - 1, rows // 2 - 1 if rows > COMPACT_ROWS else rows - 1)
        label = f"{round(top * (row + 1) / rows):,}" if is_labelled else ""
        line = Text(f"{label:>{label_columns}} {'┤' if label else '│'}", style="")
        for tokens, cached in bars:
            cell, style = _draw_cell(tokens / top * rows - row, cached / top * rows - row)
            gap = " " if bar_columns >= MIN_GAPPED_COLUMNS else ""
            line.append(cell * (bar_columns - len(gap)) + gap, style=style)
        line.rstrip()
        lines.append(line)
    return lines


def _draw_cell(tokens: float, cached: float) -> tuple[str, str]:
    """One cell of a bar, given how many cells of it are above the lower edge of this one."""
    if cached >= 0.5 and tokens >= 1:
        return (_CACHED, _CACHED_STYLE) if cached >= 1 or cached >= tokens - 0.5 else ("█", _NEW_STYLE)
    if tokens >= 1:
        return "█", _NEW_STYLE
    eighths = max(0, min(8, round(tokens * 8)))
    return _EIGHTHS[eighths], _NEW_STYLE
