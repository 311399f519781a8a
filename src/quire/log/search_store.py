"""`SqlSearchStore`: the methods of the store for search, passages, the message index, memories and documents."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, bindparam, delete, select, update

from quire.errors import InvalidEntry
from quire.log import conversations, memories, reads
from quire.log.dialects import insert_rows, sanitize_text
from quire.log.row_digests import has_row_digest, with_row_digest
from quire.log.schema import documents
from quire.log.search import hybrid, message_index, passages
from quire.log.search.inverted_index import split_chunks
from quire.log.search_types import (
    DocumentFingerprint,
    IndexedBranch,
    IndexedDocument,
    IndexingBatch,
    MessageIndexRead,
    MessageKey,
    Passage,
    PassageVector,
    SearchHit,
    SegmentData,
    SegmentRef,
    SegmentUpdate,
    UnembeddedPassage,
    VaultDocument,
    memory_scope,
    messages_scope,
    vault_scope,
)
from quire.log.store_base import SqlStoreBase, with_branch
from quire.log.types import MAIN_BRANCH, Citation, ConversationRecord, Memory

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from quire.model import Entry


class SqlSearchStore(SqlStoreBase):
    """Search, message index, memories and vault documents."""

    async def search(
        self,
        query: str,
        *,
        scopes: Sequence[str],
        limit: int = 20,
        vector: ArrayLike | None = None,
        embedder: str | None = None,
    ) -> list[SearchHit]:
        """Hybrid search: the passages of these scopes that match the query, best first; any text is a valid query.

        With a vector and the name of its embedder, also passages with similar vectors."""
        return await self._read(
            hybrid.hybrid_search, query, scopes=scopes, limit=limit, vector=vector, embedder=embedder
        )

    async def put_passages(self, scope: str, items: Iterable[Passage], *, replacing: Collection[str] = ()) -> None:
        """Stores these passages, replacing all former passages of their keys and of the keys in `replacing`."""
        _check_writable_scope(scope)
        await self._write_bulk(passages.put_passages, scope, list(items), replacing=replacing)

    async def delete_passages(self, scope: str, keys: Collection[str]) -> None:
        """Deletes the passages of these keys."""
        await self._write_bulk(passages.delete_passages, scope, keys)

    async def get_passages(self, scope: str, key: str) -> list[Passage]:
        """The passages of a key, by part, without their vectors."""
        return await self._read(passages.get_passages, scope, key)

    async def list_unembedded(self, scope: str, *, embedder: str, limit: int = 500) -> list[UnembeddedPassage]:
        """Passages without a vector of this embedder: first those without any, then those of another embedder."""
        return await self._read(passages.list_unembedded, scope, embedder=embedder, limit=limit)

    async def put_vectors(self, scope: str, passage_vectors: Sequence[PassageVector], *, embedder: str) -> None:
        """Stores the vectors of passages, except of those whose text was changed or deleted since it was read."""
        await self._write(passages.put_vectors, scope, passage_vectors, embedder=embedder)

    async def list_segments(self, conversation: str, *, branch: int = MAIN_BRANCH) -> list[SegmentRef]:
        """The segments of the message index along a branch, oldest first, without their bytes."""
        return await self._read_inline(with_branch(message_index.list_segments), conversation, branch)

    async def read_segments(self, conversation: str, refs: Sequence[SegmentRef]) -> list[SegmentData]:
        """The bytes of these segments; raises `StaleSegment` if one was rewritten since it was listed."""
        return await self._read(message_index.read_segments, conversation, refs)

    async def has_unindexed(self, *, conversations: Collection[str] | None = None) -> bool:
        """Whether entries of these conversations (None: of any) are not in the message index yet."""
        return await self._read_inline(message_index.has_unindexed, conversations=conversations)

    async def read_indexing_batch(
        self, *, max_entries: int, embedder: str | None = None, conversations: Collection[str] | None = None
    ) -> IndexingBatch:
        """The next segments to build, of about `max_entries` entries, from these conversations (None: from any).

        With an `embedder`, also segments that lack its vectors."""
        return await self._read_bulk(
            message_index.read_indexing_batch, max_entries=max_entries, embedder=embedder, conversations=conversations
        )

    async def put_segments(
        self, updates: Sequence[SegmentUpdate], *, indexed: Sequence[IndexedBranch] = ()
    ) -> list[SegmentUpdate]:
        """Stores segments with their postings in one transaction; returns those that were refused.

        A segment is refused if it was changed, or one of its entries purged, since they were read. The branches in
        `indexed` have all their entries in the index then, unless a segment of theirs was refused."""
        return await self._write_bulk(message_index.put_segments, updates, indexed=indexed)

    async def mark_unembedded(self, embedder: str) -> int:
        """Marks the branches with messages that lack a vector of this embedder as unindexed; returns their number."""
        return await self._write_bulk(message_index.mark_unembedded, embedder)

    async def reset_index_format(self) -> None:
        """Starts the rebuild of a message index of another format."""
        await self._write_bulk(message_index.reset_format)

    async def read_message_index(self, query_terms: Collection[str], *, after_revision: int) -> MessageIndexRead:
        """The segments that changed after a revision, page by page, and with the last of them the terms' postings."""
        return await self._read(message_index.read_message_index, query_terms, after_revision=after_revision)

    async def read_messages(
        self, keys: Sequence[MessageKey]
    ) -> tuple[list[Entry | None], dict[str, ConversationRecord]]:
        """The messages with these keys, None for one that is gone or purged, and their conversations by id."""
        return await self._read(_read_messages, keys)

    async def list_conversation_ids(self, *, project: str | None = None, client: str | None = None) -> list[str]:
        """Ids of the conversations of a project, of a client, or of both."""
        return await self._read(conversations.list_conversation_ids, project=project, client=client)

    async def add_memory(
        self, namespace: str, text: str, *, citation: Citation | None = None, source: str | None = None
    ) -> Memory:
        """Adds a memory with the message that it cites, or with its source."""
        return await self._write(memories.add_memory, namespace, text, citation=citation, source=source)

    async def replace_memory(
        self, memory: str, text: str, *, citation: Citation | None = None, source: str | None = None
    ) -> Memory:
        """Retires a memory and returns its replacement."""
        return await self._write(memories.replace_memory, memory, text, citation=citation, source=source)

    async def retire_memory(self, memory: str) -> Memory:
        """Retires a memory: search no longer finds it, but it can still be listed."""
        return await self._write(memories.retire_memory, memory)

    async def get_memory(self, id: str) -> Memory:
        return await self._read_inline(memories.get_memory, id)

    async def list_memories(
        self, namespace: str, *, include_retired: bool = False, limit: int = 50, before: Memory | None = None
    ) -> list[Memory]:
        """Memories of a namespace, newest first. Cursor pagination: `before` is the last one of the previous page."""
        return await self._read(
            memories.list_memories, namespace, include_retired=include_retired, limit=limit, before=before
        )

    async def put_documents(self, vault: str, items: Sequence[IndexedDocument]) -> None:
        """Stores these documents and their passages in one transaction."""
        await self._write_bulk(put_documents, vault, items)

    async def touch_documents(self, vault: str, touched: Sequence[tuple[str, int, int]]) -> None:
        """Updates size and modification time (by path) of files that were rewritten with the indexed content."""
        await self._write(touch_documents, vault, touched)

    async def delete_documents(self, vault: str, paths: Collection[str]) -> None:
        """Deletes documents and their passages."""
        await self._write_bulk(delete_documents, vault, paths)

    async def list_document_fingerprints(self, vault: str) -> list[DocumentFingerprint]:
        """Path, digest, size and modification time of every indexed file of a vault, by path."""
        return await self._read(list_fingerprints, vault)

    async def list_documents(self, vault: str, *, paths: Collection[str] | None = None) -> list[VaultDocument]:
        """Indexed documents of a vault by path: all, or those with these paths."""
        return await self._read(list_documents, vault, paths=paths)


def _check_writable_scope(scope: str) -> None:
    """Refuses scopes that only methods with a check for purged text may write, so that none comes back."""
    methods = {messages_scope(""): "put_segments", memory_scope(""): "add_memory"}
    for prefix, method in methods.items():
        if scope.startswith(prefix):
            raise InvalidEntry(f"The passages of {scope!r} are written by `{method}`, which checks for purges; use it.")


def _read_messages(
    connection: Connection, tenant: str, keys: Sequence[MessageKey]
) -> tuple[list[Entry | None], dict[str, ConversationRecord]]:
    records = conversations.get_conversations(connection, tenant, {key.conversation for key in keys})
    return reads.read_messages(connection, tenant, keys), records


def list_fingerprints(connection: Connection, tenant: str, vault: str) -> list[DocumentFingerprint]:
    """Path, digest, size and modification time of every indexed file, by path."""
    columns = [documents.c[name] for name in DocumentFingerprint._fields]
    query = select(*columns).where(documents.c.tenant == tenant, documents.c.vault == vault)
    return [DocumentFingerprint._make(row) for row in connection.execute(query.order_by(documents.c.path))]


def list_documents(
    connection: Connection, tenant: str, vault: str, *, paths: Collection[str] | None = None
) -> list[VaultDocument]:
    """All documents of a vault by path, or those with these paths.

    A row that was changed is left out, so that its file is indexed again and its text is in no request.
    """
    query = select(documents).where(documents.c.tenant == tenant, documents.c.vault == vault).order_by(documents.c.path)
    queries = (
        [query] if paths is None else [query.where(documents.c.path.in_(c)) for c in split_chunks(sorted(set(paths)))]
    )
    rows = (row for each in queries for row in connection.execute(each).mappings())
    return [_to_document(row) for row in rows if has_row_digest(documents, row)]


def put_documents(connection: Connection, tenant: str, vault: str, items: Sequence[IndexedDocument]) -> None:
    """Stores these documents and their passages, replacing those with the same paths."""
    rows = {each.document.path: _to_row(tenant, vault, each.document) for each in items}
    all_passages = [passage for each in items for passage in _check_passages(each)]
    # First, because it locks the scope: a concurrent indexer of the same vault waits here.
    passages.put_passages(connection, tenant, vault_scope(vault), all_passages, replacing=rows)
    _delete_rows(connection, tenant, vault, rows)
    if rows:
        insert_rows(connection, documents, list(rows.values()))


def touch_documents(connection: Connection, tenant: str, vault: str, touched: Sequence[tuple[str, int, int]]) -> None:
    """Updates size and modification time of files that were rewritten with the indexed content."""
    rows = [{"of_path": path, "size": size, "modified_ns": modified_ns} for path, size, modified_ns in touched]
    if rows:
        key = (documents.c.tenant == tenant, documents.c.vault == vault, documents.c.path == bindparam("of_path"))
        statement = update(documents).where(*key)
        connection.execute(statement.values(size=bindparam("size"), modified_ns=bindparam("modified_ns")), rows)


def delete_documents(connection: Connection, tenant: str, vault: str, paths: Collection[str]) -> None:
    """Deletes documents and their passages."""
    passages.delete_passages(connection, tenant, vault_scope(vault), paths)
    _delete_rows(connection, tenant, vault, paths)


def _check_passages(item: IndexedDocument) -> tuple[Passage, ...]:
    for passage in item.passages:
        if passage.key != item.document.path:
            raise InvalidEntry(
                f"The passage {passage.key!r} belongs to the document {item.document.path!r}; use its path as key."
            )
    return item.passages


def _delete_rows(connection: Connection, tenant: str, vault: str, paths: Iterable[str]) -> None:
    for chunk in split_chunks(paths):
        rows = (documents.c.tenant == tenant, documents.c.vault == vault, documents.c.path.in_(chunk))
        connection.execute(delete(documents).where(*rows))


def _to_row(tenant: str, vault: str, document: VaultDocument) -> dict[str, Any]:
    texts = {"title": sanitize_text(document.title), "summary": sanitize_text(document.summary)}
    lists = {name: json.dumps(getattr(document, name)) for name in ("aliases", "headings")}
    return with_row_digest(documents, {"tenant": tenant, "vault": vault, **document._asdict(), **texts, **lists})


def _to_document(row: Mapping[Any, Any]) -> VaultDocument:
    document = VaultDocument(**{name: row[name] for name in VaultDocument._fields})
    return document._replace(aliases=_parse_list(document.aliases), headings=_parse_list(document.headings))


def _parse_list(stored: Any) -> tuple[str, ...]:
    return tuple(json.loads(stored))
