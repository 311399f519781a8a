"""Requests for responses that are no turns: compaction on a client's demand, warm-ups, and background responses.

With an upstream of another format, the engine compacts the recorded conversation.

The client's new history has the user's own messages, and an item that represents the summary and all messages that
it does not cover.
"""

from typing import Any, NamedTuple

from pydantic_core import to_json

from quire.concurrency.worker_threads import run_sized
from quire.engine import Conversation
from quire.errors import InvalidRequest, QuireError
from quire.model import Usage
from quire.model.ids import new_id, now
from quire.model.json_values import filter_objects
from quire.proxy.engine_variants import EngineVariant
from quire.proxy.known_messages import ClientBody
from quire.proxy.recognition import HistoryMatch, RequestedConversation, match_request
from quire.proxy.response_items import (
    build_compaction_item,
    build_entry_items,
    get_covered_span,
    resolve_items,
    restore_envelope,
)
from quire.server.gateway.exchange import Exchange
from quire.server.gateway.response import ResponseWriter
from quire.server.gateway.unrecorded_calls import check_body
from quire.server.gateway.upstream import find_response_store
from quire.settings.schema import Upstream
from quire.wire import WireMessage
from quire.wire.codec import ClientRequest, RequestLimitExceeded, UnreadableBody, get_model_name, parse_body
from quire.wire.codecs import RESPONSES, choose_target
from quire.wire.replies import encode_event
from quire.wire.responses.object import build_started_response, build_usage, end_response, make_response_id
from quire.wire.responses.stream import MICROSECONDS_PER_SECOND

COMPACT_PATH = "responses/compact"
COMPACTION_TRIGGER = "compaction_trigger"
"""Type of the last item of a request for a compaction item."""
WARM_UP_FIELD = b'"generate"'
BACKGROUND_FIELD = b'"background"'


class _CompactedHistory(NamedTuple):
    user_items: list[WireMessage]
    """The user's own messages that the summary covers."""
    compaction_item: WireMessage
    usage: Usage


async def respond_with_compaction(exchange: Exchange, writer: ResponseWriter) -> None:
    """Answers a request to compact: by the upstream if it uses the client's format, else from the log."""
    try:
        body = await run_sized(len(exchange.raw_body), parse_body, exchange.raw_body)
        upstream = await find_upstream(exchange, body)
        if choose_target(exchange.codec, upstream.speaks) is exchange.codec:
            if body.get("input"):
                return await exchange.respond(writer, path=COMPACT_PATH)
            return await _forward_compaction(exchange, writer, body, upstream)
        history = await _compact_history(exchange, body, upstream)
    except (UnreadableBody, RequestLimitExceeded, QuireError) as error:
        return await send_error(exchange, writer, error)
    compacted = {
        "id": make_response_id(new_id()),
        "object": "response.compaction",
        "created_at": now() // MICROSECONDS_PER_SECOND,
        "output": [*history.user_items, history.compaction_item],
        "usage": build_usage(history.usage),
    }
    return await writer.send_response(200, {"content-type": "application/json"}, to_json(compacted))


async def respond_or_compact(exchange: Exchange, writer: ResponseWriter) -> None:
    """Answers a request for a response. One that ends with a trigger gets a compaction item instead of a reply.

    One with `background: true` is passed on. One with
    `generate: false` is Codex's warm-up of a WebSocket, which has no reply and is not recorded.
    """
    if not any(mark in exchange.raw_body for mark in (COMPACTION_TRIGGER.encode(), WARM_UP_FIELD, BACKGROUND_FIELD)):
        return await exchange.respond(writer)
    try:
        body = await run_sized(len(exchange.raw_body), parse_body, exchange.raw_body)
        if body.get("background") is True:
            return await _forward_background(exchange, writer, body)
        *items, last = filter_objects(body.get("input")) or [{}]
        upstream = await find_upstream(exchange, body)
        if body.get("generate") is False:
            content, content_type = _encode_response(body, None, is_stream=body.get("stream") is True)
            return await writer.send_response(200, {"content-type": content_type}, content)
        if last.get("type") != COMPACTION_TRIGGER or choose_target(exchange.codec, upstream.speaks) is exchange.codec:
            return await exchange.respond(writer)
        history = await _compact_history(exchange, {**body, "input": items}, upstream)
    except (UnreadableBody, RequestLimitExceeded, QuireError) as error:
        return await send_error(exchange, writer, error)
    content, content_type = _encode_response(body, history, is_stream=body.get("stream") is True)
    return await writer.send_response(200, {"content-type": content_type}, content)


def _encode_response(body: dict[str, Any], history: _CompactedHistory | None, *, is_stream: bool) -> tuple[bytes, str]:
    """Encodes a response whose output is the compaction item, if there is one. Requests cannot refer to it later."""
    started = build_started_response(
        {**body, "store": False}, request_id=new_id(), created_at=now() // MICROSECONDS_PER_SECOND
    )
    output = [history.compaction_item] if history is not None else []
    usage = history.usage if history is not None else Usage()
    completed_at = now() // MICROSECONDS_PER_SECOND
    ended = end_response(started, output, completed_at=completed_at, finish_reason="stop", usage=usage)
    if not is_stream:
        return to_json(ended), "application/json"
    events: list[tuple[str, WireMessage]] = [
        ("response.created", {"response": started}),
        ("response.in_progress", {"response": started}),
        *(
            (f"response.output_item.{state}", {"output_index": 0, "item": item})
            for item in output
            for state in ("added", "done")
        ),
        ("response.completed", {"response": ended}),
    ]
    encoded = (
        encode_event({"type": type_, "sequence_number": number, **fields}, name=type_)
        for number, (type_, fields) in enumerate(events)
    )
    return b"".join(encoded), "text/event-stream; charset=utf-8"


async def _forward_background(exchange: Exchange, writer: ResponseWriter, body: dict[str, Any]) -> None:
    """Passes a request that the provider answers later. One with a stream is recorded, others are not.

    Raises `InvalidRequest` unless the provider stores the response for the caller alone, who reads it there.
    """
    upstream, remedy = await find_upstream(exchange, body), "send the request without `background`"
    if choose_target(exchange.codec, upstream.speaks) is not exchange.codec:
        raise InvalidRequest(f"The upstream of {get_model_name(body)!r} has no background responses; {remedy}.")
    store = find_response_store(exchange.server_state.settings, exchange.caller)
    if store is None or store.base_url != upstream.base_url:
        raise InvalidRequest(
            "A background response is stored by the provider, so it needs an account of your own, at the only upstream "
            f"that speaks responses; {remedy}."
        )
    if exchange.has_spend_cap:
        raise InvalidRequest(f"A spend cap (`max_spend`) cannot count a background response; {remedy}.")
    if body.get("stream") is True:
        return await exchange.respond(writer)
    call = exchange.build_call(upstream)
    resolved = await exchange.resolve_references(ClientBody(raw=exchange.raw_body, fields=body), upstream)
    return await exchange.forward_unrecorded(writer, call, resolved, upstream, is_free=True)


async def _forward_compaction(
    exchange: Exchange, writer: ResponseWriter, body: dict[str, Any], upstream: Upstream
) -> None:
    """Forwards a request to compact that only names a response. Its cost is charged to the response's conversation."""
    call = exchange.build_call(upstream, COMPACT_PATH)
    resolved = await exchange.resolve_references(ClientBody(raw=exchange.raw_body, fields=body), upstream)
    history = await recognize_history(exchange, resolved.fields, upstream)
    await exchange.forward_unrecorded(
        writer,
        call,
        resolved,
        upstream,
        conversation=history.match.conversation,
        reply_tokens=history.variant.engine.policy.reserved_response_tokens,
    )


async def find_upstream(exchange: Exchange, body: dict[str, Any]) -> Upstream:
    model = get_model_name(body)
    upstream = exchange.server_state.upstream_for(model)
    if upstream is None:
        raise InvalidRequest(f"No upstream serves the model {model!r}; add one under `upstreams`, or set `base_url`.")
    await check_body(ClientBody(raw=exchange.raw_body, fields=body), exchange.caller, upstream)
    return upstream


async def send_error(
    exchange: Exchange, writer: ResponseWriter, error: UnreadableBody | RequestLimitExceeded | QuireError
) -> None:
    codec = exchange.codec
    if not isinstance(error, QuireError):
        return await writer.send_error(codec.build_error(400, str(error), code="invalid_request"), {})
    return await writer.send_error(codec.to_error_response(error), {})


async def _compact_history(exchange: Exchange, body: dict[str, Any], upstream: Upstream) -> _CompactedHistory:
    """Records what is new of the history, and compacts it. Where that is too short to compact, it stays as it is."""
    RESPONSES.check_limits(body)
    conversation = await _record_history(exchange, body, upstream)
    store = conversation.engine.store
    entry = await conversation.compact()
    window = await store.read_window(conversation.id, branch=conversation.branch)
    head = await store.get_entry(conversation.id, window.branch.head_seq, branch=conversation.branch)
    covers = get_covered_span(window.compaction)
    covered = (
        []
        if covers is None
        else await store.read_range(
            conversation.id,
            branch=conversation.branch,
            first=covers.first,
            last=covers.last,
            kinds=["message"],
            roles=["user"],
        )
    )
    return _CompactedHistory(
        user_items=[item for each in covered for item in build_entry_items(each)],
        compaction_item=build_compaction_item(head, window.compaction, tenant=store.tenant),
        usage=(entry.metadata.usage if entry is not None else None) or Usage(),
    )


class _RecognizedHistory(NamedTuple):
    request: ClientRequest
    variant: EngineVariant
    match: HistoryMatch


async def recognize_history(exchange: Exchange, body: dict[str, Any], upstream: Upstream) -> _RecognizedHistory:
    """Finds the conversation and branch that the request's history belongs to."""
    store = exchange.get_store()
    # A chain alone has no new items; a blank text takes their place, and is not recorded.
    body = body if body.get("input") else {**body, "input": " "}
    body = await resolve_items(RESPONSES, body, RESPONSES.list_item_references(body), store)
    request = RESPONSES.parse_request(exchange.raw_body, body)
    if request.previous_reply is not None:
        request = await restore_envelope(request, request.previous_reply, store)
    match = await match_request(
        store, request, RequestedConversation(), head_cache=exchange.head_cache, scope=exchange.head_scope
    )
    return _RecognizedHistory(request, exchange.get_variant(request, upstream), match)


async def _record_history(exchange: Exchange, body: dict[str, Any], upstream: Upstream) -> Conversation:
    """Opens the conversation and branch that the request's history is stored in."""
    request, variant, match = await recognize_history(exchange, body, upstream)
    store, has_input = exchange.get_store(), bool(body.get("input"))
    envelope = await variant.load_envelope(request)
    engine = variant.engine.with_changes(agent=envelope.agent, spending_key=exchange.caller.spending_key)
    conversation = Conversation(engine, match.conversation, match.branch)
    new = [each.message for each in request.messages[match.stored_end :]] if has_input else []
    if new:
        if match.creates_conversation:
            await store.create_conversation(match.conversation)
        await conversation.append(*new, after=match.head_path)
    return conversation
