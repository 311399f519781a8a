"""Where a client's own window lies on the log: clients drop the oldest messages, or put a summary before the rest.

Pure. A run of equal messages counts only if a reply is among them: what users say, they say again.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Overlap(NamedTuple):
    """Lines `first` to `last` of the client's list are the stored messages that end at `place`."""

    first: int
    last: int
    place: int


def find_overlap(lines: Sequence[bytes], stored: Sequence[bytes], *, replies: Sequence[bool]) -> Overlap | None:
    """A run from the client's first line to the log's head; else the one that reaches furthest in the client's list.

    The first goes on: who says the same over and over does not take it back each time. Both are given by their keys,
    oldest first; `replies` says which of the lines are an assistant's.
    """
    head = len(stored) - 1
    for last in range(len(lines) - 1, -1, -1):
        if _run(lines, stored, last, head) == last + 1 and any(replies[: last + 1]):
            return Overlap(0, last, head)
    for last in range(len(lines) - 1, -1, -1):
        for place in range(head, -1, -1):
            run = _run(lines, stored, last, place)
            if any(replies[last - run + 1 : last + 1]):
                return Overlap(last - run + 1, last, place)
    return None


def _run(lines: Sequence[bytes], stored: Sequence[bytes], last: int, place: int) -> int:
    """How many messages before and with these two are the same."""
    length = 0
    while length <= min(last, place) and lines[last - length] == stored[place - length]:
        length += 1
    return length
