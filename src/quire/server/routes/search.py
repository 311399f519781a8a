"""Search over messages, documents and memories."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from quire.engine.search import search_conversation, search_conversations, search_documents, search_memories
from quire.log import MAIN_BRANCH, SearchHit
from quire.schemas import JsonModel
from quire.schemas.entries import MessageHitSchema
from quire.server.dependencies import BranchQuery, ReadCaller, StateDep, engine_for_caller

router = APIRouter(prefix="/api/search", tags=["search"])


class DocumentHitSchema(JsonModel):
    path: str
    title: str
    text: str = Field(description="The matching passage.")
    score: float

    @classmethod
    def from_hit(cls, hit: SearchHit) -> "DocumentHitSchema":
        return cls(path=hit.key, title=hit.title, text=hit.text, score=hit.score)


class MemoryHitSchema(JsonModel):
    id: str
    text: str
    score: float

    @classmethod
    def from_hit(cls, hit: SearchHit) -> "MemoryHitSchema":
        return cls(id=hit.key, text=hit.text, score=hit.score)


class SearchResultsSchema(JsonModel):
    """Hits, best first in each list. Scores of different lists are not comparable."""

    messages: list[MessageHitSchema]
    documents: list[DocumentHitSchema]
    memories: list[MemoryHitSchema]
    complete: bool = Field(description="False while some messages are still being indexed; retry later.")


@router.get("")
async def search(
    caller: ReadCaller,
    server_state: StateDep,
    query: Annotated[str, Query(min_length=1, max_length=1_000, description="Search words.")],
    conversation: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=200,
            description="Search only this conversation; by default the 200 most recently used ones.",
        ),
    ] = None,
    branch: BranchQuery = MAIN_BRANCH,
    limit: Annotated[int, Query(ge=1, le=100, description="Maximum number of hits of each kind.")] = 20,
) -> SearchResultsSchema:
    engine = engine_for_caller(server_state, caller)
    if conversation is not None:
        results = await search_conversation(engine, query, conversation=conversation, branch=branch, limit=limit)
    else:
        results = await search_conversations(engine, query, limit=limit)
    documents = await search_documents(engine, query, limit=limit)
    memories = await search_memories(engine, query, limit=limit)
    return SearchResultsSchema(
        messages=[MessageHitSchema.from_entry(entry, score=score) for entry, score in results.messages],
        documents=[DocumentHitSchema.from_hit(hit) for hit in documents],
        memories=[MemoryHitSchema.from_hit(hit) for hit in memories],
        complete=results.complete,
    )
