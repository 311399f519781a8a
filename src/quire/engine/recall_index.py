"""Builds the recall index from the log, segment by segment, and caches the merged index of each branch (LRU cache).

Segments are derived data: the log holds the messages, each segment records how far it goes, and what is missing is
rebuilt. A segment is built in a thread and stored with its search passages, unless one of its messages was purged
meanwhile.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from quire.engine.context import EngineContext
from quire.engine.runtime import CachedIndex
from quire.errors import StaleSegment, UnreadableSegment
from quire.log import Branch
from quire.log.types import ENTRIES_PER_SEGMENT, Passage, SegmentRef, SegmentRow, message_key
from quire.log.worker_threads import run_in_worker
from quire.model import Entry
from quire.view.recalled_messages import message_to_text

if TYPE_CHECKING:
    from quire.context.recall import IndexedMessage, RecallIndex, RecallSegment

MAX_INDEXED_CHARS = 50_000
"""Characters of one message that are indexed, from its start; the rest is not searchable."""
MAX_INLINE_SEGMENTS = 4
"""Segments of 512 messages built while a request waits, which takes about half a second."""


class MissingSegment(NamedTuple):
    """A segment that is absent or ends too early, with the span of entries that it should hold."""

    branch: int
    number: int
    first: int
    last: int


class RecallIndexCache:
    """Loads and builds the recall indexes of an engine's conversations, through the LRU cache of its runtime."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine, self._cache = engine, engine.runtime.recall_indexes

    async def load(self, branch: Branch, *, upto: int) -> "RecallIndex":
        """The index of a branch, which covers at least the entries up to `upto` unless too many segments are missing.

        Builds `MAX_INLINE_SEGMENTS` of the missing ones now, and the rest in the background.
        """
        store = self._engine.store
        stored = await store.list_segments(branch.conversation, branch=branch.number)
        missing = find_missing_segments(branch, stored, upto=upto)
        if missing:
            async for _ in build_segments(self._engine, branch, missing[:MAX_INLINE_SEGMENTS]):
                pass
            if len(missing) > MAX_INLINE_SEGMENTS:
                self.update_in_background(branch)
            stored = await store.list_segments(branch.conversation, branch=branch.number)
        try:
            return await self._join_segments(branch, stored)
        except UnreadableSegment:
            # Another version of Quire wrote them; rebuild all from the log.
            async for _ in build_segments(
                self._engine, branch, find_missing_segments(branch, (), upto=branch.head_seq)
            ):
                pass
        except StaleSegment:
            pass
        return await self._join_segments(branch, await store.list_segments(branch.conversation, branch=branch.number))

    def update_in_background(self, branch: Branch) -> None:
        """Builds the missing segments in a background job."""
        jobs = self._engine.runtime.jobs
        jobs.enqueue("index_recall", branch.conversation, branch.number, partial(self.update, branch))

    async def update(self, branch: Branch) -> None:
        """Builds all missing segments."""
        async for _ in self.iter_update(branch):
            pass

    async def iter_update(self, branch: Branch) -> AsyncGenerator[tuple[int, int]]:
        """Builds all missing segments, and yields (done, total) after each."""
        stored = await self._engine.store.list_segments(branch.conversation, branch=branch.number)
        missing: list[MissingSegment] = find_missing_segments(branch, stored, upto=branch.head_seq)
        done = 0
        async for _ in build_segments(self._engine, branch, missing):
            done += 1
            yield done, len(missing)

    async def _join_segments(self, branch: Branch, stored: Sequence[SegmentRef]) -> "RecallIndex":
        from quire.context.recall import merge_segments

        key, versions = self._cache_key(branch), tuple(each.version for each in stored)
        cached = self._cache.get(key)
        if cached is not None and cached.versions == versions:
            return cached.merged
        segments = await self._load_segments(branch, stored)
        index = await run_in_worker(merge_segments, segments, embedder=self._embedder_name)
        self._cache[key] = CachedIndex(versions, index)
        return index

    @property
    def _embedder_name(self) -> str | None:
        return self._engine.embedder.name if self._engine.embedder is not None else None

    def _cache_key(self, branch: Branch) -> tuple[str, int, str | None]:
        return branch.conversation, branch.number, self._embedder_name

    async def _load_segments(self, branch: Branch, stored: Sequence[SegmentRef]) -> list["RecallSegment"]:
        """Loads the segments in order; those of a cached index are not read again."""
        from quire.context.recall.segments import decode_segment, truncate_segment

        by_version = self._cached_segments(branch, stored)
        uncached = [each for each in stored if each.version not in by_version]
        data = await self._engine.store.read_segments(branch.conversation, uncached)
        decoded = await run_in_worker(lambda: [decode_segment(each) for each in data])
        by_version |= {each.version: segment for each, segment in zip(uncached, decoded, strict=True)}
        # A segment of the parent branch may hold entries after the fork; truncate it there.
        ends = {piece.branch: piece.last for piece in branch.split_ranges()}
        return [truncate_segment(by_version[each.version], last_seq=ends[each.branch]) for each in stored]

    def _cached_segments(self, branch: Branch, stored: Sequence[SegmentRef]) -> dict[str, "RecallSegment"]:
        cached = self._cache.get(self._cache_key(branch))
        if cached is None or len(cached.versions) != len(cached.merged.segments):
            return {}
        needed = {each.version for each in stored}
        segments = zip(cached.versions, cached.merged.segments, strict=True)
        return {version: segment for version, segment in segments if version in needed}


def find_missing_segments(branch: Branch, stored: Sequence[SegmentRef], *, upto: int) -> list[MissingSegment]:
    """The segments of a branch, and of its parents, that lack entries up to `upto`, oldest first."""
    last_seqs = {(each.branch, each.segment): each.last_seq for each in stored}
    return [each for each in _iter_segments(branch, upto) if last_seqs.get((each.branch, each.number), 0) < each.last]


def _iter_segments(branch: Branch, upto: int) -> Iterator[MissingSegment]:
    for piece in reversed(list(branch.split_ranges(last=upto))):
        for number in range((piece.first - 1) // ENTRIES_PER_SEGMENT, (piece.last - 1) // ENTRIES_PER_SEGMENT + 1):
            first = max(piece.first, number * ENTRIES_PER_SEGMENT + 1)
            yield MissingSegment(piece.branch, number, first, min(piece.last, (number + 1) * ENTRIES_PER_SEGMENT))


async def build_segments(
    engine: EngineContext, branch: Branch, segments: Sequence[MissingSegment]
) -> AsyncGenerator[MissingSegment]:
    """Builds and stores these segments, and yields each when it is done."""
    for segment in segments:
        # A purge during the build makes the segment stale; build it once more without the purged message.
        for _ in range(2):
            with suppress(StaleSegment):
                await _build_segment(engine, branch, segment)
                break
        yield segment


async def _build_segment(engine: EngineContext, branch: Branch, segment: MissingSegment) -> None:
    entries = await engine.store.read_range(
        branch.conversation, branch=segment.branch, first=segment.first, last=segment.last
    )
    messages, passages = await run_in_worker(_extract_messages, engine, entries)
    from quire.context.recall import build_segment

    data = await run_in_worker(build_segment, messages, embedder=engine.embedder)
    purged = sum(entry.purged_at is not None for entry in entries)
    row = SegmentRow(segment.branch, segment.number, segment.last, data, tuple(passages), purged)
    await engine.store.put_segment(branch.conversation, row)


def _extract_messages(engine: EngineContext, entries: Sequence[Entry]) -> tuple[list["IndexedMessage"], list[Passage]]:
    from quire.context.recall import IndexedMessage

    messages: list[IndexedMessage] = []
    passages: list[Passage] = []
    for entry in entries:
        if entry.kind != "message" or entry.role == "system" or entry.purged_at is not None:
            continue
        message = entry.message
        text = message_to_text(message)[:MAX_INDEXED_CHARS]
        if text.strip():
            tokens = entry.tokens if entry.tokens is not None else engine.message_counter.count(message)
            messages.append(IndexedMessage(entry.seq, message.role, message.name, entry.created_at, text, tokens))
            passages.append(Passage(key=message_key(entry.branch, entry.seq), text=text, at=entry.created_at))
    return messages, passages
