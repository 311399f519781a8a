"""Other paths under `/v1`, such as embeddings and files: passed through unrecorded, where the operator allows it."""

from fastapi import APIRouter, HTTPException, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from quire.engine.context import spend_caps_for
from quire.errors import AccessDenied, ModelError, QuireError
from quire.server.auth import Caller, check_model
from quire.server.dependencies import ChatCaller, get_server_state
from quire.server.gateway.exchange import relay_unrecorded
from quire.server.gateway.response import CancellableResponse, ResponseWriter, to_http_response
from quire.server.gateway.turn_recorder import UNRECORDED_HEADERS
from quire.server.gateway.upstream import UpstreamCall, build_upstream_call
from quire.server.state import ServerState
from quire.wire.codec import UnreadableBody, get_model_name, parse_body
from quire.wire.codecs import CHAT, choose_only_format

router = APIRouter(prefix="/v1", include_in_schema=False)
"""Included after all other routes of the gateway, since it matches every path."""


@router.api_route("/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"], response_class=Response)
async def pass_other_path(request: Request, caller: ChatCaller, path: str) -> Response:
    """Passes any other request to the upstream of its model, or to `base_url` if it names none."""
    server_state = get_server_state(request)
    if not server_state.settings.pass_other_paths:
        raise HTTPException(404, f"/v1/{path} is not served; `pass_other_paths` passes it to the upstream, unrecorded.")
    try:
        raw = await request.body()
        call = _build_call(request, server_state, caller, path, raw)
    except ClientDisconnect:
        return Response(status_code=400)
    except QuireError as error:
        return to_http_response(CHAT.to_error_response(error))

    async def respond(writer: ResponseWriter) -> None:
        try:
            async with call.send(request.method, raw, trace_headers={}) as response:
                await relay_unrecorded(writer, response)
        except ModelError as error:
            if not writer.is_started:
                await writer.send_error(CHAT.to_error_response(error), UNRECORDED_HEADERS)

    return CancellableResponse(request, respond)


def _build_call(request: Request, server_state: ServerState, caller: Caller, path: str, raw: bytes) -> UpstreamCall:
    model = _read_model(request, raw)
    upstream = server_state.upstream_for(model)
    if upstream is None:
        raise AccessDenied("No upstream serves this path; set `base_url`.")
    if spend_caps_for(server_state.settings, tenant=caller.tenant, key=caller.spending_key).exist:
        raise AccessDenied("A spend cap (`max_spend`) cannot count what this path costs, so it is not passed on.")
    check_model(caller, model, upstream.model)
    return build_upstream_call(
        upstream,
        choose_only_format(upstream.speaks),
        path,
        server_state=server_state,
        caller=caller,
        headers=request.headers,
        query=request.url.query,
        content_type=request.headers.get("content-type", "application/json"),
    )


def _read_model(request: Request, raw: bytes) -> str:
    """The model that a JSON body names; other bodies, such as uploads, are not parsed."""
    if not request.headers.get("content-type", "").startswith("application/json"):
        return ""
    try:
        return get_model_name(parse_body(raw))
    except UnreadableBody:
        return ""
