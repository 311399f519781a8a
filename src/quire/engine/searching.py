"""Search over all that is kept: the messages of one conversation or of all, the vault's documents, what is remembered.

What is not in the index yet is put there on the way, as far as nobody waits long for it; the rest follows in the
background, and whoever asked is told that there may be more.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from quire.engine.archives import ON_THE_WAY
from quire.engine.engine import Engine
from quire.engine.meaning import meaning_of
from quire.engine.shelving import Missing, fill, missing
from quire.engine.surroundings import memory_shelf
from quire.errors import EntryNotFound
from quire.log import MAIN, Branch, Hit, conversation_scope, memory_scope, message_place, vault_scope
from quire.model import Entry

RECENT = 200
"""Conversations that a search over all of them looks into: those used last."""
AT_ONCE = 8
"""Conversations whose index is looked at side by side."""


class MessageFound(NamedTuple):
    entry: Entry
    score: float


class MessagesFound(NamedTuple):
    messages: list[MessageFound]
    complete: bool
    """Whether all that was looked into is in the index."""


async def search_conversation(
    engine: Engine, query: str, *, conversation: str, branch: int = MAIN, limit: int
) -> MessagesFound:
    """Messages of one branch, archived or not, the most relevant first."""
    line = await engine.store.branch(conversation, branch)
    lacking = missing(line, await engine.store.shelves(conversation, branch=branch), upto=line.head_seq)
    found = await engine.recaller.search(line, query, limit=limit)
    return MessagesFound([MessageFound(each.entry, each.score) for each in found], len(lacking) <= ON_THE_WAY)


async def search_conversations(
    engine: Engine, query: str, *, among: Sequence[str] | None = None, limit: int
) -> MessagesFound:
    """Messages of some conversations, those used last if not told which, on all their branches, the most relevant
    first."""
    known = among if among is not None else [each.id for each in await engine.store.conversations(limit=RECENT)]
    complete = await _index(engine, await _unindexed(engine, known))
    hits = await _search(engine, query, scopes=[conversation_scope(each) for each in known], limit=limit)
    read = [await _read(engine, hit) for hit in hits]
    return MessagesFound([found for found in read if found is not None], complete)


async def search_documents(engine: Engine, query: str, *, limit: int) -> list[Hit]:
    """Passages of the vault's documents, as far as they are indexed; the key is the document's path."""
    if engine.vault is None:
        return []
    return await _search(engine, query, scopes=[vault_scope(engine.vault.name)], limit=limit)


async def search_memories(engine: Engine, query: str, *, limit: int) -> list[Hit]:
    """What the agent remembers; the key is the memory's id."""
    return await _search(engine, query, scopes=[memory_scope(memory_shelf(engine.agent))], limit=limit)


async def _search(engine: Engine, query: str, *, scopes: Sequence[str], limit: int) -> list[Hit]:
    meaning = await meaning_of(query, engine.embedder)
    return await engine.store.search(query, scopes=scopes, limit=limit, **meaning)


async def _read(engine: Engine, hit: Hit) -> MessageFound | None:
    branch, seq = message_place(hit.key)
    try:
        entry = await engine.store.entry(hit.scope.removeprefix(conversation_scope("")), seq, branch=branch)
    except EntryNotFound:
        return None
    return MessageFound(entry, hit.score) if entry.purged_at is None else None


async def _unindexed(engine: Engine, conversations: Sequence[str]) -> list[tuple[Branch, list[Missing]]]:
    """The branches with messages that are not in the index yet, and which."""
    found: list[tuple[Branch, list[Missing]]] = []
    for start in range(0, len(conversations), AT_ONCE):
        some = await asyncio.gather(*(_lacking(engine, each) for each in conversations[start : start + AT_ONCE]))
        found.extend(each for lacking in some for each in lacking)
    return found


async def _lacking(engine: Engine, conversation: str) -> list[tuple[Branch, list[Missing]]]:
    found: list[tuple[Branch, list[Missing]]] = []
    for branch in await engine.store.branches(conversation):
        marks = await engine.store.shelves(conversation, branch=branch.number)
        if lacking := missing(branch, marks, upto=branch.head_seq):
            found.append((branch, lacking))
    return found


async def _index(engine: Engine, unindexed: Sequence[tuple[Branch, list[Missing]]]) -> bool:
    """Makes what can be made while somebody waits; whether that is all."""
    left = ON_THE_WAY
    for branch, lacking in unindexed:
        async for _ in fill(engine, branch, lacking[:left]):
            left -= 1
        if left <= 0:
            break
    done = sum(len(lacking) for _, lacking in unindexed) <= ON_THE_WAY
    if not done:
        engine.start(
            (unindexed[0][0].conversation, MAIN, "index"), _index_rest(engine, [each for each, _ in unindexed])
        )
    return done


async def _index_rest(engine: Engine, branches: Sequence[Branch]) -> None:
    for branch in branches:
        await engine.recaller.archives.fill(branch)
