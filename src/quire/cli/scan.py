"""`quire scan`: finds what agents stored on this machine, imports it, and prints what it cost and wasted."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli.common import SetOptions, enable_garbage_collection
from quire.cli.output import (
    Result,
    describe_unfinished,
    make_console,
    make_table,
    make_text,
    pluralize,
    print_note,
    show_progress,
)
from quire.cli.paths import write_atomically
from quire.cli.reimport import BACKUP_DOCS, ReimportNotice
from quire.cli.search import parse_since
from quire.cli.usage import Dimension, report_usage

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from quire.engine.source_scan import FoundSource
    from quire.findings.report import Finding, FindingsReport
    from quire.usage.report import UsageGroup

MAX_ROWS = 3
"""Agents, projects, models, and pieces of evidence of a finding that are printed; `--json` lists more."""
MAX_DAYS = 30
MAX_PRINTED_ERRORS = 20
BARS = "▁▂▃▄▅▆▇█"
WIDE_COLUMNS = 90
"""Width from which agents, projects and models are next to each other."""


async def command(
    *,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the report as one file for a browser, too.")
    ] = None,
    usage: Annotated[
        bool,
        typer.Option("--usage", help="Print what is stored already: tokens, cost, cache share, what is used most."),
    ] = False,
    by: Annotated[
        Dimension | None,
        typer.Option(help="Usage by one dimension instead of the overview.", show_default=False),
    ] = None,
    since: Annotated[
        int | None,
        typer.Option(
            metavar="TIME",
            parser=parse_since,
            help="Usage since this date, time or age (7d), in whole UTC days. Default: 30d.",
            show_default=False,
        ),
    ] = None,
    recount: Annotated[
        bool, typer.Option("--recount", help="Usage after comparing the roll-up with the whole log, and correcting it.")
    ] = False,
    overrides: SetOptions = None,
) -> Result:
    """Find what agents have stored on this machine, import what is new, and print what it cost and wasted.

    Reads the files of Claude Code, Codex and the other programs of `quire import` at their usual places, and changes
    nothing but Quire's own database. Findings are ordered by cost, each with its evidence and a command that shows it.
    """
    if usage or recount or by is not None or since is not None:
        return await report_usage(overrides, by=by, since=since, recount=recount)
    from quire.schemas.findings import ScanReportSchema

    report = await scan(overrides, is_final_only=html is not None)
    if html is not None:
        from quire.cli.findings_html import render_html

        write_atomically(html, render_html(report))
        print_note(f"Wrote {html}.")
    return Result(ScanReportSchema.model_validate(report), lambda console: draw_findings(report, console))


async def scan(overrides: Sequence[str] | None = None, *, is_final_only: bool = False) -> "FindingsReport":
    """Imports what is new and returns the findings. Prints the newest sessions' findings while others are read."""
    from quire.cli.engine_setup import load_cli_settings, open_engine_from_settings, resolve_database_url
    from quire.engine.file_import import ImportOptions
    from quire.engine.source_scan import (
        FIRST_BYTES,
        find_sources,
        import_sources,
        read_findings,
        select_changed,
        select_outdated,
        split_newest,
    )
    from quire.sources.base import SourceError
    from quire.store.reimport import Reread
    from quire.usage.insights import count_usage

    enable_garbage_collection()
    found = find_sources(os.environ)
    options = ImportOptions(processes=os.cpu_count() or 1, indexes=False, has_deadline=False)
    async with open_engine_from_settings(overrides) as engine:
        database_url = resolve_database_url(load_cli_settings(overrides).settings)
        notice = ReimportNotice(engine.store, database_url)
        known = await engine.store.imports.list_files()
        changed = select_changed(found, known, rereads=notice.can_copy)
        if not notice.can_copy and (outdated := select_outdated(found, known)):
            names = " && ".join(f"quire import {each.source.name}" for each in outdated)
            print_note(
                f"{pluralize(sum(len(each.files) for each in outdated), 'file')} were read by an earlier version. Back "
                f"up the database ({BACKUP_DOCS}), then read them again: {names}"
            )
        print_note(format_plan(found, changed, database_url.removeprefix("sqlite:///")))
        newest, others = split_newest(changed)
        total, failed = sum(len(each.files) for each in changed), 0
        unfinished, merged = 0, dict[str, str]()
        errors, reread = list[SourceError](), dict[str, Reread]()
        with show_progress("Reading") as bar:
            for part, before in ((newest, 0), (others, sum(len(each.files) for each in newest))):
                report = await import_sources(
                    engine,
                    part,
                    options,
                    on_progress=lambda _, files, before=before: bar.update(before + files, total),
                    prepare_reread=notice.prepare if notice.can_copy else None,
                )
                failed += report.error_count
                errors += report.errors
                reread |= report.reread
                unfinished += report.unfinished_replies
                merged |= report.merged
                is_long = sum(each.size for each in others) > FIRST_BYTES
                if part is newest and is_long and not is_final_only:
                    bar.close()
                    await count_usage(engine.store.usage)
                    first = await read_findings(engine.store, found)
                    _print_first(first, sum(len(each.files) for each in newest), total)
        with show_progress("Counting"):
            await count_usage(engine.store.usage)
            findings = await read_findings(engine.store, found)
        await notice.print_changes(reread, merged)
    if failed:
        print_note(f"{pluralize(failed, 'item')} could not be read:")
        for error in errors[:MAX_PRINTED_ERRORS]:
            print_note(f"  {error.item}: {error.reason}")
        if failed > MAX_PRINTED_ERRORS:
            print_note(f"  and {failed - MAX_PRINTED_ERRORS:,} more; `quire import SOURCE` lists them.")
    if unfinished:
        print_note(f"{describe_unfinished(unfinished)}; the next scan reads what is complete.")
    return findings


def format_plan(found: "Sequence[FoundSource]", changed: "Sequence[FoundSource]", database: str) -> str:
    """What is read, and what is written."""
    if not found:
        return "No agent has stored sessions on this machine. `quire import --help` lists the programs that are known."
    names = ", ".join(
        f"{each.source.title} ({pluralize(len(each.files), 'file')}, {_format_size(each.size)})" for each in found
    )
    new = sum(len(each.files) for each in changed)
    reads = f"Reads {pluralize(new, 'file')} that {'is' if new == 1 else 'are'} new" if new else "Nothing is new"
    return f"Found {names}.\n{reads}; writes only {database.replace(str(Path.home()), '~', 1)}."


def _format_size(size: int) -> str:
    if size < 1e6:
        return f"{max(1, round(size / 1e3))} kB"
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _print_first(report: "FindingsReport", files: int, total: int) -> None:
    import sys

    from quire.cli.findings_text import format_days

    console = make_console(sys.stderr)
    title = f"First findings, from the newest {files:,} of {total:,} files, {format_days(report.days)}:"
    console.print(make_text(title, style="bold"))
    for finding in report.findings[:MAX_ROWS]:
        console.print(make_text(f"  {finding.title}"))


def draw_findings(report: "FindingsReport", console: "Console") -> "Iterable[RenderableType]":
    from rich.columns import Columns
    from rich.console import Group
    from rich.padding import Padding

    from quire.cli.findings_text import format_days, format_total_cost, list_days, name_agents

    totals, days = report.totals, report.days
    if not totals.requests:
        yield make_text("No request with a model is stored yet.")
        return
    span = format_days(days)
    conversations = pluralize(report.conversations, "conversation")
    yield make_text(f"{format_total_cost(totals)} in {conversations}, {span}", style="bold")
    facts = [
        f"{pluralize(totals.requests, 'request')}",
        f"{totals.cache_share:.0%} of the input from the cache",
        f"sub-agents ${report.sub_agent_usd:,.2f}" if report.sub_agent_usd else "",
    ]
    yield make_text(" · ".join(filter(None, facts)))
    yield make_text("")
    tables = [
        _draw_groups(name, groups)
        for name, groups in (
            ("agent", name_agents(report.agents)),
            ("project", report.projects),
            ("model", report.models),
        )
    ]
    is_wide = console.width >= WIDE_COLUMNS
    if is_wide:
        yield Columns(tables, padding=(0, 4))
    else:
        yield Group(*(Padding(each, (0, 0, 1 if each is not tables[-1] else 0, 0)) for each in tables))
    newest = list_days(days, MAX_DAYS)
    if len(newest) > 1:
        most, highest = max(newest, key=lambda each: each[1])
        bars = "".join(BARS[min(7, int(8 * cost / (highest or 1.0)))] if cost else " " for _, cost in newest)
        yield make_text("")
        yield make_text(f"{bars}  the last {len(newest)} days, most on {most}: ${highest:,.2f}")
    yield make_text("")
    if not report.findings:
        yield make_text("Nothing was wasted that Quire can see.")
        return
    yield make_text("Findings, the most expensive first", style="bold")
    for number, finding in enumerate(report.findings, start=1):
        yield make_text("")
        yield from _draw_finding(number, finding)


def _draw_groups(name: str, groups: "Sequence[UsageGroup]") -> "RenderableType":
    from quire.cli.findings_text import shorten_name

    rows = [
        (shorten_name(each.name) or "(none)", f"${each.counts.cost_usd:,.2f}")
        for each in groups[:MAX_ROWS]
        if each.counts.cost_usd
    ]
    return make_table(name, "cost", rows=rows, right_aligned=("cost",))


def _draw_finding(number: int, finding: "Finding") -> "Iterable[RenderableType]":
    from rich.padding import Padding
    from rich.table import Table

    from quire.cli.findings_text import format_evidence

    heading = Table.grid(padding=(0, 1))
    heading.add_row(make_text(f"{number:>2}.", style="bold"), make_text(finding.title, style="bold"))
    yield heading
    for each in finding.evidence[:MAX_ROWS]:
        yield Padding(make_text(format_evidence(each)), (0, 0, 0, 4))
    if finding.total > MAX_ROWS:
        yield Padding(make_text(f"and {finding.total - MAX_ROWS:,} more", style="dim"), (0, 0, 0, 4))
    yield Padding(make_text(f"→ {finding.advice}", style="dim"), (0, 0, 0, 4))
    yield make_text(f"    $ {finding.command}", style="cyan", wrap=False)
