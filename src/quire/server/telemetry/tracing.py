"""Spans, by OpenTelemetry's interface and the names of its conventions for generative AI.

Attributes say which model, how many tokens, which conversation, how it ended; never a word of what was said. Without an
SDK nothing is recorded, and what a client sent as `traceparent` goes on upstream all the same.
"""

import time
from collections import OrderedDict
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from quire import __version__
from quire.errors import QuireError
from quire.model import Compaction, Usage
from quire.model.events import CompactionFailed, CompactionStarted, ContextCompacted, Event
from quire.model.turns import QuestionKept, RequestPrepared, ToolAnswered, TurnEvent, TurnStarted
from quire.view.shapes import provider_of

_PROPAGATOR = TraceContextTextMapPropagator()
_AT_ONCE = 1_000
"""Compactions under way whose beginning is remembered."""


@contextmanager
def continued(headers: Mapping[str, str]) -> Generator[None]:
    """What happens here belongs to the client's trace, unless something around us has seen to that already."""
    if "traceparent" not in headers or trace.get_current_span().get_span_context().is_valid:
        yield
        return
    token = contexts.attach(_PROPAGATOR.extract(headers))
    try:
        yield
    finally:
        contexts.detach(token)


def trace_id() -> str | None:
    """The trace that this belongs to, if there is one."""
    known = trace.get_current_span().get_span_context()
    return trace.format_trace_id(known.trace_id) if known.is_valid else None


def headers_for(span: Span) -> dict[str, str]:
    """What tells the next server which trace its work belongs to."""
    carried: dict[str, str] = {}
    _PROPAGATOR.inject(carried, trace.set_span_in_context(span))
    return carried


def used(usage: Usage) -> dict[str, int | str]:
    said: dict[str, int | str] = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
    }
    return said | ({"gen_ai.response.model": usage.model} if usage.model is not None else {})


class Call:
    """One call of a model, as a span; `headers` go with the request."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.headers: Mapping[str, str] = headers_for(span)

    def note(self, **attributes: str | int | float | bool) -> None:
        """Something of Quire's own, under `quire.`; never content."""
        self._span.set_attributes({f"quire.{name}": value for name, value in attributes.items()})

    def replied(self, usage: Usage | None, finish: str | None = None) -> None:
        if usage is not None:
            self._span.set_attributes(used(usage))
        if finish is not None:
            self._span.set_attribute("gen_ai.response.finish_reasons", [finish])

    def failed(self, kind: str) -> None:
        self._span.set_attribute("error.type", kind)
        self._span.set_status(StatusCode.ERROR)


class Tracing:
    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("quire", __version__, tracer_provider=provider)
        self._compacting: OrderedDict[tuple[str, str, int], int] = OrderedDict()

    @contextmanager
    def call(self, model: str, *, conversation: str | None = None) -> Generator[Call]:
        """A call of a model, from here to the end of its answer. An error of ours is named, without its message."""
        span = self._tracer.start_span(
            f"chat {model}",
            kind=SpanKind.CLIENT,
            attributes={
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": provider_of(model),
                "gen_ai.request.model": model,
                **({"gen_ai.conversation.id": conversation} if conversation is not None else {}),
            },
        )
        call = Call(span)
        try:
            yield call
        except QuireError as error:
            call.failed(type(error).__name__)
            raise
        finally:
            span.end()

    @contextmanager
    def turn(self, *, agent: str, model: str, conversation: str) -> Generator["TurnSpans"]:
        """A turn; what is done within belongs to it."""
        span = self._tracer.start_span(
            f"invoke_agent {agent}",
            kind=SpanKind.INTERNAL,
            attributes={
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.provider.name": provider_of(model),
                "gen_ai.agent.name": agent,
                "gen_ai.conversation.id": conversation,
                "gen_ai.request.model": model,
            },
        )
        token = contexts.attach(trace.set_span_in_context(span))
        try:
            yield TurnSpans(self._tracer, span)
        finally:
            contexts.detach(token)
            span.end()

    def context_told(self, tenant: str, event: Event) -> None:
        """A compaction is a span of what it was made for, written when it is done."""
        place = (tenant, event.conversation, event.branch)
        match event:
            case CompactionStarted():
                self._compacting[place] = time.time_ns()
                if len(self._compacting) > _AT_ONCE:
                    self._compacting.popitem(last=False)
            case ContextCompacted(entry=entry) if isinstance(entry.body, Compaction):
                began = self._compacting.pop(place, None)
                self._compacted(entry.body, event.conversation, began)
            case CompactionFailed(reason=reason):
                trace.get_current_span().add_event("quire.summary_failed", {"error.type": reason})
            case _:
                pass

    def _compacted(self, body: Compaction, conversation: str, began: int | None) -> None:
        span = self._tracer.start_span(
            "compact",
            start_time=began,
            attributes={
                "gen_ai.conversation.id": conversation,
                "quire.compaction.trigger": body.trigger,
                "quire.compaction.strategy": body.strategy,
                "quire.compaction.tokens_before": body.tokens_before,
                "quire.compaction.tokens_after": body.tokens_after,
            },
        )
        if body.usage is not None:
            span.set_attributes(used(body.usage))
        span.end()


class TurnSpans:
    """The spans of a turn that its events tell of: each `prepare`, from what came before it to the request."""

    def __init__(self, tracer: trace.Tracer, span: Span) -> None:
        self._tracer, self._span = tracer, span
        self._preparing: int | None = None

    def told(self, event: TurnEvent) -> None:
        match event:
            case TurnStarted() | ToolAnswered():
                self._preparing = time.time_ns()
            case QuestionKept():
                self._prepared()
            case RequestPrepared(tokens=tokens, window=window, step=step, compacted=compacted):
                self._prepared(tokens=tokens, window=window, step=step, compactions=len(compacted))
            case _:
                pass

    def _prepared(self, **counts: int) -> None:
        """What is asked first is kept before it is sent, so the first request says its size only afterwards."""
        if self._preparing is not None:
            self._tracer.start_span("prepare", start_time=self._preparing).end()
            self._preparing = None
        if counts:
            self._span.add_event("quire.request_prepared", {f"quire.request.{name}": of for name, of in counts.items()})

    def over(self, outcome: str, usage: Usage | None, error: QuireError | None) -> None:
        self._span.set_attribute("quire.turn.outcome", outcome)
        if usage is not None:
            self._span.set_attributes(used(usage))
        if error is not None:
            self._span.set_attribute("error.type", type(error).__name__)
            self._span.set_status(StatusCode.ERROR)
