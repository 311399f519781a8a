"""Context of the next request: token usage, preview, session items, pins, priorities."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from quire.context.items import ResolvedSessionItem, index_agent_items
from quire.engine.context import EngineContext
from quire.log import MAIN_BRANCH
from quire.model import ContextItem, Manifest, Priority
from quire.model.entry_bodies import MAX_PRIORITY, MIN_PRIORITY, SessionIncludeMode
from quire.schemas.context import ContextItemSchema, ContextUsageSchema, ItemType
from quire.server.dependencies import (
    BranchQuery,
    ConversationId,
    EntrySeq,
    ModelQuery,
    ReadCaller,
    StateDep,
    WriteCaller,
    load_conversation,
)

router = APIRouter(prefix="/api/conversations/{conversation}", tags=["context"])


class ContextItemListSchema(BaseModel):
    items: list[ContextItemSchema] = Field(description="Items of the session first, then other items of the agent.")


class AddItemBody(BaseModel):
    name: str = Field(min_length=1, max_length=500)
    type: ItemType | None = None
    server: str | None = Field(default=None, max_length=500)


class AddPinBody(BaseModel):
    seq: int = Field(ge=1, le=2**62, description="Sequence number of the message.")


class PinListSchema(BaseModel):
    pins: list[int]


class SetPriorityBody(BaseModel):
    priority: int | None = Field(ge=MIN_PRIORITY, le=MAX_PRIORITY, description="1 to 10; null resets it to 5.")


class PriorityListSchema(BaseModel):
    priorities: list[Priority] = Field(description="Messages for which a priority is set.")


@router.get("/usage")
async def get_usage(
    caller: ReadCaller,
    server_state: StateDep,
    conversation: ConversationId,
    branch: BranchQuery = MAIN_BRANCH,
    model: ModelQuery = None,
) -> ContextUsageSchema:
    """Token usage of the next request before a question is added, and the compaction trigger."""
    loaded = await load_conversation(server_state, caller, conversation, branch, model=model)
    return ContextUsageSchema.from_report(await loaded.usage())


@router.get("/context")
async def preview_context(
    caller: ReadCaller,
    server_state: StateDep,
    conversation: ConversationId,
    branch: BranchQuery = MAIN_BRANCH,
    message: Annotated[str, Query(max_length=8_000, description="The question to preview.")] = "",
    model: ModelQuery = None,
) -> Manifest:
    """Manifest that a request would have now. Changes nothing."""
    return await (await load_conversation(server_state, caller, conversation, branch, model=model)).preview(message)


@router.get("/items")
async def list_items(
    caller: ReadCaller, server_state: StateDep, conversation: ConversationId, branch: BranchQuery = MAIN_BRANCH
) -> ContextItemListSchema:
    loaded = await load_conversation(server_state, caller, conversation, branch)
    return _list_items(loaded.engine, await loaded.items())


@router.post("/items", status_code=201)
async def add_item(
    caller: WriteCaller,
    server_state: StateDep,
    conversation: ConversationId,
    body: AddItemBody,
    branch: BranchQuery = MAIN_BRANCH,
) -> ContextItemListSchema:
    """Adds a rule, reference or tool of the agent to the session."""
    loaded = await load_conversation(server_state, caller, conversation, branch)
    await loaded.add_item(_to_context_item(body))
    return _list_items(loaded.engine, await loaded.items())


@router.delete("/items/{type}/{name:path}")
async def remove_item(
    caller: WriteCaller,
    server_state: StateDep,
    conversation: ConversationId,
    type: ItemType,
    name: Annotated[str, Path(min_length=1, max_length=500)],
    branch: BranchQuery = MAIN_BRANCH,
    server: Annotated[str | None, Query(max_length=500, description="MCP server of a tool.")] = None,
) -> ContextItemListSchema:
    """Removes an item from the session, whatever its include mode."""
    loaded = await load_conversation(server_state, caller, conversation, branch)
    await loaded.remove_item(ContextItem(type=type, name=name, server=server))
    return _list_items(loaded.engine, await loaded.items())


@router.post("/pins", status_code=201)
async def pin_message(
    caller: WriteCaller,
    server_state: StateDep,
    conversation: ConversationId,
    body: AddPinBody,
    branch: BranchQuery = MAIN_BRANCH,
) -> PinListSchema:
    """Pins a message: it stays in the request verbatim through every compaction."""
    loaded = await load_conversation(server_state, caller, conversation, branch)
    await loaded.pin(body.seq)
    return await _load_pins(loaded.engine, conversation, branch)


@router.delete("/pins/{seq}")
async def unpin_message(
    caller: WriteCaller,
    server_state: StateDep,
    conversation: ConversationId,
    seq: EntrySeq,
    branch: BranchQuery = MAIN_BRANCH,
) -> PinListSchema:
    loaded = await load_conversation(server_state, caller, conversation, branch)
    await loaded.unpin(seq)
    return await _load_pins(loaded.engine, conversation, branch)


async def _load_pins(engine: EngineContext, conversation: str, branch: int) -> PinListSchema:
    return PinListSchema(pins=list((await engine.store.get_branch(conversation, branch)).state.pins))


@router.put("/priorities/{seq}")
async def set_priority(
    caller: WriteCaller,
    server_state: StateDep,
    conversation: ConversationId,
    seq: EntrySeq,
    body: SetPriorityBody,
    branch: BranchQuery = MAIN_BRANCH,
) -> PriorityListSchema:
    """Sets the priority of a message. Compactions of the `hybrid` strategy archive messages of low priority first, and
    preserve those of high priority verbatim up to a share of the request."""
    loaded = await load_conversation(server_state, caller, conversation, branch)
    await loaded.set_priority(seq, body.priority)
    state = (await loaded.engine.store.get_branch(conversation, branch)).state
    return PriorityListSchema(priorities=list(state.priorities))


def _to_context_item(item: AddItemBody) -> ContextItem | str:
    return item.name if item.type is None else ContextItem(type=item.type, name=item.name, server=item.server)


def _list_items(engine: EngineContext, session: list[ResolvedSessionItem]) -> ContextItemListSchema:
    modes: dict[ContextItem, SessionIncludeMode] = {each.item: each.include for each in session}
    items = [*modes, *(item for item in index_agent_items(engine.agent) if item not in modes)]
    return ContextItemListSchema(
        items=[ContextItemSchema.from_item(item, engine.agent, session_mode=modes.get(item)) for item in items]
    )
