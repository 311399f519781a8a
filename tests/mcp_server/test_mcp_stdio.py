"""`quire mcp` as a process: the official client, quick answers, errors, and its end."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_clients import READING_NAMES, VALVE_CHAT, WRITING_NAMES, get_text

from quire.engine import open_engine
from quire.log.types import ConversationOrigin

ENGINE_MODULES = ("sqlalchemy", "numpy", "quire.engine", "quire.log", "pydantic_ai")
"""What the first answers must not wait for."""

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


def make_words(database_url: str, *options: str) -> list[str]:
    return ["-m", "quire", "mcp", "--set", f"database_url={database_url}", *options]


def make_environment(home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}


async def fill(database_url: str) -> None:
    async with open_engine(database_url) as engine:
        await engine.store.create_conversation("valve", origin=ConversationOrigin(client="codex"))
        await (await engine.conversation("valve")).append(*VALVE_CHAT)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["legacy", pytest.param("auto", marks=pytest.mark.nightly)])
async def test_the_official_client_starts_it(database_url: str, tmp_path: Path, mode: str):
    await fill(database_url)
    parameters = StdioServerParameters(
        command=sys.executable, args=make_words(database_url, "--write"), env=make_environment(tmp_path), cwd=tmp_path
    )
    async with Client(stdio_client(parameters), mode=mode) as client:
        names = [each.name for each in (await client.list_tools()).tools]
        found = await client.call_tool("history_search", {"query": "Rotterdam"})
        prompt = await client.get_prompt("resume", {"conversation": "valve"})
        written = await client.call_tool(
            "memory_write", {"text": "The mill uses Rotterdam valves.", "conversation": "valve", "number": 2}
        )
    assert names == [*READING_NAMES, *WRITING_NAMES]
    assert "Rotterdam" in get_text(found)
    assert "Rotterdam" in prompt.model_dump_json()
    assert not written.is_error


async def start(words: Sequence[str], home: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=make_environment(home),
        cwd=home,
    )


async def exchange(process: asyncio.subprocess.Process, message: dict[str, Any]) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{json.dumps(message)}\n".encode())
    await process.stdin.drain()
    async with asyncio.timeout(60):
        return json.loads(await process.stdout.readline())


@pytest.mark.slow
async def test_a_database_that_cannot_be_opened_fails_the_call_and_not_the_server(tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    process = await start(make_words(f"sqlite:///{tmp_path}/file/x.db"), tmp_path)
    await exchange(process, INITIALIZE)
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "history_list", "arguments": {}}}
    for number in (2, 3):
        answer = await exchange(process, {**call, "id": number})
        assert answer["result"]["isError"], answer
    assert (await exchange(process, {"jsonrpc": "2.0", "id": 4, "method": "ping"}))["result"] == {}
    process.kill()
    await process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["input", "interrupt", "terminate"])
async def test_it_ends_with_its_input_or_by_a_signal(tmp_path: Path, end: str):
    process = await start(make_words(f"sqlite:///{tmp_path}/x.db"), tmp_path)
    answer = await exchange(process, INITIALIZE)
    assert answer["result"]["serverInfo"]["name"] == "quire"
    assert not (tmp_path / "x.db").exists(), "nothing is opened before it is needed"
    if end == "input":
        assert process.stdin is not None
        process.stdin.close()
    else:
        process.send_signal(signal.SIGINT if end == "interrupt" else signal.SIGTERM)
    async with asyncio.timeout(30):
        assert await process.wait() in (0, -signal.SIGINT, -signal.SIGTERM)


async def test_the_first_answers_wait_for_no_engine():
    script = (
        "import sys; import quire.cli.mcp, quire.mcp_server.server as server;"
        "server.build_local_server(lambda: None, may_write=True);"
        f"print([name for name in {ENGINE_MODULES!r} if name in sys.modules])"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    stdout, _ = await process.communicate()
    assert stdout.decode().strip() == "[]"
