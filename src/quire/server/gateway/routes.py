"""The two addresses that OpenAI's clients know."""

from typing import Annotated

from fastapi import APIRouter, Header, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from quire.server.asking import Chatting, serving_of
from quire.server.gateway.client import Answer
from quire.server.gateway.exchange import Exchange
from quire.server.gateway.models import listed_models
from quire.server.gateway.places import Heads, Named
from quire.server.gateway.variants import Variants
from quire.server.serving import Serving
from quire.server.telemetry import telemetry_of

router = APIRouter(prefix="/v1", tags=["gateway"])

ConversationName = Annotated[
    str | None,
    Header(alias="X-Quire-Conversation", min_length=1, max_length=200, description="The conversation; made if new."),
]
BranchName = Annotated[
    int | None, Header(alias="X-Quire-Branch", ge=0, le=2**31 - 1, description="Its branch, for what is new only.")
]


@router.post("/chat/completions", response_class=Response, summary="Answer a list of messages, within the window")
async def complete(
    request: Request, caller: Chatting, conversation: ConversationName = None, branch: BranchName = None
) -> Response:
    """OpenAI's chat completions. What fits goes upstream as it is; what does not is fitted. All of it is kept."""
    try:
        raw = await request.body()
    except ClientDisconnect:
        return Response(status_code=400)
    serving = serving_of(request)
    variants, heads = _at_hand(request, serving)
    exchange = Exchange(
        serving=serving,
        variants=variants,
        heads=heads,
        caller=caller,
        named=Named(conversation, branch),
        headers=request.headers,
        raw=raw,
        telemetry=telemetry_of(request),
    )
    return Answer(request, exchange.answer)


@router.get("/models", summary="The models that can be asked for")
async def models(request: Request, caller: Chatting) -> dict[str, object]:
    """What the upstreams offer, and the names that the settings give."""
    return {"object": "list", "data": await listed_models(serving_of(request), caller, request.headers)}


def _at_hand(request: Request, serving: Serving) -> tuple[Variants, Heads]:
    """What the gateway of an application keeps between requests, made when the first comes."""
    state = request.app.state
    if not hasattr(state, "gateway"):
        state.gateway = (Variants(serving), Heads())
    return state.gateway
