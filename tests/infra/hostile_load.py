"""Adversarial requests, and an attacker that sends them, run as `python -m infra.hostile_load URL KEY SIZE`.

The attacker sends all requests, at full size until its standard input closes, and prints a line of JSON for each
response. It is a process of its own, so that its work is not measured as a delay of anybody else.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import httpx2

Size = Literal["small", "full"]

CONCURRENCY = 4
"""Requests that the attacker has open at once."""
REQUEST_TIMEOUT_SECONDS = 120.0
COMPLETIONS = "/v1/chat/completions"


class AttackSize(NamedTuple):
    """How far the generated bodies go."""

    text_bytes: int
    """Size of one long text; below the limit of a body, so that all of it is read."""
    messages: int
    stream_megabytes: int
    overlap_bytes: int
    """Size of each of the 216 messages of a conversation that a client's list overlaps."""


ATTACK_SIZES: dict[Size, AttackSize] = {
    "small": AttackSize(text_bytes=40_000, messages=1_000, stream_megabytes=2, overlap_bytes=500),
    "full": AttackSize(text_bytes=19_000_000, messages=100_000, stream_megabytes=50, overlap_bytes=20_000),
}


@dataclass(frozen=True)
class Attack:
    """One adversarial request."""

    name: str
    content: bytes
    path: str = COMPLETIONS
    headers: dict[str, str] = field(default_factory=dict[str, str])
    method: str = "POST"


class AttackResult(NamedTuple):
    name: str
    status: int
    """0 if no response arrived."""
    seconds: float
    error: str = ""
    """Why no response arrived, or the beginning of a response with status 500."""


def _chat(name: str, *messages: dict[str, Any], model: str = "plain", conversation: str = "", **more: Any) -> Attack:
    body = json.dumps({"model": model, "messages": list(messages), **more}).encode()
    return Attack(name, body, headers={"X-Quire-Conversation": conversation} if conversation else {})


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _fill(unit: str, size: int) -> str:
    return (unit * (size // len(unit.encode()) + 1))[: size // max(1, len(unit.encode()) // len(unit))]


def build_attacks(size: AttackSize) -> list[Attack]:
    """All adversarial requests of this size."""
    return [
        *_build_name_attacks(size),
        *_build_text_attacks(size),
        *_build_list_attacks(size),
        *_build_structure_attacks(size),
        *_build_upstream_attacks(size),
        *_build_api_attacks(size),
        *_build_stored_attacks(size),
        *_build_malformed_attacks(),
    ]


def _build_name_attacks(size: AttackSize) -> Iterator[Attack]:
    long_name = "a." * (size.text_bytes // 4)
    yield _chat("name of a model", _user("hi"), model="a." * 30_000)
    yield _chat("name of a model with slashes", _user("hi"), model="a/" * 2_000 + "x")
    yield _chat("longest allowed name of a model", _user("hi"), model="a." * 100)
    yield _chat("name of a tool", _user("hi"), tools=[_tool(long_name)])
    yield _chat("name of a user", {**_user("hi"), "name": long_name})
    call = {"id": long_name, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    reply = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": long_name, "content": "x"}
    yield _chat("id of a call", _user("hi"), reply, result)


def _tool(name: str, description: str = "") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {}}}


def _build_text_attacks(size: AttackSize) -> Iterator[Attack]:
    units = {"blanks": " ", "dates": "may ", "newlines": "\n", "one word": "a", "ideographs": "漢", "headings": "# a\n"}
    units |= {"emoji": "\U0001f600", "questions": "what is the ", "links": "[[a]] ", "escapes": '\\"', "csv": "1,2;"}
    for name, unit in units.items():
        yield _chat(f"text of {name}", _user(_fill(unit, size.text_bytes)))
        yield _chat(f"short text of {name}", _user(_fill(unit, 90_000)))
    yield _chat("instructions", {"role": "system", "content": _fill("may ", size.text_bytes)}, _user("hi"))
    yield _chat("dates after an archive", _user(_fill("may ", 60_000)), conversation="archive")
    arguments = json.dumps({"x": _fill("[", size.text_bytes // 8)})
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    reply = {"role": "assistant", "content": None, "tool_calls": [call]}
    yield _chat("arguments", _user("hi"), reply, {"role": "tool", "tool_call_id": "c", "content": "x"})


def _build_list_attacks(size: AttackSize) -> Iterator[Attack]:
    pair = [_user("a"), {"role": "assistant", "content": "a"}]
    yield _chat("many tiny messages", *(pair * (size.messages // 2)), _user("b"))
    yield _chat("as many messages as allowed", *(pair * min(size.messages, 4_999)), _user("b"))
    function = {"name": "f", "arguments": "{}"}
    calls = [{"id": f"c{number}", "type": "function", "function": function} for number in range(3)]
    results = [{"role": "tool", "tool_call_id": f"c{number}", "content": "r"} for number in range(3)]
    batch = [_user("a"), {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    yield _chat("many calls", *(batch * min(size.messages // 4, 1_500)), _user("b"))
    yield _chat("many parts", _user([{"type": "text", "text": "a"}] * 20_000))
    yield _chat("many tools", _user("a"), tools=[_tool(f"f{number}", "word " * 100) for number in range(1_000)])
    foreign = {"role": "assistant", "content": "never said"}
    overlap = [_user("x" * size.overlap_bytes)] * 199
    yield _chat("overlap", foreign, *overlap, conversation="overlap")
    yield _chat("choices", _user("a"), n=10**12)


def _build_structure_attacks(size: AttackSize) -> Iterator[Attack]:
    head = b'{"model": "plain", "messages": [{"role": "user", "content": "x"}], "x": '
    for name, unit in {"objects": b"{},", "numbers": b"1,", "empty strings": b'"",'}.items():
        items = unit * (size.text_bytes // len(unit))
        yield Attack(f"list of {name}", head + b"[" + items + b"0]}")
    keys = json.dumps({f"key{number}": number for number in range(size.text_bytes // 20)}).encode()
    yield Attack("many keys", head + keys + b"}")
    depth = size.text_bytes // 2
    yield Attack("depth", head + b"[" * depth + b"]" * depth + b"}")
    yield Attack("blanks between values", head + b" " * size.text_bytes + b"0}")
    yield Attack("too large", b" " * 25_000_000)


def _build_upstream_attacks(size: AttackSize) -> Iterator[Attack]:
    megabytes = size.stream_megabytes
    yield _chat("echoed counts", _user("hi"), model="echo@", tool_choice="context length is 1 tokens " * 2_000)
    echo = _fill("violating a ", size.text_bytes)
    yield _chat("echoed body", _user("hi"), model="echo@", tool_choice=echo)
    for behaviour in ("huge-event", "nested-event", "event-flood", "huge-reply", "nested-reply"):
        yield _chat(behaviour, _user("hi"), model=f"{behaviour}@{megabytes}")
    below_limit = min(15, megabytes)
    yield _chat("huge-event below the limit", _user("hi"), model=f"huge-event@{below_limit}")
    yield _chat("nested-event below the limit", _user("hi"), model=f"nested-event@{below_limit}")
    yield _chat("call-flood", _user("hi"), model=f"call-flood@{max(1, megabytes // 20)}")


def _build_api_attacks(size: AttackSize) -> Iterator[Attack]:
    path = "/api/conversations/posted/messages"
    json_type = {"Content-Type": "application/json"}

    def post(name: str, messages: list[Any]) -> Attack:
        return Attack(name, json.dumps({"messages": messages}).encode(), path=path, headers=json_type)

    yield post("appended blanks", [_fill(" ", size.text_bytes)])
    yield post("appended dates", [_fill("may ", size.text_bytes // 4)])
    yield post("appended tiny messages", ["a"] * size.messages)
    nested = b'{"messages": [' + b"{}," * (size.text_bytes // 3) + b"{}]}"
    yield Attack("appended objects", nested, path=path, headers=json_type)
    yield Attack("imported line", b'{"x": "' + b" " * size.text_bytes + b'"}\n', path="/api/import")


def _build_stored_attacks(size: AttackSize) -> Iterator[Attack]:
    """Small requests whose work grows with the long messages of the conversation `long`."""
    paths = ("transcript", "entries?limit=20", "context?message=water+mill+wheel", "compaction", "export")
    for path in paths:
        yield Attack(f"long messages: {path}", b"", path=f"/api/conversations/long/{path}", method="GET")
    yield Attack("long messages: search", b"", path="/api/search?query=water+mill+wheel", method="GET")
    yield Attack("unknown item", b"", path="/v1/conversations/conv_long/items/msg_none", method="GET")
    yield _chat("recall of long messages", _user("water mill wheel?"), conversation="long")
    lines = b'{"messages":[' + b"{}," * (size.text_bytes // 3) + b"{}]}\n"
    yield Attack("uploaded line of objects", lines, path="/api/imports?source=openai-jsonl&file=a.jsonl")


def _build_malformed_attacks() -> Iterator[Attack]:
    message = b'"messages": [{"role": "user", "content": "x"}]}'
    yield Attack("NaN", b'{"model": "plain", "foo": NaN, ' + message)
    yield Attack("huge number", b'{"model": "plain", "max_tokens": 1' + b"0" * 5_000 + b", " + message)
    yield Attack("lone surrogate", b'{"model": "plain", "messages": [{"role": "user", "content": "\\ud800"}]}')
    yield Attack("invalid UTF-8", b'{"model": "plain", "messages": [{"role": "user", "content": "\xff"}]}')
    yield Attack("NUL", b'{"model": "plain", "messages": [{"role": "user", "content": "a\\u0000b"}]}')
    yield Attack("no body", b"")


class Attacker:
    """Sends all requests with one API key: each once, or at full size again and again."""

    def __init__(self, url: str, key: str, size: AttackSize) -> None:
        self._url, self._key, self._size = url, key, size

    async def run(self, stop: asyncio.Event) -> None:
        headers = {"Authorization": f"Bearer {self._key}"}
        limits = httpx2.Limits(max_connections=CONCURRENCY)
        async with httpx2.AsyncClient(
            base_url=self._url, headers=headers, timeout=REQUEST_TIMEOUT_SECONDS, limits=limits
        ) as client:
            await self._create_conversations(client)
            attacks = build_attacks(self._size)
            _print_line({"attacks": [attack.name for attack in attacks]})
            queue = asyncio.Queue[Attack]()
            for attack in attacks:
                queue.put_nowait(attack)
            senders = [asyncio.create_task(self._send_all(client, queue)) for _ in range(CONCURRENCY)]
            await stop.wait()
            for sender in senders:
                sender.cancel()
            await asyncio.gather(*senders, return_exceptions=True)

    async def _create_conversations(self, client: httpx2.AsyncClient) -> None:
        for conversation in ("overlap", "archive", "posted", "long"):
            await client.post("/api/conversations", json={"id": conversation})
        overlapping = ["x" * self._size.overlap_bytes] * 54
        for _ in range(4):
            await client.post("/api/conversations/overlap/messages", json={"messages": overlapping})
        texts = [f"thing {number} about the water mill and its wheel" for number in range(300)]
        await client.post("/api/conversations/archive/messages", json={"messages": texts})
        await client.post("/api/conversations/archive/compaction", json={})
        for unit in ("API_TOKEN=", "sk-ant-", "x", "#1 user: a\n"):
            text = f"The water mill and its wheel. {_fill(unit, self._size.text_bytes * 3 // 4)}"
            await client.post("/api/conversations/long/messages", json={"messages": [text, "yes"]})
        await client.post("/api/conversations/long/messages", json={"messages": ["short question"] * 12})
        await client.post("/api/conversations/long/compaction", json={})

    async def _send_all(self, client: httpx2.AsyncClient, queue: asyncio.Queue[Attack]) -> None:
        while True:
            attack = await queue.get()
            result = await self._send(client, attack)
            _print_line(result._asdict())
            if self._size is ATTACK_SIZES["full"]:
                queue.put_nowait(attack)

    async def _send(self, client: httpx2.AsyncClient, attack: Attack) -> AttackResult:
        started_at, status, error = time.perf_counter(), 0, ""
        try:
            async with client.stream(
                attack.method, attack.path, content=attack.content, headers=attack.headers
            ) as response:
                status = response.status_code
                async for piece in response.aiter_raw():
                    if status == 500:
                        error += piece.decode(errors="replace")[:500]
        except httpx2.HTTPError as failure:
            error = repr(failure)
        return AttackResult(attack.name, status, round(time.perf_counter() - started_at, 3), error)


def _print_line(value: object) -> None:
    sys.stdout.write(f"{json.dumps(value)}\n")
    sys.stdout.flush()


async def _main(url: str, key: str, size: Size) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin, stop.set)
    await Attacker(url, key, ATTACK_SIZES[size]).run(stop)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], "full" if sys.argv[3] == "full" else "small"))
