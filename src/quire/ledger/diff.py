"""What changed from one request to another: items by name, messages by number, neighbours in one row."""

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

from quire.model import Decision, Manifest, Span


class Change(NamedTuple):
    """What was decided before and after; None where it was no candidate at all."""

    what: str
    name: str | None
    span: Span | None
    before: Decision | None
    after: Decision | None


def diff(before: Manifest, after: Manifest) -> list[Change]:
    """Every item whose fate or text is not the same in both requests."""
    return [*_items(before, after), *_messages(before, after)]


def _items(before: Manifest, after: Manifest) -> Iterator[Change]:
    ours, theirs = _named(before), _named(after)
    for key in [*ours, *(key for key in theirs if key not in ours)]:
        old, new = ours.get(key), theirs.get(key)
        if _fate(old) != _fate(new):
            yield Change(key[0], key[1], None, old, new)


def _named(manifest: Manifest) -> dict[tuple[str, str], Decision]:
    return {(each.what, each.name): each for each in manifest.decisions if each.name is not None}


def _messages(before: Manifest, after: Manifest) -> Iterator[Change]:
    """Cut where either request's rows begin or end; on each piece both have one decision."""
    edges = {0}
    for decision in (*before.decisions, *after.decisions):
        if decision.span is not None:
            edges |= {decision.span.first, decision.span.last + 1}
    pieces = [(first, end - 1, _at(before, first), _at(after, first)) for first, end in pairwise(sorted(edges))]
    changed = [piece for piece in pieces if _fate(piece[2]) != _fate(piece[3])]
    for _, run in groupby(changed, key=lambda piece: (_fate(piece[2]), _fate(piece[3]))):
        for first, last, old, new in _joined(list(run)):
            what = (new or old or _NOTHING).what
            yield Change(what, None, Span(first=first, last=last), old, new)


Piece = tuple[int, int, Decision | None, Decision | None]


def _joined(run: list[Piece]) -> Iterator[Piece]:
    """Pieces that touch, as one."""
    start, end, old, new = run[0]
    for first, last, next_old, next_new in run[1:]:
        if first == end + 1:
            end = last
        else:
            yield start, end, old, new
            start, end, old, new = first, last, next_old, next_new
    yield start, end, old, new


def _at(manifest: Manifest, seq: int) -> Decision | None:
    return next((each for each in manifest.decisions if each.span is not None and seq in each.span), None)


def _fate(decision: Decision | None) -> object:
    """What makes a difference to a request: being there, why, and with which text."""
    if decision is None:
        return None
    return decision.what, decision.included, decision.reason, decision.blob, decision.excerpt


_NOTHING = Decision(slot="messages", what="message", included=False, reason="archived")
