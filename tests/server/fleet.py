"""A small fleet on loopback: an upstream, servers and a worker as processes of their own, and clients that go on
through whatever happens to them.

A client keeps its own list of messages, as OpenAI's clients do, and takes a turn as said only when the whole answer
has come. What it was told is what must be found afterwards.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from quire.testing.postgres import free_port

UPSTREAM = """
import asyncio, json, sys
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

app = FastAPI()

@app.post("/v1/chat/completions")
async def complete(request: Request):
    body = await request.json()
    asked = body["messages"][-1]["content"]
    reply = f"You said {asked!r}."
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    if not body.get("stream"):
        message = {"role": "assistant", "content": reply}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse({"id": "x", "object": "chat.completion", "created": 0, "model": body["model"],
                             "choices": [choice], "usage": usage})
    async def pieces():
        for place in range(0, len(reply), 8):
            delta = {"content": reply[place:place + 8], **({"role": "assistant"} if place == 0 else {})}
            yield chunk({"index": 0, "delta": delta, "finish_reason": None})
            await asyncio.sleep(0.002)
        yield chunk({"index": 0, "delta": {}, "finish_reason": "stop"})
        yield "data: [DONE]\\n\\n"
    def chunk(choice):
        made = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": body["model"], "choices": [choice]}
        return f"data: {json.dumps(made)}\\n\\n"
    return StreamingResponse(pieces(), media_type="text/event-stream")

uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""


class Process:
    """A program of ours, its output kept for whoever looks why a test failed."""

    def __init__(self, arguments: Sequence[str], *, output: Path, environment: dict[str, str]) -> None:
        self._arguments, self._output, self._environment = list(arguments), output, environment
        self.process = self._started()

    def _started(self) -> "subprocess.Popen[bytes]":
        with self._output.open("ab") as output:
            return subprocess.Popen(
                self._arguments, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=self._environment
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()

    def again(self) -> None:
        self.process = self._started()

    @property
    def said(self) -> str:
        return self._output.read_text("utf-8", "replace")


@dataclass
class Fleet:
    """`url` is the database as the application reaches it."""

    url: str
    key: str
    folder: Path
    upstream: Process = field(init=False)
    servers: list[Process] = field(default_factory=list[Process])
    ports: list[int] = field(default_factory=list[int])
    worker: Process | None = None

    def __post_init__(self) -> None:
        self._upstream_port = free_port()
        program = self.folder / "upstream.py"
        program.write_text(UPSTREAM)
        arguments = [sys.executable, str(program), str(self._upstream_port)]
        self.upstream = Process(arguments, output=self.folder / "upstream.log", environment=self.environment)

    @property
    def environment(self) -> dict[str, str]:
        own = {
            "QUIRE_DATABASE_URL": self.url,
            "QUIRE_BASE_URL": f"http://127.0.0.1:{self._upstream_port}/v1",
            "QUIRE_MODEL": "echo",
            "QUIRE_CONTEXT_LIMIT": "4000",
            "QUIRE_REQUESTS_PER_MINUTE": "1000000",
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder),
            "XDG_DATA_HOME": str(self.folder),
        }
        return {**{name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}, **own}

    def serve(self) -> Process:
        port = free_port()
        arguments = [sys.executable, "-m", "quire", "serve", "--port", str(port), "--keys"]
        output = self.folder / f"server-{len(self.servers)}.log"
        self.servers.append(Process(arguments, output=output, environment=self.environment))
        self.ports.append(port)
        return self.servers[-1]

    def work(self) -> Process:
        arguments = [sys.executable, "-m", "quire", "worker"]
        self.worker = Process(arguments, output=self.folder / "worker.log", environment=self.environment)
        return self.worker

    async def ready(self, *, within: float = 60.0) -> None:
        """Until every server says that it can work."""
        async with httpx.AsyncClient(timeout=2.0) as client:
            for port in self.ports:
                end = time.monotonic() + within
                while True:
                    try:
                        if (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200:
                            break
                    except httpx.HTTPError:
                        pass
                    assert time.monotonic() < end, f"no server on {port}: {self.servers[self.ports.index(port)].said}"
                    await asyncio.sleep(0.1)

    def stop(self) -> None:
        for process in (*self.servers, *([self.worker] if self.worker is not None else []), self.upstream):
            process.stop()


@dataclass
class Client:
    """One user, whose turns are numbered; what was not answered is asked again, of the next server."""

    fleet: Fleet
    conversation: str
    messages: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    requests: list[str] = field(default_factory=list[str])
    """Of every answer, the id under which its record is kept."""
    failures: int = 0
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """It has been answered a few times, so what happens now happens to a conversation under way."""

    async def talk(self, turns: int, *, after: asyncio.Event, leaving: bool = False) -> None:
        """Until it happened, and so many turns more. `leaving`: now and then it goes in mid-answer."""
        async with httpx.AsyncClient(timeout=10.0) as http:
            while turns > 0:
                turns -= after.is_set()
                turn = len(self.messages) // 2
                asked = {"role": "user", "content": f"{self.conversation}, turn {turn}"}
                stream = turn % 2 == 1
                gone = leaving and turn % 5 == 3
                if gone:
                    await self._ask(http, asked, stream=True, leave=True)
                while (reply := await self._ask(http, asked, stream=stream)) is None:
                    self.failures += 1
                    await asyncio.sleep(0.1)
                assert reply == f"You said {asked['content']!r}.", reply
                self.messages += [asked, {"role": "assistant", "content": reply}]
                if turn >= 2:
                    self.settled.set()

    async def _ask(
        self, http: httpx.AsyncClient, asked: dict[str, str], *, stream: bool, leave: bool = False
    ) -> str | None:
        """The answer; None if it did not come whole."""
        port = self.fleet.ports[(len(self.messages) + self.failures) % len(self.fleet.ports)]
        body = {"model": "echo", "messages": [*self.messages, asked], "stream": stream}
        headers = {"Authorization": f"Bearer {self.fleet.key}", "X-Quire-Conversation": self.conversation}
        try:
            async with http.stream(
                "POST", f"http://127.0.0.1:{port}/v1/chat/completions", json=body, headers=headers
            ) as response:
                if response.status_code != 200:
                    assert response.status_code in (500, 502, 503, 504), await response.aread()
                    return None
                if leave:
                    await anext(response.aiter_bytes(), b"")
                    return None
                data = await response.aread()
                answer = _streamed(data) if stream else json.loads(data)["choices"][0]["message"]["content"]
                if answer is not None:
                    self.requests.append(response.headers["x-quire-request"])
                return answer
        except httpx.HTTPError:
            return None


def _streamed(data: bytes) -> str | None:
    """The text of a stream that came to its end."""
    lines = [line.removeprefix("data: ") for line in data.decode().splitlines() if line.startswith("data: ")]
    if not lines or lines[-1] != "[DONE]":
        return None
    chunks = [json.loads(line) for line in lines[:-1]]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk.get("choices"))
