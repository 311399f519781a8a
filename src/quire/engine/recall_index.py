"""Loads the recall index of a branch from the segments of the message index (LRU cache).

What is missing is indexed first. An index in the cache is used again until the branch archives messages that it lacks,
or until one of its messages is purged: appends alone do not make it stale.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from quire.concurrency.worker_threads import run_in_worker
from quire.engine.context import EngineContext
from quire.engine.message_index import index_inline
from quire.engine.runtime import CachedIndex
from quire.errors import StaleSegment
from quire.index.types import SegmentRef
from quire.log import Branch
from quire.search.postings import ENTRIES_PER_SEGMENT, FORMAT_VERSION

if TYPE_CHECKING:
    from quire.search.index import RecallIndex
    from quire.search.segments import Segment


class RecallIndexCache:
    """Recall indexes of an engine's conversations, through the LRU cache of its runtime."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine, self._cache = engine, engine.runtime.recall_indexes

    async def load(self, branch: Branch, *, upto: int) -> "RecallIndex":
        """The index of a branch, which has the entries up to `upto` unless too many are not indexed yet."""
        refs = await self._list_segments(branch)
        if not _covers(branch, refs, upto=upto):
            await self._index(branch, refs)
            refs = await self._list_segments(branch)
        try:
            return await self._merge(branch, refs, upto=upto)
        except StaleSegment:
            return await self._merge(branch, await self._list_segments(branch), upto=upto)

    async def _list_segments(self, branch: Branch) -> list[SegmentRef]:
        return await self._engine.store.message_index.list_segments(branch.conversation, branch=branch.number)

    async def _index(self, branch: Branch, refs: Sequence[SegmentRef]) -> None:
        if any(ref.format != FORMAT_VERSION for ref in refs):
            await self._engine.store.message_index.reset_format()
        await index_inline(self._engine, conversations=[branch.conversation])

    async def _merge(self, branch: Branch, refs: Sequence[SegmentRef], *, upto: int) -> "RecallIndex":
        refs = [ref for ref in refs if ref.format == FORMAT_VERSION]
        embedder = self._engine.embedder.name if self._engine.embedder is not None else None
        key = (self._engine.store.tenant, branch.conversation, branch.number, embedder)
        cached = self._cache.get(key)
        if cached is not None and _is_current(cached, refs, upto=upto):
            return cached.merged
        segments = await self._load_segments(branch, refs, cached)
        # A segment of the parent branch may hold entries after the fork; truncate it there.
        ends = {piece.branch: piece.last for piece in branch.split_ranges()}
        index = await run_in_worker(_merge_segments, refs, segments, ends, embedder)
        self._cache[key] = CachedIndex(tuple(refs), tuple(segments), index)
        return index

    async def _load_segments(
        self, branch: Branch, refs: Sequence[SegmentRef], cached: CachedIndex | None
    ) -> list["Segment"]:
        """The segments in order; those in the cache are not read again."""
        from quire.search.segment_codec import decode_segment

        by_revision = (
            {ref.revision: segment for ref, segment in zip(cached.refs, cached.segments, strict=True)} if cached else {}
        )
        unread = [ref for ref in refs if ref.revision not in by_revision]
        data = await self._engine.store.message_index.read_segments(branch.conversation, unread)
        decoded = await run_in_worker(lambda: [decode_segment(*each) for each in data])
        by_revision |= {ref.revision: segment for ref, segment in zip(unread, decoded, strict=True)}
        return [by_revision[ref.revision] for ref in refs]


def _merge_segments(
    refs: Sequence[SegmentRef], segments: Sequence["Segment"], last_seqs: Mapping[int, int], embedder: str | None
) -> "RecallIndex":
    from quire.search.index import merge_segments
    from quire.search.segments import truncate_segment

    truncated = (
        truncate_segment(segment, last_seq=last_seqs[ref.branch]) for ref, segment in zip(refs, segments, strict=True)
    )
    return merge_segments(truncated, embedder=embedder)


def _covers(branch: Branch, refs: Sequence[SegmentRef], *, upto: int) -> bool:
    """Whether these segments hold every entry of the branch up to `upto`."""
    last_seqs = {(ref.branch, ref.segment): ref.last_seq for ref in refs if ref.format == FORMAT_VERSION}
    for piece in branch.split_ranges(last=upto):
        for segment in range((piece.first - 1) // ENTRIES_PER_SEGMENT, (piece.last - 1) // ENTRIES_PER_SEGMENT + 1):
            last = min(piece.last, (segment + 1) * ENTRIES_PER_SEGMENT)
            if last_seqs.get((piece.branch, segment), 0) < last:
                return False
    return True


def _is_current(cached: CachedIndex, refs: Sequence[SegmentRef], *, upto: int) -> bool:
    """Whether the cached index has what these segments hold up to `upto`: they may only have grown after it."""
    cached_refs = {(ref.branch, ref.segment): ref for ref in cached.refs}
    for ref in refs:
        old = cached_refs.get((ref.branch, ref.segment))
        if old is None:
            if ref.segment * ENTRIES_PER_SEGMENT < upto:
                return False
        elif old.revision != ref.revision and (
            old.last_seq < min(ref.last_seq, upto) or (old.erasures, old.embedder) != (ref.erasures, ref.embedder)
        ):
            return False
    return len(refs) >= len(cached.refs)
