"""Search: messages, documents and memories that bear on a question."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from quire.engine.searching import (
    MessageFound,
    search_conversation,
    search_conversations,
    search_documents,
    search_memories,
)
from quire.log import MAIN, Hit
from quire.server.asking import BranchNumber, Reading, Shared, engine_of
from quire.server.shown import EntryShown, Shown, entry_shown

router = APIRouter(prefix="/api/search", tags=["search"])


class MessageHit(Shown):
    conversation: str
    score: float
    entry: EntryShown

    @classmethod
    def of(cls, found: MessageFound) -> "MessageHit":
        return cls(conversation=found.entry.conversation, score=found.score, entry=entry_shown(found.entry))


class DocumentHit(Shown):
    path: str
    title: str
    text: str = Field(description="The passage that was found.")
    score: float

    @classmethod
    def of(cls, hit: Hit) -> "DocumentHit":
        return cls(path=hit.key, title=hit.title, text=hit.text, score=hit.score)


class MemoryHit(Shown):
    id: str
    text: str
    score: float

    @classmethod
    def of(cls, hit: Hit) -> "MemoryHit":
        return cls(id=hit.key, text=hit.text, score=hit.score)


class Found(Shown):
    """The best first in each list. Scores of one list say nothing about those of another."""

    messages: list[MessageHit]
    documents: list[DocumentHit]
    memories: list[MemoryHit]
    complete: bool = Field(description="If false, some messages are still being indexed; ask again a little later.")


@router.get("")
async def search(
    caller: Reading,
    serving: Shared,
    query: Annotated[str, Query(min_length=1, max_length=1_000, description="Any words.")],
    conversation: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=200,
            description="Only messages of this conversation; else of the 200 that were used last.",
        ),
    ] = None,
    branch: BranchNumber = MAIN,
    limit: Annotated[int, Query(ge=1, le=100, description="The most hits of each kind.")] = 20,
) -> Found:
    engine = engine_of(serving, caller)
    if conversation is not None:
        found = await search_conversation(engine, query, conversation=conversation, branch=branch, limit=limit)
    else:
        found = await search_conversations(engine, query, limit=limit)
    documents = await search_documents(engine, query, limit=limit)
    memories = await search_memories(engine, query, limit=limit)
    return Found(
        messages=[MessageHit.of(each) for each in found.messages],
        documents=[DocumentHit.of(hit) for hit in documents],
        memories=[MemoryHit.of(hit) for hit in memories],
        complete=found.complete,
    )
