"""The audit trail as OTLP logs: each entry once, in order, whatever nodes run and whatever the receiver does."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from sign_in_helpers import make_sign_in

from infra.cells import Cells
from quire.errors import InvalidConfiguration
from quire.server import audit_export
from quire.server.audit_export import AuditExporter, make_audit_exporter
from quire.settings.schema import Cell, SignIn
from quire.store import SqlStore

TENANTS = ("elsewhere", "harbour")


class LogReceiver:
    """An OTLP/HTTP receiver on loopback, which reads requests by OpenTelemetry's own definitions."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.requests: list[dict[str, str]] = []
        self.answers: list[int | str] = []
        """What the next requests get: a status, `drop` for no answer, `accept and drop` for an accepted one without
        an answer; then 200."""
        self.url = ""

    def attributes(self) -> list[dict[str, Any]]:
        return [
            {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in record.attributes}
            for record in self.records
        ]

    def numbers(self, tenant: str) -> list[int]:
        return [each["quire.audit.seq"] for each in self.attributes() if each["quire.tenant"] == tenant]


@contextmanager
def run_receiver() -> Iterator[LogReceiver]:
    receiver = LogReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = receiver.answers.pop(0) if receiver.answers else 200
            if answer != "drop" and answer in (200, "accept and drop"):
                request = Parse(body, ExportLogsServiceRequest())
                receiver.requests.append({name.lower(): value for name, value in self.headers.items()})
                for resource in request.resource_logs:
                    for scope in resource.scope_logs:
                        receiver.records += scope.log_records
            if isinstance(answer, str):
                self.close_connection = True
                return
            self.send_response(answer)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/v1/logs"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def receiver() -> Iterator[LogReceiver]:
    with run_receiver() as receiver:
        yield receiver


async def append(store: SqlStore, tenant: str, count: int) -> None:
    for number in range(count):
        await store.for_tenant(tenant).audit.append(
            "read", actor="ann", target={"route": "GET /api/conversations", "number": str(number)}, address="192.0.2.7"
        )


async def list_waiting(store: SqlStore) -> list[str]:
    return [tenant for part in store.all_tenants.list_parts() for tenant in await part.list_unexported_audits()]


@pytest.mark.every_store
async def test_each_entry_is_sent_once_by_several_nodes_that_restart_while_the_receiver_fails(
    store: SqlStore, receiver: LogReceiver, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(audit_export, "BATCH_SIZE", 7)
    monkeypatch.setattr(audit_export, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(audit_export, "MAX_PAUSE_SECONDS", 0.05)
    receiver.answers = [503, 200, "drop", 429, 400, 200, "drop", 500, 200, 200, 503]

    async def write() -> None:
        for _ in range(6):
            await asyncio.gather(*(append(store, tenant, 10) for tenant in TENANTS))

    async def serve_and_restart() -> None:
        for _ in range(4):
            async with AuditExporter(store, receiver.url, {}).run():
                await asyncio.sleep(0.15)

    await asyncio.gather(write(), serve_and_restart(), serve_and_restart())
    last = AuditExporter(store, receiver.url, {})
    async with asyncio.timeout(30):
        # A stopped node may have left the connection before the receiver's answer.
        while await list_waiting(store):
            with suppress(httpx2.HTTPError):
                await last.send_new()
    await last.close()
    for tenant in TENANTS:
        # A node that is stopped while it waits for the answer sends these again; by the digest they are the same.
        sent = {each["quire.audit.seq"]: each for each in receiver.attributes() if each["quire.tenant"] == tenant}
        assert list(sent) == sorted(sent)
        entries = await store.for_tenant(tenant).audit.list()
        assert {number: each["quire.audit.digest"] for number, each in sent.items()} == {
            each.seq: each.digest.hex() for each in entries
        }
        assert len(entries) == 60


@pytest.mark.every_store
async def test_nothing_is_sent_twice_while_nodes_send_at_the_same_time(store: SqlStore, receiver: LogReceiver):
    await asyncio.gather(*(append(store, tenant, 40) for tenant in TENANTS))
    nodes = [AuditExporter(store, receiver.url, {}) for _ in range(4)]
    await asyncio.gather(*(each.send_new() for each in nodes))
    await append(store, TENANTS[0], 3)
    await asyncio.gather(*(each.send_new() for each in nodes))
    assert [receiver.numbers(tenant) for tenant in TENANTS] == [list(range(1, 44)), list(range(1, 41))]
    assert await list_waiting(store) == []
    for each in nodes:
        await each.close()


async def test_while_the_receiver_is_away_entries_wait(store: SqlStore, receiver: LogReceiver):
    await append(store, "harbour", 5)
    exporter = AuditExporter(store, receiver.url, {})
    for answer in (500, 400, 401, "drop"):
        receiver.answers = [answer]
        with pytest.raises(httpx2.HTTPError):
            await exporter.send_new()
    away = AuditExporter(store, "http://127.0.0.1:9/v1/logs", {})
    with pytest.raises(httpx2.HTTPError):
        await away.send_new()
    assert receiver.records == []
    assert await exporter.send_new() == 5
    assert receiver.numbers("harbour") == [1, 2, 3, 4, 5]
    # An answer that was lost: the same entries again, which their digests show.
    await append(store, "harbour", 1)
    receiver.answers = ["accept and drop"]
    with pytest.raises(httpx2.HTTPError):
        await exporter.send_new()
    assert await exporter.send_new() == 1
    *_, first, second = receiver.attributes()
    assert first == second
    for each in (exporter, away):
        await each.close()


async def test_a_node_takes_over_from_one_that_has_died(store: SqlStore, receiver: LogReceiver):
    await append(store, "harbour", 2)
    trail = store.for_tenant("harbour").audit
    assert await trail.claim_export(claim="dead", seconds=60) == 0
    exporter = AuditExporter(store, receiver.url, {})
    assert await exporter.send_new() == 0
    assert await trail.record_export(claim="dead", seq=None)
    assert await trail.claim_export(claim="dead", seconds=0) == 0
    assert await exporter.send_new() == 2
    # The first one was only slow: it can move nothing back.
    assert not await trail.record_export(claim="dead", seq=1)
    assert await exporter.send_new() == 0
    await exporter.close()


@pytest.mark.every_postgres
async def test_while_a_cell_is_lost_the_trails_of_the_others_are_sent(cells: Cells, receiver: LogReceiver):
    cells.place("harbour", "b")
    cells.place("tides", "c")
    tenants = ("default", "harbour", "tides")
    async with SqlStore.open(cells.home, cells=cells.others) as store:
        for tenant in tenants:
            await append(store, tenant, 2)
    without_b = cells.others | {"b": Cell(database_url="postgresql://quire_app@127.0.0.1:9/lost")}
    async with SqlStore.open(cells.home, cells=without_b) as store:
        exporter = AuditExporter(store, receiver.url, {})
        assert await exporter.send_new() == 4
        await exporter.close()
    async with SqlStore.open(cells.home, cells=cells.others) as store:
        exporter = AuditExporter(store, receiver.url, {})
        assert await exporter.send_new() == 2
        await exporter.close()
    assert [receiver.numbers(tenant) for tenant in tenants] == [[1, 2]] * 3


async def test_a_record_says_who_did_what_and_whether_it_was_refused(store: SqlStore, receiver: LogReceiver):
    audit = store.for_tenant("harbour").audit
    await audit.append("sign_in", actor="01ann", target={"route": "GET /auth/callback"}, address="192.0.2.7")
    refused = await audit.append("purge", actor="", target={"route": "DELETE /x", "id": "c"}, allowed=False)
    sign_in = make_sign_in(
        "https://quire.example.org", "https://login.example.org", audit_endpoint=receiver.url, audit_headers_env="OTLP"
    )
    exporter = make_audit_exporter(
        store, SignIn.model_validate(sign_in), {"OTLP": "authorization=Bearer%20secret, x-tenant=quire"}
    )
    assert exporter is not None
    assert await exporter.send_new() == 2
    await exporter.close()
    [headers] = receiver.requests
    assert (headers["authorization"], headers["x-tenant"]) == ("Bearer secret", "quire")
    first, second = receiver.records
    assert (first.event_name, first.severity_text, first.body.string_value) == (
        "quire.audit.sign_in", "INFO", "sign_in allowed",
    )  # fmt: skip
    assert (second.event_name, second.severity_text) == ("quire.audit.purge", "WARN")
    assert first.time_unix_nano > 1_700_000_000_000_000_000
    assert receiver.attributes()[0]["client.address"] == "192.0.2.7"
    assert receiver.attributes()[1] == {
        "quire.tenant": "harbour",
        "quire.audit.seq": 2,
        "quire.audit.action": "purge",
        "quire.audit.allowed": False,
        "quire.audit.target": '{"id": "c", "route": "DELETE /x"}',
        "quire.audit.digest": refused.digest.hex(),
    }


def test_wrong_settings_are_named(store: SqlStore):
    url = "https://quire.example.org"
    values = make_sign_in(url, url, audit_endpoint="https://logs.example.org/v1/logs", audit_headers_env="OTLP")
    for environ in ({}, {"OTLP": ""}, {"OTLP": "secret"}, {"OTLP": "=x"}):
        with pytest.raises(InvalidConfiguration, match="OTLP"):
            make_audit_exporter(store, SignIn.model_validate(values), environ)
    with pytest.raises(ValueError, match="https://"):
        SignIn.model_validate(values | {"audit_endpoint": "http://logs.example.org"})
    assert make_audit_exporter(store, None, {}) is None
