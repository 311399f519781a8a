"""Routes that read and delete recorded responses. All answer from the log, also if the upstream stores responses."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from quire.errors import InvalidRequest, ResponseNotFound
from quire.log import RecordedRequest, Store
from quire.server.auth import Caller
from quire.server.dependencies import ChatCaller, StateDep
from quire.server.gateway.codecs.responses_object import build_recorded_response
from quire.server.gateway.reply_references import load_request_record
from quire.server.gateway.response_items import (
    ItemOrder,
    build_entry_items,
    build_item_page,
    build_leading_items,
    get_response_fields,
    iterate_items,
)
from quire.server.state import ServerState
from quire.view.wire_formats.fields import filter_objects, get_object

router = APIRouter(prefix="/v1", tags=["gateway"])

ResponseId = Annotated[str, Path(min_length=1, max_length=200, description="ID of the response.")]
ItemCursor = Annotated[str | None, Query(max_length=200, description="ID of the last item of the previous page.")]
ItemLimit = Annotated[int, Query(ge=1, le=100, description="Maximum number of items on the page.")]
OrderQuery = Annotated[ItemOrder, Query(description="Oldest items first (`asc`), or newest first (`desc`).")]


@router.get("/responses/{response_id}", summary="Read a response")
async def get_response(
    response_id: ResponseId,
    server_state: StateDep,
    caller: ChatCaller,
    stream: Annotated[bool, Query(description="Not supported: a recorded response is read whole.")] = False,
) -> dict[str, Any]:
    """The response as the client got it. One that was created with `store: false` is not found."""
    if stream:
        raise InvalidRequest("A recorded response cannot be streamed; read it without `stream`.")
    store = _get_store(server_state, caller)
    recorded = await _find_response(store, response_id)
    entry = await store.get_entry(recorded.conversation, recorded.seq, branch=recorded.branch)
    record = await load_request_record(store, recorded)
    response = build_recorded_response(
        build_entry_items(entry),
        request_fields=get_object(record, "fields"),
        response_fields=get_response_fields(entry),
        usage=entry.metadata.usage,
        is_cut_off=bool(entry.metadata.incomplete),
    )
    return {**response, "id": response_id}


@router.delete("/responses/{response_id}", summary="Delete a response")
async def delete_response(response_id: ResponseId, server_state: StateDep, caller: ChatCaller) -> dict[str, Any]:
    """The response can neither be read nor continued any more. The log still has the turn; a purge removes it."""
    store = _get_store(server_state, caller)
    await _find_response(store, response_id)
    await store.forget_response(response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/responses/{response_id}/cancel", summary="Cancel a response")
async def cancel_response(response_id: ResponseId, server_state: StateDep, caller: ChatCaller) -> dict[str, Any]:
    """Only a response with `background: true` can be cancelled, and Quire runs none."""
    await _find_response(_get_store(server_state, caller), response_id)
    raise InvalidRequest("Only a response that was created with `background: true` can be cancelled.")


@router.get("/responses/{response_id}/input_items", summary="List the input items of a response")
async def list_input_items(
    response_id: ResponseId,
    server_state: StateDep,
    caller: ChatCaller,
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
        store, recorded.conversation, recorded.branch, last=recorded.seq - 1, order=order, leading=leading
    )
    return await build_item_page(items, after=after, limit=limit)


def _get_store(server_state: ServerState, caller: Caller) -> Store:
    return server_state.engine_for(caller.tenant).store


async def _find_response(store: Store, response_id: str) -> RecordedRequest:
    """Finds a response; the IDs of replies in other formats are not those of responses."""
    recorded = await store.find_response(response_id)
    if recorded.manifest.forwarded is None or recorded.manifest.forwarded.request_blob is None:
        raise ResponseNotFound(response_id)
    return recorded
