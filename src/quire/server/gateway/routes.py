"""Routes of the gateway that create replies, count tokens and list models."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Header, HTTPException, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from quire.errors import InvalidRequest
from quire.proxy.engine_variants import EngineVariants
from quire.proxy.known_messages import KnownMessageCache
from quire.proxy.recognition import HeadCache, RequestedConversation
from quire.server.auth import Caller
from quire.server.dependencies import ChatCaller, get_server_state
from quire.server.gateway.exchange import Exchange
from quire.server.gateway.header_rules import MAX_CONVERSATION_HEADER_CHARS, decode_conversation_header
from quire.server.gateway.model_list import build_model_list, collect_models
from quire.server.gateway.response import CancellableResponse, ResponseWriter, to_http_response
from quire.server.gateway.response_compaction import respond_or_compact, respond_with_compaction
from quire.server.gateway.token_count import respond_with_token_count
from quire.server.problems import ERROR_RESPONSES
from quire.server.telemetry import get_telemetry
from quire.wire.codec import Codec
from quire.wire.codecs import CHAT, MESSAGES, RESPONSES

router = APIRouter(prefix="/v1", tags=["gateway"])

ConversationHeader = Annotated[
    str | None,
    Header(
        alias="X-Quire-Conversation",
        min_length=1,
        max_length=MAX_CONVERSATION_HEADER_CHARS,
        description="Conversation to continue, percent-encoded; created if it does not exist.",
    ),
]
BranchHeader = Annotated[
    int | None,
    Header(alias="X-Quire-Branch", ge=0, le=2**31 - 1, description="Branch, for new messages only."),
]


@router.post("/chat/completions", response_class=Response, summary="Create a chat completion within the context window")
async def create_chat_completion(
    request: Request, caller: ChatCaller, conversation: ConversationHeader = None, branch: BranchHeader = None
) -> Response:
    """OpenAI's chat completions. Requests that fit are passed through, others are fitted. All are recorded."""
    return await _exchange(request, caller, CHAT, conversation, branch)


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
    return await _exchange(request, caller, MESSAGES, conversation, branch)


@router.post(
    "/messages/count_tokens",
    response_class=Response,
    summary="Count the tokens of a message request",
    responses=MESSAGES_ERRORS,
)
@router.post("/v1/messages/count_tokens", response_class=Response, include_in_schema=False)
async def count_message_tokens(request: Request, caller: ChatCaller) -> Response:
    """Counts the request as the client sent it: by an upstream that speaks Messages, else by Quire."""
    return await _exchange(request, caller, MESSAGES, None, None, respond=respond_with_token_count)


@router.post("/responses", response_class=Response, summary="Create a response within the context window")
async def create_response(
    request: Request, caller: ChatCaller, conversation: ConversationHeader = None, branch: BranchHeader = None
) -> Response:
    """OpenAI's Responses. Passed through to an upstream that speaks them, else translated. All are recorded."""
    return await _exchange(request, caller, RESPONSES, conversation, branch, respond=respond_or_compact)


@router.post("/responses/input_tokens", response_class=Response, summary="Count the tokens of a response request")
async def count_response_tokens(request: Request, caller: ChatCaller) -> Response:
    """Counts the request as the client sent it: by an upstream that speaks Responses, else by Quire."""
    return await _exchange(request, caller, RESPONSES, None, None, respond=respond_with_token_count)


@router.post("/responses/compact", response_class=Response, summary="Compact a history")
async def compact_response(request: Request, caller: ChatCaller) -> Response:
    """Compacts by an upstream that speaks Responses, else the conversation of the log."""
    return await _exchange(request, caller, RESPONSES, None, None, respond=respond_with_compaction)


Responder = Callable[[Exchange, ResponseWriter], Awaitable[None]]


async def _exchange(
    request: Request,
    caller: Caller,
    codec: Codec,
    conversation: str | None,
    branch: int | None,
    *,
    respond: Responder = Exchange.respond,
) -> Response:
    try:
        requested = RequestedConversation(conversation and decode_conversation_header(conversation), branch)
        raw = await request.body()
    except InvalidRequest as error:
        return to_http_response(codec.to_error_response(error))
    except ClientDisconnect:
        return Response(status_code=400)
    server_state = get_server_state(request)
    state = request.app.state
    if not hasattr(state, "gateway"):
        # The caches are created on the first request.
        state.gateway = _GatewayState(EngineVariants(server_state.engines), HeadCache(), KnownMessageCache())
        server_state.store.on_connection_loss(state.gateway.head_cache.clear)
    gateway: _GatewayState = state.gateway
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
    )
    return CancellableResponse(request, partial(respond, exchange))


@router.get("/models", summary="List models")
async def list_models(request: Request, caller: ChatCaller) -> dict[str, object]:
    """Lists the models of all upstreams, and those named in the settings."""
    return build_model_list(await collect_models(get_server_state(request), caller, request.headers))


@router.get("/models/{model:path}", summary="Show a model")
async def get_model(request: Request, caller: ChatCaller, model: str) -> dict[str, object]:
    """Shows one model of the list."""
    models = await collect_models(get_server_state(request), caller, request.headers)
    found = next((each for each in models if each["id"] == model), None)
    if found is None:
        raise HTTPException(404, f"No upstream lists the model {model!r}.")
    return found


class _GatewayState(NamedTuple):
    """Caches of the gateway, shared by all requests."""

    variants: EngineVariants
    head_cache: HeadCache
    known_messages: KnownMessageCache
