"""Compares the manifests of two requests, and finds the decision about one message or item."""

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from quire.errors import EntryNotFound
from quire.model import Decision, Manifest, Span
from quire.model.manifest import PROVIDER_REASONS

_NO_DECISION = Decision(slot="messages", kind="message", included=False, reason="archived")


@dataclass(frozen=True, slots=True)
class ManifestChange:
    """A changed decision: items by name, adjacent messages as one span."""

    kind: str
    name: str | None
    span: Span | None
    before: Decision | None
    """Null if it was not a candidate."""
    after: Decision | None


def diff_manifests(before: Manifest, after: Manifest) -> list[ManifestChange]:
    """Every item or message whose decision or text differs between the two requests. Of a thinned manifest, only the
    decisions are compared."""
    compare = partial(_make_comparison_key, with_text=not (before.thinned or after.thinned))
    changes: list[ManifestChange] = []
    old_by_name, new_by_name = _decisions_by_name(before), _decisions_by_name(after)
    for kind, name in {**old_by_name, **new_by_name}:
        old, new = old_by_name.get((kind, name)), new_by_name.get((kind, name))
        if compare(old) != compare(new):
            changes.append(ManifestChange(kind, name, None, old, new))
    # The entries are split where a row of either manifest starts or ends, so that each piece has one decision in both.
    edges = {0}
    for decision in (*before.decisions, *after.decisions):
        if decision.span is not None:
            edges |= {decision.span.first, decision.span.last + 1}
    last_key: object = None
    for first, end in pairwise(sorted(edges)):
        old, new = _decision_at(before, first), _decision_at(after, first)
        key = compare(old), compare(new)
        if key[0] == key[1]:
            continue
        previous = changes[-1] if changes else None
        if previous and previous.span is not None and previous.span.last == first - 1 and key == last_key:
            # Adjacent pieces with the same decisions are one change.
            changes[-1] = replace(previous, span=Span(first=previous.span.first, last=end - 1))
        else:
            kind = (new or old or _NO_DECISION).kind
            changes.append(ManifestChange(kind, None, Span(first=first, last=end - 1), old, new))
        last_key = key
    return changes


def find_decision(manifest: Manifest, item: int | str) -> Decision:
    """The decision on a message (by number) or on an item (by name)."""
    found = (
        _decision_at(manifest, item)
        if isinstance(item, int)
        else next((decision for decision in manifest.decisions if decision.name == item), None)
    )
    if found is not None:
        return found
    if isinstance(item, int) and item > manifest.head:
        raise EntryNotFound(f"#{item} was stored after the request was made; choose a later reply.")
    raise EntryNotFound(f"{item!r} was not a candidate for the request; its manifest lists the candidates.")


def _decisions_by_name(manifest: Manifest) -> dict[tuple[str, str], Decision]:
    return {(each.kind, each.name): each for each in manifest.decisions if each.name is not None}


def _decision_at(manifest: Manifest, seq: int) -> Decision | None:
    """The decision on a message. What the provider left out of a request comes before what was sent."""
    found = [each for each in manifest.decisions if each.span is not None and seq in each.span]
    return next((each for each in found if each.reason in PROVIDER_REASONS), found[0] if found else None)


def _make_comparison_key(decision: Decision | None, *, with_text: bool) -> object:
    """The fields of a decision that make a difference to the request."""
    if decision is None:
        return None
    return (
        decision.kind,
        decision.included,
        decision.reason,
        decision.blob if with_text else None,
        decision.excerpt_chars,
        decision.turn_excerpt_chars,
        decision.max_results,
        decision.summarized_by,
        decision.summary_level,
    )
