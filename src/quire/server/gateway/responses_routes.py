"""Routes of OpenAI's Responses API that read and change what is recorded: responses, and conversations as items.

All answer from the log, also if the upstream stores responses. Reads need the scope `read`, since the log has what
other keys of the tenant have written.
"""

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field

from quire.concurrency.worker_threads import run_sized
from quire.engine import Conversation
from quire.errors import ConversationNotFound, EntryNotFound, InvalidRequest, ResponseNotFound
from quire.log import Branch, ConversationRecord, RecordedRequest
from quire.model import Entry, Message
from quire.model.ids import new_id
from quire.model.json_values import filter_objects, get_object
from quire.proxy.response_items import (
    ItemOrder,
    build_entry_items,
    build_item_page,
    build_leading_items,
    find_item_entry,
    get_response_fields,
    iterate_items,
    load_request_record,
    to_async,
)
from quire.server.caller import Caller
from quire.server.dependencies import ChatCaller, PurgeCaller, ReadCaller, StateDep, engine_for_caller
from quire.server.gateway.routes import pass_on
from quire.server.gateway.upstream import find_response_store
from quire.server.problems import problem_response
from quire.server.sized_responses import respond_sized
from quire.server.state import ServerState, get_server_state
from quire.server.websocket import TENANT_HEADER
from quire.store import SqlStore
from quire.wire import WireMessage
from quire.wire.codec import RequestLimitExceeded, UnreadableBody
from quire.wire.codecs import RESPONSES
from quire.wire.responses.codec import CONVERSATION_ID_PREFIX
from quire.wire.responses.object import build_recorded_response

router = APIRouter(prefix="/v1", tags=["gateway"])
conversations_router = APIRouter(prefix="/v1/conversations", tags=["gateway"])
"""Conversations of the log, whose IDs have the prefix `conv_` here."""

MAX_ITEMS = 1_000
"""Maximum items that one request adds to a conversation."""
MICROSECONDS_PER_SECOND = 1_000_000

ResponseId = Annotated[str, Path(min_length=1, max_length=200, description="ID of the response.")]
ItemCursor = Annotated[str | None, Query(max_length=200, description="ID of the last item of the previous page.")]
ItemLimit = Annotated[int, Query(ge=1, le=100, description="Maximum number of items on the page.")]
OrderQuery = Annotated[ItemOrder, Query(description="Oldest items first (`asc`), or newest first (`desc`).")]
ConversationPath = Annotated[str, Path(min_length=1, max_length=210, description="ID of the conversation.")]
ItemPath = Annotated[str, Path(min_length=1, max_length=200, description="ID of the item.")]
Items = Annotated[list[dict[str, Any]], Field(max_length=MAX_ITEMS, description="Items, as in a request's `input`.")]


@router.get("/responses", include_in_schema=False)
async def accept_websocket(request: Request, caller: ChatCaller) -> Response:
    """Accepts the handshake of a WebSocket, which `quire.server.websocket` serves."""
    if request.headers.get("upgrade", "").lower() != "websocket":
        return problem_response(
            405, detail="Send a request by POST.", code="method_not_allowed", headers={"Allow": "POST"}
        )
    return Response(status_code=101, headers={TENANT_HEADER: quote(caller.tenant)})


@router.get("/responses/{response_id}", summary="Read a response", response_model=None)
async def get_response(
    request: Request,
    response_id: ResponseId,
    server_state: StateDep,
    caller: ReadCaller,
    stream: Annotated[bool, Query(description="Streams the events of a background response.")] = False,
) -> dict[str, Any] | Response:
    """The response as the client got it. One that was created with `store: false` is not found.

    One that the log lacks, such as a background response, is read from the provider, if only the caller's own account
    there can have it. So are events.
    """
    store = _get_store(server_state, caller)
    if stream:
        return await _pass_to_provider(request, caller, response_id)
    try:
        recorded = await _find_response(store, response_id)
    except ResponseNotFound:
        return await _pass_to_provider(request, caller, response_id)
    entry = await store.get_entry(recorded.conversation, recorded.seq, branch=recorded.branch)
    record = await load_request_record(store, recorded)

    def build() -> dict[str, Any]:
        response = build_recorded_response(
            build_entry_items(entry),
            request_fields=get_object(record, "fields"),
            response_fields=get_response_fields(entry),
            usage=entry.metadata.usage,
            is_cut_off=bool(entry.metadata.incomplete),
        )
        return {**response, "id": response_id}

    return await respond_sized(len(entry.raw), build)


@router.delete("/responses/{response_id}", summary="Delete a response", response_model=None)
async def delete_response(
    request: Request, response_id: ResponseId, server_state: StateDep, caller: ChatCaller
) -> dict[str, Any] | Response:
    """The response can neither be read nor continued any more. The log still has the turn. A purge removes it."""
    store = _get_store(server_state, caller)
    try:
        await _find_response(store, response_id)
    except ResponseNotFound:
        return await _pass_to_provider(request, caller, response_id)
    await store.forget_response(response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/responses/{response_id}/cancel", summary="Cancel a response", response_model=None)
async def cancel_response(
    request: Request, response_id: ResponseId, server_state: StateDep, caller: ChatCaller
) -> Response:
    """Cancels a response with `background: true`, at the provider."""
    try:
        await _find_response(_get_store(server_state, caller), response_id)
    except ResponseNotFound:
        return await _pass_to_provider(request, caller, response_id)
    raise InvalidRequest("Only a response with `background: true` that has not ended can be cancelled.")


@router.get("/responses/{response_id}/input_items", summary="List the input items of a response")
async def list_input_items(
    response_id: ResponseId,
    server_state: StateDep,
    caller: ReadCaller,
    after: ItemCursor = None,
    limit: ItemLimit = 20,
    order: OrderQuery = "desc",
) -> dict[str, Any]:
    """The whole history that the response answers, also what its request did not repeat."""
    store = _get_store(server_state, caller)
    recorded = await _find_response(store, response_id)
    record = await load_request_record(store, recorded)
    leading = build_leading_items(filter_objects(record.get("leading")), conversation=recorded.conversation)
    items = iterate_items(
        store,
        recorded.conversation,
        recorded.branch,
        last=recorded.seq - 1,
        order=order,
        leading=leading,
        after=after,
    )
    return await _respond(await build_item_page(items, after=after, limit=limit))


async def _pass_to_provider(request: Request, caller: Caller, response_id: str) -> Response:
    """Raises `ResponseNotFound` unless the provider stores responses in an account of the caller's own."""
    upstream = find_response_store(get_server_state(request).settings, caller)
    if upstream is None:
        raise ResponseNotFound(response_id)
    return await pass_on(request, caller, request.url.path.removeprefix("/v1/"), is_stored=True, upstream=upstream)


async def _respond(page: dict[str, Any]) -> dict[str, Any]:
    texts = (piece.get("text") for item in page["data"] for piece in filter_objects(item.get("content")))
    outputs = (item.get(name) for item in page["data"] for name in ("output", "arguments", "input"))
    size = sum(len(text) for text in (*texts, *outputs) if isinstance(text, str))
    return await respond_sized(size, lambda: page)


def _get_store(server_state: ServerState, caller: Caller) -> SqlStore:
    return server_state.engine_for(caller.tenant).store


async def _find_response(store: SqlStore, response_id: str) -> RecordedRequest:
    """Finds a response. Replies in other formats have IDs too, but are no responses."""
    recorded = await store.find_response(response_id)
    if recorded.manifest.forwarded is None or recorded.manifest.forwarded.request_blob is None:
        raise ResponseNotFound(response_id)
    return recorded


MAX_TITLE_CHARS = 200
ConversationMetadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16, description="Notes of the client. `title` is the title of the conversation, too."),
]


class GatewayConversationBody(BaseModel):
    items: Items | None = None
    metadata: ConversationMetadata | None = None


class GatewayConversationUpdate(BaseModel):
    metadata: ConversationMetadata


class GatewayItemsBody(BaseModel):
    items: Items


@conversations_router.post("", summary="Create a conversation")
async def create_conversation(
    caller: ChatCaller, server_state: StateDep, body: GatewayConversationBody
) -> dict[str, Any]:
    """Creates a conversation that requests can name in `conversation`."""
    store, metadata = _get_store(server_state, caller), body.metadata or {}
    messages = _parse_items(body.items or [])
    record = await store.create_conversation(new_id(), title=metadata.get("title", "")[:MAX_TITLE_CHARS])
    if others := _drop_title(metadata):
        await store.set_metadata(record.id, others)
    await _append(server_state, caller, await store.get_branch(record.id), messages)
    return _to_object(record, metadata)


@conversations_router.get("/{conversation}", summary="Read a conversation")
async def get_conversation(
    caller: ReadCaller, server_state: StateDep, conversation: ConversationPath
) -> dict[str, Any]:
    store = _get_store(server_state, caller)
    record = await _load_record(store, conversation)
    return _to_object(record, await store.get_metadata(record.id))


@conversations_router.post("/{conversation}", summary="Change the metadata of a conversation")
async def update_conversation(
    caller: ChatCaller, server_state: StateDep, conversation: ConversationPath, body: GatewayConversationUpdate
) -> dict[str, Any]:
    """Replaces the metadata. The title changes only if it is among them, because other clients may have set it."""
    store = _get_store(server_state, caller)
    record = await _load_record(store, conversation)
    if "title" in body.metadata:
        record = record._replace(title=body.metadata["title"][:MAX_TITLE_CHARS])
        await store.rename_conversation(record.id, record.title)
    await store.set_metadata(record.id, _drop_title(body.metadata))
    return _to_object(record, body.metadata)


@conversations_router.delete("/{conversation}", summary="Purge a conversation")
async def delete_conversation(
    caller: PurgeCaller, server_state: StateDep, conversation: ConversationPath
) -> dict[str, Any]:
    """Erases the content of the conversation permanently. The key needs the scope for that."""
    store = _get_store(server_state, caller)
    record = await _load_record(store, conversation)
    await store.purge(record.id)
    return {"id": f"{CONVERSATION_ID_PREFIX}{record.id}", "object": "conversation.deleted", "deleted": True}


@conversations_router.get("/{conversation}/items", summary="List the items of a conversation")
async def list_items(
    caller: ReadCaller,
    server_state: StateDep,
    conversation: ConversationPath,
    after: ItemCursor = None,
    limit: ItemLimit = 20,
    order: OrderQuery = "desc",
) -> dict[str, Any]:
    """Items of the branch that was used last."""
    store = _get_store(server_state, caller)
    branch = await _load_branch(store, conversation)
    items = iterate_items(store, branch.conversation, branch.number, order=order, after=after)
    return await _respond(await build_item_page(items, after=after, limit=limit))


@conversations_router.post("/{conversation}/items", summary="Add items to a conversation")
async def add_items(
    caller: ChatCaller, server_state: StateDep, conversation: ConversationPath, body: GatewayItemsBody
) -> dict[str, Any]:
    """Appends items to the branch that was used last, without a model call."""
    branch, messages = await _load_branch(_get_store(server_state, caller), conversation), _parse_items(body.items)
    items = await _append(server_state, caller, branch, messages)
    return await build_item_page(to_async(items), after=None, limit=MAX_ITEMS)


@conversations_router.get("/{conversation}/items/{item}", summary="Read an item of a conversation")
async def get_item(
    caller: ReadCaller, server_state: StateDep, conversation: ConversationPath, item: ItemPath
) -> dict[str, Any]:
    store = _get_store(server_state, caller)
    entry, found = await _find_item(store, await _load_branch(store, conversation), item)
    return await respond_sized(len(entry.raw), lambda: found)


@conversations_router.delete("/{conversation}/items/{item}", summary="Purge an item of a conversation")
async def delete_item(
    caller: PurgeCaller, server_state: StateDep, conversation: ConversationPath, item: ItemPath
) -> dict[str, Any]:
    """Erases the message that the item is part of permanently. The key needs the scope for that."""
    store = _get_store(server_state, caller)
    record, branch = await _load_record(store, conversation), await _load_branch(store, conversation)
    entry, _ = await _find_item(store, branch, item)
    await store.purge(record.id, [entry.seq], branch=branch.number)
    return _to_object(record, await store.get_metadata(record.id))


def _drop_title(metadata: dict[str, str]) -> dict[str, str]:
    """The metadata without the title, which other routes and commands change, too."""
    return {name: value for name, value in metadata.items() if name != "title"}


def _to_object(record: ConversationRecord, metadata: dict[str, str]) -> dict[str, Any]:
    return {
        "id": f"{CONVERSATION_ID_PREFIX}{record.id}",
        "object": "conversation",
        "created_at": record.created_at // MICROSECONDS_PER_SECOND,
        "metadata": {**({"title": record.title} if record.title else {}), **_drop_title(metadata)},
    }


async def _load_record(store: SqlStore, conversation: str) -> ConversationRecord:
    """Loads a conversation. One that was purged does not exist for these routes."""
    record = await store.get_conversation(conversation.removeprefix(CONVERSATION_ID_PREFIX))
    if await store.is_purged(record.id):
        raise ConversationNotFound(f"The conversation {conversation!r} was purged.")
    return record


async def _load_branch(store: SqlStore, conversation: str) -> Branch:
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


async def _find_item(store: SqlStore, branch: Branch, item_id: str) -> tuple[Entry, WireMessage]:
    entry = await find_item_entry(store, branch.conversation, branch.number, item_id)
    if entry is not None:
        items = await run_sized(len(entry.raw), build_entry_items, entry)
        return entry, next(item for item in items if item.get("id") == item_id)
    raise EntryNotFound(f"Item with id '{item_id}' not found.")
