"""Calls that are no turns of the log: token counts, compactions by the upstream, other paths, and requests that are
passed through unrecorded. Of the other paths, the results of batches are recorded.

They are checked like turns, their cost is reserved before they are sent, and what they cost is charged.
"""

import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from pydantic_core import from_json

from quire.access.spending import NO_CONVERSATION
from quire.concurrency.cancellation import run_shielded
from quire.concurrency.worker_threads import run_sized
from quire.engine import Engine
from quire.engine.exchanges import OpenExchange, observe_answer
from quire.engine.spending import check_spend_cap, has_spend_cap, reserve_spend
from quire.errors import (
    AccessDenied,
    InvalidRequest,
    ModelError,
    ModelTimeout,
    QuireError,
    StoreError,
)
from quire.model import Usage
from quire.model.json_values import filter_objects, get_object, get_text, is_object
from quire.proxy.known_messages import ClientBody
from quire.server.auth import check_model
from quire.server.caller import Caller
from quire.server.gateway.relay import MAX_RESPONSE_BYTES, UNRECORDED_HEADERS, iter_stored
from quire.server.gateway.response import ResponseWriter
from quire.server.gateway.upstream import UpstreamCall, filter_response_headers
from quire.server.telemetry import Telemetry
from quire.settings.schema import Upstream
from quire.wire.chat import parse as chat
from quire.wire.codec import Codec, find_repeated_field, get_model_name
from quire.wire.gemini import parse as gemini
from quire.wire.json_limits import exceeds_json_limit
from quire.wire.messages import parse as messages
from quire.wire.responses import parse as responses

_log = logging.getLogger(__name__)

MODEL_CHOICE_FIELDS = frozenset(
    {"models", "fallbacks", "context_window_fallbacks", "content_policy_fallbacks", "model_list"}
)
"""Fields in which routers in front of models take other models than `model`."""


async def check_body(body: ClientBody, caller: Caller, upstream: Upstream) -> None:
    """Raises `InvalidRequest` for a body that two servers may read differently, and `AccessDenied` if the caller's key
    does not allow a model in it."""
    rest = body.raw_rest
    if (repeated := await run_sized(len(rest), find_repeated_field, rest)) is not None:
        raise InvalidRequest(
            f"The body has the field {repeated!r} twice, or in two spellings; send it once, since servers differ in "
            "which one they use."
        )
    fields = body.fields
    check_model(caller, get_model_name(fields), upstream.model)
    if caller.models is None:
        return
    if others := MODEL_CHOICE_FIELDS & {name.casefold() for name in fields}:
        raise AccessDenied(
            f"The API key allows certain models only, so a request cannot name others in `{min(others)}`."
        )
    for tool in filter_objects(fields.get("tools")):
        if (model := get_text(tool, "model")) is not None:
            check_model(caller, model, None)


async def forward_unrecorded(
    writer: ResponseWriter,
    call: UpstreamCall,
    content: bytes,
    *,
    engine: Engine,
    model: str,
    codec: Codec,
    conversation: str = NO_CONVERSATION,
    is_free: bool = False,
    reply_tokens: int = 0,
    telemetry: Telemetry,
    method: str = "POST",
    record: Callable[[bytes], Coroutine[Any, Any, None]] | None = None,
    exchange: OpenExchange | None = None,
) -> None:
    """Sends a call and relays the response. A failure after its start breaks it off.

    `record` gets the content of a response that succeeded, before the client sees its end. `exchange` is what is
    stored of the call.

    The call is charged to the engine's key and to the conversation: what the response reports, else the input, except
    for a call that providers do not charge for. Raises `SpendCapReached`, `SpendReserved` and `UnknownPrice`.
    """
    await check_spend_cap(engine, conversation)
    reservation = None
    if has_spend_cap(engine, conversation):
        input_tokens = 0 if is_free else await run_sized(len(content), _count_tokens, content, engine)
        reservation = await run_shielded(
            reserve_spend(engine, conversation, model=model, input_tokens=input_tokens, output_tokens=reply_tokens)
        )
    unreported = reservation.input_usd if reservation is not None and not is_free else 0.0
    cost, is_settled, is_stream = unreported, False, False

    async def settle() -> None:
        nonlocal is_settled
        is_settled = True
        spending = engine.store.spending
        try:
            if reservation is not None:
                await run_shielded(spending.settle(reservation.id, cost))
            elif cost:
                await run_shielded(spending.charge(conversation, cost, key_id=engine.config.key_id))
        except StoreError as error:
            _log.warning("Cost of an unrecorded call is not charged: %s", error)

    try:
        with telemetry.trace_gateway_call(model, conversation=conversation or None) as span:
            async with (
                observe_answer(exchange),
                call.send(method, content, trace_headers=span.headers) as response,
            ):
                is_stream = response.content_type.startswith("text/event-stream")
                cost = 0.0 if response.is_error else unreported
                headers = filter_response_headers(response.raw_headers) | ({} if record else UNRECORDED_HEADERS)
                headers |= {"x-quire-request": exchange.row["exchange"]} if exchange is not None else {}
                received, size, chunks = list[bytes](), 0, iter_stored(response, exchange)
                chunk = await anext(chunks, b"")
                await writer.start(response.status_code, headers)
                while chunk:
                    size += len(chunk)
                    if size <= MAX_RESPONSE_BYTES:
                        received.append(chunk)
                    await writer.write(chunk)
                    chunk = await anext(chunks, b"")
                # A free call costs nothing, also if it repeats the usage of others, as the object of a batch does.
                if not (response.is_error or is_free) and response.content_type.startswith("application/json"):
                    usage = await run_sized(size, _read_usage, b"".join(received))
                    cost = engine.config.compute_cost(usage, model).usd if usage is not None else unreported
                if record is not None and not response.is_error and size <= MAX_RESPONSE_BYTES:
                    try:
                        await run_shielded(record(b"".join(received)))
                    except QuireError as error:
                        _log.warning("What an unrecorded call returned is not in the log: %s", error)
                # Before the client sees the end, and can send its next request.
                await settle()
            await writer.write(b"", last=True)
    except ModelError as error:
        if not writer.is_started:
            cost = unreported if isinstance(error, ModelTimeout) else 0.0
            await writer.send_error(codec.to_error_response(error), UNRECORDED_HEADERS)
        elif is_stream:
            await writer.write(codec.to_error_event(error), last=True)
    finally:
        if not is_settled:
            await settle()


def _count_tokens(content: bytes, engine: Engine) -> int:
    return engine.message_counter.token_counter.count(content.decode(errors="replace"))


def _read_usage(content: bytes) -> Usage | None:
    """The usage in a response of any format, or None if it has none."""
    body: object = None
    if not exceeds_json_limit(content):
        with suppress(ValueError):
            body = from_json(content)
    counts = get_object(body, "usage", "usageMetadata") if is_object(body) else {}
    if not is_object(body) or not counts:
        return None
    parse = responses.parse_usage
    if "prompt_tokens" in counts:
        parse = chat.parse_usage
    elif "usageMetadata" in body:
        parse = gemini.parse_usage
    elif "cache_read_input_tokens" in counts or "cache_creation_input_tokens" in counts:
        parse = messages.parse_usage
    with suppress(ValueError, TypeError):
        return parse(body)
    return None
