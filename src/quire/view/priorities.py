"""Priorities of messages: their classes, and which messages stay in the view because of them. Pure.

A priority acts when a compaction is planned and not on each request, so that the prefix stays stable in between.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from quire.model import Entry
from quire.view.batches import MessageBatch

PriorityClass = Literal["critical", "important", "normal", "low"]

DEFAULT_PRIORITY = 5
"""Priority of a message for which none is set."""
CLASS_MINIMUMS: Mapping[PriorityClass, int] = {"critical": 8, "important": 6, "normal": 3, "low": 1}
"""Lowest priority of each class, the highest class first."""


def classify_priority(priority: int) -> PriorityClass:
    return next(each for each, minimum in CLASS_MINIMUMS.items() if priority >= minimum)


def spread_priorities(entries: Iterable[Entry], priorities: Mapping[int, int]) -> dict[int, int]:
    """The priorities of these messages, raised to the highest one within each batch: a tool call and its results stay
    together."""
    if not priorities:
        return {}
    batches: list[list[int]] = []
    for entry in entries:
        if entry.role == "tool" and batches:
            batches[-1].append(entry.seq)
        else:
            batches.append([entry.seq])
    spread: dict[int, int] = {}
    for batch in batches:
        if values := [priorities[seq] for seq in batch if seq in priorities]:
            spread.update(dict.fromkeys(batch, max(values)))
    return spread


def list_protected(pins: frozenset[int], priorities: Mapping[int, int]) -> frozenset[int]:
    """Numbers of the messages whose tool results are not cleared: pinned, important and critical ones."""
    return pins.union(seq for seq, priority in priorities.items() if priority >= CLASS_MINIMUMS["important"])


def classify_batch(batch: MessageBatch, priorities: Mapping[int, int]) -> PriorityClass:
    """Class of a batch; `priorities` are spread over its messages."""
    return classify_priority(max([priorities.get(seq, 0) for seq in batch.seqs], default=0) or DEFAULT_PRIORITY)


def select_preserved(
    candidates: Sequence[MessageBatch],
    priorities: Mapping[int, int],
    *,
    shares: Mapping[PriorityClass, float],
    max_input_tokens: int,
    max_tokens: int,
) -> list[MessageBatch]:
    """Chooses the batches that stay in the view: the highest class first, and the newest first within a class.

    A class may use its share of the input tokens and the shares of the classes below it, which are filled after it, so
    that no batch is omitted for one of a lower class. All of them together use at most `max_tokens`.
    """
    classes: list[PriorityClass] = [each for each in CLASS_MINIMUMS if each in shares]
    preserved: list[MessageBatch] = []
    for index, priority_class in enumerate(classes):
        class_tokens = min(max_tokens, int(sum(shares[each] for each in classes[index:]) * max_input_tokens))
        for batch in reversed(candidates):
            if batch.tokens <= class_tokens and classify_batch(batch, priorities) == priority_class:
                preserved.append(batch)
                class_tokens -= batch.tokens
                max_tokens -= batch.tokens
    return preserved
