"""Search: all messages of a tenant in one query, vault documents, and memories.

Messages are found by words and by meaning, archived or not, on all branches. A message that forks share is found once,
on the branch that owns it. A few messages that are not indexed yet are indexed before the search. The rest in the
background, and the result says that it may be incomplete.
"""

import asyncio
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field

from quire.concurrency.worker_threads import run_in_worker, run_sized
from quire.engine.context_gatherer import memory_namespace
from quire.engine.embeddings import embed_query, search_passages
from quire.engine.message_index import index_inline, schedule_indexing
from quire.engine.state import EngineState
from quire.index.types import MAX_REVISION, MessageIndexRead, SearchHit, memory_scope, vault_scope
from quire.log import Branch, ConversationRecord, MessageKey
from quire.model import Entry, Role, Topic
from quire.model.base import FrozenModel
from quire.search.postings import FORMAT_VERSION
from quire.store import SqlStore
from quire.view.recalled_messages import to_searchable_text

if TYPE_CHECKING:
    from quire.search.catalog import CatalogHit, MessageCatalog, SearchOrder
    from quire.search.query import Query
    from quire.search.vectors import FloatArray

MAX_RESULTS = 1_000
"""Maximum messages of one search."""
MAX_REFRESH_READS = 100_000
"""Reads of changed segments in one search, in case others change as fast as it reads."""
REQUEST_REFRESH_SECONDS = 8.0
"""Time in which the search of a request reads changed segments. The first one of a process has millions of messages to
read in a tenant of that size. It answers with what it has, and the next one continues there."""


class MessageFilter(FrozenModel):
    """Conditions on the messages of a search. Those that are None do not apply."""

    conversations: tuple[str, ...] | None = Field(default=None, description="Ids of the conversations to search.")
    project: str | None = Field(default=None, description="Project of the conversation's origin.")
    source: str | None = Field(default=None, description="Client of the conversation's origin.")
    role: Role | None = Field(default=None, description="Role of the message.")
    person: str | None = Field(default=None, description="Name of the message's speaker.")
    since: int | None = Field(default=None, description="Earliest time, in microseconds since 1970.")
    until: int | None = Field(default=None, description="Time before which the message was written.")


EVERY_MESSAGE = MessageFilter()


class MessageHit(NamedTuple):
    """A message that matches a search."""

    entry: Entry
    score: float
    """From 0 to 1: the share of the query's words, by their rarity, the similarity of meaning, and the context."""
    excerpt: str
    """About 300 characters around the words of the query, in one line."""
    highlights: tuple[tuple[int, int], ...]
    """Start and end of each of those words in the excerpt."""
    conversation: ConversationRecord
    topics: tuple[Topic, ...] = ()
    """Topics that cite the message and have words of the query that it lacks: a model's words, not the message's."""


class MessageSearchResult(NamedTuple):
    messages: list[MessageHit]
    complete: bool
    """Whether all messages in scope were indexed."""


async def search_messages(
    engine: EngineState,
    query: str,
    *,
    where: MessageFilter = EVERY_MESSAGE,
    branch: Branch | None = None,
    order: "SearchOrder" = "relevance",
    min_score: float = 0.0,
    limit: int = 20,
    reader: SqlStore | None = None,
    refresh_seconds: float | None = None,
) -> MessageSearchResult:
    """Searches the messages of all conversations that meet the conditions, or of one branch with what it shares.

    `newest` and `oldest` order the messages that match well enough by time. A message with a score below `min_score` is
    no hit. `reader` is the store to search in, one that may lag; by default the engine's. After `refresh_seconds` of
    reading what changed since the last search, the messages read so far are searched, and the result is not complete.
    """
    from quire.search.languages import detect_language
    from quire.search.passages import make_excerpt
    from quire.search.query import parse_query
    from quire.search.tokenizer import find_distinct_terms

    reader = reader or engine.store
    ids: Collection[str] | None = where.conversations
    if branch is not None:
        ids = [branch.conversation]
    elif where.project is not None or where.source is not None:
        listed = await reader.list_conversation_ids(project=where.project, client=where.source)
        chosen = frozenset(listed if ids is None else ids)
        ids = [each for each in listed if each in chosen]
    if ids is not None and not ids:
        return MessageSearchResult([], complete=True)
    complete = await index_inline(engine, conversations=ids)
    parsed = parse_query(query, at=engine.config.clock())
    vector = await embed_query(engine.embedder, parsed.text, subject=parsed.subject)
    hits, is_current = await _search_catalog(
        engine, reader, parsed, vector, where=where, conversations=ids, branch=branch, order=order,
        min_score=min_score, limit=min(limit, MAX_RESULTS), refresh_seconds=refresh_seconds,
    )  # fmt: skip
    keys = [MessageKey(hit.conversation, hit.branch, hit.seq) for hit in hits]
    entries, records = await reader.read_messages(keys)
    records = {each.id: each for each in await reader.fill_titles(*records.values())}

    topics_by_message: Mapping[MessageKey, list[Topic]] = {}
    if engine.config.has_topic_index and keys:
        topics_by_message = await reader.message_index.find_topics(keys)

    def make_hits() -> list[MessageHit]:
        found: list[MessageHit] = []
        terms = frozenset(term for word in parsed.words for term in word.terms)
        for hit, entry in zip(hits, entries, strict=True):
            record = records.get(hit.conversation)
            # A message that was purged since it was indexed is left out.
            if entry is not None and record is not None:
                text = to_searchable_text(entry.message)
                excerpt = make_excerpt(text, terms)
                listed = topics_by_message.get(MessageKey(hit.conversation, hit.branch, hit.seq), ())
                missing = terms - find_distinct_terms(text, detect_language(text)) if listed else terms
                topics = tuple(each for each in listed if missing & _find_topic_terms(each))
                found.append(MessageHit(entry, hit.score, excerpt.text, excerpt.highlights, record, topics))
        return found

    found = await run_sized(sum(len(entry.raw) for entry in entries if entry is not None), make_hits)
    return MessageSearchResult(found, complete and is_current)


def _find_topic_terms(topic: Topic) -> set[str]:
    from quire.search.languages import detect_language
    from quire.search.tokenizer import find_distinct_terms

    text = f"{topic.label}: {topic.text}"
    return find_distinct_terms(text, detect_language(text))


async def search_documents(engine: EngineState, query: str, *, limit: int) -> list[SearchHit]:
    """Searches the indexed passages of vault documents. A hit's key is the document's path."""
    if engine.vault is None:
        return []
    scope = vault_scope(engine.vault.name)
    return await search_passages(engine.store, engine.embedder, query, scope=scope, limit=limit)


async def search_memories(engine: EngineState, query: str, *, limit: int) -> list[SearchHit]:
    """Searches the agent's memories. A hit's key is the memory's id."""
    scope = memory_scope(memory_namespace(engine.agent))
    return await search_passages(engine.store, engine.embedder, query, scope=scope, limit=limit)


async def _search_catalog(
    engine: EngineState,
    reader: SqlStore,
    query: "Query",
    vector: "FloatArray | None",
    *,
    where: MessageFilter,
    conversations: Collection[str] | None,
    branch: Branch | None,
    order: "SearchOrder",
    min_score: float,
    limit: int,
    refresh_seconds: float | None,
) -> tuple[list["CatalogHit"], bool]:
    """The hits, and whether all of the index was searched, had the current format and all vectors."""
    from quire.search.catalog import RowFilter
    from quire.search.query import MAX_QUERY_WORDS

    ranges = tuple(branch.split_ranges()) if branch is not None else None
    rows = RowFilter(conversations, where.role, where.person, where.since, where.until, ranges)
    embedder = engine.embedder.name if engine.embedder is not None else None
    lock, catalog = engine.runtime.indexes.catalogs.get(engine.store.tenant, embedder)
    # The wait for another search counts: it reads the same.
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + refresh_seconds if refresh_seconds is not None else math.inf
    async with lock:
        terms = [term for word in query.words[:MAX_QUERY_WORDS] for term in word.terms]
        read = await _refresh(reader, catalog, terms, ends_at=ends_at)
        postings, is_current = read.postings, read.is_current_format
        hits = await run_in_worker(
            catalog.search, query, postings, vector=vector, where=rows, order=order, min_score=min_score, limit=limit
        )
        is_embedded = catalog.is_embedded
    engine.runtime.indexes.catalogs.evict(engine.store.tenant, embedder)
    if not is_current:
        await engine.store.message_index.reset_format()
    if embedder is not None and not is_embedded:
        await engine.store.message_index.mark_unembedded(embedder)
    if not is_current or not is_embedded:
        schedule_indexing(engine)
    return hits, is_current and is_embedded and read.is_latest


async def _refresh(
    reader: SqlStore, catalog: "MessageCatalog", terms: Sequence[str], *, ends_at: float
) -> MessageIndexRead:
    """Adds the segments that changed since the last search, up to a time of the event loop. Returns the last read, with
    the postings of the terms."""
    from quire.search.catalog import SegmentChange

    for _ in range(MAX_REFRESH_READS):
        read = await reader.message_index.read_changes(terms, after_revision=catalog.revision)
        changes = [
            SegmentChange(each.number, each.conversation, each.branch, each.columns)
            for each in read.changes
            if each.format == FORMAT_VERSION
        ]
        if changes or read.revision != catalog.revision:
            await run_in_worker(catalog.apply, changes, revision=read.revision)
        if read.is_latest:
            return read
        if asyncio.get_running_loop().time() >= ends_at:
            break
    read = await reader.message_index.read_changes(terms, after_revision=MAX_REVISION)
    return read._replace(is_latest=False)
