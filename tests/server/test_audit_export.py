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

from quire.store import SqlStore
from quire.team import audit_export
from quire.team.audit_export import AuditExporter
from quire.team.store import TeamStore

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
        await TeamStore(store.for_tenant(tenant)).audit.append(
            "read", actor="ann", target={"route": "GET /api/conversations", "number": str(number)}, address="192.0.2.7"
        )


async def list_waiting(store: SqlStore) -> list[str]:
    return await TeamStore(store).audit.list_unexported()


@pytest.mark.every_database
async def test_each_entry_is_sent_once_by_several_nodes_that_restart_while_the_receiver_fails(
    store: SqlStore, receiver: LogReceiver, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(audit_export, "BATCH_SIZE", 7)
    monkeypatch.setattr(audit_export, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(audit_export, "MAX_PAUSE_SECONDS", 0.05)
    # A node that is stopped within its claim leaves it to expire.
    monkeypatch.setattr(audit_export, "CLAIM_SECONDS", 0.5)
    receiver.answers = [503, 200, "drop", 429, 400, 200, "drop", 500, 200, 200, 503]

    async def write() -> None:
        for _ in range(3):
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
        entries = await TeamStore(store.for_tenant(tenant)).audit.list()
        assert {number: each["quire.audit.digest"] for number, each in sent.items()} == {
            each.seq: each.digest.hex() for each in entries
        }
        assert len(entries) == 30


@pytest.mark.every_database
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
    trail = TeamStore(store.for_tenant("harbour")).audit
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
