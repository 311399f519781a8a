"""Keeps the recall index in step with the log: shelf after shelf, from the entries of each branch.

The log says what there is and the shelves say how far they go; what is missing can always be made again. A shelf is
made in a thread and stored with the passages that a search finds, unless one of its messages was purged meanwhile.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from quire.engine.core import Core
from quire.errors import StaleShelf
from quire.log import Branch
from quire.log.found import SHELF, Passage, Shelf, ShelfMark, message_key
from quire.model import Entry
from quire.view.recalled import told

if TYPE_CHECKING:
    from quire.context.recall import Spoken

LONGEST = 50_000
"""Characters of one message that are indexed; the rest of a longer one is found by its beginning."""


class Missing(NamedTuple):
    """A shelf that is not filled as far as it could be: the entries of a branch's own that it should hold."""

    branch: int
    number: int
    first: int
    last: int


def missing(branch: Branch, marks: Sequence[ShelfMark], *, upto: int) -> list[Missing]:
    """The shelves along a branch that lack entries up to this one, oldest first."""
    filled = {(mark.branch, mark.shelf): mark.upto for mark in marks}
    return [shelf for shelf in _along(branch, upto) if filled.get((shelf.branch, shelf.number), 0) < shelf.last]


def _along(branch: Branch, upto: int) -> Iterator[Missing]:
    for piece in reversed(list(branch.segments(last=upto))):
        for number in range((piece.first - 1) // SHELF, (piece.last - 1) // SHELF + 1):
            first = max(piece.first, number * SHELF + 1)
            yield Missing(piece.branch, number, first, min(piece.last, (number + 1) * SHELF))


async def fill(engine: Core, branch: Branch, shelves: Sequence[Missing]) -> AsyncGenerator[Missing]:
    """Makes and stores these shelves, and names each that is done."""
    for shelf in shelves:
        # Whoever purges a message while its shelf is made comes first; then it is made once more without it.
        for _ in range(2):
            with suppress(StaleShelf):
                await _make(engine, branch, shelf)
                break
        yield shelf


async def _make(engine: Core, branch: Branch, shelf: Missing) -> None:
    entries = await engine.store.range(branch.conversation, branch=shelf.branch, first=shelf.first, last=shelf.last)
    spoken, passages = await asyncio.to_thread(_read, engine, entries)
    from quire.context.recall import build

    data = await asyncio.to_thread(build, spoken, embed=engine.embedder)
    purged = sum(entry.purged_at is not None for entry in entries)
    made = Shelf(shelf.branch, shelf.number, shelf.last, data, tuple(passages), purged)
    await engine.store.put_shelf(branch.conversation, made)


def _read(engine: Core, entries: Sequence[Entry]) -> tuple[list["Spoken"], list[Passage]]:
    from quire.context.recall import Spoken

    spoken: list[Spoken] = []
    passages: list[Passage] = []
    for entry in entries:
        if entry.kind != "message" or entry.role == "system" or entry.purged_at is not None:
            continue
        message = entry.message
        text = told(message)[:LONGEST]
        if text.strip():
            tokens = entry.tokens if entry.tokens is not None else engine.meter.count(message)
            spoken.append(Spoken(entry.seq, message.role, message.name, entry.at, text, tokens))
            passages.append(Passage(key=message_key(entry.branch, entry.seq), text=text, at=entry.at))
    return spoken, passages
