"""Draws the context window: a bar by slot with the reserved tokens and the threshold, and tables of decisions.

Everything is drawn from a manifest, so past requests look like the next one.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from quire.cli.context_sections import (
    ContextSection,
    format_item_counts,
    group_sections,
    render_section_title,
)
from quire.cli.output import NARROW_COLUMNS, make_table, make_text, pluralize, to_one_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from quire.model import Decision, Manifest
    from quire.schemas.entries import EntrySchema

MAX_BAR_COLUMNS = 100
"""Maximum width of the bar; more columns add no information."""


class SlotStyle(NamedTuple):
    """Letter of a slot where there are no colors, and its color."""

    letter: str
    color: str


SLOT_STYLES = {
    "system": SlotStyle("S", "magenta"),
    "tools": SlotStyle("T", "blue"),
    "memory": SlotStyle("M", "cyan"),
    "references": SlotStyle("R", "green"),
    "summary": SlotStyle("Y", "yellow"),
    "messages": SlotStyle("H", "bright_blue"),
    "recall": SlotStyle("C", "bright_cyan"),
    "newest": SlotStyle("N", "bright_green"),
    "free": SlotStyle("·", "bright_black"),
    "reserved": SlotStyle("░", "bright_black"),
}

EXCLUSION_REASONS = {
    "archived": "archived: covered by a compaction",
    "over_budget": "no room: over the slot's budget",
    "below_score": "not relevant enough: score below the threshold",
    "not_added": "not added: it is not in the session",
    "removed": "removed: it was removed from the session",
    "disabled": "disabled: the agent's configuration turns it off",
    "orphaned": "orphaned: a tool result without its call",
    "not_found": "not found",
    "listed": "listed: only its summary is included",
}
"""Explanations of exclusion reasons, for people; narrow tables print the part before the colon."""


def render_window(
    manifest: "Manifest", console: "Console", *, unfolded: Collection[ContextSection] = (), is_past: bool = False
) -> "Iterable[RenderableType]":
    """Renders the bar, the slots, the sections of what is included, and the excluded items.

    A section is one line unless it is `unfolded`. The manifest is of the next request unless it `is_past`.
    """
    colored = console.color_system is not None and not console.no_color
    width, narrow = min(console.width, MAX_BAR_COLUMNS), console.width < NARROW_COLUMNS
    yield make_text(format_headline(manifest, is_past=is_past))
    yield from render_bar(manifest, width, colored=colored)
    yield make_text("")
    yield _render_slots(manifest, colored=colored, narrow=narrow)
    if (counts := format_item_counts(manifest)) is not None:
        yield make_text(f"\n{counts}")
    yield make_text("\nIncluded")
    for group in group_sections(manifest.included):
        yield render_section_title(group, unfolded=unfolded)
        if group.section in unfolded:
            yield render_decisions(group.decisions, narrow=narrow)
    if manifest.excluded:
        yield make_text("\nNot included")
        yield render_decisions(manifest.excluded, narrow=narrow)


def format_headline(manifest: "Manifest", *, is_past: bool = False) -> str:
    policy = manifest.policy
    share = 100 * manifest.total_tokens / policy.window
    used = f"{manifest.total_tokens:,} of {policy.window:,} tokens ({share:.1f} %)"
    reserved = f"{policy.reserved_response_tokens:,} reserved for the reply"
    state = _format_past_state(manifest) if is_past else _format_compaction_state(manifest)
    return f"{used}{_format_document_tokens(manifest)}, {reserved}. {state}"


def _format_document_tokens(manifest: "Manifest") -> str:
    documents = manifest.document_tokens
    return f", {documents:,} of them in documents that messages reference" if documents else ""


def format_turn(reply: "EntrySchema") -> str:
    """Totals of the turn that a reply ends, and the documents that its tools read or found."""
    turn = reply.turn
    if turn is None:
        return ""
    tokens = f"{turn.usage.input_tokens:,} input and {turn.usage.output_tokens:,} output tokens"
    cost = f", ${turn.cost_usd:.4f}" if turn.cost_usd else ""
    compactions = f", {pluralize(len(turn.compactions), 'compaction')}" if turn.compactions else ""
    documents = ", ".join(to_one_line(each.path or each.link) for each in reply.references)
    lines = [f"The turn that #{reply.seq} ends: {pluralize(turn.steps, 'step')}, {tokens}{cost}{compactions}."]
    return "\n".join([*lines, f"Documents: {documents}"] if documents else lines)


def _format_past_state(manifest: "Manifest") -> str:
    """How far a request that was sent was from a compaction."""
    if not manifest.policy.context_management_enabled:
        return "Context management was off: nothing was compacted."
    if manifest.full_history_tokens > manifest.trigger_tokens:
        return f"The full history had {manifest.full_history_tokens:,} tokens: older messages were left out."
    return f"It was {manifest.trigger_tokens - manifest.full_history_tokens:,} below the compaction threshold."


def _format_compaction_state(manifest: "Manifest") -> str:
    if not manifest.policy.context_management_enabled:
        if manifest.full_history_tokens <= manifest.max_input_tokens:
            return "Context management is off: nothing is compacted."
        return (
            f"Context management is off, and the full history has {manifest.full_history_tokens:,} tokens: the next "
            "request is refused. Run `quire context compact`, or set `context_management_enabled = true`."
        )
    if manifest.full_history_tokens > manifest.trigger_tokens:
        return f"The full history has {manifest.full_history_tokens:,} tokens; the next request compacts it first."
    return f"{manifest.trigger_tokens - manifest.full_history_tokens:,} more until it compacts."


def render_bar(manifest: "Manifest", width: int, *, colored: bool) -> "Iterable[Text]":
    """Renders one line for the window, and one below it that marks the threshold."""
    policy = manifest.policy
    used = [(use.slot, use.used) for use in manifest.slots]
    reserved = min(policy.reserved_response_tokens, policy.window)
    free = max(0, policy.window - reserved - sum(tokens for _, tokens in used))
    parts = [*used, ("free", free), ("reserved", reserved)]
    line = make_text("")
    for (name, _), cells in zip(parts, allocate_cells([tokens for _, tokens in parts], width), strict=True):
        style = SLOT_STYLES[name]
        if colored:
            line.append(("█" if name not in ("free", "reserved") else style.letter) * cells, style=style.color)
        else:
            line.append(style.letter * cells)
    yield line
    yield make_text(format_threshold_marker(manifest.trigger_tokens, policy.window, width), style="dim")


def allocate_cells(weights: Sequence[int], width: int) -> list[int]:
    """Allocates `width` cells in proportion to the weights; a nonzero weight gets at least one, if there are enough."""
    total = sum(weights) or 1
    cells = [max(1, round(width * weight / total)) if weight else 0 for weight in weights]
    while (excess := sum(cells) - width) and any(cells):
        largest = max(range(len(cells)), key=cells.__getitem__)
        cells[largest] -= 1 if excess > 0 else excess
    return cells


def format_threshold_marker(trigger: int, window: int, width: int) -> str:
    """Puts the threshold marker below its column, and its label on the side that has room."""
    column = min(width - 1, round(width * trigger / window))
    label = f"compacts above {trigger:,}"
    if column + 2 + len(label) <= width:
        return f"{' ' * column}▲ {label}"
    if len(label) + 1 <= column:
        return f"{label} ▲".rjust(column + 1)
    return f"{' ' * column}▲\n{label}"


def _render_slots(manifest: "Manifest", *, colored: bool, narrow: bool) -> "RenderableType":
    rows: list[Sequence[Any]] = []
    for use in manifest.slots:
        over = "over budget" if use.overflows else ""
        rows.append(
            (
                _render_legend_key(use.slot, colored=colored),
                use.slot,
                use.used,
                _format_share(use.used, manifest),
                use.budget,
                over,
            )
        )
    reserved = manifest.policy.reserved_response_tokens
    rows.append(
        (
            _render_legend_key("reserved", colored=colored),
            "reserved",
            reserved,
            _format_share(reserved, manifest),
            None,
            "",
        )
    )
    columns = ("", "slot", "tokens", "of window", "budget", "note")
    count = len(columns) - 2 if narrow else len(columns)
    return make_table(
        *columns[:count], rows=[row[:count] for row in rows], right_aligned=("tokens", "of window", "budget")
    )


def _render_legend_key(name: str, *, colored: bool) -> "Text":
    style = SLOT_STYLES[name]
    if not colored:
        return make_text(style.letter)
    return make_text(style.letter if name == "reserved" else "█", style=style.color)


def _format_share(tokens: int, manifest: "Manifest") -> str:
    return f"{100 * tokens / manifest.policy.window:.1f} %"


def render_decisions(decisions: "Iterable[Decision]", *, narrow: bool = False) -> "RenderableType":
    rows = [
        (each.slot, each.kind, format_decision_subject(each), each.tokens or None, each.score, explain_decision(each))
        for each in decisions
    ]
    if narrow:
        short = [(name or kind, tokens, why.partition(":")[0]) for _, kind, name, tokens, _, why in rows]
        return make_table("item", "tokens", "why", rows=short, right_aligned=("tokens",), wrapped=("item", "why"))
    columns = ("slot", "kind", "item", "tokens", "score", "why")
    return make_table(*columns, rows=rows, right_aligned=("tokens", "score"), wrapped=("item", "why"))


def format_decision_subject(decision: "Decision") -> str:
    """Formats an item as its name, messages as their numbers."""
    if decision.name is not None:
        return decision.name
    if decision.span is None:
        return "the question" if decision.pending else ""
    first, last = decision.span.first, decision.span.last
    return f"#{first}" if first == last else f"#{first} to #{last} ({pluralize(last - first + 1, 'entry')})"


def explain_decision(decision: "Decision") -> str:
    if not decision.included and decision.min_score is not None:
        return f"not relevant enough: needs a score of {decision.min_score:g}"
    if not decision.included:
        return EXCLUSION_REASONS.get(decision.reason, decision.reason.replace("_", " "))
    if decision.excerpt_chars:
        return f"{decision.reason}: each text shortened to {pluralize(decision.excerpt_chars, 'character')}"
    return decision.reason.replace("_", " ")
