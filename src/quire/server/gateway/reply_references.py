"""Requests that continue a recorded reply, by its ID: what the log adds to them."""

from contextlib import suppress
from typing import Any

from pydantic_core import from_json

from quire.errors import BlobNotFound, InvalidRequest, ResponseNotFound
from quire.log import RecordedRequest, Store
from quire.model import ToolDefinition
from quire.server.gateway.codecs.base import ClientRequest, Codec
from quire.server.gateway.codecs.responses import SEAL_PREFIX
from quire.server.gateway.codecs.responses_object import make_response_id
from quire.server.gateway.compaction_items import load_compacted_items
from quire.server.gateway.response_items import build_entry_items

MAX_REFERENCED_RESPONSES = 100
"""Maximum responses that the items of one request refer to; each one is a read of the log."""


async def restore_envelope(client_request: ClientRequest, store: Store) -> ClientRequest:
    """Adds what the request inherits of the reply's own request: its instructions and tools, or parts of them."""
    codec = client_request.codec
    if client_request.previous_reply is None:
        return client_request
    recorded = await store.find_response(client_request.previous_reply)
    if not codec.carries_envelope:
        return codec.carry_over(client_request, await load_request_record(store, recorded))
    texts = {
        kind: [
            (await store.get_blob(row.blob)).data.decode()
            for row in recorded.manifest.included
            if row.kind == kind and row.blob is not None
        ]
        for kind in ("instructions", "tool")
    }
    tools = [ToolDefinition.parse(text) for text in texts["tool"]]
    fields = codec.build_envelope("\n\n".join(texts["instructions"]), tools)
    return codec.parse_request(client_request.raw, {**fields, **client_request.body})


async def resolve_items(codec: Codec, body: dict[str, Any], store: Store) -> dict[str, Any]:
    """Replaces references to items of recorded replies by the items; the same body if it has none that are known."""
    references = codec.list_item_references(body)
    sealed = [reference for reference in references if reference.startswith(SEAL_PREFIX)]
    request_ids = map(_find_request_id, references)
    response_ids = {make_response_id(request_id) for request_id in request_ids if request_id is not None}
    if len(response_ids) + len(sealed) > MAX_REFERENCED_RESPONSES:
        raise InvalidRequest(f"The input refers to more than {MAX_REFERENCED_RESPONSES} responses; send items whole.")
    items = {reference: loaded for reference in sealed if (loaded := await load_compacted_items(store, reference))}
    for response_id in response_ids:
        with suppress(ResponseNotFound):
            recorded = await store.find_response(response_id)
            entry = await store.get_entry(recorded.conversation, recorded.seq, branch=recorded.branch)
            items |= {item["id"]: [item] for item in build_entry_items(entry)}
    return codec.insert_items(body, items) if items else body


def _find_request_id(item_id: str) -> str | None:
    """The request in the ID of an item of a translated response, which is a prefix, the request and a number."""
    match item_id.split("_"):
        case [str(), str(request_id), str(number)] if number.isdecimal():
            return request_id or None
        case _:
            return None


async def load_request_record(store: Store, recorded: RecordedRequest) -> dict[str, Any]:
    """Loads what the reply's own request has recorded for later ones; empty if that was purged."""
    forwarded = recorded.manifest.forwarded
    if forwarded is None or forwarded.request_blob is None:
        return {}
    try:
        return from_json((await store.get_blob(forwarded.request_blob)).data)
    except BlobNotFound:
        return {}
