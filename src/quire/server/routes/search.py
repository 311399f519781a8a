"""Search over messages, documents and memories."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from quire.engine.search import (
    REQUEST_REFRESH_SECONDS,
    MessageFilter,
    search_documents,
    search_memories,
    search_messages,
)
from quire.model import Role
from quire.schemas import JsonModel
from quire.schemas.search import MessageHitSchema
from quire.server.dependencies import SearchEngine
from quire.server.sized_responses import respond_sized

router = APIRouter(prefix="/api/search", tags=["search"])

MAX_QUERY_CHARS = 1_000
MAX_FILTER_CHARS = 1_000
"""Characters of a filter's value: a project is a path."""
MAX_SEARCHED_CONVERSATIONS = 100
"""Conversations that one search may name."""
MAX_TIME_MICROS = 2**63 - 1


class DocumentHitSchema(JsonModel):
    path: str = Field(validation_alias="key")
    title: str
    text: str = Field(description="The matching passage.")
    score: float


class MemoryHitSchema(JsonModel):
    id: str = Field(validation_alias="key")
    text: str
    score: float


class SearchResultsSchema(JsonModel):
    """Hits, best first in each list unless `order` says otherwise. Scores of different lists are not comparable."""

    messages: list[MessageHitSchema]
    documents: list[DocumentHitSchema]
    memories: list[MemoryHitSchema]
    complete: bool = Field(description="False while some messages are still being indexed or loaded; retry later.")


FilterValue = Annotated[str | None, Query(min_length=1, max_length=MAX_FILTER_CHARS)]


def read_message_filter(
    *,
    conversation: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200)]] | None,
        Query(
            max_length=MAX_SEARCHED_CONVERSATIONS,
            description="Search the messages of these conversations. Default: all.",
        ),
    ] = None,
    project: Annotated[FilterValue, Query(description="Project of the conversation, such as its directory.")] = None,
    source: Annotated[FilterValue, Query(description="Client of the conversation, such as `claude-code`.")] = None,
    role: Annotated[Role | None, Query(description="Role of the message.")] = None,
    person: Annotated[FilterValue, Query(description="Name of the message's speaker.")] = None,
    since: Annotated[
        int | None, Query(ge=0, le=MAX_TIME_MICROS, description="Earliest time, in microseconds since 1970.")
    ] = None,
    until: Annotated[
        int | None,
        Query(
            ge=0,
            le=MAX_TIME_MICROS,
            description="Time before which the message was written, in microseconds since 1970.",
        ),
    ] = None,
) -> MessageFilter:
    return MessageFilter(
        conversations=tuple(conversation) if conversation is not None else None,
        project=project,
        source=source,
        role=role,
        person=person,
        since=since,
        until=until,
    )


@router.get("")
async def search(
    engine: SearchEngine,
    query: Annotated[str, Query(min_length=1, max_length=MAX_QUERY_CHARS, description="Search words.")],
    where: Annotated[MessageFilter, Depends(read_message_filter)],
    order: Annotated[
        Literal["relevance", "newest", "oldest"], Query(description="Order of the messages.")
    ] = "relevance",
    min_score: Annotated[float, Query(ge=0, le=1, description="Omit messages with a lower score.")] = 0.0,
    limit: Annotated[int, Query(ge=1, le=100, description="Maximum number of hits of each kind.")] = 20,
) -> SearchResultsSchema:
    """Searches all messages of the tenant, archived or not, and its documents and memories.

    The filters, the order and the minimum score apply to messages.
    """
    for each in where.conversations or ():
        await engine.store.get_conversation(each)
    results = await search_messages(
        engine,
        query,
        where=where,
        order=order,
        min_score=min_score,
        limit=limit,
        reader=engine.store,
        refresh_seconds=REQUEST_REFRESH_SECONDS,
    )
    documents = await search_documents(engine, query, limit=limit)
    memories = await search_memories(engine, query, limit=limit)

    def build() -> SearchResultsSchema:
        found = {**results._asdict(), "documents": documents, "memories": memories}
        return SearchResultsSchema.model_validate(found)

    size = sum(len(each.entry.raw) for each in results.messages)
    return await respond_sized(size, build)
