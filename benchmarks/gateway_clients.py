"""Clients of `gateway.py`: a minimal HTTP client, and what each kind of client sends turn by turn."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from quire.model.ids import new_id

SENTENCE = "The river carries more water in spring than in autumn, and the mill runs day and night. "
SYSTEM_PROMPT = "You keep the books of a mill, and answer in one sentence. " * 8
QUESTION_TEXT, REPLY_TEXT = SENTENCE * 3, "The mill runs. " * 12
TURNS_PER_CONVERSATION = 10
"""Turns after which a client starts a new conversation; until then it sends the whole history."""
LONG_LIST_MESSAGES = 1_000
"""Messages of an agent's list of half a megabyte."""


class Client:
    """Minimal HTTP client on a persistent connection."""

    def __init__(self, port: int, key: str, *, headers: str = "") -> None:
        self.port, self.key, self._headers = port, key, headers
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, body: bytes, conversation: str, *, path: str = "/v1/chat/completions") -> bytes:
        try:
            return await self._send(body, conversation, path)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            if isinstance(error, asyncio.IncompleteReadError) and error.partial:
                raise
        # The server closed the idle connection while other servers were measured.
        self.close()
        self._streams = None
        return await self._send(body, conversation, path)

    async def _send(self, body: bytes, conversation: str, path: str) -> bytes:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self._streams
        head = (
            f"POST {path} HTTP/1.1\r\nhost: quire\r\nauthorization: Bearer {self.key}\r\n"
            f"x-quire-conversation: {conversation}\r\ncontent-type: application/json\r\n{self._headers}"
            f"content-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        status = await reader.readuntil(b"\r\n\r\n")
        answer = await _read_body(reader, status.lower())
        if not status.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{status.decode()}{answer.decode()[:500]}")
        return answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    if b"content-length:" in head:
        return await reader.readexactly(int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0]))
    pieces: list[bytes] = []
    while size := int(await reader.readline(), 16):
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(pieces)


ClientScript = Callable[[Client, int], AsyncIterator[None]]


def build_body(messages: list[dict[str, str]]) -> bytes:
    return json.dumps(
        {"model": "gpt-4o", "messages": [{"role": "system", "content": SYSTEM_PROMPT}, *messages]}
    ).encode()


async def send_full_history(client: Client, number: int) -> AsyncIterator[None]:
    """Sends the whole history, and starts a new conversation after some turns."""
    while True:
        conversation, history = new_id(), list[dict[str, str]]()
        for turn in range(TURNS_PER_CONVERSATION):
            history.append({"role": "user", "content": f"{number} {turn} {QUESTION_TEXT}"})
            answer = await client.ask(build_body(history), conversation)
            history.append({"role": "assistant", "content": json.loads(answer)["choices"][0]["message"]["content"]})
            yield


async def send_for_stream(client: Client, number: int) -> AsyncIterator[None]:
    """Sends the whole history, and reads the reply as a stream."""
    while True:
        conversation, history = new_id(), list[dict[str, Any]]()
        for turn in range(TURNS_PER_CONVERSATION):
            history.append({"role": "user", "content": f"{number} {turn} {QUESTION_TEXT}"})
            body = {"model": "gpt-4o", "messages": history, "stream": True}
            answer = await client.ask(json.dumps(body).encode(), conversation)
            events = [json.loads(line[6:]) for line in answer.split(b"\n\n") if line.startswith(b"data: {")]
            text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
            history.append({"role": "assistant", "content": text.strip()})
            yield


async def send_agent_history(client: Client, number: int, *, messages: int = LONG_LIST_MESSAGES) -> AsyncIterator[None]:
    """Sends calls and results, half a kilobyte a message, and one more question with each turn."""
    conversation, history = new_id(), list[dict[str, Any]]()
    for step in range(messages // 4):
        function = {"name": "read", "arguments": json.dumps({"path": f"/{number}/{step}"})}
        call = {"id": f"call-{step}", "type": "function", "function": function}
        history += [
            {"role": "user", "content": f"{number} {step} {QUESTION_TEXT}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": SENTENCE * 16},
            {"role": "assistant", "content": f"{step} {REPLY_TEXT}".strip()},
        ]
    for turn in range(1_000_000):
        history.append({"role": "user", "content": f"{turn}"})
        answer = await client.ask(json.dumps({"model": "gpt-4o", "messages": history}).encode(), conversation)
        history.append({"role": "assistant", "content": json.loads(answer)["choices"][0]["message"]["content"]})
        yield


class WireShape(NamedTuple):
    """How a client of one format sends its history and reads the reply; the chat-only model has another name."""

    path: str
    build_body: Callable[[str, list[dict[str, str]]], dict[str, object]]
    read_text: Callable[[Any], str]


SHAPES = {
    "chat": WireShape(
        "/v1/chat/completions",
        lambda model, history: {"model": model, "messages": [{"role": "system", "content": SYSTEM_PROMPT}, *history]},
        lambda answer: answer["choices"][0]["message"]["content"],
    ),
    "messages": WireShape(
        "/v1/messages",
        lambda model, history: {"model": model, "max_tokens": 512, "system": SYSTEM_PROMPT, "messages": history},
        lambda answer: answer["content"][0]["text"],
    ),
    "responses": WireShape(
        "/v1/responses",
        lambda model, history: {"model": model, "instructions": SYSTEM_PROMPT, "input": history},
        lambda answer: answer["output"][0]["content"][0]["text"],
    ),
    "gemini": WireShape(
        "/v1beta/models/{model}:generateContent",
        lambda model, history: {
            "systemInstruction": {"parts": [{"text": SYSTEM_PROMPT}]},
            "contents": [
                {"role": "model" if each["role"] == "assistant" else "user", "parts": [{"text": each["content"]}]}
                for each in history
            ],
        },
        lambda answer: answer["candidates"][0]["content"]["parts"][0]["text"],
    ),
}
NATIVE_MODEL, CHAT_ONLY_MODEL = "gpt-4o", "gpt-4o-mini"


def send_in_format(shape: WireShape, model: str) -> ClientScript:
    """Sends the whole history in one of the formats, and starts a new conversation after some turns."""

    async def asking(client: Client, number: int) -> AsyncIterator[None]:
        while True:
            conversation, history = new_id(), list[dict[str, str]]()
            for turn in range(TURNS_PER_CONVERSATION):
                history.append({"role": "user", "content": f"{number} {turn} {QUESTION_TEXT}"})
                body = json.dumps(shape.build_body(model, history)).encode()
                answer = json.loads(await client.ask(body, conversation, path=shape.path.format(model=model)))
                history.append({"role": "assistant", "content": shape.read_text(answer)})
                yield

    return asking


def send_last_turns(names: list[str]) -> ClientScript:
    """Sends the last three turns of a conversation that it names."""

    async def asking(client: Client, number: int) -> AsyncIterator[None]:
        history, began = list[dict[str, str]](), new_id()
        for turn in range(1_000_000):
            history = [*history, {"role": "user", "content": f"{began} {turn} {QUESTION_TEXT}"}][-7:]
            answer = await client.ask(build_body(history), names[number])
            history.append({"role": "assistant", "content": json.loads(answer)["choices"][0]["message"]["content"]})
            yield

    return asking


def send_new_messages(names: list[str]) -> ClientScript:
    """Sends the question alone, and leaves the history to Quire."""

    async def asking(client: Client, number: int) -> AsyncIterator[None]:
        for turn in range(1_000_000):
            await client.ask(
                build_body([{"role": "user", "content": f"{number} {turn} {QUESTION_TEXT}"}]), names[number]
            )
            yield

    return asking
