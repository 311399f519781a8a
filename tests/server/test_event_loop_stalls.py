"""No request stalls the event loop, however long the stored messages are: every route that reads, every route that
changes a conversation, and every MCP tool.

A request that computes on the event loop, or holds the interpreter in one long call, delays all other callers.
"""

import asyncio
import json
import re
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
from fastapi import FastAPI
from openapi_helpers import list_operations
from server_helpers import ScriptedAgent

from infra.sizes import IS_FULL_SIZE
from quire.concurrency.worker_threads import MAX_EVENT_LOOP_BYTES, use_worker_process
from quire.mcp_server.access import HistoryAccess
from quire.mcp_server.arguments import TOOLS, parse_arguments
from quire.mcp_server.tools import run_tool
from quire.model import Entry, Message, TextPart, ToolCallPart, ToolResultPart
from quire.server.process_memory import shorten_collections
from quire.server.state import ServerState
from quire.server.telemetry.metrics import read_cpu_wait_seconds

TEXT_BYTES = 15_000_000 if IS_FULL_SIZE else 400_000
MAX_STALL_SECONDS = 0.25 if IS_FULL_SIZE else 0.15
UNITS = (
    "API_TOKEN=",
    "sk-ant-",
    "x",
    "the water mill ",
    "#1 user: a\n",
    "漢",
    " ",
    "a\n\n```\n",
    "may 2023, what is the ",
)
"""Each is repeated to a message of its own."""
INTERVAL_SECONDS = 0.005
EVENTS_SECONDS = 0.5
"""How long a stream of events without end is read."""
QUERIES: dict[str, dict[str, Any]] = {
    "/api/conversations/{conversation}/context": {"message": "water mill?"},
    "/api/conversations/{conversation}/requests/{seq}/diff": {"other": 0},
    "/api/conversations/{conversation}/requests/{seq}/why": {"item": "#1"},
    "/api/search": {"query": "water mill"},
    "/api/documents/content": {"path": "none.md"},
}
CHANGES: tuple[tuple[str, str, dict[str, Any] | None], ...] = (
    ("patch", "", {"title": "Mills"}),
    ("post", "/pins", {"seq": 3}),
    ("delete", "/pins/3", None),
    ("post", "/drops", {"seq": 1}),
    ("delete", "/drops/1", None),
    ("put", "/priorities/22", {"priority": 9}),
    ("post", "/messages", {"messages": ["And the wheel?"]}),
    ("put", "/compaction", {"summary": "The water mill."}),
    ("delete", "/compaction", None),
    ("post", "/compaction/redo", None),
    ("post", "/branches", {"fork_seq": 3}),
    ("post", "/stop", {}),
    ("post", "/approvals/call-1", {"approve": True}),
    ("post", "/items", {"name": "look", "type": "tool"}),
    ("delete", "/items/tool/look", None),
    ("delete", "/entries/1", None),
    ("delete", "", None),
)
"""Requests that change the conversation, in an order in which each has something to change."""
ARGUMENTS: dict[str, dict[str, Any]] = {
    "history_search": {"query": "water mill"},
    "history_read": {"conversation": "c", "from": 1},
    "history_list": {},
    "context_explain": {"conversation": "c"},
    "memory_search": {"query": "water mill"},
    "memory_write": {"text": "The water mill turns.", "conversation": "c", "number": 4},
    "context_usage": {"conversation": "c"},
    "context_drop": {"conversation": "c", "numbers": [4]},
    "context_restore": {"conversation": "c", "numbers": [4]},
}


class StallMeter:
    """Longest stall of the event loop by this process's own computation."""

    longest_seconds = 0.0

    @classmethod
    @asynccontextmanager
    async def measure(cls) -> "AsyncIterator[StallMeter]":
        meter = cls()
        task = asyncio.create_task(meter._run())
        await asyncio.sleep(2 * INTERVAL_SECONDS)
        try:
            yield meter
            await asyncio.sleep(2 * INTERVAL_SECONDS)
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        while True:
            started_at, cpu_before, wait_before = time.perf_counter(), time.process_time(), read_cpu_wait_seconds()
            await asyncio.sleep(INTERVAL_SECONDS)
            lag = time.perf_counter() - started_at - INTERVAL_SECONDS
            cpu, wait = time.process_time() - cpu_before, read_cpu_wait_seconds() - wait_before
            self.longest_seconds = max(self.longest_seconds, min(lag - wait, cpu))


async def measure_stall(work: Callable[[], Awaitable[Any]], *, on_result: Callable[[Any], object] = bool) -> float:
    async with StallMeter.measure() as meter:
        on_result(await work())
    return meter.longest_seconds


async def store_long_messages(client: httpx2.AsyncClient, state: ServerState) -> dict[str, Any]:
    """Long messages, and one item of other kinds; returns the parameters of paths."""
    store = state.engine_for("default").store
    await client.post("/api/conversations", json={"id": "c"})
    texts = [f"About the water mill. {unit * (TEXT_BYTES // len(unit.encode()))}" for unit in UNITS]
    for number, text in enumerate(texts):
        await store.append("c", Message.user(text))
        await store.append("c", Message.assistant(f"About the water mill {number}: yes."))
    call = ToolCallPart(id="call-1", name="look", arguments=json.dumps({"q": texts[0]}))
    result = ToolResultPart(call_id="call-1", content=(TextPart(text=texts[1]),))
    for message in (
        Message.user("Look at the water mill."),
        Message(role="assistant", parts=(call,)),
        Message(role="tool", parts=(result,)),
        Message.assistant("I looked."),
    ):
        await store.append("c", message)
    return {
        "conversation": "c",
        "digest": (await client.post("/api/blobs", content=b"x" * TEXT_BYTES)).json()["blob"],
        "model": "gpt-4o",
        "name": "default",
        "id": "none",
        "item": "msg_none",
        "response_id": "resp_none",
    }


async def read_path(app: FastAPI, path: str, query: dict[str, Any], authorization: str) -> int:
    """Sends a GET request without a client, whose own work would count, and returns the status."""
    statuses: list[int] = []
    requests = asyncio.Queue[dict[str, Any]]()
    requests.put_nowait({"type": "http.request", "body": b"", "more_body": False})

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": path, "raw_path": path.encode(), "root_path": "", "query_string": urlencode(query).encode(),
        "headers": [(b"host", b"quire"), (b"authorization", authorization.encode())],
        "client": ("127.0.0.1", 1), "server": ("quire", 80), "state": {},
    }  # fmt: skip
    with suppress(TimeoutError):
        async with asyncio.timeout(EVENTS_SECONDS if path.endswith("/events") else None):
            await app(scope, requests.get, send)
    return statuses[0]


def test_every_route_that_changes_a_conversation_is_tested_here():
    base = "/api/conversations/{conversation}"
    changed = {
        (each.method, re.sub(r"\{\w+\}", "*", each.path.removeprefix(base)))
        for each in list_operations()
        if each.path.startswith(base) and each.method != "get"
    }
    tested = {(method, re.sub(r"(?<=/)(\d+|call-1|tool|look)\b", "*", path)) for method, path, _ in CHANGES}
    # Readers are people who sign in; they are stored beside the conversation, and none of its messages is read.
    assert changed == tested | {("post", "/send"), ("post", "/compaction"), ("put", "/readers")}


async def test_long_messages_are_read_in_threads_after_they_were_stored(
    client: httpx2.AsyncClient, scripted: ScriptedAgent, monkeypatch: pytest.MonkeyPatch
):
    scripted.set_script("So be it.", repeat=True)
    on_event_loop: list[int] = []

    def check_content(entry: Entry) -> None:
        if threading.current_thread() is threading.main_thread() and len(entry.raw) > MAX_EVENT_LOOP_BYTES:
            on_event_loop.append(entry.seq)
        real_check(entry)

    real_check = Entry._check_content  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(Entry, "_check_content", check_content)
    await client.post("/api/conversations", json={"id": "c"})
    texts = [f"{number} {'the water mill ' * 5_000}" for number in range(20)]
    appended = await client.post("/api/conversations/c/messages", json={"messages": texts})
    assert (appended.status_code, len(appended.json()["items"])) == (201, 20)
    assert (await client.post("/api/conversations/c/compaction", json={})).status_code == 200
    assert (await client.post("/api/conversations/c/send", json={"message": "The wheel?"})).status_code == 200
    assert on_event_loop == []


@pytest.fixture
async def server_process() -> AsyncIterator[None]:
    """What the process of a server has: one more for long work, and short garbage collections."""
    with use_worker_process():
        async with shorten_collections():
            yield


@pytest.mark.slow
@pytest.mark.usefixtures("server_process")
async def test_no_route_and_no_tool_stalls_the_event_loop(
    app: FastAPI, client: httpx2.AsyncClient, server_state: ServerState, scripted: ScriptedAgent
):
    scripted.set_script("So be it.", repeat=True)
    stalls: dict[str, float] = {}
    # The first request of a process loads the vocabulary of the tokenizer.
    await client.post("/api/conversations", json={"id": "first"})
    await client.post("/api/conversations/first/send", json={"message": "The water mill?"})
    values = await store_long_messages(client, server_state)
    for path, body in (("compaction", {}), ("send", {"message": "The water mill?"})):
        stalls[path] = await measure_stall(partial(client.post, f"/api/conversations/c/{path}", json=body, timeout=600))
    newest = (await client.get("/api/conversations/c/entries", params={"newest": True, "limit": 1})).json()["items"]
    values["seq"] = newest[0]["seq"]
    assert newest[0]["body"]["parts"][0]["text"] == "So be it."
    authorization, statuses = client.headers["authorization"], list[int]()
    paths = [each.path for each in list_operations() if each.method == "get"]
    for path in [*paths, "/api/conversations/{conversation}/entries/1"]:
        ids = values | ({"conversation": "conv_c"} if path.startswith("/v1/") else {})
        read = partial(read_path, app, path.format(**ids), QUERIES.get(path, {}), authorization)
        stalls[path] = await measure_stall(read, on_result=statuses.append)
    assert [status for status in statuses if status >= 500] == []
    assert statuses.count(200) > len(paths) * 2 // 3
    access = HistoryAccess(engine=server_state.engine_for("default"), may_write=True)
    assert ARGUMENTS.keys() == TOOLS.keys()
    long_parts = [
        ("history_read", {"conversation": "c", "from": 2 * index + 1, "start": 10}) for index in range(len(UNITS))
    ]
    for name, arguments in (*ARGUMENTS.items(), *long_parts):
        stalls[f"{name} {arguments}"] = await measure_stall(partial(run_tool, access, parse_arguments(name, arguments)))
    for method, path, body in CHANGES:
        send = partial(client.request, method, f"/api/conversations/c{path}", json=body, timeout=600)
        stalls[f"{method} {path}"] = await measure_stall(
            send, on_result=lambda answer: statuses.append(answer.status_code)
        )
    refused = [change for change, status in zip(CHANGES, statuses[-len(CHANGES) :], strict=True) if status >= 300]
    # No call waits for approval, and there is no tool to add.
    assert {path for _, path, _ in refused} <= {"/approvals/call-1", "/items", "/items/tool/look"}
    sys.stdout.write("".join(f"{seconds:6.3f} s  {name}\n" for name, seconds in stalls.items()))
    assert {name: seconds for name, seconds in stalls.items() if seconds > MAX_STALL_SECONDS} == {}
