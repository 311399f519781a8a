"""A small fleet on loopback: upstream and servers as processes."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from infra.postgres import find_free_port

UPSTREAM_PROGRAM = """
import asyncio, json, sys
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

app = FastAPI()

@app.post("/v1/chat/completions")
async def complete(request: Request):
    body = await request.json()
    question = body["messages"][-1]["content"]
    reply = f"You said {question!r}."
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    if not body.get("stream"):
        message = {"role": "assistant", "content": reply}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse({"id": "x", "object": "chat.completion", "created": 0, "model": body["model"],
                             "choices": [choice], "usage": usage})
    async def chunks():
        for start in range(0, len(reply), 8):
            delta = {"content": reply[start:start + 8], **({"role": "assistant"} if start == 0 else {})}
            yield chunk({"index": 0, "delta": delta, "finish_reason": None})
            await asyncio.sleep(0.002)
        yield chunk({"index": 0, "delta": {}, "finish_reason": "stop"})
        yield "data: [DONE]\\n\\n"
    def chunk(choice):
        event = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": body["model"],
                 "choices": [choice]}
        return f"data: {json.dumps(event)}\\n\\n"
    return StreamingResponse(chunks(), media_type="text/event-stream")

uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""


class Process:
    """A subprocess whose output goes to a file, to explain test failures."""

    def __init__(self, arguments: Sequence[str], *, output: Path, environment: dict[str, str]) -> None:
        self._arguments, self._output, self._environment = list(arguments), output, environment
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._output.open("ab") as output:
            return subprocess.Popen(
                self._arguments,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kills the process and its own children, such as the workers of a server."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self) -> None:
        self.process = self._start()

    @property
    def logs(self) -> str:
        return self._output.read_text("utf-8", "replace")


@dataclass
class Fleet:
    url: str
    """Database URL of the application role."""
    key: str
    folder: Path
    overrides: dict[str, str] = field(default_factory=dict[str, str])
    """Environment variables in place of the fleet's own."""
    upstream: Process = field(init=False)
    servers: list[Process] = field(default_factory=list[Process])
    ports: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        self._upstream_port = find_free_port()
        program = self.folder / "upstream.py"
        program.write_text(UPSTREAM_PROGRAM)
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
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")},
            **own,
            **self.overrides,
        }

    def start_server(self, *, workers: int = 1) -> Process:
        port = find_free_port()
        arguments = [sys.executable, "-m", "quire", "serve", "--port", str(port), "--keys", "--workers", str(workers)]
        output = self.folder / f"server-{len(self.servers)}.log"
        self.servers.append(Process(arguments, output=output, environment=self.environment))
        self.ports.append(port)
        return self.servers[-1]

    async def wait_ready(self, *, timeout_seconds: float = 60.0) -> None:
        """Waits until every server is ready."""
        async with httpx2.AsyncClient(timeout=2.0) as client:
            for port in self.ports:
                end = time.monotonic() + timeout_seconds
                while True:
                    try:
                        if (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200:
                            break
                    except httpx2.HTTPError:
                        pass
                    assert time.monotonic() < end, f"no server on {port}: {self.servers[self.ports.index(port)].logs}"
                    await asyncio.sleep(0.1)

    def stop(self) -> None:
        for process in (*self.servers, self.upstream):
            process.stop()
