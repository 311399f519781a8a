"""Log entries of a conversation: list, get, purge; append messages without a model call."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from quire.log import MAIN_BRANCH
from quire.model import BranchState, EntryKind, Message
from quire.schemas import JsonModel
from quire.schemas.entries import EntrySchema, entry_to_schema
from quire.server.dependencies import (
    AdminCaller,
    BranchQuery,
    ConversationId,
    EntrySeq,
    PageLimit,
    ReadCaller,
    StateDep,
    WriteCaller,
    engine_for_caller,
    load_conversation,
)
from quire.server.idempotency import append_once

router = APIRouter(prefix="/api/conversations/{conversation}", tags=["entries"])

EntrySeqQuery = Annotated[int, Query(ge=1, le=2**62)]
AfterSeq = Annotated[
    int | None,
    Field(
        ge=0,
        le=2**62,
        description="Idempotency key: the last entry known to the client, 0 for none. The messages are recorded once, "
        "right after that entry, so that the request can be retried; 409 if other entries follow it.",
    ),
]


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


@router.get("/entries")
async def list_entries(
    caller: ReadCaller,
    server_state: StateDep,
    conversation: ConversationId,
    branch: BranchQuery = MAIN_BRANCH,
    first: EntrySeqQuery = 1,
    last: EntrySeqQuery | None = None,
    limit: PageLimit = 100,
    newest: Annotated[bool, Query(description="Return the newest entries of the range, not the oldest.")] = False,
    kinds: Annotated[list[EntryKind] | None, Query(description="Only entries of these kinds.")] = None,
) -> EntryPage:
    """Lists the entries `first` to `last`. Compacted entries are included."""
    store = engine_for_caller(server_state, caller).store
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
    return EntryPage(
        items=[entry_to_schema(entry) for entry in page],
        has_more=len(entries) > limit,
        head=record.head_seq,
        state=record.state,
    )


@router.get("/entries/{seq}")
async def get_entry(
    caller: ReadCaller,
    server_state: StateDep,
    conversation: ConversationId,
    seq: EntrySeq,
    branch: BranchQuery = MAIN_BRANCH,
) -> EntrySchema:
    return entry_to_schema(
        await engine_for_caller(server_state, caller).store.get_entry(conversation, seq, branch=branch)
    )


@router.delete("/entries/{seq}", status_code=204)
async def purge_entry(
    caller: AdminCaller,
    server_state: StateDep,
    conversation: ConversationId,
    seq: EntrySeq,
    branch: BranchQuery = MAIN_BRANCH,
) -> None:
    """Erases one message permanently: from the log, summaries, search, memories and manifests."""
    await engine_for_caller(server_state, caller).store.purge(conversation, [seq], branch=branch)


@router.post("/messages", status_code=201)
async def append_messages(
    caller: WriteCaller, server_state: StateDep, conversation: ConversationId, body: AppendMessagesBody
) -> AppendedEntriesSchema:
    """Records messages without calling a model."""
    loaded = await load_conversation(server_state, caller, conversation, body.branch)
    messages = [Message.user(each) if isinstance(each, str) else each for each in body.messages]
    if body.after is None:
        entries = await loaded.append(*messages)
    else:
        entries = await append_once(loaded, messages, after=body.after)
    return AppendedEntriesSchema(items=[entry_to_schema(entry) for entry in entries])
