"""Search: messages of one conversation or of all, vault documents, and memories.

A few messages that are not indexed yet are indexed before the search; the rest are indexed in the background, and the
result says that it may be incomplete.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from quire.engine.context import EngineContext
from quire.engine.context_gatherer import memory_namespace
from quire.engine.embeddings import embed_query
from quire.engine.recall import Recall
from quire.engine.recall_index import (
    MAX_INLINE_SEGMENTS,
    MissingSegment,
    RecallIndexCache,
    build_segments,
    find_missing_segments,
)
from quire.errors import EntryNotFound
from quire.log import MAIN_BRANCH, Branch, SearchHit, conversation_scope, memory_scope, parse_message_key, vault_scope
from quire.model import Entry

MAX_SEARCHED_CONVERSATIONS = 200
"""Conversations that a search over all of them covers: the most recently used."""
CONVERSATION_BATCH_SIZE = 8
"""Conversations whose index is checked concurrently."""


class ScoredEntry(NamedTuple):
    entry: Entry
    score: float


class MessageSearchResult(NamedTuple):
    """Messages, best first."""

    messages: list[ScoredEntry]
    complete: bool
    """Whether all messages in scope were indexed."""


async def search_conversation(
    engine: EngineContext, query: str, *, conversation: str, branch: int = MAIN_BRANCH, limit: int
) -> MessageSearchResult:
    """Searches the messages of one branch, archived or not."""
    record = await engine.store.get_branch(conversation, branch)
    stored = await engine.store.list_segments(conversation, branch=branch)
    missing = find_missing_segments(record, stored, upto=record.head_seq)
    candidates = await Recall(engine).search(record, query, limit=limit)
    return MessageSearchResult(
        [ScoredEntry(each.entry, each.score) for each in candidates], len(missing) <= MAX_INLINE_SEGMENTS
    )


async def search_conversations(
    engine: EngineContext, query: str, *, conversations: Sequence[str] | None = None, limit: int
) -> MessageSearchResult:
    """Searches all branches of these conversations, by default of the most recently used."""
    ids = (
        conversations
        if conversations is not None
        else [each.id for each in await engine.store.list_conversations(limit=MAX_SEARCHED_CONVERSATIONS)]
    )
    complete = await _index_inline(engine, await _find_unindexed(engine, ids))
    hits = await _search_scopes(engine, query, scopes=[conversation_scope(each) for each in ids], limit=limit)
    entries = [await _load_hit(engine, hit) for hit in hits]
    return MessageSearchResult([each for each in entries if each is not None], complete)


async def search_documents(engine: EngineContext, query: str, *, limit: int) -> list[SearchHit]:
    """Searches the indexed passages of vault documents; a hit's key is the document's path."""
    if engine.vault is None:
        return []
    return await _search_scopes(engine, query, scopes=[vault_scope(engine.vault.name)], limit=limit)


async def search_memories(engine: EngineContext, query: str, *, limit: int) -> list[SearchHit]:
    """Searches the agent's memories; a hit's key is the memory's id."""
    return await _search_scopes(engine, query, scopes=[memory_scope(memory_namespace(engine.agent))], limit=limit)


async def _search_scopes(engine: EngineContext, query: str, *, scopes: Sequence[str], limit: int) -> list[SearchHit]:
    embedding = await embed_query(query, engine.embedder)
    return await engine.store.search(query, scopes=scopes, limit=limit, **embedding)


async def _load_hit(engine: EngineContext, hit: SearchHit) -> ScoredEntry | None:
    """The entry of a hit; None if it was deleted or purged since it was indexed."""
    branch, seq = parse_message_key(hit.key)
    try:
        entry = await engine.store.get_entry(hit.scope.removeprefix(conversation_scope("")), seq, branch=branch)
    except EntryNotFound:
        return None
    return ScoredEntry(entry, hit.score) if entry.purged_at is None else None


async def _find_unindexed(
    engine: EngineContext, conversations: Sequence[str]
) -> list[tuple[Branch, list[MissingSegment]]]:
    """Branches with messages that are not indexed yet, and their missing segments."""
    unindexed: list[tuple[Branch, list[MissingSegment]]] = []
    for start in range(0, len(conversations), CONVERSATION_BATCH_SIZE):
        batch = await asyncio.gather(
            *(_find_unindexed_branches(engine, each) for each in conversations[start : start + CONVERSATION_BATCH_SIZE])
        )
        unindexed.extend(each for branches in batch for each in branches)
    return unindexed


async def _find_unindexed_branches(
    engine: EngineContext, conversation: str
) -> list[tuple[Branch, list[MissingSegment]]]:
    unindexed: list[tuple[Branch, list[MissingSegment]]] = []
    for branch in await engine.store.list_branches(conversation):
        stored = await engine.store.list_segments(conversation, branch=branch.number)
        if missing := find_missing_segments(branch, stored, upto=branch.head_seq):
            unindexed.append((branch, missing))
    return unindexed


async def _index_inline(engine: EngineContext, unindexed: Sequence[tuple[Branch, list[MissingSegment]]]) -> bool:
    """Builds up to `MAX_INLINE_SEGMENTS` segments now, and the rest in background jobs; True if nothing is left."""
    remaining, index_cache, complete = MAX_INLINE_SEGMENTS, RecallIndexCache(engine), True
    for branch, missing in unindexed:
        inline = missing[:remaining]
        async for _ in build_segments(engine, branch, inline):
            remaining -= 1
        if len(inline) < len(missing):
            index_cache.update_in_background(branch)
            complete = False
    return complete
