"""What agents remember. A memory is never rewritten: to correct one is to retire it and to add another.

Each cites the message that it came from, so that it goes when that message is purged; a search finds only those
that are not retired.
"""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, tuple_, update

from quire.errors import InvalidEntry, MemoryNotFound, MemoryRetired
from quire.log import branches, passages, reading
from quire.log.found import Citation, Memory, Passage, memory_scope
from quire.log.fresh import new_id, now
from quire.log.schema import memories
from quire.log.words import storable
from quire.model.messages import PURGED

_COLUMNS = select(
    memories.c.memory,
    memories.c.agent,
    memories.c.text,
    memories.c.conversation,
    memories.c.branch,
    memories.c.seq,
    memories.c.source,
    memories.c.created_at,
    memories.c.retired_at,
    memories.c.replaced_by,
).where(memories.c.tenant == bindparam("tenant"))


def remember(
    connection: Connection, tenant: str, agent: str, text: str, *, cites: Citation | None, source: str | None
) -> Memory:
    """Adds a memory that cites a message, or names the source that it was imported from."""
    held = _held(connection, tenant, cites, source)
    return _add(connection, tenant, agent, text, held, source)


def correct(
    connection: Connection, tenant: str, id: str, text: str, *, cites: Citation | None, source: str | None
) -> Memory:
    """Retires a memory and puts another in its place."""
    # The message's branch before the memory, in the order in which a purge takes them.
    held = _held(connection, tenant, cites, source)
    old = get_memory(connection, tenant, id, lock=True)
    if old.retired_at is not None:
        better = f"correct {old.replaced_by!r}, which replaced it" if old.replaced_by else "add a new one"
        raise MemoryRetired(f"The memory {id!r} was retired already; {better}.")
    new = _add(connection, tenant, old.agent, text, held, source)
    _retire(connection, tenant, old, replaced_by=new.id)
    return new


def retire(connection: Connection, tenant: str, id: str) -> Memory:
    """Takes a memory out of use; it stays to be looked at."""
    old = get_memory(connection, tenant, id, lock=True)
    if old.retired_at is None:
        _retire(connection, tenant, old, replaced_by=None)
    return get_memory(connection, tenant, id)


def get_memory(connection: Connection, tenant: str, id: str, *, lock: bool = False) -> Memory:
    wanted = _COLUMNS.where(memories.c.memory == bindparam("memory"))
    known = {"tenant": tenant, "memory": id}
    row = connection.execute(wanted.with_for_update() if lock else wanted, known).first()
    if row is None:
        raise MemoryNotFound(f"There is no memory {id!r} for this tenant.")
    return _memory(row)


def list_memories(
    connection: Connection, tenant: str, agent: str, *, retired: bool, limit: int, before: Memory | None
) -> list[Memory]:
    """The newest first; `before` is the last one of the page before."""
    newest_first = (memories.c.created_at.desc(), memories.c.memory.desc())
    wanted = _COLUMNS.where(memories.c.agent == agent).order_by(*newest_first).limit(limit)
    if not retired:
        wanted = wanted.where(memories.c.retired_at.is_(None))
    if before is not None:
        older = tuple_(memories.c.created_at, memories.c.memory) < (before.created_at, before.id)
        wanted = wanted.where(older)
    return [_memory(row) for row in connection.execute(wanted, {"tenant": tenant})]


def purge_memories(
    connection: Connection, tenant: str, conversation: str, gone: Collection[tuple[int, int]] | None
) -> list[Memory]:
    """Takes the text of memories that cite these messages, or any of the conversation's; gives them as they were."""
    doomed = [memory for memory in _citing(connection, tenant, conversation) if _is_cited(memory, gone)]
    for memory in sorted(doomed, key=lambda memory: memory.agent):
        passages.drop(connection, tenant, memory_scope(memory.agent), [memory.id])
        connection.execute(
            update(memories)
            .where(memories.c.tenant == tenant, memories.c.memory == memory.id)
            .values(text=PURGED, source=None, retired_at=memory.retired_at or now())
        )
    return doomed


def _held(connection: Connection, tenant: str, cites: Citation | None, source: str | None) -> Citation | None:
    """The cited message under the branch that holds it; nobody purges it before this transaction ends."""
    if (cites is None) == (source is None):
        raise InvalidEntry("A memory cites the message that it came from, or names its source; give one of the two.")
    if cites is None:
        return None
    line = branches.get_branch(connection, tenant, cites.conversation, cites.branch, lock=True)
    entry = reading.get_entry(connection, tenant, line, cites.seq)
    if entry.kind != "message" or entry.purged_at is not None:
        what = "was purged" if entry.purged_at is not None else f"is a {entry.kind}"
        raise InvalidEntry(f"A memory cites a message, and entry #{cites.seq} of {cites.conversation!r} {what}.")
    return Citation(entry.conversation, entry.branch, entry.seq)


def _add(
    connection: Connection, tenant: str, agent: str, text: str, held: Citation | None, source: str | None
) -> Memory:
    if not text.strip():
        raise InvalidEntry("A memory without text says nothing; give it some, or retire the old one.")
    memory = Memory(new_id(), agent, storable(text), held, source and storable(source), now(), None, None)
    conversation, branch, seq = held or (None, None, None)
    row = {
        "tenant": tenant,
        "memory": memory.id,
        "agent": agent,
        "text": memory.text,
        "conversation": conversation,
        "branch": branch,
        "seq": seq,
        "source": memory.source,
        "created_at": memory.created_at,
    }
    connection.execute(insert(memories), row)
    passage = Passage(memory.id, memory.text, at=memory.created_at)
    passages.put(connection, tenant, memory_scope(agent), [passage])
    return memory


def _retire(connection: Connection, tenant: str, old: Memory, *, replaced_by: str | None) -> None:
    passages.drop(connection, tenant, memory_scope(old.agent), [old.id])
    connection.execute(
        update(memories)
        .where(memories.c.tenant == tenant, memories.c.memory == old.id)
        .values(retired_at=now(), replaced_by=replaced_by)
    )


def _citing(connection: Connection, tenant: str, conversation: str) -> list[Memory]:
    wanted = _COLUMNS.where(memories.c.conversation == conversation)
    return [_memory(row) for row in connection.execute(wanted.with_for_update(), {"tenant": tenant})]


def _is_cited(memory: Memory, gone: Collection[tuple[int, int]] | None) -> bool:
    return gone is None or (memory.cites is not None and (memory.cites.branch, memory.cites.seq) in gone)


def _memory(row: Sequence[Any]) -> Memory:
    memory, agent, text, conversation, branch, seq, *rest = row
    cites = None if conversation is None else Citation(conversation, branch, seq)
    return Memory(memory, agent, text, cites, *rest)
