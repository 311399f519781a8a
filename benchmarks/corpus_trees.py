"""Follows the links of a session whose lines name the line before them."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from corpus_facts import Item


def order_by_links(lines: Iterable[dict[str, Any]], id_: str, link: str, known: set[str]) -> Iterator[dict[str, Any]]:
    """The lines with an id from `known`, each once and none before the one that it links to; all others in place."""
    seen, waiting = set[str](), defaultdict[str, list[dict[str, Any]]](list)
    for line in lines:
        ready = [line]
        while ready:
            each = ready.pop()
            if each.get(id_) not in known:
                yield each
            elif each.get(link) in known and each[link] not in seen:
                waiting[each[link]].append(each)
            elif each[id_] not in seen:
                seen.add(each[id_])
                yield each
                ready += reversed(waiting.pop(each[id_], []))


def find_withdrawn(
    nodes: Mapping[str, list[Item]], parents: Mapping[str, str], not_forks: Collection[str] = ()
) -> dict[str, int]:
    """The number of the withdrawn side that a node is on. Nodes come in order, and none before its parent.

    A fork is a person's if one of its sides begins with typed words. The side with the last node is shown.
    """
    children, last = defaultdict[str, list[str]](list), {node: number for number, node in enumerate(nodes)}
    for node, parent in reversed(list(parents.items())):
        children[parent].append(node)
        last[parent] = max(last[node], last.get(parent, 0))
    typed = {parents[node] for node, items in nodes.items() if items and items[0].by == "person"}.difference(not_forks)
    sides: dict[str, int] = {}
    for node, parent in parents.items():
        if parent in sides:
            sides[node] = sides[parent]
        elif parent in typed and last[node] < max(last[each] for each in children[parent]):
            sides[node] = max(sides.values(), default=-1) + 1
    return sides
