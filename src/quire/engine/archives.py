"""The archives of branches, joined from their shelves and kept at hand.

Shelves never change, and their names do when they are made anew. A shelf that is missing is made on the way; where many
are, that is left to the background, and a question does with what there is.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from quire.engine.core import Core
from quire.engine.shelving import Missing, fill, missing
from quire.errors import StaleShelf, UnreadableSegment
from quire.log import Branch
from quire.log.found import ShelfMark

if TYPE_CHECKING:
    from quire.context.recall import Archive, Segment

ON_THE_WAY = 4
"""So many shelves, of 512 messages each, are made while a request waits; that takes about half a second."""
MESSAGES_AT_HAND = 400_000
"""So many messages' shelves stay in memory, at a few hundred bytes each."""

Key = tuple[str, ...]


class Archives:
    """Archives for the conversations of one engine."""

    def __init__(self, engine: Core) -> None:
        self._engine = engine
        self._kept: OrderedDict[Key, Archive] = OrderedDict()

    async def of(self, branch: Branch, *, upto: int) -> "Archive":
        """What is archived along a branch up to this entry, and maybe more."""
        store = self._engine.store
        marks = await store.shelves(branch.conversation, branch=branch.number)
        lacking = missing(branch, marks, upto=upto)
        if lacking:
            async for _ in fill(self._engine, branch, lacking[:ON_THE_WAY]):
                pass
            if len(lacking) > ON_THE_WAY:
                self.refresh(branch)
            marks = await store.shelves(branch.conversation, branch=branch.number)
        try:
            return await self._joined(branch, marks)
        except UnreadableSegment:
            # Another version of Quire made them; the log has all that it takes to make them anew.
            async for _ in fill(self._engine, branch, missing(branch, (), upto=branch.head_seq)):
                pass
        except StaleShelf:
            pass
        return await self._joined(branch, await store.shelves(branch.conversation, branch=branch.number))

    def refresh(self, branch: Branch) -> None:
        """Makes in the background what is missing."""
        self._engine.later("shelve", (branch.conversation, branch.number), lambda: self.fill(branch))

    async def fill(self, branch: Branch) -> None:
        """Makes all that is missing."""
        async for _ in self.filling(branch):
            pass

    async def filling(self, branch: Branch) -> AsyncGenerator[tuple[int, int]]:
        """Makes all that is missing, and says after every shelf how many of how many are done."""
        marks = await self._engine.store.shelves(branch.conversation, branch=branch.number)
        lacking: list[Missing] = missing(branch, marks, upto=branch.head_seq)
        done = 0
        async for _ in fill(self._engine, branch, lacking):
            done += 1
            yield done, len(lacking)

    async def _joined(self, branch: Branch, marks: Sequence[ShelfMark]) -> "Archive":
        from quire.context.recall import join

        key: Key = (branch.conversation, str(branch.number), *(mark.version for mark in marks))
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        segments = await self._segments(branch, marks)
        embedder = self._engine.embedder.name if self._engine.embedder is not None else None
        archive = await asyncio.to_thread(join, segments, embedder=embedder)
        self._keep(key, archive)
        return archive

    async def _segments(self, branch: Branch, marks: Sequence[ShelfMark]) -> list["Segment"]:
        """The shelves' segments; those that an archive at hand has are not read again."""
        from quire.context.recall.segments import cut, read

        known = self._at_hand(branch, marks)
        wanted = [mark for mark in marks if mark.version not in known]
        data = await self._engine.store.read_shelves(branch.conversation, wanted)
        fresh = await asyncio.to_thread(lambda: [read(each) for each in data])
        known |= {mark.version: segment for mark, segment in zip(wanted, fresh, strict=True)}
        # A parent's last shelf may go on after the fork.
        ends = {piece.branch: piece.last for piece in branch.segments()}
        return [cut(known[mark.version], upto=ends[mark.branch]) for mark in marks]

    def _at_hand(self, branch: Branch, marks: Sequence[ShelfMark]) -> dict[str, "Segment"]:
        versions = {mark.version for mark in marks}
        for key, archive in reversed(self._kept.items()):
            if key[:2] == (branch.conversation, str(branch.number)):
                return {
                    version: segment
                    for version, segment in zip(key[2:], archive.segments, strict=False)
                    if version in versions and len(key) - 2 == len(archive.segments)
                }
        return {}

    def _keep(self, key: Key, archive: "Archive") -> None:
        for other in [other for other in self._kept if other[:2] == key[:2]]:
            del self._kept[other]
        self._kept[key] = archive
        held = sum(len(each) for each in self._kept.values())
        while held > MESSAGES_AT_HAND and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            held -= len(dropped)
