"""`quire backtest`: replays stored conversations under other strategies, context windows and models."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from quire.cli.backtest_plot import draw_plot
from quire.cli.common import AsJson, BranchNumber, SetOptions, complete_conversation_ids, run_async
from quire.cli.output import NARROW_COLUMNS, make_table, make_text, pluralize, print_result, show_progress
from quire.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from quire.schemas.backtests import BacktestSchema, EstimateSchema, SimulatedStepSchema, VariantSchema

DEFAULT_STRATEGIES = ("discard", "summarize", "hybrid")
DEFAULT_SAMPLE = 100
"""Conversations that are drawn where neither conversations nor a project are named."""
MIN_PLOTTED_TURNS = 5
MAX_REQUESTS_PER_TURN = 3
"""With fewer turns, or more requests in each, the plot is by request: an agent's turn may have a thousand steps."""

ConversationIds = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONVERSATION",
        help="Ids of conversations; default: a random sample of all.",
        show_default=False,
        autocompletion=complete_conversation_ids,
    ),
]


def command(
    conversations: ConversationIds = None,
    *,
    project: Annotated[str | None, typer.Option(help="All conversations of a project.", show_default=False)] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Draw this many conversations at random.", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Draw the same sample again.", show_default=False)] = None,
    strategy: Annotated[
        list[str] | None, typer.Option(help="A strategy; repeatable. Default: the three of Quire.", show_default=False)
    ] = None,
    window: Annotated[
        list[int] | None,
        typer.Option(min=500, help="A context window in tokens; repeatable. Default: the model's.", show_default=False),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model; repeatable. Default: the one in the settings.", show_default=False),
    ] = None,
    branch: BranchNumber = 0,
    by: Annotated[
        Literal["turn", "request"] | None,
        typer.Option(help="What the plot counts. Default: turns, if there are enough.", show_default=False),
    ] = None,
    steps: Annotated[bool, typer.Option("--steps", help="Print every step of every turn, with --json.")] = False,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """Replay stored conversations under other strategies, context windows and models, without calling a model.

    For each combination: tokens sent, the share that a prompt cache can serve, compactions, cost, and the regret: of
    what the replies cited, quoted or read from the history, the share that the request did not have in view.
    """
    from quire.backtest import combine_variants

    if steps and not as_json:
        raise InvalidRequest("--steps adds the steps to the JSON document; use it with --json.")
    variants = combine_variants(strategy or DEFAULT_STRATEGIES, windows=window or (), models=model or ())
    if not conversations and project is None and sample is None:
        sample = DEFAULT_SAMPLE
    selected = {"ids": conversations or (), "project": project, "sample": sample, "seed": seed}
    document, listed = run_async(
        _run(variants, selected, branch=branch, with_steps=steps, overrides=tuple(overrides or ()))
    )
    printed = document.model_dump(mode="json")
    if steps:
        printed["steps"] = [each.model_dump(mode="json") for each in listed]
    print_result(printed, lambda console: _draw(document, console, by=by), as_json=as_json)


async def _run(
    variants: Any, selected: dict[str, Any], *, branch: int, with_steps: bool, overrides: tuple[str, ...]
) -> "tuple[BacktestSchema, list[SimulatedStepSchema]]":
    from quire.backtest import run_backtest, select_conversations
    from quire.cli.engine_setup import open_engine_from_settings, to_overrides
    from quire.schemas.backtests import BacktestSchema, SimulatedStepSchema

    listed: list[SimulatedStepSchema] = []

    def add_step(conversation: str, variant: Any, step: Any) -> None:
        listed.append(SimulatedStepSchema.from_step(step, conversation=conversation, variant=variant.name))

    async with open_engine_from_settings(to_overrides(overrides)) as engine:
        selection = await select_conversations(engine.store, **selected)
        with show_progress("Replaying conversations") as bar:
            report = await run_backtest(
                engine,
                variants,
                selection,
                branch=branch,
                on_progress=bar.update,
                on_step=add_step if with_steps else None,
            )
    return BacktestSchema.from_report(report), listed


def _draw(
    document: "BacktestSchema", console: "Console", *, by: Literal["turn", "request"] | None
) -> "Iterable[RenderableType]":
    if not document.conversations:
        yield make_text("No conversation has a reply, so there is nothing to replay.")
        return
    yield make_text(_describe(document))
    yield _make_table(document, is_narrow=console.width < NARROW_COLUMNS)
    yield from map(make_text, _list_notes(document))
    unit = by or _choose_unit(document.variants[0])
    charts = [(each.name, each.by_turn if unit == "turn" else each.by_request) for each in document.variants]
    yield make_text("")
    yield from draw_plot(charts, unit=unit, width=console.width)


def _choose_unit(variant: "VariantSchema") -> Literal["turn", "request"]:
    turns, requests = variant.turns, variant.requests
    is_chat = turns is not None and requests is not None and requests.value <= MAX_REQUESTS_PER_TURN * turns.value
    return "turn" if is_chat and len(variant.by_turn) >= MIN_PLOTTED_TURNS else "request"


def _describe(document: "BacktestSchema") -> str:
    first = document.variants[0]
    count = pluralize(document.conversations, "conversation")
    size = f"{_format(first.turns)} turns and {_format(first.requests)} requests"
    if document.is_sample:
        return f"Means of {count} drawn at random, each of {size}; ± 95 % confidence interval."
    return f"Means of {count}, each of {size}." if document.conversations > 1 else f"{count.capitalize()} of {size}."


def _make_table(document: "BacktestSchema", *, is_narrow: bool) -> "RenderableType":
    columns = ["variant", "tokens", "cached", "compactions", "cost", "regret"]
    if is_narrow:
        columns.remove("compactions")
    if len({(each.model, each.window) for each in document.variants}) > 1 and not is_narrow:
        columns.insert(1, "window")
    rows = [[cells[name] for name in columns] for cells in map(_make_cells, document.variants)]
    return make_table(*columns, rows=rows, right_aligned=columns[1:])


def _make_cells(variant: "VariantSchema") -> dict[str, str]:
    return {
        "variant": variant.name,
        "window": f"{variant.window:,}",
        "tokens": _format(variant.tokens),
        "cached": _format_share(variant.cached_share),
        "compactions": _format(variant.compactions, digits=1),
        "cost": "no price" if variant.cost_usd is None else f"${_format(variant.cost_usd, digits=4)}",
        "regret": "none needed" if variant.regret is None else _format_share(variant.regret),
    }


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


def _list_notes(document: "BacktestSchema") -> Iterable[str]:
    needed = document.variants[0].needed
    if needed:
        yield f"Regret: share of {pluralize(needed, 'needed message')} that the request did not have in view."
    for variant in document.variants:
        if variant.matching_requests:
            yield (
                f"{variant.name}: {variant.matching_requests:,} of {variant.recorded_requests:,} recorded requests are "
                "repeated byte for byte."
            )
        if variant.failed_requests:
            yield f"{variant.name}: {pluralize(variant.failed_requests, 'request')} failed: {variant.first_error}"
    if document.skipped:
        yield f"Skipped {pluralize(document.skipped, 'conversation')} without a reply."
