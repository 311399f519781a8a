"""Conversations and branches: create, list, rename, fork, verify, purge."""

from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from quire.engine import Engine
from quire.log import MAIN_BRANCH, ConversationOrigin, ConversationRecord
from quire.log.types import MAX_ORIGIN_CHARS
from quire.schemas.records import BranchSchema, ConversationSchema, IntegrityFaultSchema
from quire.server.dependencies import (
    AdminCaller,
    ConversationId,
    Page,
    PageCursor,
    PageLimit,
    ReadCaller,
    StateDep,
    WriteCaller,
    decode_cursor,
    encode_cursor,
    engine_for_caller,
)

router = APIRouter(prefix="/api/conversations", tags=["conversations"])
origins_router = APIRouter(prefix="/api/origins", tags=["conversations"])


class ConversationDetailSchema(ConversationSchema):
    cost_usd: float = Field(description="Cost of all model calls so far, in US dollars.")
    branches: list[BranchSchema]


class CreateConversationBody(BaseModel):
    id: str | None = Field(default=None, min_length=1, max_length=200)
    title: str = Field(default="", max_length=1_000)


class RenameConversationBody(BaseModel):
    title: str = Field(max_length=1_000)


class ForkBody(BaseModel):
    fork_seq: int = Field(ge=0, le=2**62, description="Last entry that both branches share; 0 for none.")
    branch: int = Field(default=MAIN_BRANCH, ge=0, le=2**31 - 1)
    name: str | None = Field(default=None, max_length=200)


class OriginCountSchema(BaseModel):
    client: str = Field(description="Program that the conversations come from, such as `claude-code`.")
    project: str | None
    conversations: int = Field(description="Number of conversations without a purpose.")
    updated_at: int


class OriginListSchema(BaseModel):
    items: list[OriginCountSchema] = Field(description="The most recently used first; at most 200.")


class VerificationSchema(BaseModel):
    faults: list[IntegrityFaultSchema]


class _ConversationPosition(BaseModel):
    """Pagination cursor: the last conversation of a page."""

    id: str
    updated_at: int


MAIN_PURPOSE = "main"
"""Value of the filter `purpose` for conversations without a purpose."""

OriginValue = Annotated[str | None, Query(min_length=1, max_length=MAX_ORIGIN_CHARS)]


class _OriginFilter(NamedTuple):
    origin: ConversationOrigin
    main_only: bool


def _parse_origin_filter(
    session: OriginValue = None,
    project: OriginValue = None,
    client: OriginValue = None,
    purpose: Annotated[
        OriginValue, Query(description=f"A purpose, or `{MAIN_PURPOSE}` for conversations without one.")
    ] = None,
) -> _OriginFilter:
    main_only = purpose == MAIN_PURPOSE
    origin = ConversationOrigin(session=session, project=project, client=client, purpose=None if main_only else purpose)
    return _OriginFilter(origin, main_only)


@router.get("")
async def list_conversations(
    caller: ReadCaller,
    server_state: StateDep,
    origin_filter: Annotated[_OriginFilter, Depends(_parse_origin_filter)],
    limit: PageLimit = 50,
    cursor: PageCursor = None,
) -> Page[ConversationSchema]:
    """Lists conversations, most recently used first; of one session, project, client or purpose if given."""
    position = decode_cursor(cursor, _ConversationPosition)
    before = ConversationRecord(position.id, "", 0, position.updated_at) if position is not None else None
    store = engine_for_caller(server_state, caller).store
    found = await store.list_conversations(limit=limit, before=before, **origin_filter._asdict())
    records = await store.fill_titles(*found)
    last = {"id": records[-1].id, "updated_at": records[-1].updated_at} if len(records) == limit else None
    return Page(items=[ConversationSchema.from_record(each) for each in records], next_cursor=encode_cursor(last))


@origins_router.get("")
async def list_origins(caller: ReadCaller, server_state: StateDep) -> OriginListSchema:
    """Clients and projects that conversations come from, for the filters of their list."""
    counts = await engine_for_caller(server_state, caller).store.list_origins()
    return OriginListSchema(items=[OriginCountSchema(**each._asdict()) for each in counts])


@router.post("", status_code=201)
async def create_conversation(
    caller: WriteCaller, server_state: StateDep, body: CreateConversationBody
) -> ConversationDetailSchema:
    """Creates a conversation with the items that the agent always includes."""
    engine = engine_for_caller(server_state, caller)
    created = await engine.store.create_conversation(body.id, title=body.title)
    await engine.conversation(created.id)
    return await _load_detail(engine, created.id)


@router.get("/{conversation}")
async def get_conversation(
    caller: ReadCaller, server_state: StateDep, conversation: ConversationId
) -> ConversationDetailSchema:
    return await _load_detail(engine_for_caller(server_state, caller), conversation)


@router.patch("/{conversation}")
async def rename_conversation(
    caller: WriteCaller, server_state: StateDep, conversation: ConversationId, body: RenameConversationBody
) -> ConversationDetailSchema:
    engine = engine_for_caller(server_state, caller)
    await engine.store.rename_conversation(conversation, body.title)
    return await _load_detail(engine, conversation)


@router.delete("/{conversation}", status_code=204)
async def purge_conversation(caller: AdminCaller, server_state: StateDep, conversation: ConversationId) -> None:
    """Erases every message permanently: from the log, summaries, search, memories and manifests."""
    await engine_for_caller(server_state, caller).store.purge(conversation)


@router.post("/{conversation}/branches", status_code=201)
async def fork_conversation(
    caller: WriteCaller, server_state: StateDep, conversation: ConversationId, body: ForkBody
) -> BranchSchema:
    """Creates a branch that shares all entries up to and including `fork_seq`."""
    store = engine_for_caller(server_state, caller).store
    return BranchSchema.from_record(
        await store.fork(conversation, at=body.fork_seq, branch=body.branch, name=body.name)
    )


@router.get("/{conversation}/verify")
async def verify_conversation(
    caller: ReadCaller, server_state: StateDep, conversation: ConversationId
) -> VerificationSchema:
    """Verifies the hash chain of every entry; returns the entries that were changed."""
    faults = await engine_for_caller(server_state, caller).store.verify_conversation(conversation)
    return VerificationSchema(faults=[IntegrityFaultSchema.from_record(fault) for fault in faults])


async def _load_detail(engine: Engine, conversation: str) -> ConversationDetailSchema:
    store = engine.store
    [record] = await store.fill_titles(await store.get_conversation(conversation))
    branches = [BranchSchema.from_record(branch) for branch in await store.list_branches(conversation)]
    return ConversationDetailSchema(**record._asdict(), cost_usd=await store.get_cost(conversation), branches=branches)
