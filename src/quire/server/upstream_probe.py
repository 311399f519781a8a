"""Checks whether the server of a model answers, and which models it lists. Reports are cached for a short time."""

import asyncio
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

from cachetools import LRUCache
from fastapi import FastAPI
from pydantic_core import from_json

from quire.errors import ModelError
from quire.server.gateway.upstream import ANTHROPIC_VERSION
from quire.server.state import ServerState
from quire.server.upstream_client import get_host
from quire.settings.schema import Upstream
from quire.view.wire_formats.fields import filter_objects, is_object

PROBE_TIMEOUT_SECONDS = 4.0
"""Seconds that a server has to list its models."""
REPORT_SECONDS = 30.0
"""Seconds for which a report without a problem is cached."""
PROBLEM_SECONDS = 2.0
"""Seconds for which a report of a problem is cached: the user may be solving it."""
MAX_CACHED_REPORTS = 200
MAX_LISTED_MODELS = 1_000

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
            # In a thread: the first use of a provider imports its package.
            endpoint = (
                await asyncio.to_thread(self._locate_provider, model)
                if upstream is None or upstream.credentials == "client"
                else self._locate_upstream(upstream)
            )
        except ModelError as error:
            return ProbeReport("rejected", str(error))
        if endpoint is None:
            return ProbeReport("unchecked")
        report = await self._probe(endpoint)
        served_model = upstream.model if upstream is not None and upstream.model is not None else model
        if report.status == "ok" and report.models and not _lists_model(report.models, served_model):
            problem = f"{report.host} does not list the model {served_model}; choose one that it lists."
            return report._replace(status="unknown_model", problem=problem)
        return report

    async def list_models(self, upstream: Upstream) -> tuple[str, ...]:
        """Names of an upstream's models; none if it does not answer, or only to clients with their own credentials."""
        if upstream.credentials == "client":
            return ()
        return (await self._probe(self._locate_upstream(upstream))).models

    def _locate_upstream(self, upstream: Upstream) -> _Endpoint:
        environ = self._server_state.environ
        key = environ.get(upstream.api_key_env) if upstream.api_key_env is not None else None
        if set(upstream.speaks) == {"messages"}:
            base_url = f"{upstream.base_url.rstrip('/').removesuffix('/v1')}/v1"
            credentials = (("x-api-key", key),) if key else ()
            return _Endpoint(base_url, (("anthropic-version", ANTHROPIC_VERSION), *credentials))
        return _Endpoint(upstream.base_url.rstrip("/"), (("authorization", f"Bearer {key}"),) if key else ())

    def _locate_provider(self, model: str) -> _Endpoint | None:
        """Endpoint of a provider that is known by name; None for a model that is not called over HTTP. Raises
        `ModelRequestRejected` if the model cannot be used."""
        base_url = self._server_state.base_url_for(model)
        return _Endpoint(base_url.rstrip("/"), needs_list=False) if base_url is not None else None

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
        return ProbeReport("ok", "", host, _parse_names(body) if status == 200 else ())


def _parse_names(raw: bytes) -> tuple[str, ...]:
    try:
        body: object = from_json(raw)
    except ValueError:
        return ()
    models = filter_objects(body.get("data")) if is_object(body) else []
    names = (model.get("id") for model in models)
    return tuple(name for name in names if isinstance(name, str) and name)[:MAX_LISTED_MODELS]


def _lists_model(names: tuple[str, ...], model: str) -> bool:
    """Whether a list has the model: by its name, without the prefix of a wire format, or with Ollama's default tag."""
    variants = {model, model.removeprefix("openai:"), model.removeprefix("anthropic:")}
    return any(name in variants or name.removesuffix(":latest") in variants for name in names)


def get_upstream_probe(app: FastAPI) -> UpstreamProbe:
    """Returns the application's `UpstreamProbe`, created on first use."""
    if not hasattr(app.state, "upstream_probe"):
        app.state.upstream_probe = UpstreamProbe(app.state.server_state)
    return app.state.upstream_probe
