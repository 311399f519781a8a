"""Findings as one HTML file: pictures are inline SVG, and nothing is loaded from elsewhere. It has no script."""

from collections.abc import Iterator, Sequence
from html import escape

from quire.cli.findings_text import (
    format_days,
    format_evidence,
    format_total_cost,
    list_days,
    name_agents,
    shorten_name,
)
from quire.cli.output import sanitize
from quire.findings.report import Finding, FindingsReport
from quire.usage.report import UsageGroup

MAX_DAYS, MAX_ROWS, MAX_EVIDENCE = 90, 8, 20
DAYS_WIDTH, DAYS_HEIGHT = 960, 120
BARS_WIDTH, ROW_HEIGHT = 300, 26

_STYLE = """
:root { color-scheme: light dark; --ink: #25231f; --soft: #6b655a; --paper: #faf8f3; --line: #e4dfd3; --bar: #2b5d63; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ece8df; --soft: #a69f92; --paper: #1d1c19; --line: #3a372f; --bar: #6fb0a8; }
}
body { margin: 0 auto; max-width: 980px; padding: 32px 20px 64px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 30px; margin: 0; } h2 { font-size: 17px; margin: 36px 0 8px; }
p { margin: 4px 0; } .soft, text { color: var(--soft); fill: var(--soft); }
svg { display: block; max-width: 100%; height: auto; } .bar { fill: var(--bar); } .name { fill: var(--ink); }
.groups { display: grid; grid-template-columns: repeat(auto-fit, minmax(280px, 1fr)); gap: 8px 28px; }
article { border-top: 1px solid var(--line); padding: 14px 0; } article h3 { margin: 0; font-size: 16px; }
code { font: 13px ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
pre { margin: 8px 0 0; padding: 6px 10px; border-left: 3px solid var(--bar); white-space: pre-wrap; }
li { margin: 2px 0; overflow-wrap: anywhere; } summary { cursor: pointer; color: var(--soft); }
"""


def render_html(report: FindingsReport) -> str:
    totals, days = report.totals, report.days
    span = format_days(days)
    facts = [
        f"{totals.requests:,} requests",
        f"{totals.cache_share:.0%} of the input from the cache",
        f"sub-agents ${report.sub_agent_usd:,.2f}" if report.sub_agent_usd else "",
    ]
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Quire: findings</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{_STYLE}</style></head><body>",
            f"<h1>{_text(format_total_cost(totals))} in {report.conversations:,} conversations</h1>",
            f'<p class="soft">{_text(span)} · {_text(" · ".join(filter(None, facts)))}</p>',
            "<h2>Cost by day</h2>",
            *_draw_days(list_days(days, MAX_DAYS)),
            '<div class="groups">',
            *_draw_groups("Agents", name_agents(report.agents)),
            *_draw_groups("Projects", report.projects),
            *_draw_groups("Models", report.models),
            "</div>",
            "<h2>Findings, the most expensive first</h2>",
            *(_draw_finding(each) for each in report.findings),
            "" if report.findings else "<p>Nothing was wasted that Quire can see.</p>",
            "</body></html>\n",
        ]
    )


def _text(text: str) -> str:
    return escape(sanitize(text))


def _draw_days(days: Sequence[tuple[str, float]]) -> Iterator[str]:
    if not days:
        return
    highest = max(cost for _, cost in days) or 1.0
    step = DAYS_WIDTH / len(days)
    yield f'<svg viewBox="0 0 {DAYS_WIDTH} {DAYS_HEIGHT + 22}" role="img" aria-label="Cost by day" font-size="12">'
    for number, (day, cost) in enumerate(days):
        height = DAYS_HEIGHT * cost / highest
        yield (
            f'<rect class="bar" x="{number * step:.1f}" y="{DAYS_HEIGHT - height:.1f}" '
            f'width="{max(1.0, step - 2):.1f}" height="{height:.1f}"><title>{day}: ${cost:,.2f}</title></rect>'
        )
    yield f'<text x="0" y="{DAYS_HEIGHT + 18}">{days[0][0]}</text>'
    yield f'<text x="{DAYS_WIDTH}" y="{DAYS_HEIGHT + 18}" text-anchor="end">{days[-1][0]}</text>'
    # Between the dates: above the bars, it would be on top of the highest.
    yield f'<text x="{DAYS_WIDTH / 2}" y="{DAYS_HEIGHT + 18}" text-anchor="middle">'
    yield f"at most ${highest:,.2f} a day</text></svg>"


def _draw_groups(title: str, groups: Sequence[UsageGroup]) -> Iterator[str]:
    rows = [each for each in groups if each.counts.cost_usd][:MAX_ROWS]
    highest = max((each.counts.cost_usd for each in rows), default=0.0) or 1.0
    yield f'<section><h2>{title}</h2><svg viewBox="0 0 {BARS_WIDTH} {len(rows) * ROW_HEIGHT}" role="img" '
    yield f'aria-label="Cost by {title.lower()}" font-size="12">'
    for number, each in enumerate(rows):
        top, width = number * ROW_HEIGHT, BARS_WIDTH * each.counts.cost_usd / highest
        name = shorten_name(each.name) or "(none)"
        yield f'<text class="name" x="0" y="{top + 12}">{_text(name)}</text>'
        yield f'<text x="{BARS_WIDTH}" y="{top + 12}" text-anchor="end">${each.counts.cost_usd:,.2f}</text>'
        yield f'<rect class="bar" x="0" y="{top + 16}" width="{max(1.0, width):.1f}" height="4"/>'
    yield "</svg></section>"


def _draw_finding(finding: Finding) -> str:
    items = "".join(
        f"<li>{_text(format_evidence(each))}<br><code>{_text(each.command)}</code></li>"
        for each in finding.evidence[:MAX_EVIDENCE]
    )
    more = finding.total - min(finding.total, MAX_EVIDENCE)
    rest = f'<p class="soft">and {more:,} more</p>' if more else ""
    return (
        f"<article><h3>{_text(finding.title)}</h3><p>{_text(format_evidence(finding.evidence[0]))}</p>"
        f'<p class="soft">{_text(finding.advice)}</p><pre><code>{_text(finding.command)}</code></pre>'
        f"<details><summary>Evidence ({finding.total:,})</summary><ol>{items}</ol>{rest}</details></article>"
    )
