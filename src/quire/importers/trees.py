"""Order of a tree of messages: parents before children, and the path to the current leaf before other branches."""

from collections.abc import Iterator, Sequence

from quire.importers.base import SourceError, SourceMessage


def order_tree(messages: Sequence[SourceMessage], *, leaf: str | None = None) -> Iterator[SourceMessage | SourceError]:
    """Yields every message after its parent, the path to `leaf` first; without one, in the order given.

    A message whose parent is unknown becomes a root. Messages on a cycle, and a second one with the same id, are
    errors.
    """
    by_id: dict[str, SourceMessage] = {}
    for each in messages:
        if each.id in by_id:
            yield SourceError.of(each.id, "Another message of the conversation has the same id.")
        else:
            by_id[each.id] = each
    children: dict[str | None, list[str]] = {}
    for each in by_id.values():
        children.setdefault(each.parent if each.parent in by_id else None, []).append(each.id)
    for id_ in _find_path(by_id, leaf):
        siblings = children[parent if (parent := by_id[id_].parent) in by_id else None]
        siblings.remove(id_)
        siblings.insert(0, id_)
    seen: set[str] = set()
    pending = children.get(None, [])[::-1]
    while pending:
        each = by_id[pending.pop()]
        seen.add(each.id)
        yield each if each.parent in by_id else each._replace(parent=None)
        pending += children.get(each.id, [])[::-1]
    for id_ in by_id.keys() - seen:
        yield SourceError.of(id_, "The message is its own ancestor.")


def _find_path(by_id: dict[str, SourceMessage], leaf: str | None) -> list[str]:
    """Ids from the leaf to its root; ends at a cycle."""
    path: dict[str, None] = {}
    while leaf in by_id and leaf not in path:
        path[leaf] = None
        leaf = by_id[leaf].parent
    return list(path)
