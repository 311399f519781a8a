"""Search over the messages of all conversations with filters: the one place that calls the engine's search."""

from collections.abc import Sequence
from typing import NamedTuple

from quire.engine.context import EngineContext
from quire.engine.search import MAX_SEARCHED_CONVERSATIONS, ScoredEntry, search_conversations
from quire.log.types import ConversationOrigin, ConversationRecord

FILTERED_HITS_FACTOR = 5
"""Hits that are read for one that is returned, if role or time filter them afterwards."""
EXCERPT_CHARS = 300


class HistoryFilter(NamedTuple):
    """Conditions of a search; None for no condition. Times are microseconds since 1970."""

    conversation: str | None = None
    project: str | None = None
    source: str | None = None
    role: str | None = None
    since: int | None = None
    until: int | None = None


class FoundMessage(NamedTuple):
    hit: ScoredEntry
    conversation: ConversationRecord


class FoundMessages(NamedTuple):
    messages: list[FoundMessage]
    complete: bool
    """Whether all messages in scope were indexed."""


async def search_history(engine: EngineContext, query: str, where: HistoryFilter, *, limit: int) -> FoundMessages:
    """Finds messages, archived or not, best first. Raises `ConversationNotFound` for an unknown conversation."""
    records = {each.id: each for each in await _list_searched(engine, where)}
    if not records:
        return FoundMessages([], complete=True)
    is_filtered = (where.role, where.since, where.until) != (None, None, None)
    result = await search_conversations(
        engine, query, conversations=list(records), limit=limit * (FILTERED_HITS_FACTOR if is_filtered else 1)
    )
    found = [each for each in result.messages if _matches(each, where)][:limit]
    return FoundMessages([FoundMessage(each, records[each.entry.conversation]) for each in found], result.complete)


async def _list_searched(engine: EngineContext, where: HistoryFilter) -> Sequence[ConversationRecord]:
    if where.conversation is not None:
        return [await engine.store.get_conversation(where.conversation)]
    origin = ConversationOrigin(client=where.source, project=where.project)
    return await engine.store.list_conversations(limit=MAX_SEARCHED_CONVERSATIONS, origin=origin)


def _matches(hit: ScoredEntry, where: HistoryFilter) -> bool:
    entry = hit.entry
    return (
        (where.role is None or entry.role == where.role)
        and (where.since is None or entry.created_at >= where.since)
        and (where.until is None or entry.created_at < where.until)
    )


def excerpt_around(text: str, query: str) -> str:
    """About `EXCERPT_CHARS` characters around the passage that shares most words with the query, on one line."""
    from quire.context.recall.passages import find_excerpts

    if len(text) <= EXCERPT_CHARS:
        return " ".join(text.split())
    spans = find_excerpts(text, query)
    start = spans[0][0] if spans else 0
    end = min(len(text), start + EXCERPT_CHARS)
    start = max(0, end - EXCERPT_CHARS)
    return f"{'… ' if start else ''}{' '.join(text[start:end].split())}{' …' if end < len(text) else ''}"
