"""Metrics, spans and log lines of the server, and that none of them contains content."""

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from quire.engine import Conversation
from quire.errors import ModelRateLimited, ModelUnavailable, StoreFull, StoreReadOnly, StoreUnavailable
from quire.model import Message, TextPart, ToolCallPart, Usage
from quire.server import telemetry as telemetry_module
from quire.server.app import create_app
from quire.server.routes import health
from quire.server.state import ServerState, open_server_state
from quire.server.telemetry import Telemetry, logs
from quire.server.telemetry.tracer import continue_trace
from quire.server.turn_registry import BranchKey
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import DelayedReply, ScriptedModel
from quire.wire.http_errors import error_code
from quire.wire.tokens import warn_once

TOKEN = "the-token-of-this-laptop"
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"


class InstrumentedServer:
    """A server in this process, with its metrics, spans and log lines."""

    def __init__(self, shared: ServerState, lines: io.StringIO, spans: InMemorySpanExporter) -> None:
        self.server_state, self._log_stream, self._span_exporter = shared, lines, spans
        self.app = create_app(shared, token=TOKEN)
        self.telemetry: Telemetry = self.app.state.telemetry
        transport = httpx2.ASGITransport(self.app, raise_app_exceptions=False)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.client = httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8300", headers=headers)

    @property
    def request_lines(self) -> list[dict[str, Any]]:
        """Log lines of requests, without those of background work."""
        lines = [json.loads(line) for line in self._log_stream.getvalue().splitlines()]
        return [line for line in lines if line["event"] == "request"]

    @property
    def log_text(self) -> str:
        return self._log_stream.getvalue()

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._span_exporter.get_finished_spans())

    def find_span(self, name: str) -> ReadableSpan:
        [span] = [each for each in self.spans if each.name == name]
        return span

    async def fetch_metrics(self) -> str:
        return (await self.client.get("/metrics")).text

    async def metric_value(self, name: str, **labels: str) -> float:
        families = text_string_to_metric_families(await self.fetch_metrics())
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(each.value for each in samples if labels.items() <= each.labels.items())

    async def wait_for_metric(self, name: str, expected: float) -> None:
        async with asyncio.timeout(10):
            while await self.metric_value(name) != expected:  # noqa: ASYNC110 (metrics have no change notification)
                await asyncio.sleep(0.01)

    async def run_turn(self, question: str, model: ScriptedModel, *, conversation: str = "c") -> None:
        engine = self.server_state.engine_for("default")
        key = BranchKey("default", conversation, 0)
        running = await self.server_state.turns.start(
            key, Conversation(engine, conversation), question, model=self.server_state.instrument_model(model)
        )
        async for _ in running.stream():
            pass
        await self.server_state.turns.wait_until_idle()


def make_tool_call_message(call: ToolCallPart, text: str = "") -> Message:
    return Message(role="assistant", parts=(*([TextPart(text=text)] if text else []), call))


@pytest.fixture
def log_lines() -> Iterator[io.StringIO]:
    before = logging.getLogger().handlers[:]
    stream = io.StringIO()
    logs.configure_logging("json", stream=stream)
    yield stream
    logging.getLogger().handlers[:] = before


@asynccontextmanager
async def run_instrumented_server(
    url: str, lines: io.StringIO, patch: pytest.MonkeyPatch, **options: Any
) -> AsyncIterator[InstrumentedServer]:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    tracing = telemetry_module.Tracing
    patch.setattr(telemetry_module, "Tracing", lambda _none: tracing(provider))
    settings = Settings(**{"context_limit": 3_000, "reserved_response_tokens": 200, **options.pop("settings", {})})
    async with open_server_state(url, settings, is_local=True, **options) as shared:
        server = InstrumentedServer(shared, lines, spans)
        async with server.client:
            yield server


@pytest.fixture
async def server(
    database_url: str, log_lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[InstrumentedServer]:
    async with run_instrumented_server(database_url, log_lines, monkeypatch) as server:
        await server.server_state.engine_for("default").conversation("c")
        yield server


async def test_requests_are_counted_by_the_template_of_their_route(server: InstrumentedServer):
    for name in ("one", "two"):
        await server.client.post("/api/conversations", json={"id": name})
        await server.client.get(f"/api/conversations/{name}")
    await server.client.get("/nowhere/at/all")
    route = "/api/conversations/{conversation}"
    assert await server.metric_value("quire_http_requests_total", method="GET", route=route, status="200") == 2
    assert await server.metric_value("quire_http_request_duration_seconds_count", method="GET", route=route) == 2
    assert await server.metric_value("quire_http_requests_total", route="unmatched", status="404") == 1
    assert "nowhere" not in await server.fetch_metrics()


async def test_no_label_holds_an_id_whatever_clients_send(server: InstrumentedServer):
    await server.client.get("/api/conversations/an-id-of-mine")
    await server.client.request("BREW", "/api/conversations")
    usage = {"model": "made-up-model"}
    server.telemetry.metrics.count_usage(Usage.model_validate({**usage, "input_tokens": 5}))
    page = await server.fetch_metrics()
    assert "an-id-of-mine" not in page
    assert "BREW" not in page
    assert "made-up-model" not in page
    assert await server.metric_value("quire_tokens_total", direction="input", model="other") == 5


async def test_models_are_named_as_the_settings_name_them(
    tmp_path: Path, log_lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
):
    upstreams = {"local-*": {"base_url": "http://127.0.0.1:1/v1"}}
    settings = {"model": "usual", "upstreams": upstreams}
    async with run_instrumented_server(
        f"sqlite:///{tmp_path}/q.db", log_lines, monkeypatch, settings=settings
    ) as server:
        for model in ("usual", "local-one", "local-two", "foreign", None):
            server.telemetry.metrics.count_usage(Usage(model=model, output_tokens=1))
        counts = {
            name: await server.metric_value("quire_tokens_total", model=name) for name in ("usual", "local-*", "other")
        }
    assert counts == {"usual": 1, "local-*": 2, "other": 2}


async def test_a_turn_is_counted_with_its_tokens_and_its_end(server: InstrumentedServer):
    await server.run_turn("Hello", ScriptedModel("Good day to you."))
    assert await server.metric_value("quire_turns_total", outcome="answered") == 1
    assert await server.metric_value("quire_turn_duration_seconds_count") == 1
    assert await server.metric_value("quire_running_turns") == 0
    assert await server.metric_value("quire_tokens_total", direction="output") == 5
    assert await server.metric_value("quire_tokens_total", direction="input") > 0
    await server.run_turn("Again", ScriptedModel(ModelUnavailable("gone")))
    assert await server.metric_value("quire_turns_total", outcome="failed") == 1
    assert await server.metric_value("quire_upstream_errors_total", kind="unavailable") == 1


async def test_running_and_stopped_turns_are_counted(server: InstrumentedServer):
    slow = asyncio.create_task(server.run_turn("Hello", ScriptedModel(DelayedReply(30, "late"))))
    await server.wait_for_metric("quire_running_turns", 1)
    await server.server_state.turns.stop_all()
    await slow
    assert await server.metric_value("quire_running_turns") == 0
    assert await server.metric_value("quire_turns_total", outcome="stopped") == 1


async def test_compactions_are_counted_by_their_trigger(server: InstrumentedServer):
    for number in range(12):
        await server.run_turn(f"Say it {number}. " + "The tide comes and goes. " * 60, ScriptedModel("It does."))
    assert await server.metric_value("quire_compactions_total", trigger="threshold") >= 1
    compacted = [span for span in server.spans if span.name == "compact"]
    assert len(compacted) == await server.metric_value("quire_compactions_total")
    attributes = dict(compacted[0].attributes or {})
    assert attributes["quire.compaction.tokens_after"] < attributes["quire.compaction.tokens_before"]
    turns = {span.context.span_id for span in server.spans if span.name.startswith("invoke_agent") and span.context}
    assert all(span.parent is not None and span.parent.span_id in turns for span in compacted)


async def test_store_errors_are_counted_wherever_they_happen(
    server: InstrumentedServer, monkeypatch: pytest.MonkeyPatch
):
    async def gone(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("The database at db.example:5432 is gone.")

    monkeypatch.setattr(server.server_state.store.base.database._database, "read", gone)
    answer = await server.client.get("/api/conversations/c")
    assert answer.status_code == 503
    assert await server.metric_value("quire_store_errors_total", kind="unavailable") >= 1
    assert server.request_lines[-1]["error_code"] == "store_unavailable"
    assert server.request_lines[-1]["level"] == "error"
    assert "db.example" not in server.log_text


async def test_counters_start_at_zero(server: InstrumentedServer):
    page = await server.fetch_metrics()
    for series in (
        'quire_gateway_requests_total{decision="rejected"} 0.0',
        'quire_upstream_errors_total{kind="overflow"} 0.0',
        'quire_store_errors_total{kind="busy"} 0.0',
    ):
        assert series in page


async def test_two_apps_count_apart(server: InstrumentedServer):
    other = create_app(server.server_state)
    await server.client.get("/api/conversations")
    mine, others = server.telemetry.metrics.export().decode(), other.state.telemetry.metrics.export().decode()
    assert 'route="/api/conversations"' in mine
    assert 'route="/api/conversations"' not in others


@pytest.mark.every_database
async def test_connections_are_exported(server: InstrumentedServer, backend: str):
    await server.client.get("/api/conversations")
    idle = await server.metric_value("quire_store_connections", state="idle")
    assert idle >= (1 if backend != "sqlite" else 0)
    assert await server.metric_value("quire_store_transaction_duration_seconds_count", kind="read") > 0


async def test_open_streams_are_counted_while_they_are_open(server: InstrumentedServer):
    release, router = asyncio.Event(), APIRouter()

    async def send_events() -> AsyncIterator[bytes]:
        yield b": here\n\n"
        await release.wait()

    @router.get("/events-test")
    async def stream() -> StreamingResponse:
        return StreamingResponse(send_events(), media_type="text/event-stream")

    server.app.include_router(router)
    listening = asyncio.create_task(server.client.get("/events-test"))
    await server.wait_for_metric("quire_open_streams", 1)
    release.set()
    await listening
    assert await server.metric_value("quire_open_streams") == 0
    assert "first_byte_ms" in server.request_lines[-1]


async def test_a_request_is_one_line_of_the_log(server: InstrumentedServer):
    answer = await server.client.get(
        "/api/conversations/c", headers={"X-Request-Id": "my-own-1", "traceparent": TRACEPARENT}
    )
    assert answer.headers["x-request-id"] == "my-own-1"
    [line] = server.request_lines
    assert line.pop("duration_ms") >= 0
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "event": "request",
        "method": "GET",
        "route": "/api/conversations/{conversation}",
        "status": 200,
        "request_id": "my-own-1",
        "tenant": "default",
        "conversation": "c",
        "trace_id": TRACE_ID,
    }


@pytest.mark.parametrize("id", ["", "two\nlines", "x" * 65, '"quoted"', "ÄÖ"])
async def test_odd_request_ids_are_replaced(server: InstrumentedServer, id: str):
    headers = [(b"x-request-id", id.encode("latin-1"))]
    answer = await server.client.get("/api/conversations", headers=headers)
    assert answer.headers["x-request-id"] != id
    assert server.request_lines[-1]["request_id"] == answer.headers["x-request-id"]


async def test_probes_and_scrapes_are_not_logged(server: InstrumentedServer):
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await server.client.get(path)).status_code == 200
    assert server.request_lines == []


async def test_an_unforeseen_error_is_logged_by_type_and_stack_alone(server: InstrumentedServer):
    router = APIRouter()

    @router.get("/broken")
    async def broken() -> None:
        raise ValueError("the password is swordfish")

    server.app.include_router(router)
    answer = await server.client.get("/broken")
    assert answer.status_code == 500
    line = server.request_lines[-1]
    assert line["error"] == ["ValueError"]
    assert line["stack"][-1].endswith(" broken")
    assert "swordfish" not in server.log_text + answer.text


def test_what_other_packages_say_is_cut_to_its_first_line_without_texts(log_lines: io.StringIO):
    logging.getLogger("elsewhere").error("Failed for %s", "swordfish")
    logging.getLogger("quire.server.elsewhere").warning("Passes on: %s", "swordfish")
    logging.getLogger("asyncio").error("Task exception was never retrieved\nfuture: <Task swordfish>")
    try:
        raise KeyError("swordfish")
    except KeyError:
        logging.getLogger("elsewhere").exception("Broke")
    assert "swordfish" not in log_lines.getvalue()
    assert [json.loads(line)["event"] for line in log_lines.getvalue().splitlines()] == [
        "Failed for …",
        "Passes on: …",
        "Task exception was never retrieved",
        "Broke",
    ]


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize(
    "hostile", ["\x1b]0;title\x07", "\x9b31m", "\x7f", "a\u2028b", "a\x85b", "\u202egnp.exe", "\x00", "\ud800"]
)
def test_control_characters_are_escaped_in_log_lines(log_lines: io.StringIO, format: logs.LogLineFormat, hostile: str):
    logs.configure_logging(format, stream=log_lines)
    logs.log_server_event("turn", conversation=hostile, nested=[hostile])
    logs.logger.warning(hostile)
    logging.getLogger("elsewhere").warning(hostile)
    written = log_lines.getvalue()
    assert written.replace("\n", "").isprintable()
    assert written.count("\n") == 3
    if format == "json":
        assert json.loads(written.splitlines()[0])["conversation"] == hostile


def test_text_lines_quote_what_would_break_them(log_lines: io.StringIO):
    logs.configure_logging("text", stream=log_lines)
    logs.log_server_event("request", conversation="a b\nc", status=200, error=None, missing=None)
    [line] = log_lines.getvalue().splitlines()
    assert line.endswith(' INFO request conversation="a b\\nc" status=200')


async def test_a_turn_is_a_span_with_its_calls_and_preparations_within(server: InstrumentedServer):
    call = ToolCallPart(id="1", name="nothing", arguments="{}")
    model = ScriptedModel(make_tool_call_message(call), "Done.", name="gpt-4o")
    await server.run_turn("Hello", model)
    turn = server.find_span("invoke_agent default")
    attributes = dict(turn.attributes or {})
    assert attributes["gen_ai.operation.name"] == "invoke_agent"
    assert attributes["gen_ai.conversation.id"] == "c"
    assert attributes["gen_ai.request.model"] == "gpt-4o"
    assert attributes["gen_ai.provider.name"] == "openai"
    assert attributes["quire.turn.outcome"] == "answered"
    assert turn.context is not None
    within = [span for span in server.spans if span.parent is not None and span.parent.span_id == turn.context.span_id]
    assert sorted(span.name for span in within) == ["chat gpt-4o", "chat gpt-4o", "prepare", "prepare"]
    calls = [dict(span.attributes or {}) for span in within if span.name == "chat gpt-4o"]
    assert calls[-1]["gen_ai.usage.output_tokens"] == 2
    assert calls[-1]["gen_ai.response.finish_reasons"] == ("stop",)
    assert attributes["gen_ai.usage.input_tokens"] == sum(each["gen_ai.usage.input_tokens"] for each in calls)


async def test_a_failed_call_is_named_and_not_quoted(server: InstrumentedServer):
    await server.run_turn("Hello", ScriptedModel(ModelUnavailable("the upstream said swordfish"), name="gpt-4o"))
    assert dict(server.find_span("chat gpt-4o").attributes or {})["error.type"] == "ModelUnavailable"
    assert dict(server.find_span("invoke_agent default").attributes or {})["error.type"] == "ModelUnavailable"
    assert "swordfish" not in "".join(span.to_json() for span in server.spans)


async def test_the_clients_trace_continues_to_the_model(server: InstrumentedServer):
    """The trace ID is the client's, the parent span is the model call."""
    model = ScriptedModel("Yes.")
    with continue_trace({"traceparent": TRACEPARENT}):
        await server.run_turn("Hello", model)
    chat = server.find_span("chat scripted")
    assert chat.context is not None
    assert (model.prompts[0].headers or {})["traceparent"] == f"00-{TRACE_ID}-{chat.context.span_id:016x}-01"


async def test_without_an_sdk_the_clients_own_header_is_propagated(tmp_path: Path):
    async with open_server_state(f"sqlite:///{tmp_path}/q.db", Settings(), is_local=True) as shared:
        create_app(shared)
        await shared.engine_for("default").conversation("c")
        model = ScriptedModel("Yes.", "No.")
        for traceparent in (TRACEPARENT, None):
            with continue_trace({"traceparent": traceparent} if traceparent else {}):
                running = await shared.turns.start(
                    BranchKey("default", "c", 0),
                    Conversation(shared.engine_for("default"), "c"),
                    "Hi",
                    model=shared.instrument_model(model),
                )
                await shared.turns.wait_until_idle()
            assert [event async for event in running.stream()]
        assert [prompt.headers for prompt in model.prompts] == [{"traceparent": TRACEPARENT}, {}]


async def test_the_gateway_counts_and_traces_its_calls(server: InstrumentedServer):
    server.telemetry.count_gateway_decision("fitted")
    with server.telemetry.trace_gateway_call("gpt-4o", conversation="c") as call:
        server.telemetry.observe_gateway_reply(call, Usage(input_tokens=7, output_tokens=3), "stop")
    with pytest.raises(ModelRateLimited), server.telemetry.trace_gateway_call("gpt-4o", conversation=None):
        raise ModelRateLimited("wait")
    assert await server.metric_value("quire_gateway_requests_total", decision="fitted") == 1
    assert await server.metric_value("quire_upstream_errors_total", kind="throttled") == 1
    assert await server.metric_value("quire_tokens_total", direction="input") == 7
    assert [dict(span.attributes or {}).get("error.type") for span in server.spans] == [None, "ModelRateLimited"]


async def test_no_content_is_exported(
    database_url: str, tmp_path: Path, log_lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
):
    """Secrets in messages, replies, tool arguments, documents, titles, memories, summaries, keys, bodies and errors."""
    secrets = [f"{what}-swordfish" for what in ("question", "reply", "argument", "document", "title", "error", "body")]
    question, reply, argument, document, title, error, body = secrets
    (tmp_path / "vault").mkdir()
    (tmp_path / "vault/Plan.md").write_text(f"# Plan\n\nThe {document} is here.")
    settings = {"vault": str(tmp_path / "vault"), "context_tools": True, "base_url": "http://127.0.0.1:1/v1"}
    async with run_instrumented_server(database_url, log_lines, monkeypatch, settings=settings) as server:
        created = await server.client.post("/api/conversations", json={"id": "c", "title": title})
        assert created.status_code == 201
        key, secret_key = await server.server_state.store.keys.create("k", ["read", "chat"])
        call = ToolCallPart(id="1", name="history_search", arguments=json.dumps({"query": argument}))
        for number in range(12):
            model = ScriptedModel(make_tool_call_message(call, reply), f"{reply} {number} " * 40, name="gpt-4o")
            await server.run_turn(f"{question} {number}, see [[Plan]]. " + "Words and words. " * 60, model)
        await server.run_turn(question, ScriptedModel(ModelUnavailable(error), name="gpt-4o"))
        await server.client.post("/api/conversations", content=f'{{"id": 5, "title": "{body}"')
        await server.client.post("/api/conversations", json={"id": [body]})
        await server.client.get(f"/api/search?query={question}")
        await server.client.get("/api/conversations", headers={"Authorization": f"Bearer {secret_key}"})
        await server.client.get("/api/conversations", headers={"Authorization": f"Bearer quire_{key.id}_{body}"})
        body_json = {"model": "gpt-4o", "messages": [{"role": "user", "content": question}]}
        forwarded = await server.client.post("/v1/chat/completions", json=body_json)
        assert forwarded.status_code == 502
        assert await server.metric_value("quire_gateway_requests_total", decision="passthrough") == 1
        assert (await server.client.post("/v1/chat/completions", content=f"{{{body}")).status_code == 400
        assert await server.metric_value("quire_compactions_total") >= 1
        output = server.log_text + await server.fetch_metrics() + "".join(span.to_json() for span in server.spans)
    assert key.id in output
    for secret in [*secrets, "swordfish", secret_key.rpartition("_")[2], TOKEN]:
        assert secret not in output


async def test_alive_and_ready(server: InstrumentedServer):
    assert (await server.client.get("/healthz")).json() == {"status": "ok"}
    assert (await server.client.get("/readyz")).json() == {"status": "ok"}
    server.app.state.streams.begin_shutdown()
    answer = await server.client.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "stopping")
    assert (await server.client.get("/healthz")).status_code == 200


@pytest.mark.every_database
async def test_not_ready_while_the_database_is_silent_or_gone(
    server: InstrumentedServer, monkeypatch: pytest.MonkeyPatch
):
    async def silent(_: SqlStore, **__: float) -> None:
        await asyncio.sleep(60)

    async def gone(_: SqlStore, **__: float) -> None:
        raise StoreUnavailable("No way to db.example:5432.")

    monkeypatch.setattr(health, "READINESS_TIMEOUT_SECONDS", 0.05)
    for check in (silent, gone):
        monkeypatch.setattr(SqlStore, "check", check)
        answer = await server.client.get("/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
        assert "db.example" not in answer.text
        assert answer.headers["retry-after"] == "1"


@pytest.mark.every_database
@pytest.mark.parametrize("failure", [StoreReadOnly, StoreFull])
async def test_not_ready_while_the_database_accepts_no_writes(
    server: InstrumentedServer, monkeypatch: pytest.MonkeyPatch, failure: type[StoreUnavailable]
):
    async def check(_: SqlStore, **__: float) -> None:
        raise failure("could not write to /var/lib/postgresql/base/1: No space left on device")

    monkeypatch.setattr(SqlStore, "check", check)
    answer = await server.client.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, error_code(failure()))
    assert "/var/lib" not in answer.text


@pytest.mark.every_postgres
async def test_not_ready_with_another_schema(server: InstrumentedServer, admin_url: str):
    import psycopg

    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute("UPDATE quire_version SET version_num = '9999', oldest_reader = '9999'")
    answer = await server.client.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "schema_outdated")
    assert "newer" in answer.json()["detail"]


def test_a_warning_about_a_model_has_its_text_and_other_lines_no_content(log_lines: io.StringIO):
    warn_once.cache_clear()
    logs.configure_logging("json", stream=log_lines)
    warn_once("No table lists the model 'mill-70b', of which 100 % is unknown.")
    logging.getLogger("quire.other").warning("Turn %s of %d failed: %s", "swordfish", 3, StoreFull("swordfish"))
    logging.getLogger("elsewhere").warning("%s and %s", "swordfish")
    events = [json.loads(line)["event"] for line in log_lines.getvalue().splitlines()]
    assert events == [
        "No table lists the model 'mill-70b', of which 100 % is unknown.",
        "Turn … of 3 failed: StoreFull",
        "%s and %s",
    ]
