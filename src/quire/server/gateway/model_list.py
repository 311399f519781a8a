"""The list of models, in a form that clients of every format read."""

import asyncio
from typing import Any

from pydantic_core import from_json
from starlette.datastructures import Headers

from quire.engine.reported_windows import read_listed_window
from quire.errors import InvalidKey, ModelError
from quire.model.json_values import is_object
from quire.server.auth import KEY_HEADERS
from quire.server.caller import Caller
from quire.server.dependencies import engine_for_caller
from quire.server.gateway.upstream import build_upstream_call
from quire.server.state import ServerState
from quire.settings.schema import Upstream
from quire.view.model_table import find_layers, merge_layers
from quire.wire.codecs import GEMINI, MESSAGES, choose_only_format

MODEL_LIST_TIMEOUT_SECONDS = 10.0
"""Seconds to wait for an upstream's list of models; a slower upstream contributes none."""
UNKNOWN_CREATION_TIME = "1970-01-01T00:00:00Z"
ANTHROPIC_KEY_PREFIX = "sk-ant-"
"""How the API keys and tokens of Anthropic start."""
_GLOB_CHARS = frozenset("*?[")


async def collect_models(server_state: ServerState, caller: Caller, headers: Headers) -> list[dict[str, Any]]:
    """Lists each model that the caller may call once, and only if a request for it would go to the upstream that
    lists it."""
    collected = {
        name: {"id": name, "owned_by": "quire"}
        for name in server_state.settings.upstreams
        if not _GLOB_CHARS & set(name)
    }
    # Each upstream server once, by base URL.
    by_url = {each.base_url: each for each in server_state.settings.upstreams.values()}
    default_url = server_state.settings.base_url
    if default_url is not None:
        by_url.setdefault(default_url, Upstream(base_url=default_url))
    recipient = _find_recipient(list(by_url.values()), headers)
    upstreams = [each for each in by_url.values() if each.credentials == "operator" or each is recipient]
    engine = engine_for_caller(server_state, caller)
    lists = await asyncio.gather(*(_fetch_models(each, server_state, caller, headers) for each in upstreams))
    for upstream, listed in zip(upstreams, lists, strict=True):
        for model in listed:
            target = server_state.upstream_for(str(model["id"]))
            if target is not None and target.base_url == upstream.base_url:
                collected.setdefault(str(model["id"]), model)
                if (window := read_listed_window(model)) is not None:
                    engine.runtime.reported_windows.add(window, engine.config.endpoint_for(str(model["id"])))
    models: list[dict[str, Any]] = []
    for name, model in collected.items():
        upstream = server_state.upstream_for(name)
        served_model = upstream.model if upstream is not None else None
        if not caller.allows_model(name, served_model):
            continue
        # The fields that OpenAI's or Anthropic's clients expect, with limits from the models table.
        spec = merge_layers(find_layers(server_state.settings.models, name, upstream=upstream))
        defaults = {
            "object": "model",
            "created": 0,
            "owned_by": "upstream",
            "type": "model",
            "display_name": name,
            "created_at": UNKNOWN_CREATION_TIME,
            "lifecycle": "active",
            "max_input_tokens": spec.window,
            "max_tokens": spec.output_limit,
        }
        models.append({**defaults, **model})
    return models


def _find_recipient(upstreams: list[Upstream], headers: Headers) -> Upstream | None:
    """The upstream that the client's own credentials are for, as far as the request says: no model does.

    That is the only one of their provider's format. Where several have it, none gets them.
    """
    is_anthropic = "anthropic-version" in headers or any(
        headers.get(name, "").removeprefix("Bearer ").startswith(ANTHROPIC_KEY_PREFIX) for name in KEY_HEADERS
    )
    own = MESSAGES if is_anthropic else GEMINI if is_google_client(headers) else None
    candidates = [
        each
        for each in upstreams
        if each.credentials == "client"
        and own is (codec if (codec := choose_only_format(each.speaks)) in (MESSAGES, GEMINI) else None)
    ]
    return candidates[0] if len(candidates) == 1 else None


async def _fetch_models(
    upstream: Upstream, server_state: ServerState, caller: Caller, headers: Headers
) -> list[dict[str, Any]]:
    try:
        call = build_upstream_call(
            upstream,
            choose_only_format(upstream.speaks),
            "models",
            server_state=server_state,
            caller=caller,
            headers=headers,
            is_translated=True,
        )
        async with asyncio.timeout(MODEL_LIST_TIMEOUT_SECONDS):
            status, raw = await call.client.get(call.url, headers=call.headers)
        body: object = from_json(raw) if status == 200 else None
    except (InvalidKey, ModelError, ValueError, TimeoutError):
        return []
    return choose_only_format(upstream.speaks).parse_models(body) if is_object(body) else []


def is_google_client(headers: Headers) -> bool:
    return "x-goog-api-key" in headers or "x-goog-api-client" in headers


def build_google_model(model: dict[str, Any]) -> dict[str, Any]:
    """A model as Google's clients read it."""
    limits = {"inputTokenLimit": model.get("max_input_tokens"), "outputTokenLimit": model.get("max_tokens")}
    return {
        "name": f"models/{model['id']}",
        "displayName": model["display_name"],
        "version": "",
        **{name: value for name, value in limits.items() if value is not None},
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }


def build_model_list(models: list[dict[str, Any]]) -> dict[str, Any]:
    """Builds the response: OpenAI's clients read `data`, Anthropic's also the fields for paging."""
    ids = [model["id"] for model in models]
    page = {"has_more": False, "first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
    return {"object": "list", "data": models, **page}
