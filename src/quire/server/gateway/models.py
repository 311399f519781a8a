"""Which models the gateway answers for: those that the settings name, and those that the upstreams list."""

import asyncio
from collections.abc import Mapping
from typing import Any

from quire.server.gateway.upstream import call_to
from quire.server.identity import Caller
from quire.server.serving import Serving
from quire.settings.table import Upstream
from quire.view.shapes.fields import is_object, objects

SECONDS = 10.0
"""An upstream that takes longer to list its models lists none."""
_PATTERN = frozenset("*?[")


async def listed_models(serving: Serving, caller: Caller, headers: Mapping[str, str]) -> list[dict[str, Any]]:
    """Each model once, and only where a request for it would go to the upstream that lists it."""
    found = {name: _entry(name) for name in serving.settings.upstreams if not _PATTERN & set(name)}
    upstreams = _upstreams(serving)
    lists = await asyncio.gather(*(_offered(each, serving, caller, headers) for each in upstreams))
    for upstream, models in zip(upstreams, lists, strict=True):
        for model in models:
            goes_to = serving.upstream(str(model["id"]))
            if goes_to is not None and goes_to.base_url == upstream.base_url:
                found.setdefault(str(model["id"]), model)
    return list(found.values())


def _upstreams(serving: Serving) -> list[Upstream]:
    """Every server once."""
    known = {each.base_url: each for each in serving.settings.upstreams.values()}
    usual = serving.settings.base_url
    if usual is not None:
        known.setdefault(usual, Upstream(base_url=usual))
    return list(known.values())


async def _offered(
    upstream: Upstream, serving: Serving, caller: Caller, headers: Mapping[str, str]
) -> list[dict[str, Any]]:
    import httpx

    call = call_to(upstream, "models", serving=serving, caller=caller, headers=headers)
    try:
        async with asyncio.timeout(SECONDS):
            answer = await call.client.get(call.url, headers=call.headers)
        body: object = answer.json() if answer.is_success else None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, TimeoutError):
        return []
    return [model for model in objects(body.get("data")) if model.get("id")] if is_object(body) else []


def _entry(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "quire"}
