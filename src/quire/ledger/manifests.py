"""Compares the manifests of two requests, and finds the decision about one message or item."""

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

from quire.errors import EntryNotFound
from quire.model import Decision, Manifest, Span

_SpanChange = tuple[int, int, Decision | None, Decision | None]
"""First and last entry number, decision before, decision after."""
_NO_DECISION = Decision(slot="messages", kind="message", included=False, reason="archived")


class ManifestChange(NamedTuple):
    """A changed decision: items by name, adjacent messages as one span. None means that it was not a candidate."""

    kind: str
    name: str | None
    span: Span | None
    before: Decision | None
    after: Decision | None


def diff_manifests(before: Manifest, after: Manifest) -> list[ManifestChange]:
    """Every item or message whose decision or text differs between the two requests."""
    return [*_diff_items(before, after), *_diff_messages(before, after)]


def find_decision(manifest: Manifest, item: int | str) -> Decision:
    """The decision on a message (by number) or on an item (by name)."""
    for decision in manifest.decisions:
        if decision.name == item:
            return decision
        if isinstance(item, int) and decision.span is not None and item in decision.span:
            return decision
    if isinstance(item, int) and item > manifest.head:
        raise EntryNotFound(f"#{item} was stored after the request was made; choose a later reply.")
    raise EntryNotFound(f"{item!r} was not a candidate for the request; its manifest lists the candidates.")


def _diff_items(before: Manifest, after: Manifest) -> Iterator[ManifestChange]:
    old_by_name, new_by_name = _decisions_by_name(before), _decisions_by_name(after)
    for key in [*old_by_name, *(key for key in new_by_name if key not in old_by_name)]:
        old, new = old_by_name.get(key), new_by_name.get(key)
        if _comparison_key(old) != _comparison_key(new):
            yield ManifestChange(key[0], key[1], None, old, new)


def _decisions_by_name(manifest: Manifest) -> dict[tuple[str, str], Decision]:
    return {(each.kind, each.name): each for each in manifest.decisions if each.name is not None}


def _diff_messages(before: Manifest, after: Manifest) -> Iterator[ManifestChange]:
    """Splits the entries where a row of either manifest starts or ends, so that each piece has one decision in both."""
    edges = {0}
    for decision in (*before.decisions, *after.decisions):
        if decision.span is not None:
            edges |= {decision.span.first, decision.span.last + 1}
    pieces = [
        (first, end - 1, _decision_at(before, first), _decision_at(after, first))
        for first, end in pairwise(sorted(edges))
    ]
    changed = [piece for piece in pieces if _comparison_key(piece[2]) != _comparison_key(piece[3])]
    for _, run in groupby(changed, key=lambda piece: (_comparison_key(piece[2]), _comparison_key(piece[3]))):
        for first, last, old, new in _merge_adjacent(list(run)):
            kind = (new or old or _NO_DECISION).kind
            yield ManifestChange(kind, None, Span(first=first, last=last), old, new)


def _merge_adjacent(run: list[_SpanChange]) -> Iterator[_SpanChange]:
    """Merges spans that touch."""
    start, end, old, new = run[0]
    for first, last, next_old, next_new in run[1:]:
        if first == end + 1:
            end = last
        else:
            yield start, end, old, new
            start, end, old, new = first, last, next_old, next_new
    yield start, end, old, new


def _decision_at(manifest: Manifest, seq: int) -> Decision | None:
    return next((each for each in manifest.decisions if each.span is not None and seq in each.span), None)


def _comparison_key(decision: Decision | None) -> object:
    """The fields of a decision that make a difference to the request."""
    if decision is None:
        return None
    return (
        decision.kind,
        decision.included,
        decision.reason,
        decision.blob,
        decision.excerpt_chars,
        decision.turn_excerpt_chars,
        decision.summarized_by,
        decision.summary_level,
    )
