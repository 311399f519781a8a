"""OpenTelemetry spans of turns, model calls and compactions, named by the GenAI semantic conventions.

Attributes hold the model, token counts, conversation and outcome; never content. Without an SDK no span is recorded,
but the client's `traceparent` is still propagated to the upstream.
"""

import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractContextManager, aclosing, contextmanager
from dataclasses import replace

from cachetools import LRUCache
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from quire import __version__
from quire.errors import QuireError
from quire.llm import Model, ModelChunk, Prompt, Reply
from quire.model import Compaction, Usage
from quire.model.context_events import CompactionFailed, CompactionStarted, ContextCompacted, ContextEvent
from quire.model.events import QuestionRecorded, RequestPrepared, ToolCompleted, TurnEvent, TurnStarted
from quire.wire import infer_wire_format
from quire.wire.billed_calls import count_reasoning_tokens

_PROPAGATOR = TraceContextTextMapPropagator()
_MAX_OPEN_COMPACTIONS = 1_000
"""Maximum number of running compactions whose start time is remembered."""


@contextmanager
def continue_trace(headers: Mapping[str, str]) -> Generator[None]:
    """Continues the trace of the client's `traceparent`, unless outer instrumentation has already set a span."""
    if "traceparent" not in headers or trace.get_current_span().get_span_context().is_valid:
        yield
        return
    token = contexts.attach(_PROPAGATOR.extract(headers))
    try:
        yield
    finally:
        contexts.detach(token)


def get_trace_id() -> str | None:
    """Returns the ID of the current trace, if there is one."""
    span_context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(span_context.trace_id) if span_context.is_valid else None


def to_usage_attributes(usage: Usage) -> dict[str, int | str]:
    attributes: dict[str, int | str] = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
    }
    if reasoning := count_reasoning_tokens(usage):
        attributes["gen_ai.usage.reasoning.output_tokens"] = reasoning
    return attributes | ({"gen_ai.response.model": usage.model} if usage.model is not None else {})


def _set_error(span: Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR)


class ModelCallSpan:
    """Span of one model call; send its `headers` with the request."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.headers: dict[str, str] = {}
        """They propagate the trace context of the span to the next server."""
        _PROPAGATOR.inject(self.headers, trace.set_span_in_context(span))

    def set_attributes(self, **attributes: str | int | float | bool) -> None:
        """Sets attributes with the prefix `quire.`; never content."""
        self._span.set_attributes({f"quire.{name}": value for name, value in attributes.items()})

    def set_reply(self, usage: Usage | None, finish_reason: str | None = None) -> None:
        if usage is not None:
            self._span.set_attributes(to_usage_attributes(usage))
        if finish_reason is not None:
            self._span.set_attribute("gen_ai.response.finish_reasons", [finish_reason])

    def set_error(self, kind: str) -> None:
        _set_error(self._span, kind)


class Tracing:
    """Creates the spans of one application."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("quire", __version__, tracer_provider=provider)
        self._compaction_starts: LRUCache[tuple[str, str, int], int] = LRUCache(_MAX_OPEN_COMPACTIONS)

    @contextmanager
    def trace_call(self, model: str, *, conversation: str | None = None) -> Generator[ModelCallSpan]:
        """Traces a model call up to the end of its reply. An error sets its type on the span, not its message."""
        span = self._tracer.start_span(
            f"chat {model}",
            kind=SpanKind.CLIENT,
            attributes={
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": _provider_name(model),
                "gen_ai.request.model": model,
                **({"gen_ai.conversation.id": conversation} if conversation is not None else {}),
            },
        )
        call_span = ModelCallSpan(span)
        try:
            yield call_span
        except QuireError as error:
            call_span.set_error(type(error).__name__)
            raise
        finally:
            span.end()

    @contextmanager
    def trace_turn(self, *, agent: str, model: str, conversation: str) -> Generator["TurnSpans"]:
        """Traces a turn. Spans started within become its children."""
        span = self._tracer.start_span(
            f"invoke_agent {agent}",
            kind=SpanKind.INTERNAL,
            attributes={
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.provider.name": _provider_name(model),
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

    def handle_context_event(self, tenant: str, event: ContextEvent) -> None:
        """Records a compaction as a child of the current span once it is done."""
        key = (tenant, event.conversation, event.branch)
        match event:
            case CompactionStarted():
                self._compaction_starts[key] = time.time_ns()
            case ContextCompacted(entry=entry) if isinstance(entry.body, Compaction):
                body = entry.body
                span = self._tracer.start_span(
                    "compact",
                    start_time=self._compaction_starts.pop(key, None),
                    attributes={
                        "gen_ai.conversation.id": event.conversation,
                        "quire.compaction.trigger": body.trigger,
                        "quire.compaction.strategy": body.strategy,
                        "quire.compaction.tokens_before": body.tokens_before,
                        "quire.compaction.tokens_after": body.tokens_after,
                    },
                )
                if body.usage is not None:
                    span.set_attributes(to_usage_attributes(body.usage))
                span.end()
            case CompactionFailed(reason=reason):
                trace.get_current_span().add_event("quire.summary_failed", {"error.type": reason})
            case _:
                pass


class TurnSpans:
    """Child spans of a turn, derived from its events: each `prepare`, from the preceding event to the request."""

    def __init__(self, tracer: trace.Tracer, span: Span) -> None:
        self._tracer, self._span = tracer, span
        self._prepare_started_ns: int | None = None

    def handle_event(self, event: TurnEvent) -> None:
        match event:
            case TurnStarted() | ToolCompleted():
                self._prepare_started_ns = time.time_ns()
            case QuestionRecorded():
                self._end_prepare()
            case RequestPrepared(tokens=tokens, window=window, step=step, compactions=compactions):
                self._end_prepare(tokens=tokens, window=window, step=step, compactions=len(compactions))
            case _:
                pass

    def _end_prepare(self, **counts: int) -> None:
        """Ends the `prepare` span. The first question is recorded before it is sent, so its counts arrive later."""
        if self._prepare_started_ns is not None:
            self._tracer.start_span("prepare", start_time=self._prepare_started_ns).end()
            self._prepare_started_ns = None
        if counts:
            self._span.add_event(
                "quire.request_prepared", {f"quire.request.{name}": value for name, value in counts.items()}
            )

    def finish(self, outcome: str, usage: Usage | None, error: QuireError | None) -> None:
        self._span.set_attribute("quire.turn.outcome", outcome)
        if usage is not None:
            self._span.set_attributes(to_usage_attributes(usage))
        if error is not None:
            _set_error(self._span, type(error).__name__)


class InstrumentedModel:
    """A model whose calls are traced by `trace_call`."""

    def __init__(self, model: Model, trace_call: Callable[[str], AbstractContextManager[ModelCallSpan]]) -> None:
        self._model, self._trace_call = model, trace_call
        self.name = model.name

    async def complete(self, prompt: Prompt) -> Reply:
        with self._trace_call(self.name) as span:
            reply = await self._model.complete(replace(prompt, headers=span.headers))
            span.set_reply(reply.usage, reply.finish_reason)
            return reply

    async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelChunk, None]:
        with self._trace_call(self.name) as span:
            async with aclosing(self._model.stream(replace(prompt, headers=span.headers))) as chunks:
                async for chunk in chunks:
                    if isinstance(chunk, Reply):
                        span.set_reply(chunk.usage, chunk.finish_reason)
                    yield chunk


def _provider_name(model: str) -> str:
    """The provider's name in OpenTelemetry's conventions, as far as the model's name shows it."""
    return "anthropic" if infer_wire_format(model) == "messages" else "openai"
