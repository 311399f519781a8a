"""The meter in one line: the number shown is the number that leads to a compaction."""

from typing import NamedTuple

from rich.text import Text

from quire.model import Usage
from quire.view.budget import Status, UsageReport

BAR = 20

_STATUS: dict[Status, str] = {"ok": "green", "near": "yellow", "over": "red"}


class Reading(NamedTuple):
    """The meter after a reply."""

    report: UsageReport
    number: int | None = None
    """The reply's, by which it can be pinned or branched from."""
    usage: Usage | None = None
    cost: float = 0.0
    """Dollars for this turn; 0 where no price is known."""
    spent: float = 0.0
    """Dollars for the conversation so far."""


def meter_line(reading: Reading) -> Text:
    report = reading.report
    about = "" if report.exact else "~"
    line = Text(style="dim")
    if reading.number is not None:
        line.append(f"#{reading.number} · ")
    line.append_text(_bar(report))
    line.append(f" {about}{report.total:,} of {report.trigger:,} tokens · window {report.window:,}")
    if reading.usage is not None and reading.usage.cache_read_tokens:
        line.append(f" · {reading.usage.cache_read_tokens:,} from cache")
    if reading.cost or reading.spent:
        line.append(f" · ${reading.cost:.4f} of ${reading.spent:.4f}")
    return line


def _bar(report: UsageReport) -> Text:
    """Full means that the next request is compacted first."""
    filled = min(BAR, round(BAR * report.total / max(1, report.trigger)))
    full, rest = ("━" * filled, f"not dim {_STATUS[report.status]}"), ("─" * (BAR - filled), "dim")
    return Text.assemble(full, rest)
