"""Token counts of requests that are not sent: by the upstream if it uses the client's format, else by Quire."""

from pydantic_core import to_json

from quire.concurrency.worker_threads import run_sized
from quire.errors import InvalidRequest, ModelError, QuireError
from quire.proxy.engine_variants import RecognizedRequest
from quire.proxy.recognition import HistoryMatch
from quire.server.auth import check_model
from quire.server.gateway.exchange import Exchange, relay_unrecorded
from quire.server.gateway.response import ResponseWriter
from quire.server.gateway.turn_recorder import UNRECORDED_HEADERS
from quire.settings.schema import Upstream
from quire.wire.codec import UnreadableBody, get_model_name, parse_body
from quire.wire.codecs import choose_target


async def respond_with_token_count(exchange: Exchange, writer: ResponseWriter) -> None:
    """Answers with the tokens of the list as the client sent it, which it compares with its own window."""
    codec = exchange.codec
    try:
        body = await run_sized(len(exchange.raw_body), parse_body, exchange.raw_body)
        model = get_model_name(body)
        upstream = exchange.server_state.upstream_for(model)
        if upstream is None:
            return await writer.send_error(exchange.build_no_upstream_error(model), {})
        check_model(exchange.caller, model, upstream.model)
        if choose_target(codec, upstream.speaks) is codec and codec.count_path is not None:
            return await _forward_count(exchange, writer, upstream)
        tokens, is_exact = await _count(exchange, body, upstream)
    except UnreadableBody as error:
        return await writer.send_error(codec.build_error(400, str(error), code="invalid_request"), {})
    except QuireError as error:
        return await writer.send_error(codec.to_error_response(error), {})
    headers = {"content-type": "application/json", "x-quire-exact": "yes" if is_exact else "no"}
    return await writer.send_response(200, headers, to_json(codec.build_token_count(tokens)))


async def _forward_count(exchange: Exchange, writer: ResponseWriter, upstream: Upstream) -> None:
    codec = exchange.codec
    call = exchange.build_call(upstream, codec.count_path or "")
    try:
        async with call.post(exchange.raw_body, trace_headers={}) as response:
            await relay_unrecorded(writer, response)
    except ModelError as error:
        if not writer.is_started:
            await writer.send_error(codec.to_error_response(error), UNRECORDED_HEADERS)


async def _count(exchange: Exchange, body: dict[str, object], upstream: Upstream) -> tuple[int, bool]:
    """Counts the request as it would be sent, and says whether the count is exact."""
    request = await run_sized(len(exchange.raw_body), exchange.codec.parse_request, exchange.raw_body, body)
    if request.continues_recorded:
        raise InvalidRequest("A count includes only the messages of the request itself; send the whole history.")
    variant = exchange.get_variant(request, upstream)
    envelope = await variant.load_envelope(request)
    calibration = await variant.engine.load_calibration(variant.engine.policy.model)
    recognized = RecognizedRequest(
        client_request=request,
        match=HistoryMatch(conversation=""),
        variant=variant,
        envelope=envelope,
        calibration=calibration,
    )
    await run_sized(len(exchange.raw_body), recognized.count_tokens)
    return round(recognized.tokens * recognized.ratio), recognized.message_counter.token_counter.exact
