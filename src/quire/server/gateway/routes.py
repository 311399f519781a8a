"""Routes of the gateway that create replies, count tokens and list models, and all other paths under `/v1`."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, FastAPI, Header, HTTPException, Request
from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from quire.concurrency.worker_threads import run_sized
from quire.engine.spending import spend_caps_for
from quire.errors import AccessDenied, InvalidRequest, QuireError, StoreError
from quire.proxy.batch_results import find_results_id, record_results
from quire.proxy.edited_requests import apply_edits
from quire.proxy.engine_variants import EngineVariants, RecognizedRequest
from quire.proxy.known_messages import ClientBody, KnownMessageCache
from quire.proxy.recognition import HeadCache, HistoryMatch, RequestedConversation, find_continued
from quire.server.caller import Caller
from quire.server.dependencies import ChatCaller, engine_for_caller
from quire.server.gateway.exchange import Exchange
from quire.server.gateway.model_list import build_google_model, build_model_list, collect_models, is_google_client
from quire.server.gateway.response import CancellableResponse, ResponseWriter, to_http_response
from quire.server.gateway.response_compaction import respond_or_compact, respond_with_compaction
from quire.server.gateway.unrecorded_calls import check_body, forward_unrecorded
from quire.server.gateway.upstream import (
    MAX_CONVERSATION_HEADER_CHARS,
    build_upstream_call,
    decode_conversation_header,
)
from quire.server.problems import ERROR_RESPONSES
from quire.server.state import ServerState, get_server_state
from quire.server.telemetry import get_telemetry
from quire.settings.schema import Upstream
from quire.wire.base import UNSPOKEN
from quire.wire.codec import Codec, UnreadableBody, encode_body, get_model_name, parse_body
from quire.wire.codecs import CHAT, MESSAGES, RESPONSES, choose_only_format, choose_target

_log = logging.getLogger(__name__)

ConversationHeader = Annotated[
    str | None,
    Header(
        alias="X-Quire-Conversation",
        min_length=1,
        max_length=MAX_CONVERSATION_HEADER_CHARS,
        description="Conversation to continue, percent-encoded. It is created if it does not exist.",
    ),
]
BranchHeader = Annotated[
    int | None,
    Header(alias="X-Quire-Branch", ge=0, le=2**31 - 1, description="Branch, for new messages only."),
]


router = APIRouter(prefix="/v1", tags=["gateway"])


async def respond_with_token_count(exchange: Exchange, writer: ResponseWriter) -> None:
    """Answers with the tokens of the request that would be sent now: the client's list with the user's edits."""
    codec = exchange.codec
    try:
        fields = await run_sized(len(exchange.raw_body), parse_body, exchange.raw_body)
        client_body = exchange.add_path_fields(ClientBody(raw=exchange.raw_body, fields=fields))
        body = client_body.fields
        model = get_model_name(body)
        upstream = exchange.server_state.upstream_for(model)
        if upstream is None:
            return await writer.send_error(exchange.build_no_upstream_error(model), {})
        await check_body(client_body, exchange.caller, upstream)
        count_path = codec.build_count_path(upstream.model or model)
        if choose_target(codec, upstream.speaks) is codec and count_path is not None:
            call = exchange.build_call(upstream, count_path)
            client_body = await exchange.resolve_references(client_body, upstream)
            client_body = await _edit_counted(exchange, client_body, upstream)
            if exchange.shares_account(upstream) and codec.refers_to_log(client_body.fields):
                raise InvalidRequest("A count includes only the messages of the request; send the whole history.")
            return await exchange.forward_unrecorded(writer, call, client_body, upstream, is_free=True)
        # Counts the request as it would be sent, and says whether the count is exact.
        request = await run_sized(len(exchange.raw_body), codec.parse_request, exchange.raw_body, body)
        if request.continues_recorded:
            raise InvalidRequest("A count includes only the messages of the request itself; send the whole history.")
        variant = exchange.get_variant(request, upstream)
        envelope = await variant.load_envelope(request)
        calibration = await variant.engine.runtime.load_calibration(variant.engine.store, variant.engine.policy.model)
        recognized = RecognizedRequest(
            client_request=request,
            match=HistoryMatch(conversation=""),
            variant=variant,
            envelope=envelope,
            calibration=calibration,
        )
        await run_sized(len(exchange.raw_body), recognized.count_tokens)
        tokens, is_exact = round(recognized.tokens * recognized.ratio), recognized.message_counter.token_counter.exact
    except UnreadableBody as error:
        return await writer.send_error(codec.build_error(400, str(error), code="invalid_request"), {})
    except QuireError as error:
        return await writer.send_error(codec.to_error_response(error), {})
    headers = {"content-type": "application/json", "x-quire-exact": "yes" if is_exact else "no"}
    return await writer.send_response(200, headers, to_json(codec.build_token_count(tokens)))


async def _edit_counted(exchange: Exchange, body: ClientBody, upstream: Upstream) -> ClientBody:
    """The body with the edits of its conversation; as it is where Quire cannot parse it or reach the log."""
    try:
        request = await run_sized(len(body.raw), exchange.codec.parse_request, body.raw, body.fields)
        if request.continues_recorded:
            return body
        engine = exchange.get_variant(request, upstream).engine
        match = await find_continued(engine.store, request, head_cache=exchange.head_cache, scope=exchange.head_scope)
        if match is None:
            return body
        edited = (await apply_edits(request, match, engine, stores_epoch=False)).client_request
    except (UnreadableBody, StoreError) as error:
        _log.info("Token count without the edits of the conversation: %s", error)
        return body
    if not edited.is_edited:
        return body
    fields = await run_sized(len(edited.raw), parse_body, edited.raw)
    return exchange.add_path_fields(ClientBody(raw=edited.raw, fields=fields))


@router.post("/chat/completions", response_class=Response, summary="Create a chat completion within the context window")
async def create_chat_completion(
    request: Request, caller: ChatCaller, conversation: ConversationHeader = None, branch: BranchHeader = None
) -> Response:
    """OpenAI's chat completions. Requests that fit are passed through, others are fitted. All are recorded."""
    return await run_exchange(request, caller, CHAT, conversation, branch)


MESSAGES_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {**problem, "content": {**problem["content"], "application/json": {"schema": {"type": "object"}}}}
    for status, problem in ERROR_RESPONSES.items()
}
"""OpenAPI description of Anthropic's errors, which take the place of problem documents."""


@router.post(
    "/messages",
    response_class=Response,
    summary="Create a message within the context window",
    responses=MESSAGES_ERRORS,
)
@router.post("/v1/messages", response_class=Response, include_in_schema=False)
async def create_message(
    request: Request, caller: ChatCaller, conversation: ConversationHeader = None, branch: BranchHeader = None
) -> Response:
    """Anthropic's Messages. Passed through to an upstream that speaks them, else translated. All are recorded."""
    return await run_exchange(request, caller, MESSAGES, conversation, branch)


@router.post(
    "/messages/count_tokens",
    response_class=Response,
    summary="Count the tokens of a message request",
    responses=MESSAGES_ERRORS,
)
@router.post("/v1/messages/count_tokens", response_class=Response, include_in_schema=False)
async def count_message_tokens(request: Request, caller: ChatCaller) -> Response:
    """Counts the request as it would be sent now: by an upstream that speaks Messages, else by Quire."""
    return await run_exchange(request, caller, MESSAGES, None, None, respond=respond_with_token_count)


@router.post("/responses", response_class=Response, summary="Create a response within the context window")
async def create_response(
    request: Request, caller: ChatCaller, conversation: ConversationHeader = None, branch: BranchHeader = None
) -> Response:
    """OpenAI's Responses. Passed through to an upstream that speaks them, else translated. All are recorded."""
    return await run_exchange(request, caller, RESPONSES, conversation, branch, respond=respond_or_compact)


@router.post("/responses/input_tokens", response_class=Response, summary="Count the tokens of a response request")
async def count_response_tokens(request: Request, caller: ChatCaller) -> Response:
    """Counts the request as it would be sent now: by an upstream that speaks Responses, else by Quire."""
    return await run_exchange(request, caller, RESPONSES, None, None, respond=respond_with_token_count)


@router.post("/responses/compact", response_class=Response, summary="Compact a history")
async def compact_response(request: Request, caller: ChatCaller) -> Response:
    """Compacts by an upstream that speaks Responses, else the conversation of the log."""
    return await run_exchange(request, caller, RESPONSES, None, None, respond=respond_with_compaction)


Responder = Callable[[Exchange, ResponseWriter], Awaitable[None]]


async def run_exchange(
    request: Request,
    caller: Caller,
    codec: Codec,
    conversation: str | None,
    branch: int | None,
    *,
    respond: Responder = Exchange.respond,
    path_fields: Mapping[str, Any] | None = None,
) -> Response:
    """Answers a request of one format."""
    try:
        requested = RequestedConversation(conversation and decode_conversation_header(conversation), branch)
        raw = await request.body()
    except InvalidRequest as error:
        return to_http_response(codec.to_error_response(error))
    except ClientDisconnect:
        return Response(status_code=400)
    server_state, gateway = get_server_state(request), get_gateway_state(request.app)
    exchange = Exchange(
        server_state=server_state,
        variants=gateway.variants,
        head_cache=gateway.head_cache,
        known_messages=gateway.known_messages,
        caller=caller,
        requested=requested,
        headers=request.headers,
        raw_body=raw,
        telemetry=get_telemetry(request),
        codec=codec,
        query=request.url.query,
        path_fields=path_fields or {},
    )
    return CancellableResponse(request, partial(respond, exchange))


@router.get("/models", summary="List models")
async def list_models(request: Request, caller: ChatCaller) -> dict[str, object]:
    """Lists the models of all upstreams, and those named in the settings."""
    models = await collect_models(get_server_state(request), caller, request.headers)
    if is_google_client(request.headers):
        return {"models": [build_google_model(model) for model in models]}
    return build_model_list(models)


@router.get("/models/{model:path}", summary="Show a model")
async def get_model(request: Request, caller: ChatCaller, model: str) -> dict[str, object]:
    """Shows one model of the list."""
    models = await collect_models(get_server_state(request), caller, request.headers)
    found = next((each for each in models if each["id"] == model), None)
    if found is None:
        raise HTTPException(404, f"No upstream lists the model {model!r}.")
    return build_google_model(found) if is_google_client(request.headers) else found


class GatewayState(NamedTuple):
    """Caches of the gateway, shared by all requests."""

    variants: EngineVariants
    head_cache: HeadCache
    known_messages: KnownMessageCache


def get_gateway_state(app: FastAPI) -> GatewayState:
    """The state of an application's gateway, created on first use."""
    if hasattr(app.state, "gateway"):
        return app.state.gateway
    server_state: ServerState = app.state.server_state
    gateway = app.state.gateway = GatewayState(EngineVariants(server_state.engines), HeadCache(), KnownMessageCache())
    server_state.store.on_connection_loss(gateway.head_cache.clear)
    return gateway


other_paths_router = APIRouter(prefix="/v1", include_in_schema=False)
"""Other paths, such as embeddings. Included after all other routes, since it matches every path."""

STATELESS_PATHS = frozenset(
    {
        "embeddings", "moderations", "rerank", "audio/speech", "audio/transcriptions", "audio/translations",
        "images/generations", "images/edits", "images/variations",
    }
)  # fmt: skip
"""Other paths that can be passed on: nothing that one caller sends there is stored for another one to read."""
STORED_PATHS = ("files", "uploads", "batches", "messages/batches")
"""Paths whose objects the provider stores for an account. Callers that share one would reach each other's."""
UNSPOKEN_PATHS = ("audio", "images", "realtime", "live", "videos")


@other_paths_router.api_route(
    "/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"], response_class=Response
)
async def pass_other_path(request: Request, caller: ChatCaller, path: str) -> Response:
    """Passes a request to another path on: to the upstream of its model, or to the one for all models.

    Only the results of batches are recorded.

    One rule for all of them: a path without state for everyone, a path with stored objects only to an account that is
    the caller's own, or with the scope `admin`, and no other.
    """
    server_state = get_server_state(request)
    is_stored = path in STORED_PATHS or path.startswith(tuple(f"{each}/" for each in STORED_PATHS))
    is_passed = is_stored or (path in STATELESS_PATHS and request.method == "POST")
    if not (is_passed and server_state.settings.pass_other_paths):
        if path.partition("/")[0] in UNSPOKEN_PATHS:
            raise HTTPException(404, f"/v1/{path} is not served: Quire does not speak {UNSPOKEN}.")
        if not server_state.settings.pass_other_paths:
            raise HTTPException(404, f"/v1/{path} is not served; `pass_other_paths` passes some paths to the upstream.")
        passed = ", ".join(sorted(STATELESS_PATHS))
        raise HTTPException(404, f"{request.method} /v1/{path} is not passed to the upstream, only POST to: {passed}.")
    return await pass_on(request, caller, path, is_stored=is_stored)


async def pass_on(
    request: Request, caller: Caller, path: str, *, is_stored: bool, upstream: Upstream | None = None
) -> Response:
    """Passes a request on to this upstream, else to the one of its model, or to the one for all models.

    What the provider stores for an account is only for an account of the caller's own, or for the scope `admin`.
    """
    server_state = get_server_state(request)
    content_type = request.headers.get("content-type", "application/json")
    try:
        raw = await request.body()
        # Other bodies, such as audio, are not parsed.
        is_json = content_type.startswith("application/json") and not is_stored
        fields = await run_sized(len(raw), parse_body, raw) if is_json else {}
        model = get_model_name(fields)
        upstream = upstream or server_state.upstream_for(model)
        if upstream is None:
            raise AccessDenied("No upstream serves this path; set `base_url`.")
        is_own_account = caller.key_id is None or upstream.credentials == "client"
        if is_stored and not is_own_account and "admin" not in caller.scopes:
            raise AccessDenied(
                f"What is sent to /v1/{path} is stored for all tenants of this server; use a key with the scope "
                "`admin`, or an upstream that takes your own credentials."
            )
        if spend_caps_for(server_state.settings, tenant=caller.tenant, key=caller.spending_key).exist:
            raise AccessDenied("A spend cap (`max_spend`) cannot count what this path costs, so it is not passed on.")
        body = ClientBody(raw=raw if is_json else b"{}", fields=fields)
        await check_body(body, caller, upstream)
        call = build_upstream_call(
            upstream,
            choose_only_format(upstream.speaks),
            path,
            server_state=server_state,
            caller=caller,
            headers=request.headers,
            query=request.url.query,
            content_type=content_type,
        )
    except ClientDisconnect:
        return Response(status_code=400)
    except UnreadableBody as error:
        return to_http_response(CHAT.build_error(400, str(error), code="invalid_json"))
    except QuireError as error:
        return to_http_response(CHAT.to_error_response(error))
    if is_json and upstream.model:
        raw = encode_body({**fields, "model": upstream.model})
    engine, telemetry = engine_for_caller(server_state, caller, model=model or None), get_telemetry(request)
    results_id = find_results_id(path) if request.method == "GET" else None

    async def respond(writer: ResponseWriter) -> None:
        await forward_unrecorded(
            writer,
            call,
            raw,
            engine=engine,
            model=model,
            codec=CHAT,
            telemetry=telemetry,
            method=request.method,
            is_free=is_stored,
            record=partial(record_results, engine, results_id) if results_id is not None else None,
        )

    return CancellableResponse(request, respond)
