"""Uploads of exported files: they are imported in the background, with progress."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from quire.engine.file_import import import_files
from quire.server import import_jobs, limits
from quire.server.state import ServerState
from quire.sources.registry import SOURCES
from quire.store import SqlStore

TRANSCRIPT = next((Path(__file__).parents[1] / "importers" / "data" / "codex").rglob("*.jsonl"))
UPLOAD = {"source": "codex", "file": TRANSCRIPT.name}


async def upload(client: httpx2.AsyncClient, content: bytes, **params: str) -> dict[str, Any]:
    """Uploads a file and waits until it is imported."""
    response = await client.post("/api/imports", params=UPLOAD | params, content=content)
    assert response.status_code == 202, response.text
    return await wait_until_done(client, response.json()["id"])


async def wait_until_done(client: httpx2.AsyncClient, job: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        # Polling, as a client does.
        while (progress := (await client.get(f"/api/imports/{job}")).json())["status"] == "running":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return progress


async def test_an_uploaded_transcript_is_imported_once(client: httpx2.AsyncClient, store: SqlStore):
    first = await upload(client, TRANSCRIPT.read_bytes(), project="/given")
    assert (first["status"], first["conversations"], first["error_count"]) == ("done", 1, 0)
    assert first["messages"] > 10
    [record] = await store.list_conversations()
    assert record.origin is not None
    assert (record.origin.client, record.origin.project) == ("codex", "/home/dev/project")
    second = await upload(client, TRANSCRIPT.read_bytes())
    assert (second["messages"], second["known_messages"]) == (0, first["messages"])
    listed = await client.get("/api/imports")
    assert [each["id"] for each in listed.json()["items"]] == [second["id"], first["id"]]


async def test_lines_that_cannot_be_read_are_listed(client: httpx2.AsyncClient):
    progress = await upload(client, TRANSCRIPT.read_bytes() + b"not json\n")
    assert progress["status"] == "done"
    assert progress["error_count"] == 1
    assert progress["errors"][0]["item"].startswith(TRANSCRIPT.name)


async def test_the_sources_are_listed(client: httpx2.AsyncClient):
    response = await client.get("/api/import-sources")
    assert {"name": "claude-code", "title": "Claude Code"} in response.json()["items"]


@pytest.mark.parametrize("params", [{"source": "nowhere"}, {"file": "../evil"}, {"file": "a/b"}, {"file": ".hidden"}])
async def test_an_unknown_source_and_a_path_are_refused(client: httpx2.AsyncClient, params: dict[str, str]):
    response = await client.post("/api/imports", params=UPLOAD | params, content=b"{}")
    assert response.status_code in (400, 422)
    assert (await client.get("/api/imports")).json()["items"] == []


@pytest.mark.every_database
async def test_another_tenant_sees_no_import(
    client: httpx2.AsyncClient, other_tenant_client: httpx2.AsyncClient, store: SqlStore
):
    job = (await upload(client, TRANSCRIPT.read_bytes()))["id"]
    assert (await other_tenant_client.get(f"/api/imports/{job}")).status_code == 404
    assert (await other_tenant_client.get("/api/imports")).json()["items"] == []
    assert (await other_tenant_client.get("/api/conversations")).json()["items"] == []


async def test_one_import_of_a_tenant_runs_at_a_time(
    client: httpx2.AsyncClient, server_state: ServerState, monkeypatch: pytest.MonkeyPatch
):
    release = asyncio.Event()
    original = import_files

    async def wait_first(*args: Any, **kwargs: Any) -> Any:
        await release.wait()
        return await original(*args, **kwargs)

    monkeypatch.setattr(import_jobs, "import_files", wait_first)
    first = await client.post("/api/imports", params=UPLOAD, content=TRANSCRIPT.read_bytes())
    assert first.json()["status"] == "running"
    second = await client.post("/api/imports", params=UPLOAD, content=TRANSCRIPT.read_bytes())
    assert second.status_code == 409
    release.set()
    assert (await wait_until_done(client, first.json()["id"]))["status"] == "done"


class _SlowSource:
    """A file that is read until it is released, as one is that someone made for it."""

    reads = 1
    name, title, is_experimental, not_stored = "slow", "Slow", False, ()

    def __init__(self) -> None:
        self.started, self.release = threading.Event(), threading.Event()

    def read(self, path: Path, *, since: int | None = None) -> Iterator[Any]:
        try:
            self._wait()
        except Exception:  # noqa: BLE001 (readers take many errors for errors of the file)
            self._wait()
        yield from ()

    def _wait(self) -> None:
        while not self.release.is_set():
            self.started.set()
            time.sleep(0.001)


async def test_an_import_waits_for_no_other_tenants_import(
    client: httpx2.AsyncClient, other_tenant_client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
):
    slow = _SlowSource()
    monkeypatch.setitem(SOURCES, slow.name, slow)
    job = (await client.post("/api/imports", params=UPLOAD | {"source": "slow"}, content=b"{}")).json()["id"]
    assert await asyncio.to_thread(slow.started.wait, 10)
    try:
        assert (await upload(other_tenant_client, TRANSCRIPT.read_bytes()))["status"] == "done"
    finally:
        slow.release.set()
    assert (await wait_until_done(client, job))["status"] == "done"


async def test_a_shutdown_ends_an_import_whose_file_is_being_read(
    client: httpx2.AsyncClient, server_state: ServerState, monkeypatch: pytest.MonkeyPatch
):
    slow = _SlowSource()
    monkeypatch.setitem(SOURCES, slow.name, slow)
    await client.post("/api/imports", params=UPLOAD | {"source": "slow"}, content=b"{}")
    assert await asyncio.to_thread(slow.started.wait, 10)
    try:
        async with asyncio.timeout(10):
            await server_state.imports.stop_all()
    finally:
        slow.release.set()


async def test_a_shutdown_ends_an_import_and_deletes_its_file(
    client: httpx2.AsyncClient, server_state: ServerState, monkeypatch: pytest.MonkeyPatch
):
    files: list[Path] = []

    async def wait_forever(_engine: Any, _source: Any, paths: list[Path], *_: Any, **__: Any) -> Any:
        files.extend(paths)
        await asyncio.Event().wait()

    monkeypatch.setattr(import_jobs, "import_files", wait_forever)
    job = (await client.post("/api/imports", params=UPLOAD, content=b"{}")).json()["id"]
    await asyncio.sleep(0)
    await server_state.imports.stop_all()
    progress = (await client.get(f"/api/imports/{job}")).json()
    assert (progress["status"], "upload the file again" in progress["failure"]) == ("failed", True)
    assert files
    assert not files[0].parent.exists()


async def test_an_unexpected_error_fails_the_import_alone(client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch):
    async def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a secret")

    monkeypatch.setattr(import_jobs, "import_files", fail)
    progress = await upload(client, b"{}")
    assert progress["status"] == "failed"
    assert "a secret" not in json.dumps(progress)


async def test_an_upload_has_a_limit_of_its_own(client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "MAX_UPLOAD_BYTES", 1_000)
    response = await client.post("/api/imports", params=UPLOAD, content=b"x" * 1_001)
    assert response.status_code == 413
    assert (await client.get("/api/imports")).json()["items"] == []


async def test_old_imports_are_forgotten(client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(import_jobs, "MAX_LISTED_IMPORTS", 2)
    jobs = [(await upload(client, b""))["id"] for _ in range(3)]
    assert [each["id"] for each in (await client.get("/api/imports")).json()["items"]] == jobs[:0:-1]


async def test_a_tenant_has_one_unfinished_upload(
    client: httpx2.AsyncClient, other_tenant_client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
):
    """An upload may fill the disk for as long as its client takes."""
    started, finish = asyncio.Event(), asyncio.Event()

    async def send_slowly() -> AsyncIterator[bytes]:
        yield b"{}\n"
        started.set()
        await finish.wait()

    slow = asyncio.create_task(client.post("/api/imports", params=UPLOAD, content=send_slowly()))
    await started.wait()
    second = await client.post("/api/imports", params=UPLOAD, content=b"{}\n")
    assert (second.status_code, second.headers["retry-after"]) == (429, "5")
    assert second.json()["detail"] == "Another upload is in progress; wait until it is done."
    monkeypatch.setattr(import_jobs, "MAX_UPLOADS", 1)
    assert (await other_tenant_client.post("/api/imports", params=UPLOAD, content=b"{}\n")).status_code == 429
    monkeypatch.undo()
    await upload(other_tenant_client, b"{}\n")
    finish.set()
    assert (await slow).status_code == 202
    await wait_until_done(client, slow.result().json()["id"])
    await upload(client, b"{}\n")
