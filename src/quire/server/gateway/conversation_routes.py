"""OpenAI's conversations: those of the log, whose IDs have the prefix `conv_` here."""

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from quire.engine import Conversation
from quire.errors import ConversationNotFound, EntryNotFound, InvalidRequest
from quire.log import Branch, ConversationRecord, Store
from quire.log.ids import new_id
from quire.model import Entry, Message
from quire.server.auth import Caller
from quire.server.dependencies import AdminCaller, ChatCaller, StateDep, engine_for_caller
from quire.server.gateway.codecs import RESPONSES
from quire.server.gateway.codecs.bodies import RequestLimitExceeded, UnreadableBody
from quire.server.gateway.codecs.responses import CONVERSATION_ID_PREFIX
from quire.server.gateway.response_items import (
    build_entry_items,
    build_item_page,
    iterate_entries,
    iterate_items,
    to_async,
)
from quire.server.gateway.responses_routes import ItemCursor, ItemLimit, OrderQuery
from quire.server.state import ServerState
from quire.view.wire_formats import WireMessage

router = APIRouter(prefix="/v1/conversations", tags=["gateway"])

MAX_ITEMS = 1_000
"""Maximum items that one request adds to a conversation."""
MICROSECONDS_PER_SECOND = 1_000_000

ConversationPath = Annotated[str, Path(min_length=1, max_length=210, description="ID of the conversation.")]
ItemPath = Annotated[str, Path(min_length=1, max_length=200, description="ID of the item.")]
Items = Annotated[list[dict[str, Any]], Field(max_length=MAX_ITEMS, description="Items, as in a request's `input`.")]


class ConversationMetadata(BaseModel, extra="forbid"):
    """The log has only a title for a conversation, so that no other key is accepted."""

    title: str = Field(default="", max_length=200)


class GatewayConversationBody(BaseModel):
    items: Items | None = None
    metadata: ConversationMetadata | None = None


class GatewayConversationUpdate(BaseModel):
    metadata: ConversationMetadata


class GatewayItemsBody(BaseModel):
    items: Items


@router.post("", summary="Create a conversation")
async def create_conversation(
    caller: ChatCaller, server_state: StateDep, body: GatewayConversationBody
) -> dict[str, Any]:
    """Creates a conversation that requests can name in `conversation`."""
    store, title = _get_store(server_state, caller), body.metadata.title if body.metadata is not None else ""
    messages = _parse_items(body.items or [])
    record = await store.create_conversation(new_id(), title=title)
    await _append(server_state, caller, await store.get_branch(record.id), messages)
    return _to_object(record)


@router.get("/{conversation}", summary="Read a conversation")
async def get_conversation(
    caller: ChatCaller, server_state: StateDep, conversation: ConversationPath
) -> dict[str, Any]:
    return _to_object(await _load_record(_get_store(server_state, caller), conversation))


@router.post("/{conversation}", summary="Rename a conversation")
async def update_conversation(
    caller: ChatCaller, server_state: StateDep, conversation: ConversationPath, body: GatewayConversationUpdate
) -> dict[str, Any]:
    store = _get_store(server_state, caller)
    record = await _load_record(store, conversation)
    await store.rename_conversation(record.id, body.metadata.title)
    return _to_object(record._replace(title=body.metadata.title))


@router.delete("/{conversation}", summary="Purge a conversation")
async def delete_conversation(
    caller: AdminCaller, server_state: StateDep, conversation: ConversationPath
) -> dict[str, Any]:
    """Erases the content of the conversation permanently; the key needs the scope for that."""
    store = _get_store(server_state, caller)
    record = await _load_record(store, conversation)
    await store.purge(record.id)
    return {"id": _to_object(record)["id"], "object": "conversation.deleted", "deleted": True}


@router.get("/{conversation}/items", summary="List the items of a conversation")
async def list_items(
    caller: ChatCaller,
    server_state: StateDep,
    conversation: ConversationPath,
    after: ItemCursor = None,
    limit: ItemLimit = 20,
    order: OrderQuery = "desc",
) -> dict[str, Any]:
    """Items of the branch that was used last."""
    store = _get_store(server_state, caller)
    branch = await _load_branch(store, conversation)
    items = iterate_items(store, branch.conversation, branch.number, order=order)
    return await build_item_page(items, after=after, limit=limit)


@router.post("/{conversation}/items", summary="Add items to a conversation")
async def add_items(
    caller: ChatCaller, server_state: StateDep, conversation: ConversationPath, body: GatewayItemsBody
) -> dict[str, Any]:
    """Appends items to the branch that was used last, without a model call."""
    branch, messages = await _load_branch(_get_store(server_state, caller), conversation), _parse_items(body.items)
    items = await _append(server_state, caller, branch, messages)
    return await build_item_page(to_async(items), after=None, limit=MAX_ITEMS)


@router.get("/{conversation}/items/{item}", summary="Read an item of a conversation")
async def get_item(
    caller: ChatCaller, server_state: StateDep, conversation: ConversationPath, item: ItemPath
) -> dict[str, Any]:
    store = _get_store(server_state, caller)
    _, found = await _find_item(store, await _load_branch(store, conversation), item)
    return found


@router.delete("/{conversation}/items/{item}", summary="Purge an item of a conversation")
async def delete_item(
    caller: AdminCaller, server_state: StateDep, conversation: ConversationPath, item: ItemPath
) -> dict[str, Any]:
    """Erases the message that the item is part of permanently; the key needs the scope for that."""
    store = _get_store(server_state, caller)
    record, branch = await _load_record(store, conversation), await _load_branch(store, conversation)
    entry, _ = await _find_item(store, branch, item)
    await store.purge(record.id, [entry.seq], branch=branch.number)
    return _to_object(record)


def _get_store(server_state: ServerState, caller: Caller) -> Store:
    return engine_for_caller(server_state, caller).store


def _to_object(record: ConversationRecord) -> dict[str, Any]:
    return {
        "id": f"{CONVERSATION_ID_PREFIX}{record.id}",
        "object": "conversation",
        "created_at": record.created_at // MICROSECONDS_PER_SECOND,
        "metadata": {"title": record.title} if record.title else {},
    }


async def _load_record(store: Store, conversation: str) -> ConversationRecord:
    """Loads a conversation; one that was purged does not exist for these routes."""
    record = await store.get_conversation(conversation.removeprefix(CONVERSATION_ID_PREFIX))
    if await store.is_purged(record.id):
        raise ConversationNotFound(f"The conversation {conversation!r} was purged.")
    return record


async def _load_branch(store: Store, conversation: str) -> Branch:
    record = await _load_record(store, conversation)
    latest = await store.match_history((), conversation=record.id)
    return latest.branch if latest is not None else await store.get_branch(record.id)


def _parse_items(items: list[WireMessage]) -> list[Message]:
    if not items:
        return []
    try:
        return RESPONSES.parse_items(items)
    except (UnreadableBody, RequestLimitExceeded) as error:
        raise InvalidRequest(str(error)) from error


async def _append(
    server_state: ServerState, caller: Caller, branch: Branch, messages: list[Message]
) -> list[WireMessage]:
    conversation = Conversation(engine_for_caller(server_state, caller), branch.conversation, branch.number)
    entries = await conversation.append(*messages) if messages else []
    return [item for entry in entries for item in build_entry_items(entry)]


async def _find_item(store: Store, branch: Branch, item_id: str) -> tuple[Entry, WireMessage]:
    async for entry in iterate_entries(store, branch.conversation, branch.number, order="desc"):
        for item in build_entry_items(entry):
            if item.get("id") == item_id:
                return entry, item
    raise EntryNotFound(f"Item with id '{item_id}' not found.")
