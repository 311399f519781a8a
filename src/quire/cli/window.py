"""The window as a picture: a bar by slot, the reserved response and the threshold on it, and tables of what is in.

Everything is drawn from a manifest, so a request of last year looks as the next one does.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from quire.cli.output import NARROW, counted, table, text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from quire.model import Decision, Manifest

WIDEST = 100
"""A bar of more columns says no more."""


class Look(NamedTuple):
    """A part of the bar: its letter where there are no colours, and its colour."""

    letter: str
    colour: str


LOOKS = {
    "system": Look("S", "magenta"),
    "tools": Look("T", "blue"),
    "memory": Look("M", "cyan"),
    "references": Look("R", "green"),
    "summary": Look("Y", "yellow"),
    "messages": Look("H", "bright_blue"),
    "recall": Look("C", "bright_cyan"),
    "newest": Look("N", "bright_green"),
    "free": Look("·", "bright_black"),
    "reserved": Look("░", "bright_black"),
}

REASONS = {
    "archived": "archived: covered by a compaction",
    "over_budget": "over budget: no room",
    "below_score": "below score: not close enough to the question",
    "disabled": "disabled",
    "incomplete": "incomplete: a tool call without its result",
    "not_found": "not found",
    "listed": "listed: only its summary is there",
}
"""What people are told of why something is left out."""


def drawn(manifest: "Manifest", console: "Console", *, all_rows: bool = False) -> "Iterable[RenderableType]":
    """The bar, the slots, what is left out; with `all_rows` what is in as well."""
    coloured = console.color_system is not None and not console.no_color
    width, narrow = min(console.width, WIDEST), console.width < NARROW
    yield text(headline(manifest))
    yield from bar(manifest, width, coloured=coloured)
    yield text("")
    yield _slots(manifest, coloured=coloured, narrow=narrow)
    if all_rows:
        yield text("\nIn the request, in its order")
        yield rows(manifest.included, narrow=narrow)
    if manifest.left_out:
        yield text("\nLeft out")
        yield rows(manifest.left_out, narrow=narrow)


def headline(manifest: "Manifest") -> str:
    policy = manifest.policy
    share = 100 * manifest.total / policy.window
    said = (
        f"{manifest.total:,} of {policy.window:,} tokens ({share:.1f} %), {policy.reserved_response_tokens:,} reserved"
    )
    return f"{said} for the reply. {_state(manifest)}"


def _state(manifest: "Manifest") -> str:
    if not manifest.policy.context_management_enabled:
        return "Context management is off: nothing is compacted."
    if manifest.wanted > manifest.trigger:
        return f"The whole history would be {manifest.wanted:,}: the next request compacts it first."
    return f"{manifest.trigger - manifest.wanted:,} more until it is compacted."


def bar(manifest: "Manifest", width: int, *, coloured: bool) -> "Iterable[Text]":
    """One line for the window, and one under it that marks the threshold."""
    policy = manifest.policy
    used = [(use.slot, use.used) for use in manifest.slots]
    reserved = min(policy.reserved_response_tokens, policy.window)
    free = max(0, policy.window - reserved - sum(tokens for _, tokens in used))
    parts = [*used, ("free", free), ("reserved", reserved)]
    line = text("")
    for (name, _), cells in zip(parts, shared([tokens for _, tokens in parts], width), strict=True):
        look = LOOKS[name]
        if coloured:
            line.append(("█" if name not in ("free", "reserved") else look.letter) * cells, style=look.colour)
        else:
            line.append(look.letter * cells)
    yield line
    yield text(marked(manifest.trigger, policy.window, width), style="dim")


def shared(sizes: Sequence[int], width: int) -> list[int]:
    """So many cells for each size, together `width`; whatever is there has one at least, while there are enough."""
    total = sum(sizes) or 1
    cells = [max(1, round(width * size / total)) if size else 0 for size in sizes]
    while (excess := sum(cells) - width) and any(cells):
        largest = max(range(len(cells)), key=cells.__getitem__)
        cells[largest] -= 1 if excess > 0 else excess
    return cells


def marked(trigger: int, window: int, width: int) -> str:
    """The threshold's sign under its place, and what it is on whichever side has room."""
    place = min(width - 1, round(width * trigger / window))
    said = f"compacts above {trigger:,}"
    if place + 2 + len(said) <= width:
        return f"{' ' * place}▲ {said}"
    if len(said) + 1 <= place:
        return f"{said} ▲".rjust(place + 1)
    return f"{' ' * place}▲\n{said}"


def _slots(manifest: "Manifest", *, coloured: bool, narrow: bool) -> "RenderableType":
    listed: list[Sequence[Any]] = []
    for use in manifest.slots:
        over = "over its share" if use.overflows else ""
        listed.append(
            (_key(use.slot, coloured=coloured), use.slot, use.used, _part(use.used, manifest), use.budget, over)
        )
    reserved = manifest.policy.reserved_response_tokens
    listed.append((_key("reserved", coloured=coloured), "reserved", reserved, _part(reserved, manifest), None, ""))
    columns = ("", "slot", "tokens", "of window", "may take", "note")
    shown = len(columns) - 2 if narrow else len(columns)
    return table(*columns[:shown], rows=[row[:shown] for row in listed], right=("tokens", "of window", "may take"))


def _key(name: str, *, coloured: bool) -> "Text":
    look = LOOKS[name]
    if not coloured:
        return text(look.letter)
    return text(look.letter if name == "reserved" else "█", style=look.colour)


def _part(tokens: int, manifest: "Manifest") -> str:
    return f"{100 * tokens / manifest.policy.window:.1f} %"


def rows(decisions: "Iterable[Decision]", *, narrow: bool = False) -> "RenderableType":
    """Decisions as people read them."""
    listed = [
        (each.slot, each.what, which(each), each.tokens or None, each.score, why_said(each)) for each in decisions
    ]
    if narrow:
        short = [(name or what, tokens, why.partition(":")[0]) for _, what, name, tokens, _, why in listed]
        return table("which", "tokens", "why", rows=short, right=("tokens",), wide=("which", "why"))
    columns = ("slot", "what", "which", "tokens", "score", "why")
    return table(*columns, rows=listed, right=("tokens", "score"), wide=("which", "why"))


def which(decision: "Decision") -> str:
    """An item by its name, messages by their numbers."""
    if decision.name is not None:
        return decision.name
    if decision.span is None:
        return "the question" if decision.asked else ""
    first, last = decision.span.first, decision.span.last
    return f"#{first}" if first == last else f"#{first} to #{last} ({counted(last - first + 1, 'entry')})"


def why_said(decision: "Decision") -> str:
    if not decision.included:
        return REASONS.get(decision.reason, decision.reason.replace("_", " "))
    if decision.excerpt:
        return f"{decision.reason}: shortened to {counted(decision.excerpt, 'character')} a text"
    return decision.reason.replace("_", " ")
