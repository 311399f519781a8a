"""Sends the audit trails of all tenants to a receiver of logs, by OTLP over HTTP with JSON.

The database has for each trail how far it was sent. One process at a time claims a trail, sends a batch, and records
its end, so that each entry is sent once, whatever nodes run and restart. An entry is sent again only if a process or
the connection dies between the receiver's answer and the record: `quire.audit.seq` and the digest are the same then.
While the receiver is away or refuses, nothing is skipped.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

import httpx2

from quire import __version__
from quire.errors import InvalidConfiguration, StoreError
from quire.model.ids import new_id
from quire.server.telemetry.logs import log_server_event
from quire.settings.schema import SignIn
from quire.store import SqlStore
from quire.team.audit import AuditEntry
from quire.team.store import TeamStore

POLL_SECONDS = 5.0
MAX_PAUSE_SECONDS = 300.0
"""Maximum seconds between two attempts while the receiver refuses or is away."""
SEND_TIMEOUT_SECONDS = 20.0
CLAIM_SECONDS = 60.0
"""Seconds after which another process takes over from one that has died; longer than an attempt."""
BATCH_SIZE = 500
MAX_BATCHES = 20
"""Batches of one trail in a row, so that a long one does not hold up the others."""
_INFO, _WARN = (9, "INFO"), (13, "WARN")


class AuditExporter:
    def __init__(self, store: SqlStore, endpoint: str, headers: Mapping[str, str]) -> None:
        self._store, self._endpoint, self._headers = store, endpoint, headers
        self._client: httpx2.AsyncClient | None = None

    @asynccontextmanager
    async def run(self) -> AsyncGenerator[None]:
        """Sends new entries while the context is open."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))
            await self.close()

    async def _run(self) -> None:
        pause = POLL_SECONDS
        while True:
            try:
                await self.send_new()
                pause = POLL_SECONDS
            except (StoreError, TimeoutError, httpx2.HTTPError, httpx2.InvalidURL) as error:
                _log_failure(error)
                pause = min(2 * pause, MAX_PAUSE_SECONDS)
            await asyncio.sleep(pause)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def send_new(self) -> int:
        """Sends all entries that were not sent. Returns their number. Raises the error of a receiver that fails."""
        count = 0
        for tenant in await TeamStore(self._store).audit.list_unexported():
            count += await self._send_trail(tenant)
        return count

    async def _send_trail(self, tenant: str) -> int:
        count = 0
        for _ in range(MAX_BATCHES):
            sent = await self._send_batch(tenant)
            count += sent
            if sent < BATCH_SIZE:
                break
        return count

    async def _send_batch(self, tenant: str) -> int:
        trail, claim = TeamStore(self._store.for_tenant(tenant)).audit, new_id()
        after = await trail.claim_export(claim=claim, seconds=CLAIM_SECONDS)
        if after is None:
            return 0
        sent = None
        try:
            entries = await trail.list(after=after, limit=BATCH_SIZE)
            if entries:
                await self._post(make_log_request(tenant, entries))
                sent = entries[-1].seq
            return len(entries)
        finally:
            # Also if the server stops: the next one need not wait for the claim to expire.
            await asyncio.shield(trail.record_export(claim=claim, seq=sent))

    async def _post(self, document: Mapping[str, Any]) -> None:
        if self._client is None:
            self._client = httpx2.AsyncClient(timeout=SEND_TIMEOUT_SECONDS)
        headers = {"Content-Type": "application/json", "User-Agent": f"quire/{__version__}", **self._headers}
        async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
            response = await self._client.post(self._endpoint, content=json.dumps(document).encode(), headers=headers)
        response.raise_for_status()
        try:
            rejected = response.json().get("partialSuccess", {}).get("rejectedLogRecords", 0)
        except (ValueError, AttributeError):
            return
        if int(rejected or 0):
            # By the protocol, these are not sent again.
            log_server_event("audit entries rejected", level=logging.ERROR, count=int(rejected))


def _log_failure(error: Exception) -> None:
    reason = f"status {error.response.status_code}" if isinstance(error, httpx2.HTTPStatusError) else None
    log_server_event("audit trail not sent", level=logging.WARNING, error_kind=type(error).__name__, reason=reason)


def make_audit_exporter(store: SqlStore, sign_in: SignIn | None, environ: Mapping[str, str]) -> AuditExporter | None:
    """The exporter of the settings, or None without one."""
    if sign_in is None or sign_in.audit_endpoint is None:
        return None
    headers: dict[str, str] = {}
    if (variable := sign_in.audit_headers_env) is not None:
        if not (text := environ.get(variable)):
            raise InvalidConfiguration(
                f"The environment variable {variable} of `sign_in.audit_headers_env` is not set."
            )
        for pair in text.split(","):
            name, equals, value = pair.partition("=")
            if not equals or not name.strip():
                raise InvalidConfiguration(f"The environment variable {variable} has no `name=value` pairs.")
            headers[name.strip()] = unquote(value.strip())
    return AuditExporter(store, sign_in.audit_endpoint, headers)


def make_log_request(tenant: str, entries: Sequence[AuditEntry]) -> dict[str, Any]:
    """The `ExportLogsServiceRequest` of these entries, as OTLP has it in JSON."""
    return {
        "resourceLogs": [
            {
                "resource": {"attributes": _to_attributes({"service.name": "quire", "service.version": __version__})},
                "scopeLogs": [
                    {
                        "scope": {"name": "quire.audit"},
                        "logRecords": [_to_log_record(tenant, each) for each in entries],
                    }
                ],
            }
        ]
    }


def _to_log_record(tenant: str, entry: AuditEntry) -> dict[str, Any]:
    number, name = _INFO if entry.allowed else _WARN
    attributes = {
        "quire.tenant": tenant,
        "quire.audit.seq": entry.seq,
        "quire.audit.action": entry.action,
        "quire.audit.allowed": entry.allowed,
        "quire.audit.target": entry.target,
        "quire.audit.digest": entry.digest.hex(),
        "user.id": entry.actor,
        "client.address": entry.address,
    }
    return {
        "timeUnixNano": str(entry.at * 1_000),
        "severityNumber": number,
        "severityText": name,
        "eventName": f"quire.audit.{entry.action}",
        "body": {"stringValue": f"{entry.action} {'allowed' if entry.allowed else 'refused'}"},
        "attributes": _to_attributes({key: value for key, value in attributes.items() if value != ""}),
    }


def _to_attributes(values: Mapping[str, str | int]) -> list[dict[str, Any]]:
    """Attributes of OTLP's JSON, in which 64-bit integers are text."""

    def wrap(value: str | int) -> dict[str, Any]:
        match value:
            case bool():
                return {"boolValue": value}
            case int():
                return {"intValue": str(value)}
            case str():
                return {"stringValue": value}

    return [{"key": key, "value": wrap(value)} for key, value in values.items()]
