"""Routes of Google's Gemini API: create replies, count tokens and list models.

The model and the method are in the path, under `/v1beta`, `/v1`, and the path of Vertex AI for API keys. Lists of
models at `/v1/models` are in `gateway.routes`: clients of all formats read them there.
"""

from typing import Any

from fastapi import APIRouter, HTTPException, Request
from starlette.responses import Response

from quire.errors import InvalidRequest
from quire.model.policy import MAX_MODEL_NAME_CHARS
from quire.server.caller import Caller
from quire.server.dependencies import ChatCaller
from quire.server.gateway.exchange import Exchange
from quire.server.gateway.model_list import build_google_model, collect_models
from quire.server.gateway.response import to_http_response
from quire.server.gateway.routes import (
    MESSAGES_ERRORS,
    BranchHeader,
    ConversationHeader,
    Responder,
    respond_with_token_count,
    run_exchange,
)
from quire.server.state import get_server_state
from quire.wire.codecs import GEMINI

PREFIXES = ("/v1beta/models", "/v1/models", "/v1beta1/publishers/google/models", "/v1/publishers/google/models")
router = APIRouter(tags=["gateway"], responses=MESSAGES_ERRORS)


async def _generate(
    request: Request,
    caller: Caller,
    model: str,
    conversation: str | None,
    branch: int | None,
    *,
    stream: bool = False,
    respond: Responder = Exchange.respond,
) -> Response:
    if len(model) > MAX_MODEL_NAME_CHARS:
        detail = f"The name of the model has more than {MAX_MODEL_NAME_CHARS} characters."
        return to_http_response(GEMINI.to_error_response(InvalidRequest(detail)))
    fields: dict[str, Any] = {"model": model, **({"stream": True} if stream else {})}
    return await run_exchange(request, caller, GEMINI, conversation, branch, respond=respond, path_fields=fields)


async def generate_content(
    request: Request,
    caller: ChatCaller,
    model: str,
    conversation: ConversationHeader = None,
    branch: BranchHeader = None,
) -> Response:
    """Google's `generateContent`. Passed through to an upstream that speaks it, and recorded."""
    return await _generate(request, caller, model, conversation, branch)


async def stream_generate_content(
    request: Request,
    caller: ChatCaller,
    model: str,
    conversation: ConversationHeader = None,
    branch: BranchHeader = None,
) -> Response:
    """The same as a stream: of events with `alt=sse`, else one JSON list."""
    return await _generate(request, caller, model, conversation, branch, stream=True)


async def count_content_tokens(request: Request, caller: ChatCaller, model: str) -> Response:
    """Counts the request as it would be sent now, by an upstream that speaks Gemini."""
    return await _generate(request, caller, model, None, None, respond=respond_with_token_count)


for _method, _endpoint, _summary in (
    ("generateContent", generate_content, "Generate content within the context window"),
    ("streamGenerateContent", stream_generate_content, "Stream content within the context window"),
    ("countTokens", count_content_tokens, "Count the tokens of contents"),
):
    for _prefix in PREFIXES:
        router.add_api_route(
            f"{_prefix}/{{model:path}}:{_method}",
            _endpoint,
            methods=["POST"],
            response_class=Response,
            summary=_summary,
            # The other prefixes are for clients that have no choice.
            include_in_schema=_prefix == PREFIXES[0],
        )


@router.get("/v1beta/models", summary="List models in Google's form")
async def list_google_models(request: Request, caller: ChatCaller) -> dict[str, object]:
    """Lists the models of all upstreams, and those named in the settings."""
    models = await collect_models(get_server_state(request), caller, request.headers)
    return {"models": [build_google_model(model) for model in models]}


@router.get("/v1beta/models/{model:path}", summary="Show a model in Google's form")
async def get_google_model(request: Request, caller: ChatCaller, model: str) -> dict[str, object]:
    """Shows one model of the list."""
    models = await collect_models(get_server_state(request), caller, request.headers)
    found = next((each for each in models if each["id"] == model), None)
    if found is None:
        raise HTTPException(404, f"No upstream lists the model {model!r}.")
    return build_google_model(found)


@router.api_route("/v1beta/{path:path}", methods=["GET", "POST", "PATCH", "DELETE"], include_in_schema=False)
async def refuse_other_path(caller: ChatCaller, path: str) -> None:
    """Says what is served, for every other path of Google's API."""
    raise HTTPException(
        404,
        f"/v1beta/{path} is not served, only generateContent, streamGenerateContent, countTokens and the models; send "
        "files, caches, batches, embeddings, images and real-time sessions to Google itself.",
    )
