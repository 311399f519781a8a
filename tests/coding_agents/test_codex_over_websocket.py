"""The real Codex over a WebSocket: tool calls, connections that are cut, and what is recorded of it."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from gateway_fixtures import run_gateway
from gateway_records import assert_all_recorded, get_address, load_sessions

from infra.real_agents import Codex
from infra.scripted_provider import ProviderRequest, ScriptedCall, ScriptedProvider, ScriptedReply, WireFormatName
from infra.sizes import IS_FULL_SIZE
from quire.model import ToolCallPart, ToolResultPart
from quire.server import websocket
from quire.store import SqlStore

pytestmark = pytest.mark.slow

MakeCodex = Callable[..., Codex]

CALLS, CUTS = (300, 5) if IS_FULL_SIZE else (8, 2)
USES_WEBSOCKETS = "model_providers.quire.supports_websockets=true"
SEED = 39


def make_upstreams(provider: ScriptedProvider, speaks: WireFormatName) -> dict[str, object]:
    return {"*": {"base_url": provider.openai_url, "speaks": [speaks]}}


class CuttingRelay:
    """A TCP relay in front of a server, whose open connections can be cut."""

    def __init__(self) -> None:
        self.url = ""
        self.upgrades = 0
        """Handshakes that the server accepted."""
        self.requests = 0
        """Requests of HTTP with a body."""
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    @asynccontextmanager
    async def run(self, target_url: str) -> AsyncIterator["CuttingRelay"]:
        host, _, port = target_url.removeprefix("http://").partition(":")
        tasks: set[asyncio.Task[None]] = set()

        async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                while data := await reader.read(65_536):
                    self.upgrades += data.startswith(b"HTTP/1.1 101")
                    self.requests += data.startswith(b"POST ")
                    writer.write(data)
                    await writer.drain()
            writer.transport.abort()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            target_reader, target_writer = await asyncio.open_connection(host, int(port))
            self._writers |= {writer, target_writer}
            for each in ((reader, target_writer), (target_reader, writer)):
                task = asyncio.create_task(copy(*each))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self.cut()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("speaks", ["responses", pytest.param("chat", marks=pytest.mark.nightly)])
async def test_tool_calls_over_connections_that_are_cut_are_recorded_once(
    store: SqlStore, provider: ScriptedProvider, make_codex: MakeCodex, speaks: WireFormatName
):
    if IS_FULL_SIZE and speaks == "chat":
        pytest.skip("the small size suffices for translated requests")
    relay, loop, rng = CuttingRelay(), asyncio.get_running_loop(), random.Random(SEED)
    cuts = {number: rng.uniform(0, 0.1) for number in rng.sample(range(1, CALLS), CUTS)}
    done: set[int] = set()

    def script(request: ProviderRequest) -> ScriptedReply:
        made = sum(item.get("type") == "function_call_output" or item.get("role") == "tool" for item in request.items)
        if made in cuts and made not in done:
            done.add(made)
            loop.call_soon_threadsafe(loop.call_later, cuts[made], relay.cut)
        if made == CALLS:
            return ScriptedReply("Done.")
        return ScriptedReply(calls=(ScriptedCall("exec_command", {"cmd": f"echo call {made}"}),))

    provider.script = script
    settings = {"upstreams": make_upstreams(provider, speaks), "context_limit": 900_000}
    async with run_gateway(store, provider.openai_url, **settings) as harness:
        address = get_address(harness)
        async with relay.run(address["base_url"]):
            retries = "model_providers.quire.stream_max_retries=20"
            codex = make_codex(
                relay.url, key=address["key"], config=[USES_WEBSOCKETS, retries], context_window_tokens=2_000_000
            )
            run = await codex.run("Count.", timeout_seconds=1_200)
        sessions = await load_sessions(store)
        assert (run.exit_code, run.answer) == (0, "Done."), run.stderr
        # Every cut made Codex connect again, and it never used HTTP.
        assert (len(done), relay.requests) == (CUTS, 0)
        assert relay.upgrades > CUTS
        (session,) = sessions
        newest = max(session.branches, key=lambda branch: branch.head_seq)
        entries = await store.read_range(session.conversation.id, branch=newest.number, kinds=["message"])
    parts = [part for entry in entries for part in entry.message.parts]
    calls = [part for part in parts if isinstance(part, ToolCallPart)]
    assert [f"echo call {number}" in call.arguments for number, call in enumerate(calls)] == [True] * CALLS
    assert [part.call_id for part in parts if isinstance(part, ToolResultPart)] == [call.id for call in calls]
    texts = [entry.message.text for entry in entries]
    assert (texts.count("Done."), texts.count("Count.")) == (1, 1)
    assert_all_recorded(sessions, provider)
    assert session.conversation.origin is not None
    assert (session.conversation.origin.client, session.conversation.origin.session) == ("codex", run.session_id)


async def test_codex_uses_http_at_once_where_the_websocket_is_refused(
    store: SqlStore, provider: ScriptedProvider, make_codex: MakeCodex, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(websocket, "MAX_TENANT_CONNECTIONS", 0)
    arrivals: list[float] = []

    def script(request: ProviderRequest) -> ScriptedReply:
        arrivals.append(time.monotonic())
        return ScriptedReply("Low.")

    provider.script = script
    seconds: dict[str, list[float]] = {"false": [], "true": []}
    async with run_gateway(
        store, provider.openai_url, upstreams=make_upstreams(provider, "responses"), context_limit=65_536
    ) as harness:
        for tries in ("false", "true") * (5 if IS_FULL_SIZE else 1):
            codex = make_codex(**get_address(harness), config=[f"model_providers.quire.supports_websockets={tries}"])
            started = time.monotonic()
            run = await codex.run("Tide?")
            assert (run.exit_code, run.answer) == (0, "Low."), run.stderr
            seconds[tries].append(arrivals[-1] - started)
    print(f"seconds to the first request at the provider: {seconds}")
    assert len(provider.requests) == len(arrivals) == len(seconds["true"]) * 2
    assert min(seconds["true"]) < min(seconds["false"]) + 3, seconds
