"""Models to choose from, and whether the server of a model answers and lists it."""

import asyncio
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

from cachetools import LRUCache
from fastapi import APIRouter, FastAPI, Request
from pydantic import BaseModel, Field
from pydantic_core import from_json

from quire.errors import ModelError
from quire.model.json_values import filter_objects, is_object
from quire.server.auth import check_model
from quire.server.dependencies import ModelQuery, ReadCaller, StateDep
from quire.server.state import ServerState
from quire.server.upstream_client import get_host
from quire.settings.schema import Upstream
from quire.view.model_specs import list_priced_models
from quire.view.model_table import find_layers, merge_layers
from quire.wire.codecs import choose_only_format

router = APIRouter(prefix="/api/models", tags=["models"])

MAX_MODELS = 500
"""Maximum models in the list."""
PROBE_TIMEOUT_SECONDS = 4.0
"""Seconds that a server has to list its models."""
REPORT_SECONDS = 30.0
"""Seconds for which a report without a problem is cached."""
PROBLEM_SECONDS = 2.0
"""Seconds for which a report of a problem is cached: the user may be solving it."""
MAX_CACHED_REPORTS = 200
MAX_LISTED_MODELS = 1_000
_GLOB_CHARS = frozenset("*?[")

ModelSource = Literal["settings", "upstream", "price_list"]
ProbeStatus = Literal["ok", "unreachable", "rejected", "unknown_model", "unchecked"]


class ProbeReport(NamedTuple):
    """What a server answered when its models were listed."""

    status: ProbeStatus
    problem: str = ""
    """What happened and what to do, for the user; empty if nothing is wrong."""
    host: str | None = None
    models: tuple[str, ...] = ()


class _Endpoint(NamedTuple):
    base_url: str
    headers: tuple[tuple[str, str], ...] = ()
    needs_list: bool = True
    """Whether the credentials of the headers suffice to list models; else any response proves that it is reachable."""


class UpstreamProbe:
    """LRU cache of reports by endpoint."""

    def __init__(self, server_state: ServerState, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._server_state, self._clock = server_state, clock
        self._reports: LRUCache[_Endpoint, tuple[float, ProbeReport]] = LRUCache(MAX_CACHED_REPORTS)

    async def check_model(self, model: str) -> ProbeReport:
        """Report for one model: also whether its server lists it."""
        upstream = self._server_state.upstream_for(model)
        try:
            if upstream is None or upstream.credentials == "client":
                # The provider is known by name. In a thread: its first use imports its package.
                base_url = await asyncio.to_thread(self._server_state.base_url_for, model)
                if base_url is None:
                    return ProbeReport("unchecked")
                endpoint = _Endpoint(base_url.rstrip("/"), needs_list=False)
            else:
                endpoint = self._locate_upstream(upstream)
        except ModelError as error:
            return ProbeReport("rejected", str(error))
        report = await self._probe(endpoint)
        if report.status != "ok" or not report.models:
            return report
        served_model = self._server_state.upstream_model_for(model) or model
        # A server may list it without the prefix of a wire format, and Ollama lists it with its default tag.
        variants = {served_model, served_model.removeprefix("openai:"), served_model.removeprefix("anthropic:")}
        if any(name in variants or name.removesuffix(":latest") in variants for name in report.models):
            return report
        problem = f"{report.host} does not list the model {served_model}; choose one that it lists."
        return report._replace(status="unknown_model", problem=problem)

    async def list_models(self, upstream: Upstream) -> tuple[str, ...]:
        """Names of an upstream's models; none if it does not answer, or only to clients with their own credentials."""
        if upstream.credentials == "client":
            return ()
        return (await self._probe(self._locate_upstream(upstream))).models

    def _locate_upstream(self, upstream: Upstream) -> _Endpoint:
        environ = self._server_state.environ
        key = environ.get(upstream.api_key_env) if upstream.api_key_env is not None else None
        codec = choose_only_format(upstream.speaks)
        headers = {**codec.translated_headers, **(codec.build_credentials(key) if key else {})}
        return _Endpoint(codec.build_url(upstream.base_url, "").rstrip("/"), tuple(headers.items()))

    async def _probe(self, endpoint: _Endpoint) -> ProbeReport:
        cached = self._reports.get(endpoint)
        if cached is not None:
            checked_at, report = cached
            if self._clock() - checked_at < (PROBLEM_SECONDS if report.problem else REPORT_SECONDS):
                return report
        report = await self._fetch_report(endpoint)
        self._reports[endpoint] = (self._clock(), report)
        return report

    async def _fetch_report(self, endpoint: _Endpoint) -> ProbeReport:
        url = f"{endpoint.base_url}/models"
        host = get_host(url)
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                status, body = await self._server_state.http_client.get(url, headers=dict(endpoint.headers))
        except ModelError as error:
            return ProbeReport("unreachable", str(error), host)
        except TimeoutError:
            return ProbeReport("unreachable", f"No answer from {host} in time; check that it is running.", host)
        if endpoint.needs_list and status in (401, 403):
            problem = f"{host} refuses the API key; check the environment variable that `api_key_env` names."
            return ProbeReport("rejected", problem, host)
        if status >= 500:
            problem = f"{host} answers with an error, {status}; check that it is running, and retry."
            return ProbeReport("unreachable", problem, host)
        try:
            parsed: object = from_json(body) if status == 200 else None
        except ValueError:
            parsed = None
        names = (each.get("id") for each in (filter_objects(parsed.get("data")) if is_object(parsed) else ()))
        models = tuple(name for name in names if isinstance(name, str) and name)[:MAX_LISTED_MODELS]
        return ProbeReport("ok", "", host, models)


def get_upstream_probe(app: FastAPI) -> UpstreamProbe:
    """Returns the application's `UpstreamProbe`, created on first use."""
    if not hasattr(app.state, "upstream_probe"):
        app.state.upstream_probe = UpstreamProbe(app.state.server_state)
    return app.state.upstream_probe


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
    """Lists the models that the caller may choose: from the settings, from the upstreams, and, where the model is
    called at its provider, the provider's models in the price list. Upstreams are listed with a short timeout."""
    settings, probe = server_state.settings, get_upstream_probe(request.app)
    configured = (settings.model, *settings.upstreams, *settings.models)
    # Patterns name no model.
    sources: dict[str, ModelSource] = {name: "settings" for name in configured if not _GLOB_CHARS & set(name)}
    upstreams = {each.base_url: each for each in settings.upstreams.values()}
    if settings.base_url is not None:
        upstreams.setdefault(settings.base_url, Upstream(base_url=settings.base_url))
    lists = await asyncio.gather(*(probe.list_models(each) for each in upstreams.values()))
    for url, listed in zip(upstreams, lists, strict=True):
        for name in listed:
            target = server_state.upstream_for(name)
            # Only if a request for the model would go to the upstream that lists it.
            if target is not None and target.base_url == url:
                sources.setdefault(name, "upstream")
    if server_state.upstream_for(settings.model) is None:
        for name in list_priced_models(settings.model):
            if server_state.upstream_for(name) is None:
                sources.setdefault(name, "price_list")
    items: list[ModelSchema] = []
    for name, source in sources.items():
        upstream = server_state.upstream_for(name)
        if not caller.allows_model(name, upstream.model if upstream is not None else None):
            continue
        spec = merge_layers(find_layers(settings.models, name, upstream=upstream))
        item = ModelSchema(
            name=name,
            source=source,
            window=spec.window,
            input_price=float(spec.input_price) if spec.input_price is not None else None,
            output_price=float(spec.output_price) if spec.output_price is not None else None,
        )
        items.append(item)
    return ModelListSchema(default=settings.model, items=items[:MAX_MODELS])


@router.get("/status")
async def get_model_status(
    request: Request, caller: ReadCaller, server_state: StateDep, model: ModelQuery = None
) -> ModelStatusSchema:
    """Whether a model's server answers and lists the model. The result is cached for some seconds."""
    name = model or server_state.settings.model
    check_model(caller, name, server_state.upstream_model_for(name))
    report = await get_upstream_probe(request.app).check_model(name)
    return ModelStatusSchema(model=name, status=report.status, problem=report.problem, host=report.host)
