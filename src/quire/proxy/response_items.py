"""Items of OpenAI's Responses, as the log has them, and requests that refer to them.

An item has an ID that is the same on every read. A compaction item is a sealed reference to a compacted conversation:
it represents the summary, and the messages after those that it covers. Its `encrypted_content` has no secret. It names
the entries, and its MAC proves that Quire wrote it. The key is the digest of the newest entry, which depends on all
entries before it.
"""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from quire.concurrency.worker_threads import run_sized
from quire.errors import BlobNotFound, InvalidRequest, NotFound, ResponseNotFound
from quire.log import RecordedRequest
from quire.model import Compaction, Entry, Message, Span, ToolDefinition
from quire.model.base import JsonObject
from quire.model.json_values import get_object, get_text
from quire.proxy.reply_recorder import CLIENT_RESPONSE_FIELD
from quire.store import SqlStore
from quire.view.counted_input import build_summary_text
from quire.wire import WireMessage
from quire.wire.codec import ClientRequest, Codec
from quire.wire.responses.codec import SEAL_PREFIX
from quire.wire.responses.object import RESPONSE_ID_PREFIX, build_items, make_response_id
from quire.wire.responses.render import OpenAIResponsesFormat

ENTRIES_PER_READ = 200
"""Entries of a branch that are read at once to list its items."""
MAX_REFERENCED_RESPONSES = 100
"""Maximum responses that the items of one request refer to. Each one is a read of the log."""
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
    return f"{make_conversation_digest(conversation)}_{branch}_{seq}"


def make_conversation_digest(conversation: str) -> str:
    return sha256(conversation.encode()).hexdigest()[:CONVERSATION_DIGEST_CHARS]


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
    store: SqlStore,
    conversation: str,
    branch: int,
    *,
    last: int | None = None,
    order: ItemOrder,
    leading: list[WireMessage] | None = None,
    after: str | None = None,
) -> AsyncIterator[WireMessage]:
    """Iterates over the items of a branch up to entry `last`, and over the instructions before them.

    It begins with the message that has the item `after`. Without such a message there are no items.
    """
    first = 1
    if after is not None and all(item["id"] != after for item in leading or ()):
        found = await find_item_entry(store, conversation, branch, after)
        if found is None or (last is not None and found.seq > last):
            return
        if order == "asc":
            first, leading = found.seq, None
        else:
            last = found.seq
    elif after is not None and order == "desc":
        last = 0
    if order == "asc":
        for item in leading or ():
            yield item
    async for entry in iterate_entries(store, conversation, branch, first=first, last=last, order=order):
        items = await run_sized(len(entry.raw), build_entry_items, entry)
        for item in items if order == "asc" else reversed(items):
            yield item
    if order == "desc":
        for item in reversed(leading or ()):
            yield item


async def find_item_entry(store: SqlStore, conversation: str, branch: int, item_id: str) -> Entry | None:
    """The message of a branch that has the item: by the entry number or the response in its ID, else by the ID of an
    upstream in its content."""
    seqs: list[int] = []
    match item_id.split("_"):
        case [_, digest, _, str(number), _] if digest == make_conversation_digest(conversation) and number.isdecimal():
            seqs = [int(number[:18])]
        case _:
            request_id = _find_request_id(item_id)
            with suppress(ResponseNotFound):
                recorded = await store.find_response(make_response_id(request_id or item_id))
                seqs = [recorded.seq] if recorded.conversation == conversation else []
    entries = await store.get_entries(conversation, seqs, branch=branch) if seqs else []
    if not entries and make_conversation_digest(conversation) not in item_id:
        entries = await store.find_replies(conversation, _find_request_id(item_id) or item_id, branch=branch)
    for entry in entries:
        if entry.kind == "message" and entry.purged_at is None:
            items = await run_sized(len(entry.raw), build_entry_items, entry)
            if any(item.get("id") == item_id for item in items):
                return entry
    return None


async def iterate_entries(
    store: SqlStore, conversation: str, branch: int, *, first: int = 1, last: int | None = None, order: ItemOrder
) -> AsyncIterator[Entry]:
    """Iterates over the messages of a branch from `first` up to entry `last`, except those that were purged."""
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


class _Reference(NamedTuple):
    conversation: str
    branch: int
    head: int
    """The newest entry that the item represents."""
    compaction: int | None
    """The compaction whose summary replaces the messages that it covers."""


_REFERENCE = TypeAdapter(_Reference)


def get_covered_span(entry: Entry | None) -> Span | None:
    """The messages that a compaction has summarized, or None without a summary, since those messages would be lost."""
    body = entry.body if entry is not None else None
    return body.covers if isinstance(body, Compaction) and body.summary is not None else None


def build_compaction_item(head: Entry, compaction: Entry | None, *, tenant: str) -> WireMessage:
    """Builds the item for the branch up to the entry `head`, with its active compaction."""
    seq = compaction.seq if compaction is not None and get_covered_span(compaction) is not None else None
    sealed = _seal(_Reference(head.conversation, head.branch, head.seq, seq), head, tenant)
    key = make_entry_key(head.conversation, head.branch, head.seq)
    return {"id": f"cmp_{key}", "type": "compaction", "encrypted_content": sealed}


async def load_compacted_items(store: SqlStore, sealed: str) -> list[WireMessage]:
    """The summary and the messages that an item represents. None if this tenant has no such conversation."""
    payload = sealed.removeprefix(SEAL_PREFIX).partition(".")[0]
    with suppress(ValueError, NotFound):
        reference = _REFERENCE.validate_json(urlsafe_b64decode(payload))
        head = await store.get_entry(reference.conversation, reference.head, branch=reference.branch)
        if hmac.compare_digest(_seal(reference, head, store.tenant), sealed):
            items, first = list[WireMessage](), 1
            if reference.compaction is not None:
                entry = await store.get_entry(reference.conversation, reference.compaction, branch=reference.branch)
                body, covers = entry.body, get_covered_span(entry)
                if isinstance(body, Compaction) and covers is not None:
                    content = [{"type": "input_text", "text": build_summary_text(body, covers)}]
                    items, first = [{"type": "message", "role": "user", "content": content}], covers.last + 1
            messages = await store.read_range(
                reference.conversation, branch=reference.branch, first=first, last=reference.head, kinds=["message"]
            )
            return [*items, *(item for message in messages for item in build_entry_items(message))]
    return []


def _seal(reference: _Reference, head: Entry, tenant: str) -> str:
    payload = urlsafe_b64encode(to_json(reference)).decode()
    mac = hmac.new(head.digest, f"{tenant}\n{payload}".encode(), sha256).hexdigest()
    return f"{SEAL_PREFIX}{payload}.{mac}"


async def restore_envelope(client_request: ClientRequest, previous_reply: str, store: SqlStore) -> ClientRequest:
    """Adds what the request inherits of the reply's own request: its instructions and tools, or parts of them."""
    codec = client_request.codec
    recorded = await store.find_response(previous_reply)
    if not codec.carries_envelope:
        return codec.carry_over(client_request, await load_request_record(store, recorded))
    if recorded.manifest.thinned:
        raise InvalidRequest(
            f"The instructions and tools of {previous_reply} were removed, because its request is old "
            "(`thin_manifests_after_days`); send the whole list."
        )
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


async def resolve_items(
    codec: Codec, body: dict[str, Any], references: Sequence[str], store: SqlStore
) -> dict[str, Any]:
    """Replaces references to items of recorded replies by the items. The same body if none of them is known."""
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


async def load_request_record(store: SqlStore, recorded: RecordedRequest) -> dict[str, Any]:
    """Loads what the reply's own request has recorded for later ones. Empty if that was purged."""
    forwarded = recorded.manifest.forwarded
    if forwarded is None or forwarded.request_blob is None:
        return {}
    try:
        return from_json((await store.get_blob(forwarded.request_blob)).data)
    except BlobNotFound:
        return {}
