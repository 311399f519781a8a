"""Compares what a file holds with what Quire stored of it, and classes each difference."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

from corpus_facts import Facts, Item, Tokens

DifferenceClass = Literal[
    "not imported", "messages lost", "messages extra", "order", "pairs", "texts", "replies", "authors", "branches",
    "beginning",    "compactions lost", "compactions extra", "compaction place", "compaction kind", "compaction text",
    "compaction kept", "sub-agents", "parent", "requests", "tokens", "times",
]  # fmt: skip
STRUCTURE: frozenset[DifferenceClass] = frozenset(
    {
        "not imported", "messages lost", "messages extra", "order", "pairs", "branches", "compactions lost",
        "compactions extra", "compaction place", "compaction kind", "compaction text", "compaction kept",
        "sub-agents", "parent",
    }
)  # fmt: skip
"""Classes of what a session is: its messages, their order and pairs, branches, compactions and sub-agents."""
MAX_SECONDS = 1.0
"""Difference of times that counts for none: programs note the time of a line and that of its message."""

Key = tuple[str, str]


class Difference(NamedTuple):
    kind: DifferenceClass
    number: int
    detail: str


def compare(expected: Facts, found: Facts | None) -> list[Difference]:
    if found is None:
        return [Difference("not imported", 1, "")]
    differences = [
        *_compare_items(expected, found),
        *_compare_compactions(expected, found),
        *_compare_tokens(expected.models, found.models),
    ]
    if expected.begins_in_middle != found.begins_in_middle:
        differences.append(Difference("beginning", 1, f"begins in the middle: {expected.begins_in_middle}"))
    if expected.agents != found.agents:
        differences.append(Difference("sub-agents", 1, f"{expected.agents} in the file, {found.agents} stored"))
    if expected.parent != found.parent:
        differences.append(Difference("parent", 1, f"{expected.parent} in the file, {found.parent} stored"))
    for name, own, its in (("first", expected.first, found.first), ("last", expected.last, found.last)):
        if own is None or its is None or abs(own - its) > MAX_SECONDS:
            differences.append(Difference("times", int(own != its), f"{name}: {own} in the file, {its} stored"))
    return [each for each in differences if each.number]


def _compare_items(expected: Facts, found: Facts) -> Iterator[Difference]:
    own, its = _list_all(expected), _list_all(found)
    lost, extra = Counter(map(_key, own)) - Counter(map(_key, its)), Counter(map(_key, its)) - Counter(map(_key, own))
    yield Difference("messages lost", lost.total(), _describe(lost))
    yield Difference("messages extra", extra.total(), _describe(extra))
    # Programs give two calls the same id, so both are compared, in any order.
    changed = Counter(each[:3] for each in own if each.digest and _key(each) not in lost)
    changed -= Counter(each[:3] for each in its)
    yield Difference("texts", changed.total(), _describe(changed))
    authors = Counter((each.by, each.key) for each in own if each.kind == "user")
    wrong = authors - Counter((each.by, each.key) for each in its if each.kind == "user")
    wrong = Counter({key: count for key, count in wrong.items() if ("user", key[1]) not in lost})
    yield Difference("authors", wrong.total(), _describe(wrong))

    path, stored = list(map(_key, expected.path)), list(map(_key, found.path))
    aside = Counter(path) - Counter(stored) - lost
    yield Difference("branches", aside.total(), f"items that are not on the branch that is shown: {_describe(aside)}")
    counts = len(expected.branches), len(found.branches)
    yield Difference("branches", abs(counts[0] - counts[1]), f"{counts[0]} withdrawn in the file, {counts[1]} stored")
    both = Counter(path) & Counter(stored)
    pairs = list(zip_longest(_select(path, both), _select(stored, both)))
    moved = [index for index, (one, other) in enumerate(pairs) if one != other]
    yield Difference("order", len(moved), f"from item {moved[0]} of the path: {pairs[moved[0]]}" if moved else "")
    unpaired = _find_unpaired(expected.path) ^ _find_unpaired(found.path)
    unpaired -= {key for _, key in (*lost, *extra)}
    yield Difference("pairs", len(unpaired), ", ".join(sorted(unpaired)[:3]))
    if not lost and not extra:
        groups = _group(own) ^ _group(its)
        examples = [sorted(group)[:4] for group in list(groups)[:2]]
        yield Difference("replies", len(groups), f"parts that are one reply on one side only: {examples}")


def _compare_compactions(expected: Facts, found: Facts) -> Iterator[Difference]:
    own, its = expected.compactions, found.compactions
    yield Difference("compactions lost", max(0, len(own) - len(its)), f"{len(own)} in the file, {len(its)} stored")
    yield Difference("compactions extra", max(0, len(its) - len(own)), f"{len(own)} in the file, {len(its)} stored")
    if len(own) != len(its):
        return
    for number, (one, other) in enumerate(zip(own, its, strict=True), start=1):
        note = f"compaction {number}:"
        yield Difference("compaction place", int(one.place != other.place), f"{note} {one.place}, stored {other.place}")
        yield Difference("compaction kind", int(one.kind != other.kind), f"{note} {one.kind}, stored {other.kind}")
        is_other_text = one.kind == other.kind and one.digest != other.digest
        yield Difference("compaction text", int(is_other_text), f"{note} {one.digest}, stored {other.digest}")
        lost, extra = set(one.kept) - set(other.kept), set(other.kept) - set(one.kept)
        detail = f"{note} {len(one.kept)} kept, stored without {sorted(lost)[:3]} and with {sorted(extra)[:3]}"
        yield Difference("compaction kept", len(lost | extra), detail)


def _compare_tokens(expected: Mapping[str, Tokens], found: Mapping[str, Tokens]) -> Iterator[Difference]:
    for model in sorted(expected.keys() | found.keys()):
        own, its = expected.get(model, Tokens()), found.get(model, Tokens())
        yield Difference(
            "requests", abs(own.requests - its.requests), f"{model}: {own.requests}, stored {its.requests}"
        )
        differing = [name for name in Tokens._fields[1:] if getattr(own, name) != getattr(its, name)]
        detail = ", ".join(f"{name} {getattr(own, name):,}, stored {getattr(its, name):,}" for name in differing)
        yield Difference("tokens", len(differing), f"{model}: {detail}")


def _list_all(facts: Facts) -> list[Item]:
    return [*facts.path, *(item for branch in facts.branches for item in branch)]


def _key(item: Item) -> Key:
    return item.kind, item.key


def _describe(items: Counter[Any]) -> str:
    return ", ".join(" ".join(key[:2]) for key in list(items)[:3])


def _select(path: list[Key], counts: Counter[Key]) -> list[Key]:
    """The items that both sides have, as often as both have them."""
    remaining, selected = Counter(counts), list[Key]()
    for key in path:
        if remaining[key]:
            remaining[key] -= 1
            selected.append(key)
    return selected


def _find_unpaired(path: list[Item]) -> set[str]:
    """Ids of calls without a later result, and of results without an earlier call."""
    called, unpaired = set[str](), set[str]()
    for item in path:
        if item.kind == "call":
            called.add(item.key)
        elif item.kind == "result" and item.key not in called:
            unpaired.add(item.key)
    return unpaired | (called - {item.key for item in path if item.kind == "result"})


def _group(items: list[Item]) -> set[frozenset[Key]]:
    """The parts of each reply."""
    replies: dict[str, set[Key]] = {}
    for item in items:
        if item.reply:
            replies.setdefault(item.reply, set()).add(_key(item))
    return {frozenset(parts) for parts in replies.values()}
