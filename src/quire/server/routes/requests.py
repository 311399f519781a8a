"""Ledger of requests: list, get, replay, diff and explain what was sent for each reply, and their timeline."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field

from quire.engine.client_compactions import find_client_compactions
from quire.errors import EntryNotFound
from quire.ledger import load_sent_body
from quire.ledger.cache_breaks import CacheBreak
from quire.ledger.cache_history import CacheReport
from quire.ledger.timeline import MAX_TIMELINE_ROWS, load_timeline
from quire.log import MAIN_BRANCH
from quire.log.exchanges import ExchangeContent, ExchangeRecord
from quire.model import Decision, Manifest
from quire.schemas import JsonModel
from quire.schemas.context import (
    ClientCompactionSchema,
    ReplaySchema,
    RequestDiffSchema,
    RequestSummarySchema,
)
from quire.schemas.timeline import TimelineSchema
from quire.server.dependencies import BranchQuery, ConversationId, EntrySeq, PageLimit, ReadEngine, load_conversation

router = APIRouter(tags=["requests"])
REQUESTS_PATH = "/api/conversations/{conversation}/requests"


class RequestListSchema(BaseModel):
    items: list[RequestSummarySchema] = Field(description="Oldest first.")


class ClientCompactionListSchema(BaseModel):
    items: list[ClientCompactionSchema] = Field(description="Oldest first.")


class CacheReportSchema(JsonModel):
    requests: int = Field(description="Newest requests of the branch that were compared; at most 500.")
    unknown: str | None = Field(description="What is not known about them; null if everything is.")
    breaks: list[CacheBreak] = Field(description="Oldest first.")


class RequestRecordSchema(BaseModel):
    conversation: str = Field(description="Empty for a request that Quire could not parse.")
    branch: int
    reply: int | None = Field(description="Null if the request got no whole reply.")
    manifest: Manifest | None
    exchange: ExchangeRecord | None = Field(description="Null if the request was not stored.")
    content: ExchangeContent | None = Field(
        description="What was sent and what came back, of a request without a whole reply."
    )


@router.get(REQUESTS_PATH)
async def list_requests(
    engine: ReadEngine,
    conversation: ConversationId,
    branch: BranchQuery = MAIN_BRANCH,
    limit: PageLimit = 100,
    last: Annotated[int | None, Query(ge=1, le=2**62, description="Last reply to list.")] = None,
) -> RequestListSchema:
    """Lists the newest requests up to `last`, oldest first."""
    store = engine.store
    manifests = await store.list_manifests(conversation, branch=branch, limit=limit, last=last)
    entries = await store.get_entries(conversation, [seq for seq, _ in manifests], branch=branch)
    replies = {entry.seq: entry for entry in entries}
    return RequestListSchema(
        items=[
            RequestSummarySchema.from_manifest(manifest, replies[seq]) for seq, manifest in manifests if seq in replies
        ]
    )


@router.get("/api/conversations/{conversation}/timeline")
async def get_timeline(
    engine: ReadEngine,
    conversation: ConversationId,
    branch: BranchQuery = MAIN_BRANCH,
    since: Annotated[int, Query(ge=0, le=2**62, description="Only requests whose replies come after it.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_TIMELINE_ROWS)] = MAX_TIMELINE_ROWS,
) -> TimelineSchema:
    """All requests of a branch: tokens by slot, what became of each message, cache, cost, and compactions and edits.

    Imported requests have what their usage says.
    """
    timeline = await load_timeline(engine.store, conversation, branch=branch, since=since, limit=limit)
    return TimelineSchema.from_timeline(timeline, conversation=conversation, branch=branch)


@router.get("/api/conversations/{conversation}/client-compactions")
async def list_client_compactions(engine: ReadEngine, conversation: ConversationId) -> ClientCompactionListSchema:
    """Lists the compactions that an agent made in the conversation's session, and what its summaries leave out."""
    store = engine.store
    found = await find_client_compactions(store, await store.get_conversation(conversation))
    return ClientCompactionListSchema(items=[ClientCompactionSchema.model_validate(each) for each in found])


@router.get("/api/conversations/{conversation}/cache-breaks", response_model=CacheReportSchema)
async def list_cache_breaks(
    engine: ReadEngine, conversation: ConversationId, branch: BranchQuery = MAIN_BRANCH
) -> CacheReport:
    """Lists the requests of which the provider's prompt cache served less than it could have, and why."""
    return await (await load_conversation(engine, conversation, branch)).cache_breaks()


@router.get(REQUESTS_PATH + "/{seq}")
async def get_request(
    engine: ReadEngine, conversation: ConversationId, seq: EntrySeq, branch: BranchQuery = MAIN_BRANCH
) -> Manifest:
    """Manifest of the request behind this reply: every candidate, whether it was included, and why."""
    return await (await load_conversation(engine, conversation, branch)).manifest(seq)


@router.get(REQUESTS_PATH + "/{seq}/replay")
async def replay_request(
    engine: ReadEngine, conversation: ConversationId, seq: EntrySeq, branch: BranchQuery = MAIN_BRANCH
) -> ReplaySchema:
    """Gives the request back as it was sent, and rebuilds it from its manifest and the log."""
    loaded = await load_conversation(engine, conversation, branch)
    return ReplaySchema.from_replay(await loaded.replay(seq))


@router.get(
    REQUESTS_PATH + "/{seq}/body",
    response_class=Response,
    responses={200: {"content": {"application/json": {}}, "description": "The body, to the byte."}},
)
async def get_request_body(
    engine: ReadEngine, conversation: ConversationId, seq: EntrySeq, branch: BranchQuery = MAIN_BRANCH
) -> Response:
    """The body of the request as it was sent upstream, or with masked secrets: then `X-Quire-Masked` is `true`."""
    manifest = await (await load_conversation(engine, conversation, branch)).manifest(seq)
    body = await load_sent_body(engine.store, manifest, seq)
    if body is None:
        raise EntryNotFound(f"The body of the request that #{seq} answered is not stored; a replay says why.")
    is_masked = manifest.forwarded is not None and manifest.forwarded.masked_digest is not None
    return Response(body, media_type="application/json", headers={"X-Quire-Masked": "true"} if is_masked else None)


@router.get(REQUESTS_PATH + "/{seq}/diff")
async def diff_requests(
    engine: ReadEngine,
    conversation: ConversationId,
    seq: EntrySeq,
    other: Annotated[int, Query(ge=1, le=2**62, description="Reply of the other request.")],
    branch: BranchQuery = MAIN_BRANCH,
) -> RequestDiffSchema:
    """Compares the decisions of two requests."""
    changes = await (await load_conversation(engine, conversation, branch)).diff(seq, other)
    return RequestDiffSchema(reply=seq, other=other, changes=changes)


@router.get(REQUESTS_PATH + "/{seq}/why")
async def explain_item(
    engine: ReadEngine,
    conversation: ConversationId,
    seq: EntrySeq,
    item: Annotated[str, Query(min_length=1, max_length=1_000, description="Message number or item name.")],
    branch: BranchQuery = MAIN_BRANCH,
) -> Decision:
    """Explains why an item was included in the request, or was not."""
    bare = item.removeprefix("#")
    # More digits than a sequence number can have: a name.
    key = int(bare) if bare.isascii() and bare.isdecimal() and len(bare) < 19 else item
    return await (await load_conversation(engine, conversation, branch)).why(key, reply_seq=seq)


@router.get("/api/requests/{id}")
async def find_request(
    engine: ReadEngine, id: Annotated[str, Path(min_length=1, max_length=100)]
) -> RequestRecordSchema:
    """Finds a request by the ID that the gateway returned in `X-Quire-Request`, also one that was refused."""
    store = engine.store
    exchange, content = await store.find_exchange(id), None
    if exchange is not None:
        content = await store.read_exchange(exchange.conversation, id)
    if exchange is not None and exchange.seq is None:
        return RequestRecordSchema(
            conversation=exchange.conversation,
            branch=exchange.branch,
            reply=None,
            manifest=None,
            exchange=exchange,
            content=content,
        )
    record = await store.get_request(id)
    return RequestRecordSchema(
        conversation=record.conversation,
        branch=record.branch,
        reply=record.seq,
        manifest=record.manifest,
        exchange=exchange or await store.find_exchange(id, conversation=record.conversation),
        content=content,
    )
