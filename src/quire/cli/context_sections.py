"""Sections of the included decisions, as `context show` and the web interface fold them, and counts by include mode."""

from collections import Counter
from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from quire.cli.output import make_text, pluralize

if TYPE_CHECKING:
    from rich.text import Text

    from quire.model import Decision, Manifest


class ContextSection(StrEnum):
    """A section of a request, in the order of display."""

    RULES = "rules"
    REFERENCES = "references"
    TOOLS = "tools"
    MEMORY = "memory"
    SUMMARY = "summary"
    MESSAGES = "messages"
    RECALLED = "recalled"


class SectionDecisions(NamedTuple):
    section: ContextSection
    decisions: "tuple[Decision, ...]"

    @property
    def tokens(self) -> int:
        return sum(decision.tokens for decision in self.decisions)


INCLUDE_MODES = {"always": "always", "manual": "manual", "agent": "agent", "carried": "agent"}
"""Include mode by the reason of a decision; a carried tool was selected for an earlier message."""
_NAMED_REASONS = ("referenced", "imported", "listed")


def group_sections(decisions: "Iterable[Decision]") -> list[SectionDecisions]:
    """The sections that have decisions; within a section they stay in the order of the request."""
    by_section: dict[ContextSection, list[Decision]] = {section: [] for section in ContextSection}
    for decision in decisions:
        by_section[select_section(decision)].append(decision)
    return [SectionDecisions(section, tuple(rows)) for section, rows in by_section.items() if rows]


def select_section(decision: "Decision") -> ContextSection:
    match decision.kind:
        case "instructions" | "rule":
            return ContextSection.RULES
        case "reference":
            return ContextSection.REFERENCES
        case "document" if decision.slot != "recall" or decision.reason in _NAMED_REASONS:
            return ContextSection.REFERENCES
        case "tool":
            return ContextSection.TOOLS
        case "summary":
            return ContextSection.SUMMARY
        case "memory" if decision.slot != "recall":
            return ContextSection.MEMORY
        case "message" if decision.slot != "recall":
            return ContextSection.MESSAGES
        case "document" | "memory" | "message":
            return ContextSection.RECALLED


def count_items(manifest: "Manifest") -> dict[str, dict[str, int]]:
    """Number of included rules, references and tools by include mode."""
    counts = {kind: Counter[str]() for kind in ("rule", "reference", "tool")}
    for decision in manifest.included:
        mode = INCLUDE_MODES.get(decision.reason)
        if decision.kind in counts and mode is not None:
            counts[decision.kind][mode] += 1
    return {kind: {mode: by_mode[mode] for mode in ("always", "manual", "agent")} for kind, by_mode in counts.items()}


def format_item_counts(manifest: "Manifest") -> str | None:
    """`5 rules (2 always, 3 agent), 1 reference (always), 3 tools (all manual)`; None without items."""
    phrases = [
        f"{pluralize(sum(by_mode.values()), kind)} ({_format_modes(by_mode)})"
        for kind, by_mode in count_items(manifest).items()
        if any(by_mode.values())
    ]
    return ", ".join(phrases) or None


def _format_modes(by_mode: dict[str, int]) -> str:
    used = {mode: count for mode, count in by_mode.items() if count}
    if len(used) > 1:
        return ", ".join(f"{count} {mode}" for mode, count in used.items())
    [(mode, count)] = used.items()
    return mode if count == 1 else f"all {mode}"


def render_section_title(group: SectionDecisions, *, unfolded: Collection[ContextSection]) -> "Text":
    sign = "▾" if group.section in unfolded else "▸"
    title = "Instructions and rules" if group.section == ContextSection.RULES else group.section.capitalize()
    # Rows of messages and summaries are ranges of entries, so their number says nothing.
    counted = group.section not in (ContextSection.MESSAGES, ContextSection.SUMMARY)
    number = f" ({len(group.decisions)})" if counted else ""
    return make_text(f"{sign} {title}{number}: {pluralize(group.tokens, 'token')}")
