"""Conversations, branches and log entries: create, list, rename, tag, fork, verify, purge, append messages."""

from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from quire.concurrency.worker_threads import measure_entries
from quire.log import MAIN_BRANCH, Branch, ConversationOrigin, ConversationRecord
from quire.log.types import MAX_ORIGIN_CHARS, OriginCount
from quire.model import BranchState, EntryKind, Message
from quire.model.people import make_space
from quire.rows.branches import choose_branch_used_last
from quire.schemas import JsonModel
from quire.schemas.entries import EntrySchema, entry_to_schema
from quire.schemas.records import BranchSchema, ConversationSchema, IntegrityFaultSchema
from quire.server.caller import Caller
from quire.server.dependencies import (
    AfterSeq,
    BranchQuery,
    ConversationId,
    EntrySeq,
    Page,
    PageCursor,
    PageLimit,
    PurgeEngine,
    ReadCaller,
    ReadEngine,
    WriteCaller,
    WriteEngine,
    decode_cursor,
    encode_cursor,
    load_conversation,
)
from quire.server.sized_responses import respond_sized
from quire.server.turn_submission import append_once
from quire.store import SqlStore
from quire.usage.report import SubAgentCost

router = APIRouter(prefix="/api/conversations", tags=["conversations"])
origins_router = APIRouter(prefix="/api/origins", tags=["conversations"])
entries_router = APIRouter(prefix="/api/conversations/{conversation}", tags=["entries"])


class ConversationDetailSchema(ConversationSchema):
    cost_usd: float = Field(
        description="Cost of all model calls so far, with imported ones, in US dollars; a lower bound if "
        "`unpriced_requests` is not 0."
    )
    unpriced_requests: int = Field(description="Model calls whose cost is not known.")
    sub_agents: SubAgentCost
    branches: list[BranchSchema]
    branch_used_last: int = Field(description="Number of the branch that was appended to last.")
    can_share: bool = Field(description="Whether the caller can let others read it: people sign in, and it is theirs.")


class CreateConversationBody(BaseModel):
    id: str | None = Field(default=None, min_length=1, max_length=200)
    title: str = Field(default="", max_length=1_000)


class UpdateConversationBody(BaseModel):
    title: str | None = Field(default=None, max_length=1_000)
    tags: list[Annotated[str, Field(max_length=200)]] | None = Field(
        default=None, max_length=100, description="Replaces all tags. Stored in lower case."
    )


class ForkBody(BaseModel):
    fork_seq: int = Field(ge=0, le=2**62, description="Last entry that both branches share. 0 for none.")
    branch: int = Field(default=MAIN_BRANCH, ge=0, le=2**31 - 1)
    name: str | None = Field(default=None, max_length=200)


class OriginListSchema(JsonModel):
    items: list[OriginCount] = Field(description="The most recently used first; at most 200.")
    tags: list[str] = Field(description="Tags of conversations, in alphabetical order.")


class VerificationSchema(JsonModel):
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
    engine: ReadEngine,
    origin_filter: Annotated[_OriginFilter, Depends(_parse_origin_filter)],
    tag: OriginValue = None,
    limit: PageLimit = 50,
    cursor: PageCursor = None,
) -> Page[ConversationSchema]:
    """Lists conversations, most recently used first, optionally of one session, project, client, purpose or tag."""
    position = decode_cursor(cursor, _ConversationPosition)
    before = ConversationRecord(position.id, "", 0, position.updated_at) if position is not None else None
    store = engine.store
    found = await store.list_conversations(limit=limit, before=before, tag=tag, **origin_filter._asdict())
    records = await store.fill_titles(*found)
    last = {"id": records[-1].id, "updated_at": records[-1].updated_at} if len(records) == limit else None
    return Page[ConversationSchema].model_validate({"items": records, "next_cursor": encode_cursor(last)})


@origins_router.get("")
async def list_origins(engine: ReadEngine) -> OriginListSchema:
    """Clients and projects that conversations come from, and their tags, for the filters of their list."""
    store = engine.store
    return OriginListSchema(items=await store.list_origins(), tags=await store.list_tags())


@router.post("", status_code=201)
async def create_conversation(
    engine: WriteEngine, caller: WriteCaller, body: CreateConversationBody
) -> ConversationDetailSchema:
    """Creates a conversation with the items that the agent always includes."""
    created = await engine.store.create_conversation(body.id, title=body.title)
    await engine.conversation(created.id)
    return await _load_detail(engine.store, caller, created.id)


@router.get("/{conversation}")
async def get_conversation(
    engine: ReadEngine, caller: ReadCaller, conversation: ConversationId
) -> ConversationDetailSchema:
    return await _load_detail(engine.store, caller, conversation)


@router.patch("/{conversation}")
async def update_conversation(
    engine: WriteEngine, caller: WriteCaller, conversation: ConversationId, body: UpdateConversationBody
) -> ConversationDetailSchema:
    """Changes the title, the tags, or both."""
    if body.title is not None:
        await engine.store.rename_conversation(conversation, body.title)
    if body.tags is not None:
        await engine.store.set_tags(conversation, body.tags)
    return await _load_detail(engine.store, caller, conversation)


@router.delete("/{conversation}", status_code=204)
async def purge_conversation(engine: PurgeEngine, conversation: ConversationId) -> None:
    """Erases every message permanently: from the log, summaries, search, memories and manifests."""
    await engine.store.purge(conversation)


@router.post("/{conversation}/branches", status_code=201, response_model=BranchSchema)
async def fork_conversation(engine: WriteEngine, conversation: ConversationId, body: ForkBody) -> Branch:
    """Creates a branch that shares all entries up to and including `fork_seq`."""
    return await engine.store.fork(conversation, at=body.fork_seq, branch=body.branch, name=body.name)


@router.get("/{conversation}/verify")
async def verify_conversation(engine: ReadEngine, conversation: ConversationId) -> VerificationSchema:
    """Verifies the hash chain of every entry, and returns the entries that were changed."""
    faults = await engine.store.verify_conversation(conversation)
    return VerificationSchema.model_validate({"faults": faults})


async def _load_detail(store: SqlStore, caller: Caller, conversation: str) -> ConversationDetailSchema:
    [record] = await store.fill_titles(await store.get_conversation(conversation))
    branches = await store.list_branches(conversation)
    return ConversationDetailSchema.model_validate(
        {
            **record._asdict(),
            "owner": record.owner,
            "cost_usd": await store.get_conversation_cost(conversation),
            "unpriced_requests": (await store.usage.read_conversation(conversation)).unpriced_requests,
            "sub_agents": (await store.usage.read_sub_agents(record)).total,
            "branches": branches,
            "branch_used_last": choose_branch_used_last(branches).number,
            "can_share": caller.user is not None and caller.tenant == make_space(caller.team, caller.user),
        }
    )


EntrySeqQuery = Annotated[int, Query(ge=1, le=2**62)]


class EntryPage(JsonModel):
    items: list[EntrySchema] = Field(description="In log order.")
    has_more: bool = Field(description="More entries match: after the last item, or with `newest` before the first.")
    head: int = Field(description="Sequence number of the newest entry of the branch.")
    state: BranchState = Field(description="State of the branch: active compaction, pins, items.")


class AppendMessagesBody(JsonModel):
    messages: list[str | Message] = Field(
        min_length=1, max_length=1_000, description="Recorded all or none. A string is a user message."
    )
    branch: int = Field(default=MAIN_BRANCH, ge=0, le=2**31 - 1)
    after: AfterSeq = None


class AppendedEntriesSchema(JsonModel):
    items: list[EntrySchema]


@entries_router.get("/entries")
async def list_entries(
    engine: ReadEngine,
    conversation: ConversationId,
    branch: BranchQuery = MAIN_BRANCH,
    first: EntrySeqQuery = 1,
    last: EntrySeqQuery | None = None,
    limit: PageLimit = 100,
    newest: Annotated[bool, Query(description="Return the newest entries of the range, not the oldest.")] = False,
    kinds: Annotated[list[EntryKind] | None, Query(description="Only entries of these kinds.")] = None,
) -> EntryPage:
    """Lists the entries `first` to `last`. Compacted entries are included."""
    store = engine.store
    record = await store.get_branch(conversation, branch)
    # Not beyond the returned head, even if entries were appended since.
    last = min(last or record.head_seq, record.head_seq)
    if newest:
        entries = await store.read_tail(conversation, limit + 1, branch=branch, last=last, kinds=kinds)
        entries = [entry for entry in entries if entry.seq >= first]
        page = entries[-limit:]
    else:
        entries = await store.read_range(
            conversation, branch=branch, first=first, last=last, kinds=kinds, limit=limit + 1
        )
        page = entries[:limit]

    found = {"items": page, "has_more": len(entries) > limit, "head": record.head_seq, "state": record.state}
    return await respond_sized(sum(len(entry.raw) for entry in page), lambda: EntryPage.model_validate(found))


@entries_router.get("/entries/{seq}")
async def get_entry(
    engine: ReadEngine, conversation: ConversationId, seq: EntrySeq, branch: BranchQuery = MAIN_BRANCH
) -> EntrySchema:
    entry = await engine.store.get_entry(conversation, seq, branch=branch)
    return await respond_sized(len(entry.raw), lambda: entry_to_schema(entry))


@entries_router.delete("/entries/{seq}", status_code=204)
async def purge_entry(
    engine: PurgeEngine, conversation: ConversationId, seq: EntrySeq, branch: BranchQuery = MAIN_BRANCH
) -> None:
    """Erases one message permanently: from the log, summaries, search, memories and manifests."""
    await engine.store.purge(conversation, [seq], branch=branch)


@entries_router.post("/messages", status_code=201)
async def append_messages(
    engine: WriteEngine, conversation: ConversationId, body: AppendMessagesBody
) -> AppendedEntriesSchema:
    """Records messages without calling a model."""
    loaded = await load_conversation(engine, conversation, body.branch)
    messages = [Message.user(each) if isinstance(each, str) else each for each in body.messages]
    if body.after is None:
        entries = await loaded.append(*messages)
    else:
        entries = await append_once(loaded, messages, after=body.after)
    return await respond_sized(
        measure_entries(entries), lambda: AppendedEntriesSchema.model_validate({"items": entries}), status_code=201
    )
