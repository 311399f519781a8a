"""Draws the context window: a bar by slot, the sections of what a request includes, and tables of decisions.

Everything is drawn from a manifest, so past requests look like the next one.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from quire.cli.output import NARROW_COLUMNS, make_table, make_text, pluralize, to_one_line
from quire.errors import format_usd
from quire.rows.manifests import UNKNOWN_WINDOW

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from quire.log.exchanges import ExchangeRecord
    from quire.model import Decision, Manifest
    from quire.schemas.entries import EntrySchema

MAX_LISTED_EXCHANGES = 12
"""Requests without a whole reply that are listed, the newest ones."""
MAX_BAR_COLUMNS = 100
"""Maximum width of the bar; more columns add no information."""


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
    phrases: list[str] = []
    for kind, by_mode in count_items(manifest).items():
        used = {mode: count for mode, count in by_mode.items() if count}
        modes = ", ".join(f"{count} {mode}" for mode, count in used.items())
        if len(used) == 1:
            [(mode, count)] = used.items()
            modes = mode if count == 1 else f"all {mode}"
        if used:
            phrases.append(f"{pluralize(sum(used.values()), kind)} ({modes})")
    return ", ".join(phrases) or None


def render_section_title(group: SectionDecisions, *, unfolded: bool) -> "Text":
    sign = "▾" if unfolded else "▸"
    title = "Instructions and rules" if group.section == ContextSection.RULES else group.section.capitalize()
    # Rows of messages and summaries are ranges of entries, so their number says nothing.
    counted = group.section not in (ContextSection.MESSAGES, ContextSection.SUMMARY)
    number = f" ({len(group.decisions)})" if counted else ""
    return make_text(f"{sign} {title}{number}: {pluralize(group.tokens, 'token')}")


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
    "cycle": "in a cycle: the files import each other",
    "listed": "listed: only its summary is included",
    "cleared_by_provider": "cleared by the provider: it was sent, and replaced on the provider's side",
    "compacted_by_provider": "compacted by the provider: its summary replaces it on the provider's side",
}
"""Explanations of exclusion reasons, for people; narrow tables print the part before the colon."""


def draw_unanswered(found: "Sequence[ExchangeRecord]") -> "Iterable[RenderableType]":
    """Lists requests without a whole reply, each with the entry that it came after."""
    if not found:
        return
    newest = found[-MAX_LISTED_EXCHANGES:]
    listed = "" if len(newest) == len(found) else f", the newest {len(newest)}"
    yield make_text(f"\n{pluralize(len(found), 'request')} without a whole reply{listed}:")
    yield make_table(
        "after", "request", "what came back",
        rows=[(f"#{each.after_seq}" if each.after_seq else "start", each.id, each.describe()) for each in newest],
        wrapped=("what came back",),
    )  # fmt: skip


def draw_request(
    manifest: "Manifest",
    console: "Console",
    *,
    reply: int | None,
    unfolded: bool = False,
    answer: "EntrySchema | None" = None,
) -> "Iterable[RenderableType]":
    """Draws the request that the reply answered, with the totals of the turn that `answer` ends; else the next one."""
    request = "the next request" if reply is None else f"the request that #{reply} answered"
    counts = "counts are exact" if manifest.exact else "counts are estimates"
    yield make_text(f"{manifest.conversation}, branch {manifest.branch}: {request}")
    yield make_text(f"{manifest.policy.model}, strategy {manifest.policy.strategy}, {counts}\n", style="dim")
    yield from render_window(manifest, console, unfolded=unfolded, is_past=reply is not None)
    if answer is not None and answer.turn is not None:
        yield make_text(f"\n{format_turn(answer)}")


def render_window(
    manifest: "Manifest",
    console: "Console",
    *,
    unfolded: bool = False,
    is_past: bool = False,
) -> "Iterable[RenderableType]":
    """Renders the bar, the slots, the sections of what is included, and the excluded items.

    A section is one line unless it is `unfolded`. The manifest is of the next request unless it `is_past`.
    """
    colored = console.color_system is not None and not console.no_color
    width, narrow = min(console.width, MAX_BAR_COLUMNS), console.width < NARROW_COLUMNS
    yield make_text(format_headline(manifest, is_past=is_past))
    yield from render_bar(manifest, width, colored=colored)
    yield make_text("")
    reserved, is_unknown = manifest.policy.reserved_response_tokens, manifest.policy.window == UNKNOWN_WINDOW
    slots = [(each.slot, each.used, each.budget, "over budget" if each.overflows else "") for each in manifest.slots]
    rows: list[Sequence[Any]] = []
    for name, tokens, budget, note in [*slots, ("reserved", reserved, None, "")]:
        style = SLOT_STYLES[name]
        letter = style.letter if name == "reserved" or not colored else "█"
        key = make_text(letter, style=style.color if colored else "")
        share = "" if is_unknown else f"{100 * tokens / manifest.policy.window:.1f} %"
        rows.append((key, name, tokens, share, budget, note))
    columns = ("", "slot", "tokens", "of window", "budget", "note")[: 4 if narrow else 6]
    yield make_table(
        *columns, rows=[row[: len(columns)] for row in rows], right_aligned=("tokens", "of window", "budget")
    )
    if (counts := format_item_counts(manifest)) is not None:
        yield make_text(f"\n{counts}")
    yield make_text("\nIncluded")
    for group in group_sections(manifest.included):
        yield render_section_title(group, unfolded=unfolded)
        if unfolded:
            yield render_decisions(group.decisions, narrow=narrow)
    if manifest.excluded:
        yield make_text("\nNot included")
        yield render_decisions(manifest.excluded, narrow=narrow)


def format_headline(manifest: "Manifest", *, is_past: bool = False) -> str:
    policy, history = manifest.policy, manifest.full_history_tokens
    share = 100 * manifest.total_tokens / policy.window
    used = f"{manifest.total_tokens:,} of {policy.window:,} tokens ({share:.1f} %)"
    if policy.window == UNKNOWN_WINDOW:
        used = f"{manifest.total_tokens:,} tokens of a window that is not known"
    documents = manifest.document_tokens
    included = f", {documents:,} of them in documents that messages reference" if documents else ""
    distance = manifest.trigger_tokens - history
    if not policy.context_management_enabled and is_past:
        state = "Context management was off: nothing was compacted."
    elif not policy.context_management_enabled and history <= manifest.max_input_tokens:
        state = "Context management is off: nothing is compacted."
    elif not policy.context_management_enabled:
        state = (
            f"Context management is off, and the full history has {history:,} tokens: the next request is refused. "
            "Run `quire context compact`, or set `context_management_enabled = true`."
        )
    elif policy.window == UNKNOWN_WINDOW:
        state = "Nothing is compacted until the provider names the window, or `window` in the settings does."
    elif distance < 0 and is_past:
        state = f"The full history had {history:,} tokens: older messages were left out."
    elif distance < 0:
        state = f"The full history has {history:,} tokens; the next request compacts it first."
    else:
        state = (
            f"It was {distance:,} below the compaction threshold."
            if is_past
            else f"{distance:,} more until it compacts."
        )
    return f"{used}{included}, {policy.reserved_response_tokens:,} reserved for the reply. {state}"


def format_turn(reply: "EntrySchema") -> str:
    """Totals of the turn that a reply ends, and the documents that its tools read or found."""
    turn = reply.turn
    if turn is None:
        return ""
    tokens = f"{turn.usage.input_tokens:,} input and {turn.usage.output_tokens:,} output tokens"
    cost = f", {format_usd(turn.cost_usd)}" if turn.cost_usd else ""
    compactions = f", {pluralize(len(turn.compactions), 'compaction')}" if turn.compactions else ""
    documents = ", ".join(to_one_line(each.path or each.link) for each in reply.references)
    lines = [f"The turn that #{reply.seq} ends: {pluralize(turn.steps, 'step')}, {tokens}{cost}{compactions}."]
    return "\n".join([*lines, f"Documents: {documents}"] if documents else lines)


def render_bar(manifest: "Manifest", width: int, *, colored: bool) -> "Iterable[Text]":
    """Renders one line for the window, and one below it that marks the threshold."""
    policy = manifest.policy
    is_known = policy.window != UNKNOWN_WINDOW
    used = [(use.slot, use.used) for use in manifest.slots]
    reserved = min(policy.reserved_response_tokens, policy.window)
    free = max(0, policy.window - reserved - sum(tokens for _, tokens in used)) if is_known else 0
    parts = [*used, ("free", free), ("reserved", reserved)]
    line = make_text("")
    for (name, _), cells in zip(parts, allocate_cells([tokens for _, tokens in parts], width), strict=True):
        style = SLOT_STYLES[name]
        if colored:
            line.append(("█" if name not in ("free", "reserved") else style.letter) * cells, style=style.color)
        else:
            line.append(style.letter * cells)
    yield line
    if is_known:
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
