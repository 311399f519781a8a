"""What the server tells of itself: metrics, spans and log lines, none of which holds a word of what was said."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from fnmatch import fnmatchcase

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from opentelemetry.trace import TracerProvider

from quire.engine import Conversation
from quire.errors import ModelError, QuireError
from quire.llm import Model
from quire.model import Usage
from quire.model.turns import TurnEnded, TurnEvent, TurnFailed
from quire.server.problems import code_of, problem_of
from quire.server.serving import Serving
from quire.server.telemetry.metrics import Decision, Metrics
from quire.server.telemetry.models import WatchedModel
from quire.server.telemetry.tracing import Call, Tracing
from quire.server.telemetry.watching import Watching

__all__ = ["Telemetry", "add_telemetry", "telemetry_of"]


class Telemetry:
    """Reached as `request.app.state.telemetry`, or by `telemetry_of(request)`."""

    def __init__(self, serving: Serving, *, provider: TracerProvider | None = None) -> None:
        self._serving = serving
        self.metrics = Metrics(label_of=self._label_of)
        self.tracing = Tracing(provider)

    def _label_of(self, model: str | None) -> str:
        """A model's name if the settings have it, or the pattern of theirs that it fits: clients may send any."""
        settings = self._serving.settings
        known = (settings.model, settings.summarizer, *settings.upstreams)
        if model in known:
            return model or "other"
        return next((each for each in settings.upstreams if model is not None and fnmatchcase(model, each)), "other")

    @contextmanager
    def turn(self, conversation: Conversation, model: Model) -> Generator[Callable[[TurnEvent], None]]:
        """A turn, from here to its end; the function that this gives is to be called with its every event."""
        began, end = time.perf_counter(), list[TurnEnded | TurnFailed]()
        agent = conversation.engine.agent.name
        self.metrics.turn_began()
        with self.tracing.turn(agent=agent, model=model.name, conversation=conversation.id) as spans:

            def told(event: TurnEvent) -> None:
                self.metrics.turn_told(event)
                spans.told(event)
                if isinstance(event, TurnEnded | TurnFailed):
                    end.append(event)

            try:
                yield told
            finally:
                outcome, usage, error = _ending(end)
                spans.over(outcome, usage, error)
                self.metrics.turn_over(outcome, time.perf_counter() - began)

    def model(self, model: Model) -> Model:
        """The model with its calls traced and its errors counted."""
        return WatchedModel(model, self.tracing, failed=self.metrics.upstream_failed)

    @contextmanager
    def gateway_call(self, model: str, *, conversation: str | None) -> Generator[Call]:
        """A call of an upstream by the gateway. Its `headers` go with the request; what comes of it is told to it."""
        with self.tracing.call(model, conversation=conversation) as call:
            try:
                yield call
            except ModelError as error:
                self.metrics.upstream_failed(error)
                raise

    def gateway_decided(self, decision: Decision) -> None:
        self.metrics.gateway_decided(decision)

    def gateway_replied(self, call: Call, usage: Usage | None, finish: str | None = None) -> None:
        call.replied(usage, finish)
        if usage is not None:
            self.metrics.used(usage)


def _ending(end: list[TurnEnded | TurnFailed]) -> tuple[str, Usage | None, QuireError | None]:
    """How a turn ended, and with what; one whose end nobody told was cancelled."""
    match end:
        case [TurnEnded(reason=reason, usage=usage), *_]:
            return reason, usage, None
        case [TurnFailed(error=error, usage=usage), *_]:
            return "failed", usage, error
        case _:
            return "cancelled", None, None


def add_telemetry(app: FastAPI, serving: Serving, *, provider: TracerProvider | None = None) -> Telemetry:
    """Watches an application and what it shares, from now on. To be added after everything else that wraps it."""
    telemetry = Telemetry(serving, provider=provider)
    app.state.telemetry = telemetry
    serving.store.watch(telemetry.metrics.store_used)
    serving.subscribe(lambda tenant, event: telemetry.metrics.context_told(event))
    serving.subscribe(telemetry.tracing.context_told)
    serving.turns.observer, serving.watched = telemetry.turn, telemetry.model
    app.add_exception_handler(QuireError, _noted)
    app.add_middleware(Watching, telemetry=telemetry)
    return telemetry


async def _noted(request: Request, error: Exception) -> JSONResponse:
    """Answers as always, and leaves the problem's name for the log."""
    assert isinstance(error, QuireError)
    request.state.problem = code_of(error)
    return problem_of(error)


def telemetry_of(request: Request) -> Telemetry:
    return request.app.state.telemetry
