"""Context of the next request: token usage, preview, session items, pins, priorities, compaction."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from quire.context.items import index_agent_items
from quire.engine import Conversation
from quire.engine.client_requests import find_last_client_request
from quire.log import MAIN_BRANCH
from quire.model import BranchState, ContextItem, Manifest
from quire.model.entry_bodies import MAX_PRIORITY, MIN_PRIORITY, SessionIncludeMode
from quire.proxy.edit_effects import load_effect
from quire.schemas import JsonModel
from quire.schemas.context import (
    ActiveCompactionSchema,
    CompactionPlanSchema,
    ContextItemSchema,
    ContextUsageSchema,
    DropListSchema,
    EditEffectSchema,
    ItemType,
    PinListSchema,
    PriorityListSchema,
)
from quire.server.dependencies import (
    BranchQuery,
    ChatEngine,
    ConversationId,
    EditEngine,
    EntrySeq,
    ModelQuery,
    ReadCaller,
    ReadEngine,
    StateDep,
    engine_for_caller,
    load_conversation,
)
from quire.view.budget import UsageReport

router = APIRouter(prefix="/api/conversations/{conversation}", tags=["context"])
compaction_router = APIRouter(prefix="/api/conversations/{conversation}/compaction", tags=["compaction"])


class ContextItemListSchema(BaseModel):
    items: list[ContextItemSchema] = Field(description="Items of the session first, then other items of the agent.")


class AddItemBody(BaseModel):
    name: str = Field(min_length=1, max_length=500)
    type: ItemType | None = None
    server: str | None = Field(default=None, max_length=500)


class AddPinBody(BaseModel):
    seq: int = Field(ge=1, le=2**62, description="Sequence number of the message.")


class AddDropBody(AddPinBody):
    reason: str | None = Field(default=None, max_length=1_000, description="Why, in the user's words.")
    now: bool = Field(default=False, description="Whether it takes effect even if that breaks a warm prompt cache.")


class SetPriorityBody(BaseModel):
    priority: int | None = Field(ge=MIN_PRIORITY, le=MAX_PRIORITY, description="1 to 10. null resets it to 5.")


@router.get("/usage", response_model=ContextUsageSchema)
async def get_usage(
    caller: ReadCaller,
    server_state: StateDep,
    conversation: ConversationId,
    branch: BranchQuery = MAIN_BRANCH,
    model: ModelQuery = None,
) -> UsageReport:
    """Token usage of the next request before a question is added, and the compaction trigger.

    In the session of a client that holds its own messages, it is what the client last sent.
    """
    loaded = await load_conversation(engine_for_caller(server_state, caller, model=model), conversation, branch)
    last = await find_last_client_request(loaded.engine.store, conversation, branch)
    return UsageReport.from_manifest(last.manifest) if last is not None else await loaded.usage()


@router.get("/context")
async def preview_context(
    caller: ReadCaller,
    server_state: StateDep,
    conversation: ConversationId,
    branch: BranchQuery = MAIN_BRANCH,
    message: Annotated[str, Query(max_length=8_000, description="The question to preview.")] = "",
    model: ModelQuery = None,
) -> Manifest:
    """Manifest that a request would have now. Changes nothing.

    Without a question, in the session of a client that holds its own messages, it is what the client last sent.
    """
    loaded = await load_conversation(engine_for_caller(server_state, caller, model=model), conversation, branch)
    last = None if message else await find_last_client_request(loaded.engine.store, conversation, branch)
    return last.manifest if last is not None else await loaded.preview(message)


@router.get("/items")
async def list_items(
    engine: ReadEngine, conversation: ConversationId, branch: BranchQuery = MAIN_BRANCH
) -> ContextItemListSchema:
    loaded = await load_conversation(engine, conversation, branch)
    return await _list_items(loaded)


@router.post("/items", status_code=201)
async def add_item(
    engine: EditEngine, conversation: ConversationId, body: AddItemBody, branch: BranchQuery = MAIN_BRANCH
) -> ContextItemListSchema:
    """Adds a rule, reference or tool of the agent to the session."""
    loaded = await load_conversation(engine, conversation, branch)
    named = ContextItem(type=body.type, name=body.name, server=body.server) if body.type is not None else body.name
    await loaded.add_item(named)
    return await _list_items(loaded)


@router.delete("/items/{type}/{name:path}")
async def remove_item(
    engine: EditEngine,
    conversation: ConversationId,
    type: ItemType,
    name: Annotated[str, Path(min_length=1, max_length=500)],
    branch: BranchQuery = MAIN_BRANCH,
    server: Annotated[str | None, Query(max_length=500, description="MCP server of a tool.")] = None,
) -> ContextItemListSchema:
    """Removes an item from the session, whatever its include mode."""
    loaded = await load_conversation(engine, conversation, branch)
    await loaded.remove_item(ContextItem(type=type, name=name, server=server))
    return await _list_items(loaded)


@router.post("/pins", status_code=201)
async def pin_message(
    engine: EditEngine, conversation: ConversationId, body: AddPinBody, branch: BranchQuery = MAIN_BRANCH
) -> PinListSchema:
    """Pins a message: it stays in the request verbatim through every compaction."""
    loaded = await load_conversation(engine, conversation, branch)
    await loaded.pin(body.seq)
    return PinListSchema(pins=list((await _load_state(loaded)).pins))


@router.delete("/pins/{seq}")
async def unpin_message(
    engine: EditEngine, conversation: ConversationId, seq: EntrySeq, branch: BranchQuery = MAIN_BRANCH
) -> PinListSchema:
    loaded = await load_conversation(engine, conversation, branch)
    await loaded.unpin(seq)
    return PinListSchema(pins=list((await _load_state(loaded)).pins))


@router.post("/drops", status_code=201)
async def drop_message(
    engine: EditEngine, conversation: ConversationId, body: AddDropBody, branch: BranchQuery = MAIN_BRANCH
) -> DropListSchema:
    """Drops a message from later requests, including an agent's own requests. A stub names it."""
    loaded = await load_conversation(engine, conversation, branch)
    await loaded.drop(body.seq, reason=body.reason, now=body.now)
    return await _list_drops(loaded)


@router.delete("/drops/{seq}")
async def restore_message(
    engine: EditEngine,
    conversation: ConversationId,
    seq: EntrySeq,
    branch: BranchQuery = MAIN_BRANCH,
    now: Annotated[bool, Query(description="Whether it takes effect even if that breaks a warm prompt cache.")] = False,
) -> DropListSchema:
    """Brings a message back: a dropped one as it was, an archived one as a pinned message."""
    loaded = await load_conversation(engine, conversation, branch)
    await loaded.restore(seq, now=now)
    return await _list_drops(loaded)


async def _list_drops(conversation: Conversation) -> DropListSchema:
    drops, waiting = (await _load_state(conversation)).drops or (), await load_effect(conversation)
    return DropListSchema.model_validate({"drops": drops, "waiting": waiting})


async def _load_state(conversation: Conversation) -> BranchState:
    return (await conversation.engine.store.get_branch(conversation.id, conversation.branch)).state


@router.put("/priorities/{seq}")
async def set_priority(
    engine: EditEngine,
    conversation: ConversationId,
    seq: EntrySeq,
    body: SetPriorityBody,
    branch: BranchQuery = MAIN_BRANCH,
) -> PriorityListSchema:
    """Sets the priority of a message. Compactions of the `hybrid` strategy archive messages of low priority first, and
    preserve high-priority ones verbatim up to a share of the request."""
    loaded = await load_conversation(engine, conversation, branch)
    await loaded.set_priority(seq, body.priority)
    return PriorityListSchema(priorities=list((await _load_state(loaded)).priorities))


async def _list_items(conversation: Conversation) -> ContextItemListSchema:
    agent = conversation.engine.agent
    modes: dict[ContextItem, SessionIncludeMode] = {each.item: each.include for each in await conversation.items()}
    items = [*modes, *(item for item in index_agent_items(agent) if item not in modes)]
    return ContextItemListSchema(
        items=[ContextItemSchema.from_item(item, agent, session_mode=modes.get(item)) for item in items]
    )


class CompactionStatusSchema(JsonModel):
    active: ActiveCompactionSchema | None
    plan: CompactionPlanSchema | None = Field(
        description="What a manual compaction would do now; null if that would free no tokens."
    )
    waiting: EditEffectSchema | None = Field(
        description="Edits that an agent's list does not have yet, what they will do and when; null if there are none."
    )


class CompactBody(BaseModel):
    instructions: str | None = Field(default=None, max_length=10_000, description="What the summary must preserve.")


class EditSummaryBody(BaseModel):
    summary: str = Field(min_length=1, max_length=200_000)


@compaction_router.get("")
async def get_compaction(
    engine: ReadEngine, conversation: ConversationId, branch: BranchQuery = MAIN_BRANCH
) -> CompactionStatusSchema:
    return await _load_status(await load_conversation(engine, conversation, branch))


@compaction_router.post("")
async def compact(
    engine: ChatEngine, conversation: ConversationId, body: CompactBody, branch: BranchQuery = MAIN_BRANCH
) -> CompactionStatusSchema:
    """Compacts now, even below the threshold. Nothing is deleted, and it can be undone."""
    loaded = await load_conversation(engine, conversation, branch)
    await loaded.compact(instructions=body.instructions)
    return await _load_status(loaded)


@compaction_router.put("")
async def edit_summary(
    engine: EditEngine, conversation: ConversationId, body: EditSummaryBody, branch: BranchQuery = MAIN_BRANCH
) -> CompactionStatusSchema:
    """Replaces the text of the current summary. Undo restores the previous one."""
    loaded = await load_conversation(engine, conversation, branch)
    await loaded.edit_summary(body.summary)
    return await _load_status(loaded)


@compaction_router.delete("")
async def undo_compaction(
    engine: EditEngine, conversation: ConversationId, branch: BranchQuery = MAIN_BRANCH
) -> CompactionStatusSchema:
    """Undoes the active compaction: the model sees again what it saw before."""
    loaded = await load_conversation(engine, conversation, branch)
    await loaded.undo_compaction()
    return await _load_status(loaded)


@compaction_router.post("/redo")
async def redo_compaction(
    engine: EditEngine, conversation: ConversationId, branch: BranchQuery = MAIN_BRANCH
) -> CompactionStatusSchema:
    """Makes the compaction that was undone last active again, unless another one was made since."""
    loaded = await load_conversation(engine, conversation, branch)
    await loaded.redo_compaction()
    return await _load_status(loaded)


async def _load_status(conversation: Conversation) -> CompactionStatusSchema:
    store = conversation.engine.store
    active = (await _load_state(conversation)).active_compaction
    entry = (
        await store.get_entry(conversation.id, active.seq, branch=conversation.branch) if active is not None else None
    )
    plan, waiting = await conversation.plan_compaction(), await load_effect(conversation)
    return CompactionStatusSchema.model_validate({"active": entry, "plan": plan, "waiting": waiting})
