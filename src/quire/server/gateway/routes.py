"""Routes of the gateway: `/v1/chat/completions` and `/v1/models`, compatible with OpenAI's clients."""

from typing import Annotated

from fastapi import APIRouter, Header, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from quire.errors import InvalidRequest
from quire.server.dependencies import ChatCaller, get_server_state
from quire.server.gateway.engine_variants import EngineVariants
from quire.server.gateway.exchange import Exchange
from quire.server.gateway.header_rules import MAX_CONVERSATION_HEADER_CHARS, decode_conversation_header
from quire.server.gateway.recognition import HeadCache, RequestedConversation
from quire.server.gateway.response import CancellableResponse, to_error_response
from quire.server.gateway.upstream import collect_models
from quire.server.state import ServerState
from quire.server.telemetry import get_telemetry

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
    try:
        requested = RequestedConversation(conversation and decode_conversation_header(conversation), branch)
        raw = await request.body()
    except InvalidRequest as error:
        return to_error_response(error)
    except ClientDisconnect:
        return Response(status_code=400)
    server_state = get_server_state(request)
    variants, head_cache = _get_gateway_state(request, server_state)
    exchange = Exchange(
        server_state=server_state,
        variants=variants,
        head_cache=head_cache,
        caller=caller,
        requested=requested,
        headers=request.headers,
        raw_body=raw,
        telemetry=get_telemetry(request),
    )
    return CancellableResponse(request, exchange.respond)


@router.get("/models", summary="List models")
async def list_models(request: Request, caller: ChatCaller) -> dict[str, object]:
    """Lists the models of all upstreams, and those named in the settings."""
    return {"object": "list", "data": await collect_models(get_server_state(request), caller, request.headers)}


def _get_gateway_state(request: Request, server_state: ServerState) -> tuple[EngineVariants, HeadCache]:
    """Returns the application's gateway caches, created on the first request."""
    state = request.app.state
    if not hasattr(state, "gateway"):
        state.gateway = (EngineVariants(server_state), HeadCache())
    return state.gateway
