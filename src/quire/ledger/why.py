"""Why something was in a request, or was not."""

from quire.errors import EntryNotFound
from quire.model import Decision, Manifest


def why(manifest: Manifest, item: int | str) -> Decision:
    """The decision on a message, by its number, or on an item, by its name."""
    for decision in manifest.decisions:
        if decision.name == item:
            return decision
        if isinstance(item, int) and decision.span is not None and item in decision.span:
            return decision
    if isinstance(item, int) and item > manifest.head:
        raise EntryNotFound(f"#{item} was written after the request was made.")
    raise EntryNotFound(f"{item!r} was no candidate for the request; its manifest lists those that were.")
