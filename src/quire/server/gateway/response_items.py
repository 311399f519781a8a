"""Items of OpenAI's Responses, as the log has them: each with an ID that is the same on every read."""

from collections.abc import AsyncIterator, Iterable
from hashlib import sha256
from typing import Any, Literal

from quire.errors import InvalidRequest
from quire.log import Store
from quire.model import Entry, Message
from quire.model.base import JsonObject
from quire.server.gateway.codecs.responses_object import RESPONSE_ID_PREFIX, build_items
from quire.server.gateway.reply_recorder import CLIENT_RESPONSE_FIELD
from quire.view.wire_formats import WireMessage
from quire.view.wire_formats.fields import get_object, get_text
from quire.view.wire_formats.openai_responses import OpenAIResponsesFormat

ENTRIES_PER_READ = 200
"""Entries of a branch that are read at once to list its items."""
CONVERSATION_DIGEST_CHARS = 16
"""Characters of a conversation's digest in the IDs of its items, which have at most 64."""
ItemOrder = Literal["asc", "desc"]

_ID_PREFIXES = {"message": "msg", "function_call_output": "fco", "custom_tool_call_output": "ctco"}


def get_response_fields(entry: Entry) -> JsonObject:
    """The fields of a reply's response: as the client got it, else as the upstream sent it."""
    usage = entry.metadata.usage
    fields = usage.provider_fields if usage is not None else None
    return get_object(fields or {}, CLIENT_RESPONSE_FIELD, "response")


def build_entry_items(entry: Entry) -> list[WireMessage]:
    """The items of a message, as a client sent or got them."""
    key = make_entry_key(entry.conversation, entry.branch, entry.seq)
    if entry.message.role != "assistant":
        return _add_ids(_render_input(entry.message), key)
    usage = entry.metadata.usage
    client_response = get_object((usage.provider_fields if usage else None) or {}, CLIENT_RESPONSE_FIELD)
    request_id = (get_text(client_response, "id") or "").removeprefix(RESPONSE_ID_PREFIX)
    return build_items(entry.message, request_id=request_id or key)


def build_leading_items(items: list[WireMessage], *, conversation: str) -> list[WireMessage]:
    """Instructions before the history, which are not entries of the log."""
    rendered = [item for message in OpenAIResponsesFormat().parse_messages(items) for item in _render_input(message)]
    return _add_ids(rendered, make_entry_key(conversation, 0, 0))


def make_entry_key(conversation: str, branch: int, seq: int) -> str:
    digest = sha256(conversation.encode()).hexdigest()[:CONVERSATION_DIGEST_CHARS]
    return f"{digest}_{branch}_{seq}"


def _render_input(message: Message) -> list[WireMessage]:
    items = OpenAIResponsesFormat().render_message(message)
    for item in items:
        if item.get("type") == "message" and isinstance(item.get("content"), str):
            item["content"] = [{"type": "input_text", "text": item["content"]}]
    return items


def _add_ids(items: list[WireMessage], key: str) -> list[WireMessage]:
    return [
        {"id": f"{_ID_PREFIXES.get(item['type'], 'item')}_{key}_{index}", "status": "completed", **item}
        for index, item in enumerate(items)
    ]


async def iterate_items(
    store: Store,
    conversation: str,
    branch: int,
    *,
    last: int | None = None,
    order: ItemOrder,
    leading: list[WireMessage] | None = None,
) -> AsyncIterator[WireMessage]:
    """Iterates over the items of a branch up to entry `last`, and over the instructions before them."""
    if order == "asc":
        for item in leading or ():
            yield item
    async for entry in iterate_entries(store, conversation, branch, last=last, order=order):
        items = build_entry_items(entry)
        for item in items if order == "asc" else reversed(items):
            yield item
    if order == "desc":
        for item in reversed(leading or ()):
            yield item


async def iterate_entries(
    store: Store, conversation: str, branch: int, *, last: int | None = None, order: ItemOrder
) -> AsyncIterator[Entry]:
    """Iterates over the messages of a branch up to entry `last`, except those that were purged."""
    first = 1
    while last is None or last >= first:
        if order == "asc":
            entries = await store.read_range(
                conversation, branch=branch, first=first, last=last, kinds=["message"], limit=ENTRIES_PER_READ
            )
        else:
            tail = await store.read_tail(conversation, ENTRIES_PER_READ, branch=branch, last=last, kinds=["message"])
            entries = tail[::-1]
        for entry in entries:
            if entry.purged_at is None:
                yield entry
        if len(entries) < ENTRIES_PER_READ:
            return
        if order == "asc":
            first = entries[-1].seq + 1
        else:
            last = entries[-1].seq - 1


async def to_async(items: Iterable[WireMessage]) -> AsyncIterator[WireMessage]:
    for item in items:
        yield item


async def build_item_page(items: AsyncIterator[WireMessage], *, after: str | None, limit: int) -> dict[str, Any]:
    """Builds one page of a list of items: `limit` of them after the item with the ID `after`."""
    page: list[WireMessage] = []
    is_found, has_more = after is None, False
    async for item in items:
        if not is_found:
            is_found = item.get("id") == after
        elif len(page) == limit:
            has_more = True
            break
        else:
            page.append(item)
    if not is_found:
        raise InvalidRequest(f"No item {after!r} is in this list; start without `after`.")
    first_id, last_id = (page[0].get("id"), page[-1].get("id")) if page else (None, None)
    return {"object": "list", "data": page, "first_id": first_id, "last_id": last_id, "has_more": has_more}
