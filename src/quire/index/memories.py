"""Memories of agents. A memory is immutable: to correct it, retire it and add another.

Each cites the message that it came from and is purged with it. A search finds only memories that are not retired.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Select, bindparam, insert, select, tuple_, update

from quire.db.dialects import sanitize_text
from quire.db.schema import memories
from quire.db.store_part import StorePart, read, read_inline, write
from quire.errors import InvalidEntry, MemoryNotFound, MemoryRetired
from quire.index import passages
from quire.index.types import Passage, memory_scope
from quire.log import conversations, reads
from quire.log.row_digests import ROW_DIGEST, with_row_digest
from quire.log.tenant_masker import mask_text
from quire.log.types import Citation, Memory
from quire.model.ids import new_id, now
from quire.model.messages import PURGED_TEXT
from quire.rows.digests import check_row

_MEMORIES: Select[*tuple[Any, ...]] = select(
    memories.c.memory,
    memories.c.namespace,
    memories.c.text,
    memories.c.conversation,
    memories.c.branch,
    memories.c.seq,
    memories.c.source,
    memories.c.created_at,
    memories.c.retired_at,
    memories.c.replaced_by,
    memories.c.row_digest,
).where(memories.c.tenant == bindparam("tenant"))
_MEMORY = _MEMORIES.where(memories.c.memory == bindparam("memory"))


def add_memory(
    connection: Connection,
    tenant: str,
    namespace: str,
    text: str,
    *,
    citation: Citation | None = None,
    source: str | None = None,
) -> Memory:
    """Adds a memory with the message that it cites, or with the source that it was imported from. With both, the source
    is a document that the message quotes."""
    locked = _lock_citation(connection, tenant, citation, source)
    return _insert_memory(connection, tenant, namespace, text, locked, source)


def replace_memory(
    connection: Connection,
    tenant: str,
    id: str,
    text: str,
    *,
    also: Collection[str] = (),
    citation: Citation | None = None,
    source: str | None = None,
) -> Memory:
    """Retires a memory and returns its replacement. It also replaces the memories `also`, except those that are retired
    already."""
    # Locks the message's branch before the memory, in the same order as a purge, to avoid a deadlock.
    locked = _lock_citation(connection, tenant, citation, source)
    old = lock_memory(connection, tenant, id)
    if old.retired_at is not None:
        remedy = f"correct {old.replaced_by!r}, which replaced it" if old.replaced_by else "add a new one"
        raise MemoryRetired(f"The memory {id!r} is retired already; {remedy}.")
    new = _insert_memory(connection, tenant, old.namespace, text, locked, source)
    _mark_retired(connection, tenant, old, replaced_by=new.id)
    for other in (lock_memory(connection, tenant, each) for each in sorted(also)):
        if other.retired_at is None and other.namespace == old.namespace:
            _mark_retired(connection, tenant, other, replaced_by=new.id)
    return new


def retire_memory(connection: Connection, tenant: str, id: str) -> Memory:
    """Retires a memory: search no longer finds it, but it can still be listed."""
    old = lock_memory(connection, tenant, id)
    if old.retired_at is None:
        _mark_retired(connection, tenant, old, replaced_by=None)
    return get_memory(connection, tenant, id)


def get_memory(connection: Connection, tenant: str, id: str) -> Memory:
    return _read_memory(connection, _MEMORY, tenant, id)


def lock_memory(connection: Connection, tenant: str, id: str) -> Memory:
    """The memory, which no other transaction can change before this one ends."""
    return _read_memory(connection, _MEMORY.with_for_update(), tenant, id)


def _read_memory(connection: Connection, statement: Select[*tuple[Any, ...]], tenant: str, id: str) -> Memory:
    row = connection.execute(statement, {"tenant": tenant, "memory": id}).first()
    if row is None:
        raise MemoryNotFound(f"There is no memory {id!r} for this tenant.")
    return _to_memory(row)


def list_memories(
    connection: Connection,
    tenant: str,
    namespace: str,
    *,
    include_retired: bool = False,
    limit: int = 50,
    before: Memory | None = None,
    created_until: int | None = None,
) -> list[Memory]:
    """Memories of a namespace, newest first. Cursor pagination: `before` is the last one of the previous page."""
    newest_first = (memories.c.created_at.desc(), memories.c.memory.desc())
    query = _MEMORIES.where(memories.c.namespace == namespace).order_by(*newest_first).limit(limit)
    if not include_retired:
        query = query.where(memories.c.retired_at.is_(None))
    if created_until is not None:
        query = query.where(memories.c.created_at <= created_until)
    if before is not None:
        older = tuple_(memories.c.created_at, memories.c.memory) < (before.created_at, before.id)
        query = query.where(older)
    return [_to_memory(row) for row in connection.execute(query, {"tenant": tenant})]


def purge_memories(
    connection: Connection, tenant: str, conversation: str, purged: Collection[tuple[int, int]] | None
) -> list[Memory]:
    """Erases the memories that cite these messages (None: any message of the conversation).

    Returns them as they were before.
    """
    citing = _MEMORIES.where(memories.c.conversation == conversation).with_for_update()
    to_purge = [
        memory
        for memory in map(_to_memory, connection.execute(citing, {"tenant": tenant}).all())
        if purged is None or (memory.citation is not None and (memory.citation.branch, memory.citation.seq) in purged)
    ]
    erase_memories(connection, tenant, to_purge)
    return to_purge


def erase_memories(connection: Connection, tenant: str, to_purge: Iterable[Memory]) -> None:
    """Erases the text and the source of these memories, which are retired by it."""
    for memory in sorted(to_purge, key=lambda memory: memory.namespace):
        passages.delete_passages(connection, tenant, memory_scope(memory.namespace), [memory.id])
        _overwrite_memory(
            connection, tenant, memory._replace(text=PURGED_TEXT, source=None, retired_at=memory.retired_at or now())
        )


def _lock_citation(
    connection: Connection, tenant: str, citation: Citation | None, source: str | None
) -> Citation | None:
    """The citation under the branch that owns the message. Locks it against a purge until this transaction ends."""
    if citation is None and source is None:
        raise InvalidEntry("A memory needs a citation or a source; give the message or the file that it is from.")
    if citation is None:
        return None
    branch = conversations.lock_branch(connection, tenant, citation.conversation, citation.branch)
    entry = reads.get_entry(connection, tenant, branch, citation.seq)
    if entry.kind != "message" or entry.purged_at is not None:
        problem = "was purged" if entry.purged_at is not None else f"is a {entry.kind}"
        raise InvalidEntry(
            f"Entry #{citation.seq} of {citation.conversation!r} {problem}; a memory must cite a message with content."
        )
    return Citation(entry.conversation, entry.branch, entry.seq)


def _insert_memory(
    connection: Connection, tenant: str, namespace: str, text: str, citation: Citation | None, source: str | None
) -> Memory:
    if not text.strip():
        raise InvalidEntry("The text of the memory is empty; give a text, or retire the old memory.")
    text, source = mask_text(connection, text), source and mask_text(connection, source)
    memory = Memory(
        new_id(), namespace, sanitize_text(text), citation, source and sanitize_text(source), now(), None, None
    )
    connection.execute(insert(memories), _to_row(tenant, memory))
    passage = Passage(memory.id, memory.text, at=memory.created_at)
    passages.write_passages(connection, tenant, memory_scope(namespace), [passage])
    return memory


def _mark_retired(connection: Connection, tenant: str, old: Memory, *, replaced_by: str | None) -> None:
    passages.delete_passages(connection, tenant, memory_scope(old.namespace), [old.id])
    _overwrite_memory(connection, tenant, old._replace(retired_at=now(), replaced_by=replaced_by))


def _overwrite_memory(connection: Connection, tenant: str, memory: Memory) -> None:
    """Writes the columns that a purge or a retirement changes."""
    row = _to_row(tenant, memory)
    changed = {name: row[name] for name in ("text", "source", "retired_at", "replaced_by", ROW_DIGEST)}
    connection.execute(
        update(memories).where(memories.c.tenant == tenant, memories.c.memory == memory.id).values(changed)
    )


def _to_row(tenant: str, memory: Memory) -> dict[str, object]:
    conversation, branch, seq = memory.citation or (None, None, None)
    row = {
        "tenant": tenant,
        "memory": memory.id,
        "namespace": memory.namespace,
        "text": memory.text,
        "conversation": conversation,
        "branch": branch,
        "seq": seq,
        "source": memory.source,
        "created_at": memory.created_at,
        "retired_at": memory.retired_at,
        "replaced_by": memory.replaced_by,
    }
    return with_row_digest(memories, row)


def _to_memory(row: Sequence[Any]) -> Memory:
    """The memory. Raises `IntegrityViolation` if its row was changed, because requests contain its text."""
    *values, digest = row
    memory, namespace, text, conversation, branch, seq, *rest = values
    check_row(values, digest, name=f"memory {memory!r}")
    citation = None if conversation is None else Citation(conversation, branch, seq)
    return Memory(memory, namespace, text, citation, *rest)


class Memories(StorePart):
    """Memories of agents, by namespace."""

    add = write(add_memory)
    replace = write(replace_memory)
    retire = write(retire_memory)
    get = read_inline(get_memory)
    list = read(list_memories)
