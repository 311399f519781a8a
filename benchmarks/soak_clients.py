"""Clients of `soak.py`: turns in three wire formats by the official SDKs, event streams, and hang-ups.

Each client continues a conversation for some turns with the whole list of messages, as agents do, then starts another.
"""

import asyncio
import os
import ssl
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import httpx2
from anthropic import AsyncAnthropic
from format_clients import PATHS, ChatClient, FormatClient, MessagesClient, ResponsesClient
from openai import AsyncOpenAI

from quire.model.ids import new_id
from soak_upstream import DELAY_SECONDS, MARKER, SENTENCE, Behaviour

CLIENT_COUNT = 12
EVENT_STREAM_COUNT = 6
TURNS_PER_CONVERSATION = 20
REQUEST_TIMEOUT_SECONDS = 60.0
CONTROL_SECONDS = 1.0
FSYNC_BYTES = 8_192
RECENT_CONVERSATIONS = 12
"""Conversations that event streams choose from."""
MODELS = ("gpt-4o", "gpt-4o", "gpt-4o-mini")
"""The last one's upstream speaks chat completions only, so that other formats are translated."""
WEIGHTS = {
    Behaviour.REPLY: 72,
    Behaviour.CALL: 14,
    Behaviour.REFUSE: 4,
    Behaviour.CUT: 4,
    Behaviour.FLOOD: 3,
    Behaviour.DELAY: 3,
}
HANG_UPS = (Behaviour.FLOOD, Behaviour.DELAY)
FAILURES = (Behaviour.REFUSE, Behaviour.CUT)


class TurnResult(NamedTuple):
    behaviour: Behaviour
    seconds: float
    error: str | None
    """Failure that the script does not contain, or the lack of one that it does."""

    @property
    def is_regular(self) -> bool:
        return self.behaviour not in (*HANG_UPS, *FAILURES)


@dataclass
class LoadState:
    """What the clients share: results, and the conversations that event streams may watch."""

    port: int
    key: str
    turns_per_second: float
    conversations: deque[str] = field(default_factory=lambda: deque[str](maxlen=RECENT_CONVERSATIONS))
    behaviours: Counter[str] = field(default_factory=Counter[str])
    errors: Counter[str] = field(default_factory=Counter[str])
    stream_count: int = 0
    event_count: int = 0
    control_seconds: list[float] = field(default_factory=list[float])
    fsync_seconds: list[float] = field(default_factory=list[float])
    _results: list[TurnResult] = field(default_factory=list[TurnResult])
    _stream_errors: list[str] = field(default_factory=list[str])

    def add_result(self, result: TurnResult) -> None:
        self._results.append(result)
        self.behaviours[str(result.behaviour)] += 1
        if result.error is not None:
            self.errors[result.error] += 1

    def add_stream_error(self, error: str) -> None:
        self._stream_errors.append(error)
        self.errors[error] += 1

    def take_results(self) -> tuple[list[TurnResult], list[str]]:
        """Returns and removes what arrived since the last call: turns, and errors of event streams."""
        taken = self._results, self._stream_errors
        self._results, self._stream_errors = [], []
        return taken

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}


@dataclass
class LoadClient:
    """One client with its own pace and its own seeded choices."""

    client: FormatClient
    http: httpx2.AsyncClient
    state: LoadState
    random: Random

    async def run(self) -> None:
        """Runs turns until it is cancelled; starts them at random times, however long each takes."""
        interval_seconds = CLIENT_COUNT / self.state.turns_per_second
        next_start = time.monotonic() + self.random.uniform(0, interval_seconds)
        while True:
            conversation, history = new_id(), list[dict[str, Any]]()
            model = self.random.choice(MODELS)
            for _ in range(TURNS_PER_CONVERSATION):
                await asyncio.sleep(max(0.0, next_start - time.monotonic()))
                next_start = max(next_start, time.monotonic() - interval_seconds)
                next_start += self.random.uniform(0.5, 1.5) * interval_seconds
                await self._run_turn(conversation, history, model)

    async def _run_turn(self, conversation: str, history: list[dict[str, Any]], model: str) -> None:
        [behaviour] = self.random.choices(list(WEIGHTS), list(WEIGHTS.values()))
        started_at, error = time.monotonic(), "no failure" if behaviour in FAILURES else None
        text = f"{new_id()} {SENTENCE * self.random.randint(1, 8)}{MARKER}={behaviour}"
        messages = [*history, self.client.make_question(text)]
        options = {"model": model, "extra_headers": {"X-Quire-Conversation": conversation}}
        try:
            if behaviour in HANG_UPS:
                await self._hang_up(messages, options, behaviour)
            else:
                history[:] = await self._complete(messages, options)
                self.state.conversations.append(conversation)
        except Exception as caught:  # noqa: BLE001  # Every kind is a result; the SDKs have no common base class.
            error = None if behaviour in FAILURES else f"{type(caught).__name__}: {caught}"[:500]
        self.state.add_result(TurnResult(behaviour, time.monotonic() - started_at, error))

    async def _complete(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> list[dict[str, Any]]:
        """Sends steps until a reply without tool calls; returns the whole list."""
        while True:
            stream = self.random.random() < 0.5
            reply = await self.client.send(messages, stream=stream, has_tools=True, **options)
            messages = [*messages, *reply.items]
            if not reply.calls:
                return messages
            results = [SENTENCE * self.random.randint(2, 24) for _ in reply.calls]
            messages = [*messages, *self.client.make_results(reply.calls, results)]

    async def _hang_up(self, messages: list[dict[str, Any]], options: dict[str, Any], behaviour: Behaviour) -> None:
        body = self.client.make_body(messages, stream=True) | {"model": options["model"]}
        headers = self.state.headers | options["extra_headers"]
        wait_seconds = self.random.uniform(0.1, 0.5) * DELAY_SECONDS
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(wait_seconds if behaviour is Behaviour.DELAY else REQUEST_TIMEOUT_SECONDS),
                self.http.stream("POST", PATHS[self.client.format], json=body, headers=headers) as response,
            ):
                response.raise_for_status()
                await anext(response.aiter_bytes(), b"")


async def watch_events(state: LoadState, random: Random) -> None:
    """Opens an event stream on a recent conversation, reads for some seconds and closes it, until cancelled."""
    while True:
        await asyncio.sleep(random.uniform(0.2, 2.0))
        if not state.conversations:
            continue
        path = f"/api/conversations/{random.choice(state.conversations)}/events"
        reader, writer = await asyncio.open_connection("127.0.0.1", state.port)
        try:
            async with asyncio.timeout(random.uniform(1.0, 20.0)):
                head = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {state.key}\r\n\r\n"
                writer.write(head.encode())
                status = await reader.readuntil(b"\r\n\r\n")
                if not status.startswith(b"HTTP/1.1 200"):
                    state.add_stream_error(status.decode()[:200])
                    continue
                state.stream_count += 1
                while line := await reader.readline():
                    state.event_count += line.startswith(b"data:")
                state.add_stream_error("the server ended the stream")
        except TimeoutError:
            pass
        finally:
            writer.close()


async def measure_control(state: LoadState, upstream: AsyncOpenAI, folder: Path) -> None:
    """Times, until it is cancelled, what a turn also does but Quire does not: a model request, and an fsync."""
    client, file = ChatClient(upstream), os.open(folder / "fsync", os.O_CREAT | os.O_WRONLY)
    try:
        while True:
            await asyncio.sleep(CONTROL_SECONDS)
            started_at = time.monotonic()
            await client.send([client.make_question(SENTENCE)], stream=True, model=MODELS[0])
            state.control_seconds.append(time.monotonic() - started_at)
            os.pwrite(file, bytes(FSYNC_BYTES), 0)
            started_at = time.monotonic()
            await asyncio.to_thread(os.fsync, file)
            state.fsync_seconds.append(time.monotonic() - started_at)
    finally:
        os.close(file)


@asynccontextmanager
async def run_load(state: LoadState, *, upstream: str, folder: Path, seed: int) -> AsyncIterator[None]:
    """Runs all clients, event streams and the control while the block runs."""
    base_url, random = f"http://127.0.0.1:{state.port}", Random(seed)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=CLIENT_COUNT)
    async with (
        httpx2.AsyncClient(
            base_url=base_url, timeout=REQUEST_TIMEOUT_SECONDS, limits=limits, verify=ssl.create_default_context()
        ) as http,
        AsyncOpenAI(base_url=f"{base_url}/v1", api_key=state.key, max_retries=0, http_client=http) as openai,
        AsyncAnthropic(base_url=base_url, api_key=state.key, max_retries=0, http_client=http) as anthropic,
        AsyncOpenAI(base_url=upstream, api_key="none", max_retries=0) as direct,
    ):
        clients = (ChatClient(openai), MessagesClient(anthropic), ResponsesClient(openai))
        loads = [
            LoadClient(clients[number % 3], http, state, Random(random.random())).run()
            for number in range(CLIENT_COUNT)
        ]
        watches = [watch_events(state, Random(random.random())) for _ in range(EVENT_STREAM_COUNT)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in (*loads, *watches, measure_control(state, direct, folder))]
            yield
            for task in tasks:
                task.cancel()
