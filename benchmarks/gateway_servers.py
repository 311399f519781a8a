"""The servers that `gateway.py` measures, each in a process of its own: prints its port, ends with its standard input.

`upstream` answers at once. `bare` is a FastAPI proxy without a store; `inserts` is the same proxy that writes the rows
of a turn by psycopg, in one transaction, as the gateway does; `gateway` is Quire.
"""

import asyncio
import cProfile
import json
import os
import socket
import sys
import time
from hashlib import sha256
from typing import Any

import uvicorn

REPLY = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "The mill runs. " * 12}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 300, "completion_tokens": 50, "total_tokens": 350},
    }
).encode()
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(REPLY), REPLY)


class Upstream(asyncio.Protocol):
    """As little HTTP as will do."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            self._buffer = self._buffer[end + 4 + length :]
            self._transport.write(ANSWER)


async def serve_upstream() -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", 0)
    announce(server.sockets[0].getsockname()[1])
    await until_let_go()


def announce(port: int) -> None:
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()


async def until_let_go() -> None:
    await asyncio.to_thread(sys.stdin.buffer.read)


async def serve(app: Any) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    # Asyncio sees to it only for sockets that it makes itself: without, every answer waits for an acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(app, log_level="error", access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server.serve([listening]))
    announce(listening.getsockname()[1])
    await until_let_go()
    server.should_exit = True
    await serving


async def serve_bare(upstream: str) -> None:
    import httpx
    from fastapi import FastAPI, Request, Response

    app = FastAPI()
    async with httpx.AsyncClient() as client:

        @app.post("/v1/chat/completions")
        async def complete(request: Request) -> Response:
            answer = await client.post(f"{upstream}/chat/completions", content=await request.body())
            return Response(answer.content, media_type="application/json")

        await serve(app)


async def serve_inserts(upstream: str, url: str) -> None:
    import httpx
    import psycopg_pool
    from fastapi import FastAPI, Request, Response

    app = FastAPI()
    async with (
        httpx.AsyncClient() as client,
        psycopg_pool.AsyncConnectionPool(url, min_size=16, max_size=32, kwargs={"autocommit": True}) as pool,
    ):

        @app.post("/v1/chat/completions")
        async def complete(request: Request) -> Response:
            body = await request.body()
            asked = json.loads(body)
            answer = await client.post(f"{upstream}/chat/completions", content=body)
            said = json.loads(answer.content)["choices"][0]["message"]
            async with pool.connection() as connection:
                await insert_turn(connection, request.headers["x-quire-conversation"], asked["messages"][-1], said)
            return Response(answer.content, media_type="application/json")

        await serve(app)


async def insert_turn(connection: Any, conversation: str, question: dict[str, Any], reply: dict[str, Any]) -> None:
    """The rows of a turn: the two messages, their paths, the head, the manifest, the blob that it quotes, its cost."""
    execute = connection.execute
    await execute("BEGIN; SELECT set_config('quire.tenant', 'default', true)")
    known = {"conversation": conversation}
    found = await (await execute(LOCK, known)).fetchone()
    if found is None:
        await execute(CONVERSATION, known)
        await execute(BRANCH, known)
    seq, path = found or (0, bytes(32))
    rows: list[dict[str, Any]] = []
    for message in (question, reply):
        seq += 1
        raw = json.dumps({"role": message["role"], "parts": [{"type": "text", "text": message["content"]}]})
        path = sha256(path + raw.encode()).digest()
        rows.append(known | {"seq": seq, "role": message["role"], "path": path, "digest": path, "body": raw})
    arrays = {name: [row[name] for row in rows] for name in ("seq", "role", "path", "digest", "body")}
    await execute(ENTRIES, known | arrays)
    await execute(PATHS, known | arrays)
    await execute(HEAD, known | {"seq": seq, "path": path})
    digest = sha256(b"instructions").digest()
    if await (await execute(STORED, {"digest": digest})).fetchone() is None:
        await execute(BLOB, {"digest": digest})
    await execute(MANIFEST, known | {"seq": seq, "manifest": "m" * 1_500, "request": path.hex()[:26]})
    await execute(USE, known | {"seq": seq, "digest": digest})
    await execute(SPENT, known)
    await execute("COMMIT")


LOCK = """SELECT head_seq, head_path FROM quire_branches
    WHERE tenant = 'default' AND conversation = %(conversation)s AND branch = 0 FOR UPDATE"""
CONVERSATION = """INSERT INTO quire_conversations (tenant, conversation, title, created_at, used_at)
    VALUES ('default', %(conversation)s, '', 1, 1)"""
BRANCH = """INSERT INTO quire_branches (tenant, conversation, branch, name, created_at, lineage, head_seq, head_digest,
    head_path, state, used_at) VALUES ('default', %(conversation)s, 0, 'main', 1, '[]', 0, '', '', '{}', 1)"""
ENTRIES = """INSERT INTO quire_entries (tenant, conversation, branch, seq, kind, role, author, at, digest, path, tokens,
    counter, body) SELECT 'default', %(conversation)s, 0, seq, 'message', role, role, 1, digest, path, 60, 'o200k', body
    FROM unnest(%(seq)s::bigint[], %(role)s::text[], %(digest)s::bytea[], %(path)s::bytea[], %(body)s::text[])
    AS given (seq, role, digest, path, body)"""
PATHS = """INSERT INTO quire_paths (tenant, path, conversation, branch, seq)
    SELECT 'default', path, %(conversation)s, 0, seq
    FROM unnest(%(path)s::bytea[], %(seq)s::bigint[]) AS given (path, seq)
    ON CONFLICT DO NOTHING"""
HEAD = """UPDATE quire_branches SET head_seq = %(seq)s, head_path = %(path)s, head_digest = %(path)s, state = '{}',
    used_at = 1 WHERE tenant = 'default' AND conversation = %(conversation)s AND branch = 0"""
STORED = "SELECT digest FROM quire_blobs WHERE tenant = 'default' AND digest = %(digest)s"
BLOB = """INSERT INTO quire_blobs (tenant, digest, media_type, data) VALUES ('default', %(digest)s, '', '')
    ON CONFLICT DO NOTHING"""
MANIFEST = """INSERT INTO quire_manifests (tenant, conversation, branch, seq, manifest, request)
    VALUES ('default', %(conversation)s, 0, %(seq)s, %(manifest)s, %(request)s)"""
USE = """INSERT INTO quire_blob_uses (tenant, conversation, branch, seq, digest)
    VALUES ('default', %(conversation)s, 0, %(seq)s, %(digest)s)"""

SPENT = """INSERT INTO quire_spending (tenant, conversation, dollars) VALUES ('default', %(conversation)s, 0.001)
    ON CONFLICT (tenant, conversation) DO UPDATE SET dollars = quire_spending.dollars + excluded.dollars"""


async def serve_gateway(upstream: str, url: str, window: str) -> None:
    """Without the jobs in the background, which a worker does for a fleet."""
    import httpx

    from quire.log import SqlStore
    from quire.server.app import create_app
    from quire.server.serving import Serving
    from quire.settings import Settings

    settings = Settings(
        model="gpt-4o", base_url=upstream, context_limit=int(window), requests_per_minute=None,
        context_background_threshold=None,
    )  # fmt: skip
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    async with SqlStore.open(url) as store, httpx.AsyncClient(limits=limits) as client:
        await serve(create_app(Serving(store, settings, client=client)))


def main() -> None:
    what, *given = sys.argv[1:]
    run = {"upstream": serve_upstream, "bare": serve_bare, "inserts": serve_inserts, "gateway": serve_gateway}[what]
    profile = os.environ.get("QUIRE_PROFILE") if what == "gateway" else None
    if profile is None:
        asyncio.run(run(*given))
        return
    # Processor time, not time: others may use the machine.
    watching = cProfile.Profile(time.thread_time)
    watching.runcall(asyncio.run, run(*given))
    watching.dump_stats(profile)


if __name__ == "__main__":
    main()
