"""What the server tells of itself, and that no word of what was said is in it."""

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from quire.engine import Conversation
from quire.errors import ModelThrottled, ModelUnavailable, StoreUnavailable
from quire.log import SqlStore
from quire.model import Message, TextPart, ToolCallPart
from quire.server import telemetry as told_of
from quire.server.app import create_app
from quire.server.routes import health
from quire.server.serving import Serving, serving
from quire.server.telemetry import Telemetry, logs
from quire.server.turns import Place
from quire.settings import Settings
from quire.testing.scripted import ScriptedModel, Slow

TOKEN = "the-token-of-this-laptop"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


class Watched:
    """A server in this process, and everything that can be heard of it."""

    def __init__(self, shared: Serving, lines: io.StringIO, spans: InMemorySpanExporter) -> None:
        self.serving, self._lines, self._spans = shared, lines, spans
        self.app = create_app(shared, token=TOKEN)
        self.telemetry: Telemetry = self.app.state.telemetry
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8300", headers=headers)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Those of requests; what runs in the background has lines of its own."""
        every = [json.loads(line) for line in self._lines.getvalue().splitlines()]
        return [line for line in every if line["event"] == "request"]

    @property
    def log(self) -> str:
        return self._lines.getvalue()

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._spans.get_finished_spans())

    def span(self, name: str) -> ReadableSpan:
        [found] = [each for each in self.spans if each.name == name]
        return found

    async def page(self) -> str:
        return (await self.client.get("/metrics")).text

    async def value(self, name: str, **labels: str) -> float:
        families = text_string_to_metric_families(await self.page())
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(each.value for each in samples if labels.items() <= each.labels.items())

    async def until(self, name: str, wanted: float) -> None:
        async with asyncio.timeout(10):
            while await self.value(name) != wanted:  # noqa: ASYNC110 (nobody tells when a number changes)
                await asyncio.sleep(0.01)

    async def turn(self, said: str, model: ScriptedModel, *, conversation: str = "c") -> None:
        engine = self.serving.engine("default")
        place = Place("default", conversation, 0)
        running = self.serving.turns.start(
            place, Conversation(engine, conversation), said, model=self.serving.watched(model)
        )
        async for _ in running.events():
            pass
        await self.serving.turns.ended()


def calling(call: ToolCallPart, said: str = "") -> Message:
    return Message(role="assistant", parts=(*([TextPart(text=said)] if said else []), call))


@pytest.fixture
def log_lines() -> Iterator[io.StringIO]:
    before = logging.getLogger().handlers[:]
    stream = io.StringIO()
    logs.configure("json", stream=stream)
    yield stream
    logging.getLogger().handlers[:] = before


@asynccontextmanager
async def watched(url: str, lines: io.StringIO, patch: pytest.MonkeyPatch, **options: Any) -> AsyncIterator[Watched]:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    tracing = told_of.Tracing
    patch.setattr(told_of, "Tracing", lambda _none: tracing(provider))
    settings = Settings(**{"context_limit": 3_000, "reserved_response_tokens": 200, **options.pop("settings", {})})
    async with serving(url, settings, local=True, **options) as shared:
        made = Watched(shared, lines, spans)
        async with made.client:
            yield made


@pytest.fixture
async def server(database_url: str, log_lines: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    async with watched(database_url, log_lines, monkeypatch) as made:
        await made.serving.engine("default").conversation("c")
        yield made


async def test_requests_are_counted_by_the_template_of_their_route(server: Watched):
    for name in ("one", "two"):
        await server.client.post("/api/conversations", json={"id": name})
        await server.client.get(f"/api/conversations/{name}")
    await server.client.get("/nowhere/at/all")
    route = "/api/conversations/{conversation}"
    assert await server.value("quire_http_requests_total", method="GET", route=route, status="200") == 2
    assert await server.value("quire_http_request_seconds_count", method="GET", route=route) == 2
    assert await server.value("quire_http_requests_total", route="unmatched", status="404") == 1
    assert "nowhere" not in await server.page()


async def test_no_label_holds_an_id_whatever_clients_send(server: Watched):
    await server.client.get("/api/conversations/an-id-of-mine")
    await server.client.request("BREW", "/api/conversations")
    usage = {"model": "made-up-model"}
    server.telemetry.metrics.used(told_of.Usage.model_validate({**usage, "input_tokens": 5}))
    page = await server.page()
    assert "an-id-of-mine" not in page
    assert "BREW" not in page
    assert "made-up-model" not in page
    assert await server.value("quire_tokens_total", direction="sent", model="other") == 5


async def test_models_are_named_as_the_settings_name_them(
    tmp_path: Path, log_lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
):
    upstreams = {"local-*": {"base_url": "http://127.0.0.1:1/v1"}}
    settings = {"model": "usual", "upstreams": upstreams}
    async with watched(f"sqlite:///{tmp_path}/q.db", log_lines, monkeypatch, settings=settings) as server:
        for model in ("usual", "local-one", "local-two", "foreign", None):
            server.telemetry.metrics.used(told_of.Usage(model=model, output_tokens=1))
        counts = {name: await server.value("quire_tokens_total", model=name) for name in ("usual", "local-*", "other")}
    assert counts == {"usual": 1, "local-*": 2, "other": 2}


async def test_a_turn_is_counted_with_its_tokens_and_its_end(server: Watched):
    await server.turn("Hello", ScriptedModel("Good day to you."))
    assert await server.value("quire_turns_total", outcome="answered") == 1
    assert await server.value("quire_turn_seconds_count") == 1
    assert await server.value("quire_running_turns") == 0
    assert await server.value("quire_tokens_total", direction="received") == 5
    assert await server.value("quire_tokens_total", direction="sent") > 0
    await server.turn("Again", ScriptedModel(ModelUnavailable("gone")))
    assert await server.value("quire_turns_total", outcome="failed") == 1
    assert await server.value("quire_upstream_errors_total", kind="unavailable") == 1


async def test_a_turn_under_way_is_seen_and_one_that_is_stopped_counted_so(server: Watched):
    slow = asyncio.create_task(server.turn("Hello", ScriptedModel(Slow(30, "late"))))
    await server.until("quire_running_turns", 1)
    await server.serving.turns.stop()
    await slow
    assert await server.value("quire_running_turns") == 0
    assert await server.value("quire_turns_total", outcome="stopped") == 1


async def test_compactions_are_counted_by_their_trigger(server: Watched):
    for number in range(12):
        await server.turn(f"Say it {number}. " + "The tide comes and goes. " * 60, ScriptedModel("It does."))
    assert await server.value("quire_compactions_total", trigger="threshold") >= 1
    compacted = [span for span in server.spans if span.name == "compact"]
    assert len(compacted) == await server.value("quire_compactions_total")
    known = dict(compacted[0].attributes or {})
    assert known["quire.compaction.tokens_after"] < known["quire.compaction.tokens_before"]
    turns = {span.context.span_id for span in server.spans if span.name.startswith("invoke_agent") and span.context}
    assert all(span.parent is not None and span.parent.span_id in turns for span in compacted)


async def test_store_errors_are_counted_wherever_they_happen(server: Watched, monkeypatch: pytest.MonkeyPatch):
    async def gone(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("The database at db.example:5432 is gone.")

    monkeypatch.setattr(server.serving.store._database._database, "read", gone)
    answer = await server.client.get("/api/conversations/c")
    assert answer.status_code == 503
    assert await server.value("quire_store_errors_total", kind="unavailable") >= 1
    assert server.lines[-1]["problem"] == "store_unavailable"
    assert server.lines[-1]["level"] == "error"
    assert "db.example" not in server.log


async def test_what_has_not_happened_is_nought_and_not_missing(server: Watched):
    page = await server.page()
    for series in (
        'quire_gateway_requests_total{decision="refused"} 0.0',
        'quire_upstream_errors_total{kind="overflow"} 0.0',
        'quire_store_errors_total{kind="busy"} 0.0',
    ):
        assert series in page


async def test_two_apps_count_apart(server: Watched):
    other = create_app(server.serving)
    await server.client.get("/api/conversations")
    mine, others = server.telemetry.metrics.page().decode(), other.state.telemetry.metrics.page().decode()
    assert 'route="/api/conversations"' in mine
    assert 'route="/api/conversations"' not in others


async def test_connections_are_told(server: Watched, backend: str):
    await server.client.get("/api/conversations")
    idle = await server.value("quire_store_connections", state="idle")
    assert idle >= (1 if backend != "sqlite" else 0)
    assert await server.value("quire_store_seconds_count", kind="read") > 0


async def test_open_streams_are_counted_while_they_are_open(server: Watched):
    go, router = asyncio.Event(), APIRouter()

    async def told() -> AsyncIterator[bytes]:
        yield b": here\n\n"
        await go.wait()

    @router.get("/told")
    async def stream() -> StreamingResponse:
        return StreamingResponse(told(), media_type="text/event-stream")

    server.app.include_router(router)
    listening = asyncio.create_task(server.client.get("/told"))
    await server.until("quire_open_streams", 1)
    go.set()
    await listening
    assert await server.value("quire_open_streams") == 0
    assert "first_ms" in server.lines[-1]


async def test_a_request_is_one_line_of_the_log(server: Watched):
    answer = await server.client.get(
        "/api/conversations/c", headers={"X-Request-Id": "my-own-1", "traceparent": PARENT}
    )
    assert answer.headers["x-request-id"] == "my-own-1"
    [line] = server.lines
    assert line.pop("ms") >= 0
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "event": "request",
        "method": "GET",
        "route": "/api/conversations/{conversation}",
        "status": 200,
        "request": "my-own-1",
        "tenant": "default",
        "conversation": "c",
        "trace": TRACE,
    }


@pytest.mark.parametrize("id", ["", "two\nlines", "x" * 65, '"quoted"', "ÄÖ"])
async def test_odd_request_ids_are_replaced(server: Watched, id: str):
    headers = [(b"x-request-id", id.encode("latin-1"))]
    answer = await server.client.get("/api/conversations", headers=headers)
    assert answer.headers["x-request-id"] != id
    assert server.lines[-1]["request"] == answer.headers["x-request-id"]


async def test_probes_and_scrapes_leave_no_line(server: Watched):
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await server.client.get(path)).status_code == 200
    assert server.lines == []


async def test_an_unforeseen_error_is_told_by_kind_and_place_alone(server: Watched):
    router = APIRouter()

    @router.get("/broken")
    async def broken() -> None:
        raise ValueError("the password is swordfish")

    server.app.include_router(router)
    answer = await server.client.get("/broken")
    assert answer.status_code == 500
    line = server.lines[-1]
    assert line["error"] == ["ValueError"]
    assert line["at"][-1].endswith(" broken")
    assert "swordfish" not in server.log + answer.text


def test_what_other_packages_say_is_cut_to_its_unfilled_beginning(log_lines: io.StringIO):
    logging.getLogger("elsewhere").error("Failed for %s", "swordfish")
    logging.getLogger("quire.server.elsewhere").warning("Passes on: %s", "swordfish")
    logging.getLogger("asyncio").error("Task exception was never retrieved\nfuture: <Task swordfish>")
    try:
        raise KeyError("swordfish")
    except KeyError:
        logging.getLogger("elsewhere").exception("Broke")
    assert "swordfish" not in log_lines.getvalue()
    assert [json.loads(line)["event"] for line in log_lines.getvalue().splitlines()] == [
        "Failed for %s",
        "Passes on: %s",
        "Task exception was never retrieved",
        "Broke",
    ]


def test_text_lines_quote_what_would_break_them(log_lines: io.StringIO):
    logs.configure("text", stream=log_lines)
    logs.log("request", conversation="a b\nc", status=200, error=None, missing=None)
    [line] = log_lines.getvalue().splitlines()
    assert line.endswith(' INFO request conversation="a b\\nc" status=200')


async def test_a_turn_is_a_span_with_its_calls_and_preparations_within(server: Watched):
    call = ToolCallPart(id="1", name="nothing", arguments="{}")
    model = ScriptedModel(calling(call), "Done.", name="gpt-4o")
    await server.turn("Hello", model)
    turn = server.span("invoke_agent default")
    known = dict(turn.attributes or {})
    assert known["gen_ai.operation.name"] == "invoke_agent"
    assert known["gen_ai.conversation.id"] == "c"
    assert known["gen_ai.request.model"] == "gpt-4o"
    assert known["gen_ai.provider.name"] == "openai"
    assert known["quire.turn.outcome"] == "answered"
    assert turn.context is not None
    within = [span for span in server.spans if span.parent is not None and span.parent.span_id == turn.context.span_id]
    assert sorted(span.name for span in within) == ["chat gpt-4o", "chat gpt-4o", "prepare", "prepare"]
    calls = [dict(span.attributes or {}) for span in within if span.name == "chat gpt-4o"]
    assert calls[-1]["gen_ai.usage.output_tokens"] == 2
    assert calls[-1]["gen_ai.response.finish_reasons"] == ("stop",)
    assert known["gen_ai.usage.input_tokens"] == sum(each["gen_ai.usage.input_tokens"] for each in calls)


async def test_a_failed_call_is_named_and_not_quoted(server: Watched):
    await server.turn("Hello", ScriptedModel(ModelUnavailable("the upstream said swordfish"), name="gpt-4o"))
    assert dict(server.span("chat gpt-4o").attributes or {})["error.type"] == "ModelUnavailable"
    assert dict(server.span("invoke_agent default").attributes or {})["error.type"] == "ModelUnavailable"
    assert "swordfish" not in "".join(span.to_json() for span in server.spans)


async def test_the_clients_trace_goes_on_to_the_model(server: Watched):
    """From the request through the turn to the call: the trace is the client's, the parent the call."""
    model = ScriptedModel("Yes.")
    with told_of.tracing.continued({"traceparent": PARENT}):
        await server.turn("Hello", model)
    chat = server.span("chat scripted")
    assert chat.context is not None
    assert (model.prompts[0].headers or {})["traceparent"] == f"00-{TRACE}-{chat.context.span_id:016x}-01"


async def test_without_an_sdk_the_clients_own_header_goes_on(tmp_path: Path):
    async with serving(f"sqlite:///{tmp_path}/q.db", Settings(), local=True) as shared:
        create_app(shared)
        await shared.engine("default").conversation("c")
        model = ScriptedModel("Yes.", "No.")
        for traceparent in (PARENT, None):
            with told_of.tracing.continued({"traceparent": traceparent} if traceparent else {}):
                running = shared.turns.start(
                    Place("default", "c", 0),
                    Conversation(shared.engine("default"), "c"),
                    "Hi",
                    model=shared.watched(model),
                )
                await shared.turns.ended()
            assert [event async for event in running.events()]
        assert [prompt.headers for prompt in model.prompts] == [{"traceparent": PARENT}, {}]


async def test_the_gateway_tells_of_its_calls(server: Watched):
    server.telemetry.gateway_decided("fitted")
    with server.telemetry.gateway_call("gpt-4o", conversation="c") as call:
        server.telemetry.gateway_replied(call, told_of.Usage(input_tokens=7, output_tokens=3), "stop")
    with pytest.raises(ModelThrottled), server.telemetry.gateway_call("gpt-4o", conversation=None):
        raise ModelThrottled("wait")
    assert await server.value("quire_gateway_requests_total", decision="fitted") == 1
    assert await server.value("quire_upstream_errors_total", kind="throttled") == 1
    assert await server.value("quire_tokens_total", direction="sent") == 7
    assert [dict(span.attributes or {}).get("error.type") for span in server.spans] == [None, "ModelThrottled"]


async def test_nothing_that_was_said_is_told(
    database_url: str, tmp_path: Path, log_lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
):
    """Secrets in messages, replies, tool arguments, documents, titles, memories, summaries, keys, bodies and errors."""
    secrets = [f"{what}-swordfish" for what in ("said", "reply", "argument", "document", "title", "error", "body")]
    said, reply, argument, document, title, error, body = secrets
    (tmp_path / "vault").mkdir()
    (tmp_path / "vault/Plan.md").write_text(f"# Plan\n\nThe {document} is here.")
    settings = {"vault": str(tmp_path / "vault"), "context_tools": True, "base_url": "http://127.0.0.1:1/v1"}
    async with watched(database_url, log_lines, monkeypatch, settings=settings) as server:
        made = await server.client.post("/api/conversations", json={"id": "c", "title": title})
        assert made.status_code == 201
        key, shown = await server.serving.store.create_key("k", ["read", "chat"])
        call = ToolCallPart(id="1", name="history_search", arguments=json.dumps({"query": argument}))
        for number in range(12):
            model = ScriptedModel(calling(call, reply), f"{reply} {number} " * 40, name="gpt-4o")
            await server.turn(f"{said} {number}, see [[Plan]]. " + "Words and words. " * 60, model)
        await server.turn(said, ScriptedModel(ModelUnavailable(error), name="gpt-4o"))
        await server.client.post("/api/conversations", content=f'{{"id": 5, "title": "{body}"')
        await server.client.post("/api/conversations", json={"id": [body]})
        await server.client.get(f"/api/search?query={said}")
        await server.client.get("/api/conversations", headers={"Authorization": f"Bearer {shown}"})
        await server.client.get("/api/conversations", headers={"Authorization": f"Bearer quire_{key.id}_{body}"})
        asked = {"model": "gpt-4o", "messages": [{"role": "user", "content": said}]}
        through = await server.client.post("/v1/chat/completions", json=asked)
        assert through.status_code == 502
        assert await server.value("quire_gateway_requests_total", decision="passed") == 1
        assert (await server.client.post("/v1/chat/completions", content=f"{{{body}")).status_code == 400
        assert await server.value("quire_compactions_total") >= 1
        told = server.log + await server.page() + "".join(span.to_json() for span in server.spans)
    assert key.id in told
    for secret in [*secrets, "swordfish", shown.rpartition("_")[2], TOKEN]:
        assert secret not in told


async def test_alive_and_ready(server: Watched):
    assert (await server.client.get("/healthz")).json() == {"status": "ok"}
    assert (await server.client.get("/readyz")).json() == {"status": "ok"}
    server.app.state.stopping.begin()
    answer = await server.client.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "stopping")
    assert (await server.client.get("/healthz")).status_code == 200


async def test_not_ready_while_the_database_is_silent_or_gone(server: Watched, monkeypatch: pytest.MonkeyPatch):
    async def silent(_: SqlStore) -> None:
        await asyncio.sleep(60)

    async def gone(_: SqlStore) -> None:
        raise StoreUnavailable("No way to db.example:5432.")

    monkeypatch.setattr(health, "READY_WITHIN", 0.05)
    for check in (silent, gone):
        monkeypatch.setattr(SqlStore, "check", check)
        answer = await server.client.get("/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
        assert "db.example" not in answer.text
        assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("backend", ["postgres18"])
async def test_not_ready_with_another_schema(server: Watched, admin_url: str, backend: str):
    import psycopg

    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute("UPDATE quire_version SET version_num = '9999'")
    answer = await server.client.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "schema_outdated")
    assert "newer" in answer.json()["detail"]
