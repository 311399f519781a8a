"""Models to choose from, and whether the one that answers can be reached."""

import asyncio
from collections.abc import Iterable
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from quire.server.auth import Caller, check_model
from quire.server.dependencies import ModelQuery, ReadCaller, StateDep
from quire.server.state import ServerState
from quire.server.upstream_probe import ProbeStatus, UpstreamProbe, get_upstream_probe
from quire.settings.schema import Upstream
from quire.view.model_specs import list_priced_models
from quire.view.model_table import find_layers, merge_layers

router = APIRouter(prefix="/api/models", tags=["models"])

MAX_MODELS = 500
"""Maximum models in the list."""
_GLOB_CHARS = frozenset("*?[")

ModelSource = Literal["settings", "upstream", "price_list"]


class ModelSchema(BaseModel):
    name: str
    source: ModelSource = Field(description="What names the model: the settings, an upstream's list, the price list.")
    window: int | None = Field(description="Context window in tokens; null if no table lists the model.")
    input_price: float | None = Field(description="US dollars per million input tokens.")
    output_price: float | None = Field(description="US dollars per million output tokens.")


class ModelListSchema(BaseModel):
    default: str = Field(description="The model that answers where no other is named.")
    items: list[ModelSchema]


class ModelStatusSchema(BaseModel):
    model: str
    status: ProbeStatus = Field(
        description="`unknown_model` if its server does not list it; `unchecked` if it is not called over HTTP."
    )
    problem: str = Field(description="What happened and what to do; empty if nothing is wrong.")
    host: str | None = Field(description="Host of the server.")


@router.get("")
async def list_models(request: Request, caller: ReadCaller, server_state: StateDep) -> ModelListSchema:
    """Lists the models that the caller may choose: those of the settings, of the upstreams, and, where the model is
    called at its provider, those of the provider in the price list. Upstreams are listed with a short timeout."""
    default = server_state.settings.model
    sources: dict[str, ModelSource] = dict.fromkeys(_list_configured_models(server_state), "settings")
    for name in await _list_upstream_models(server_state, get_upstream_probe(request.app)):
        sources.setdefault(name, "upstream")
    if server_state.upstream_for(default) is None:
        for name in list_priced_models(default):
            if server_state.upstream_for(name) is None:
                sources.setdefault(name, "price_list")
    allowed = [name for name in sources if _is_allowed(server_state, caller, name)][:MAX_MODELS]
    return ModelListSchema(
        default=default, items=[_describe_model(server_state, name, sources[name]) for name in allowed]
    )


@router.get("/status")
async def get_model_status(
    request: Request, caller: ReadCaller, server_state: StateDep, model: ModelQuery = None
) -> ModelStatusSchema:
    """Whether a model's server answers and lists the model. The result is cached for some seconds."""
    name = model or server_state.settings.model
    upstream = server_state.upstream_for(name)
    check_model(caller, name, upstream.model if upstream is not None else None)
    report = await get_upstream_probe(request.app).check_model(name)
    return ModelStatusSchema(model=name, status=report.status, problem=report.problem, host=report.host)


def _list_configured_models(server_state: ServerState) -> Iterable[str]:
    """The default model first, then names of upstreams and of the table of models; patterns name no model."""
    settings = server_state.settings
    names = (settings.model, *settings.upstreams, *settings.models)
    return (name for name in names if not _GLOB_CHARS & set(name))


async def _list_upstream_models(server_state: ServerState, probe: UpstreamProbe) -> list[str]:
    """Models that upstreams list, if a request for them would go to the upstream that lists them."""
    upstreams = {each.base_url: each for each in server_state.settings.upstreams.values()}
    base_url = server_state.settings.base_url
    if base_url is not None:
        upstreams.setdefault(base_url, Upstream(base_url=base_url))
    lists = await asyncio.gather(*(probe.list_models(each) for each in upstreams.values()))
    names: list[str] = []
    for url, listed in zip(upstreams, lists, strict=True):
        for name in listed:
            target = server_state.upstream_for(name)
            if target is not None and target.base_url == url:
                names.append(name)
    return names


def _is_allowed(server_state: ServerState, caller: Caller, name: str) -> bool:
    upstream = server_state.upstream_for(name)
    return caller.allows_model(name, upstream.model if upstream is not None else None)


def _describe_model(server_state: ServerState, name: str, source: ModelSource) -> ModelSchema:
    upstream = server_state.upstream_for(name)
    served_model = upstream.model if upstream is not None else None
    spec = merge_layers(find_layers(server_state.settings.models, name, served_model=served_model))
    return ModelSchema(
        name=name,
        source=source,
        window=spec.window,
        input_price=float(spec.input_price) if spec.input_price is not None else None,
        output_price=float(spec.output_price) if spec.output_price is not None else None,
    )
