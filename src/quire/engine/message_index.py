"""Keeps the message index up to date: reads what is not indexed from the log, extends segments, and stores them.

Every append marks its branch as unindexed, and `schedule_indexing` starts a background job soon after. The job works in
batches over all conversations of the tenant. Segments are derived data: the log holds the messages, so any job may be
lost or repeated.
"""

from collections.abc import AsyncGenerator, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from quire.concurrency.worker_threads import (
    MAX_EVENT_LOOP_BYTES,
    measure_entries,
    run_in_worker,
    run_portable,
    run_sized,
)
from quire.engine.state import EngineState
from quire.errors import ModelError, UnreadableSegment
from quire.index.types import SegmentData, SegmentTask, SegmentUpdate
from quire.llm.embeddings import AsyncEmbedder, Embedder
from quire.model import TextPart
from quire.search.postings import ENTRIES_PER_SEGMENT
from quire.view.recalled_messages import to_searchable_text

if TYPE_CHECKING:
    from quire.search.segments import IndexedMessage, Segment, TopicCounts
    from quire.search.vectors import FloatArray

DEBOUNCE_SECONDS = 0.5
"""Time between an append and the job that indexes it, in which further appends join it."""
BATCH_ENTRIES = 512
"""Entries indexed in one transaction while the engine is in use: other writes wait for it."""
BULK_BATCH_ENTRIES = 4_096
"""Entries indexed in one transaction after an import."""
MAX_INLINE_ENTRIES = 2_048
"""Entries indexed while a request waits, which takes about half a second."""
MAX_BATCHES_WITHOUT_PROGRESS = 5
"""Batches in a row of which every segment was refused: another indexer does the same work."""


def schedule_indexing(engine: EngineState) -> None:
    """Starts a background job that indexes what was appended; appends within `DEBOUNCE_SECONDS` share it."""
    work = partial(index_messages, engine)
    engine.runtime.jobs.enqueue("index_messages", "", 0, work, delay_seconds=DEBOUNCE_SECONDS)


async def index_messages(
    engine: EngineState, *, conversations: Collection[str] | None = None, batch_entries: int = BATCH_ENTRIES
) -> int:
    """Indexes all entries of these conversations (None: of the tenant) that are not indexed. Returns their number.

    Importers call it with `BULK_BATCH_ENTRIES`.
    """
    count = 0
    async for batch_count in iter_indexing(engine, conversations=conversations, batch_entries=batch_entries):
        count += batch_count
    return count


async def index_inline(engine: EngineState, *, conversations: Collection[str] | None = None) -> bool:
    """Indexes up to `MAX_INLINE_ENTRIES` entries now, and the rest in the background, or True if nothing is left.

    Vectors of a slow embedder are left to the background: a request does not wait for them.
    """
    if not await engine.store.message_index.has_unindexed(conversations=conversations):
        return True
    count = 0
    embedder = None if isinstance(engine.embedder, AsyncEmbedder) else engine.embedder
    async for batch_count in _iter_batches(engine, embedder, conversations, BATCH_ENTRIES):
        count += batch_count
        if count >= MAX_INLINE_ENTRIES:
            break
    is_complete = not await engine.store.message_index.has_unindexed(conversations=conversations)
    if not is_complete:
        schedule_indexing(engine)
    return is_complete


async def iter_indexing(
    engine: EngineState, *, conversations: Collection[str] | None = None, batch_entries: int = BATCH_ENTRIES
) -> AsyncGenerator[int]:
    """Indexes batch by batch, and yields the number of entries of each."""
    async for count in _iter_batches(engine, engine.embedder, conversations, batch_entries):
        yield count


async def _iter_batches(
    engine: EngineState, embedder: Embedder | None, conversations: Collection[str] | None, batch_entries: int
) -> AsyncGenerator[int]:
    """Without `embedder` only words are indexed, and branches that lack vectors stay unindexed for a later run."""
    idle = 0
    while idle < MAX_BATCHES_WITHOUT_PROGRESS:
        batch = await engine.store.message_index.read_batch(
            max_entries=batch_entries,
            embedder=embedder.name if embedder is not None else None,
            conversations=conversations,
        )
        only_words = embedder is None and engine.embedder is not None
        if not batch.tasks and (only_words or not batch.branches):
            return
        try:
            updates = await _build_updates(engine, batch.tasks, embedder)
        except ModelError:
            # The embedder is not available: index the words now. A later run embeds the messages.
            embedder = None
            continue
        # A branch is indexed once its segments have all vectors.
        name = engine.embedder.name if engine.embedder is not None else None
        incomplete = {(each.conversation, each.branch) for each in updates if each.embedder != name}
        complete = [each for each in batch.branches if (each.conversation, each.branch) not in incomplete]
        refused = await engine.store.message_index.put_segments(updates, indexed=complete)
        idle = idle + 1 if updates and len(refused) == len(updates) else 0
        yield sum(len(task.entries) for task in batch.tasks)


class _PreparedSegment(NamedTuple):
    """A task, its decoded segment, and the messages that it lacks, or whose vectors it lacks."""

    task: SegmentTask
    segment: "Segment | None"
    messages: list["IndexedMessage"]

    @property
    def lacks_only_vectors(self) -> bool:
        stored = self.task.stored
        return self.segment is not None and stored is not None and stored.last_seq >= self.task.last_seq


class _BatchEmbeddings:
    """Embedder of texts that were embedded in one call."""

    def __init__(self, embedder: Embedder, texts: Sequence[str], rows: "FloatArray") -> None:
        from quire.search.segments import stored_dimensions

        self.name, self.stored_dimensions = embedder.name, stored_dimensions(embedder)
        self._rows, self._positions = rows, {text: position for position, text in enumerate(texts)}

    def embed(self, texts: Sequence[str]) -> "FloatArray":
        return self._rows[[self._positions[text] for text in texts]]


async def _build_updates(
    engine: EngineState, tasks: Sequence[SegmentTask], embedder: Embedder | None
) -> list[SegmentUpdate]:
    prepared: list[_PreparedSegment] = []
    # Each segment is decoded and encoded as a whole, so that there is work without new entries, too.
    size = MAX_EVENT_LOOP_BYTES + 1 + sum(measure_entries(task.entries) for task in tasks)
    for task, each in zip(tasks, await run_sized(size, _prepare, engine, tasks), strict=True):
        repaired = [each]
        if each is None:
            # Bytes that cannot be read are replaced by all entries of the segment.
            first = task.segment * ENTRIES_PER_SEGMENT + 1
            read = await engine.store.read_range(task.conversation, branch=task.branch, first=first, last=task.last_seq)
            entries = tuple(entry for entry in read if entry.branch == task.branch)
            topics = await engine.store.message_index.list_topics(task)
            whole = task._replace(data=None, entries=entries, topics=topics)
            repaired = await run_sized(measure_entries(entries), _prepare, engine, [whole])
        prepared += [each for each in repaired if each is not None]
    embeddings = None
    if embedder is not None:
        from quire.search.segments import to_embedding_text

        messages = (message for each in prepared for message in _list_unembedded(each, embedder))
        texts = list(dict.fromkeys(["", *(to_embedding_text(message.text) for message in messages)]))
        if isinstance(embedder, AsyncEmbedder):
            rows = await embedder.embed_async(texts)
        else:
            rows = await run_in_worker(embedder.embed, texts)
        embeddings = _BatchEmbeddings(embedder, texts, rows)
    return await run_portable(size, _encode_updates, prepared, embeddings)


def _prepare(engine: EngineState, tasks: Sequence[SegmentTask]) -> list[_PreparedSegment | None]:
    """Decodes segments and extracts messages, or None for bytes that cannot be read."""
    from quire.search.segment_codec import decode_segment
    from quire.search.segments import IndexedMessage

    prepared: list[_PreparedSegment | None] = []
    for task in tasks:
        try:
            segment = decode_segment(*task.data) if task.data is not None else None
        except UnreadableSegment:
            prepared.append(None)
            continue
        messages: list[IndexedMessage] = []
        for entry in task.entries:
            if entry.kind != "message" or entry.role == "system" or entry.purged_at is not None:
                continue
            message = entry.message
            text = to_searchable_text(message)
            if text.strip():
                tokens = entry.tokens if entry.tokens is not None else engine.message_counter.count(message)
                said = sum(len(part.text) for part in message.parts if isinstance(part, TextPart))
                spoken = min(1.0, said / len(text))
                messages.append(
                    IndexedMessage(entry.seq, message.role, message.name, entry.created_at, text, tokens, spoken)
                )
        prepared.append(_PreparedSegment(task, segment, messages))
    return prepared


def _list_unembedded(prepared: _PreparedSegment, embedder: Embedder) -> list["IndexedMessage"]:
    from quire.search.segments import find_unembedded

    if prepared.segment is None or not prepared.lacks_only_vectors:
        return prepared.messages
    seqs = set(prepared.segment.columns.seq[find_unembedded(prepared.segment, embedder.name)].tolist())
    return [message for message in prepared.messages if message.seq in seqs]


def _encode_updates(prepared: Sequence[_PreparedSegment], embeddings: _BatchEmbeddings | None) -> list[SegmentUpdate]:
    return [_build_update(each, embeddings) for each in prepared]


def _build_update(prepared: _PreparedSegment, embeddings: _BatchEmbeddings | None) -> SegmentUpdate:
    from quire.search.segment_codec import encode_segment
    from quire.search.segments import add_passages, embed_segment, extend_segment

    task, segment = prepared.task, prepared.segment
    if prepared.lacks_only_vectors and segment is not None and embeddings is not None:
        texts = {message.seq: message.text for message in prepared.messages}
        changed, counts = embed_segment(segment, texts, embeddings), ()
    else:
        changed, counts = extend_segment(segment, prepared.messages, embedder=embeddings)
    topic_counts: Sequence[TopicCounts] = ()
    if task.topics:
        changed, topic_counts = add_passages(changed, task.topics)
    # The embedder of all messages of the segment; None if some lack a vector, so that a later run embeds them.
    embedder = changed.columns.embedder
    if prepared.messages and embeddings is None:
        embedder = None
    elif segment is not None and task.stored is not None and not prepared.lacks_only_vectors:
        embedder = embedder if task.stored.embedder == embedder else None
    first_row = len(segment) if segment is not None else 0
    return SegmentUpdate(
        conversation=task.conversation,
        branch=task.branch,
        segment=task.segment,
        first_read_seq=task.entries[0].seq if task.entries else task.last_seq + 1,
        last_seq=task.last_seq,
        base_revision=task.stored.revision if task.stored is not None else None,
        purged_count=sum(entry.purged_at is not None for entry in task.entries),
        data=SegmentData(*encode_segment(changed)),
        embedder=embedder,
        term_counts=tuple(enumerate(counts, start=first_row)),
        topic_counts=tuple(topic_counts),
        topic_indexes=tuple(each for each in task.entries if each.kind == "topic_index" and each.purged_at is None),
        replaces_rows=segment is None and task.stored is not None,
    )
