"""Telemetry of the server: Prometheus metrics, OpenTelemetry spans and log lines.

None of them contains content of messages.
"""

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
from quire.model.events import TurnEnded, TurnEvent, TurnFailed
from quire.server.problems import error_code, error_to_response
from quire.server.state import ServerState
from quire.server.telemetry.metrics import GatewayDecision, Metrics
from quire.server.telemetry.middleware import TelemetryMiddleware
from quire.server.telemetry.tracer import InstrumentedModel, ModelCallSpan, Tracing

__all__ = ["Telemetry", "add_telemetry", "get_telemetry"]


class Telemetry:
    """Metrics and tracing of one application; `get_telemetry(request)` returns it."""

    def __init__(self, server_state: ServerState, *, provider: TracerProvider | None = None) -> None:
        self._server_state = server_state
        self.metrics = Metrics(get_model_label=self._get_model_label)
        self.tracing = Tracing(provider)

    def _get_model_label(self, model: str | None) -> str:
        """Returns the model's name if the settings have it, else the upstream pattern that it matches, else "other".

        Clients may send any name, so names from requests are not used as labels.
        """
        settings = self._server_state.settings
        if model in (settings.model, settings.summarizer, *settings.upstreams):
            return model or "other"
        return next((each for each in settings.upstreams if model is not None and fnmatchcase(model, each)), "other")

    @contextmanager
    def observe_turn(self, conversation: Conversation, model: Model) -> Generator[Callable[[TurnEvent], None]]:
        """Traces and counts a turn; yields a function to call with each of its events."""
        started, end = time.perf_counter(), list[TurnEnded | TurnFailed]()
        agent = conversation.engine.agent.name
        self.metrics.count_turn_started()
        with self.tracing.trace_turn(agent=agent, model=model.name, conversation=conversation.id) as spans:

            def observe(event: TurnEvent) -> None:
                self.metrics.count_turn_event(event)
                spans.handle_event(event)
                if isinstance(event, TurnEnded | TurnFailed):
                    end.append(event)

            try:
                yield observe
            finally:
                outcome, usage, error = _get_outcome(end)
                spans.finish(outcome, usage, error)
                self.metrics.count_turn_ended(outcome, time.perf_counter() - started)

    def instrument_model(self, model: Model) -> Model:
        """Wraps a model so that its calls are traced and its errors counted."""
        return InstrumentedModel(model, self.tracing, on_error=self.metrics.count_upstream_error)

    @contextmanager
    def trace_gateway_call(self, model: str, *, conversation: str | None) -> Generator[ModelCallSpan]:
        """Traces a call of the gateway to an upstream, and counts its error. Send the span's `headers` upstream."""
        with self.tracing.trace_call(model, conversation=conversation) as span:
            try:
                yield span
            except ModelError as error:
                self.metrics.count_upstream_error(error)
                raise

    def count_gateway_decision(self, decision: GatewayDecision) -> None:
        self.metrics.count_gateway_decision(decision)

    def observe_gateway_reply(self, span: ModelCallSpan, usage: Usage | None, finish_reason: str | None = None) -> None:
        span.set_reply(usage, finish_reason)
        if usage is not None:
            self.metrics.count_usage(usage)


def _get_outcome(end: list[TurnEnded | TurnFailed]) -> tuple[str, Usage | None, QuireError | None]:
    """Returns a turn's outcome, usage and error; a turn without an end event was cancelled."""
    match end:
        case [TurnEnded(reason=reason, usage=usage), *_]:
            return reason, usage, None
        case [TurnFailed(error=error, usage=usage), *_]:
            return "failed", usage, error
        case _:
            return "cancelled", None, None


def add_telemetry(app: FastAPI, server_state: ServerState, *, provider: TracerProvider | None = None) -> Telemetry:
    """Instruments an application and its shared state. Call it after adding all other middleware, to be outermost."""
    telemetry = Telemetry(server_state, provider=provider)
    app.state.telemetry = telemetry
    server_state.store.observe_transactions(telemetry.metrics.observe_transaction)
    server_state.subscribe(lambda tenant, event: telemetry.metrics.count_context_event(event))
    server_state.subscribe(telemetry.tracing.handle_context_event)
    server_state.turns.observer, server_state.instrument_model = telemetry.observe_turn, telemetry.instrument_model
    app.add_exception_handler(QuireError, _handle_quire_error)
    app.add_middleware(TelemetryMiddleware, metrics=telemetry.metrics)
    return telemetry


async def _handle_quire_error(request: Request, error: Exception) -> JSONResponse:
    """Answers with a problem document, and stores the error code for the log line."""
    assert isinstance(error, QuireError)
    request.state.error_code = error_code(error)
    return error_to_response(error)


def get_telemetry(request: Request) -> Telemetry:
    return request.app.state.telemetry
