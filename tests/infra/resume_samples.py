"""Conversations to resume, and what a request must have of them, written down without the code under test.

A sample has a client's tools, parallel calls, failed and interrupted ones, pictures, files, thinking, instructions,
prompts that look like commands, and a compaction that is active, undone, or later than the chosen message.
"""

import json
import struct
import zlib
from base64 import b64encode
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, NamedTuple

from quire.log.types import ConversationOrigin, ConversationRecord
from quire.model import (
    Compaction,
    FilePart,
    ImagePart,
    Message,
    Part,
    Restore,
    Span,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from quire.store import SqlStore

Speaker = Literal["user", "assistant"]
CLIENTS = ("claude-code", "codex", "opencode", "gemini-cli", None)
PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"

_TOOLS: dict[str | None, list[tuple[str, str]]] = {
    "claude-code": [("Bash", "command"), ("Read", "file_path"), ("mcp__harbour__tide", "station")],
    "codex": [("exec_command", "cmd"), ("exec_command", "cmd"), ("update_plan", "explanation")],
    "opencode": [("bash", "command"), ("read", "filePath"), ("todowrite", "todos")],
    "gemini-cli": [("run_shell_command", "command"), ("read_file", "file_path"), ("save_memory", "fact")],
    None: [("measure_tide", "station"), ("look_up", "name"), ("measure_tide", "station")],
}
"""Tools of each client with an argument; the last one exists in no other client."""


class Piece(NamedTuple):
    """A text, or the base64 of a picture, that one side said; a tool result counts as the user's."""

    speaker: Speaker
    text: str


@dataclass
class ResumeSample:
    record: ConversationRecord
    last: int
    expected: list[list[Piece]] = field(default_factory=list[list[Piece]])
    """Pieces in their order; those of one group may be in any."""
    forbidden: list[str] = field(default_factory=list[str])
    """Texts that must not be in the request: thinking, instructions, what a compaction covers, what came later."""


def make_png(random: Random) -> bytes:
    """A picture of 8 x 8 random pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + random.randbytes(24) for _ in range(8))
    head = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


class _Writer:
    """Writes one conversation, and notes of each entry what it says."""

    def __init__(self, store: SqlStore, record: ConversationRecord, client: str | None, seed: int) -> None:
        self._store, self._record, self._client, self._random = store, record, client, Random(seed)
        self.said: dict[int, tuple[Literal["message", "result"], list[Piece], list[str]]] = {}
        """Of each message its kind, its pieces, and its texts that are not sent."""

    async def write_turn(self, number: int, *, is_interrupted: bool = False) -> None:
        random = self._random
        prompt = f"Question {number} of {self._record.id}: is the pier {random.random()} safe? Täglich 早上"
        if number % 3 == 1:
            prompt = random.choice(["/", "?", "  /"]) + prompt
        parts: list[Part] = [TextPart(text=prompt)]
        pieces = [Piece("user", prompt)]
        if number % 3 == 0:
            picture = make_png(random)
            parts.append(
                ImagePart(blob=await self._store.put_blob(picture, media_type="image/png"), media_type="image/png")
            )
            pieces.append(Piece("user", b64encode(picture).decode()))
        if number % 4 == 2:
            note = f"note {random.random()}"
            blob = await self._store.put_blob(note.encode(), media_type="text/plain")
            parts.append(FilePart(blob=blob, media_type="text/plain", name="note.txt"))
            pieces.append(Piece("user", note))
        await self._add(Message(role="user", parts=tuple(parts)), pieces)
        if number % 5 == 0:
            secret = f"Instructions {number} {random.random()}"
            await self._add(Message.system(secret), [], hidden=[secret])
        for step in range(random.randint(0, 3)):
            await self._write_step(number, step, count=random.choice([1, 1, 2, 3]))
        if is_interrupted:
            await self._write_step(number, 99, count=2, is_interrupted=True)
            return
        answer = f"Answer {number}: wait {random.random()} hours.\n\n> until the ebb"
        thinking = f"Thought {number} {random.random()}"
        thought = ThinkingPart(text=thinking, signature="c2lnbmVk")
        await self._add(
            Message(role="assistant", parts=(thought, TextPart(text=answer))),
            [Piece("assistant", answer)],
            hidden=[thinking],
        )

    async def _write_step(self, number: int, step: int, *, count: int, is_interrupted: bool = False) -> None:
        random, parts, pieces = self._random, list[Part](), list[Piece]()
        if random.random() < 0.5:
            words = f"I look at {number}.{step} first, {random.random()}."
            parts.append(TextPart(text=words))
            pieces.append(Piece("assistant", words))
        # Some programs use an id again in a later message.
        ids = [f"call_{index}" if random.random() < 0.3 else f"call_{number}_{step}_{index}" for index in range(count)]
        for id_ in ids:
            name, argument = random.choice(_TOOLS[self._client])
            value = f"echo '{random.random()}' \"ü\" # {number}.{step}"
            parts.append(ToolCallPart(id=id_, name=name, arguments=json.dumps({argument: value}, ensure_ascii=False)))
            pieces.append(Piece("assistant", value))
        await self._add(Message(role="assistant", parts=tuple(parts)), pieces)
        results: list[tuple[ToolResultPart, list[Piece]]] = []
        for id_ in ids[: 1 if is_interrupted else count]:
            text = f"result {random.random()}\nof {id_} in {number}.{step}"
            content: list[TextPart | ImagePart] = [TextPart(text=text)]
            said, is_error = [Piece("user", text)], random.random() < 0.2
            if not is_error and random.random() < 0.2:
                picture = make_png(random)
                blob = await self._store.put_blob(picture, media_type="image/png")
                content.append(ImagePart(blob=blob, media_type="image/png"))
                said.append(Piece("user", b64encode(picture).decode()))
            results.append((ToolResultPart(call_id=id_, content=tuple(content), is_error=is_error), said))
        is_joined = random.random() < 0.5
        for group in [results] if is_joined else [[each] for each in results]:
            message = Message(role="tool", parts=tuple(result for result, _ in group))
            await self._add(message, [piece for _, said in group for piece in said], kind="result")

    async def _add(
        self,
        message: Message,
        pieces: list[Piece],
        *,
        kind: Literal["message", "result"] = "message",
        hidden: list[str] | None = None,
    ) -> None:
        [entry] = await self._store.append(self._record.id, message)
        self.said[entry.seq] = (kind, pieces, hidden or [])


async def write_sample(store: SqlStore, seed: int, *, client: str | None, project: str | None = None) -> ResumeSample:
    """Writes a conversation of a client by a seed, and chooses where to resume it."""
    origin = ConversationOrigin(client=client, project=project) if client is not None else None
    record = await store.create_conversation(f"sample-{client}-{seed}", title=f"Pier {seed}", origin=origin)
    writer, turns = _Writer(store, record, client, seed), 3 + seed % 5
    for number in range(turns):
        await writer.write_turn(number, is_interrupted=number == turns - 1 and seed % 3 == 2)
    before = max(writer.said)
    last, hidden = before, list[str]()
    covered, summary = None, f"Summary {seed}: the pier holds {Random(seed).random()} hours."
    if seed % 4:
        # A compaction in the middle of the conversation, which covers whole turns.
        prompts = [seq for seq, (_, pieces, _) in writer.said.items() if pieces and "Question" in pieces[0].text]
        covered = Span(first=1, last=prompts[len(prompts) // 2] - 1)
        [entry] = await store.append(record.id, Compaction(number=1, covers=covered, summary=summary))
        await writer.write_turn(turns)
        last = max(writer.said)
        if seed % 4 == 2:
            # Before the compaction, whose messages and whatever came later are not in the session.
            last, covered = before - seed % 2, None
            hidden.append(summary)
        elif seed % 4 == 3:
            [undo] = await store.append(record.id, Restore(compaction=entry.seq))
            last, covered = undo.seq, None
            hidden.append(summary)
    sample = ResumeSample(record, last, forbidden=hidden)
    if covered is not None:
        sample.expected.append([Piece("user", summary)])
    previous = ""
    for seq, (kind, pieces, unsent) in sorted(writer.said.items()):
        sample.forbidden += unsent
        if seq > last or (covered is not None and seq in covered):
            sample.forbidden += [piece.text for piece in pieces]
        elif kind == previous == "result":
            sample.expected[-1] += pieces
        elif pieces:
            sample.expected.append(list(pieces))
        previous = kind
    return sample


def find_missing(sample: ResumeSample, sent: list[Piece]) -> list[str]:
    """What the request lacks, has in another order, or must not have."""
    problems = [f"forbidden: {text!r}" for text in sample.forbidden if any(text in piece.text for piece in sent)]
    position = 0
    for group in sample.expected:
        reached = position
        for speaker, text in group:
            forms = (text, json.dumps(text, ensure_ascii=False)[1:-1])
            found = next(
                (
                    index
                    for index in range(position, len(sent))
                    if sent[index].speaker == speaker and any(form in sent[index].text for form in forms)
                ),
                None,
            )
            if found is None:
                problems.append(f"missing after {position} of {len(sent)}: {speaker} {text[:100]!r}")
            else:
                reached = max(reached, found)
        position = reached
    return problems


def list_messages_pieces(items: list[dict[str, Any]]) -> list[Piece]:
    """The pieces of a Messages request."""
    return [
        Piece("assistant" if item["role"] == "assistant" else "user", text)
        for item in items
        for text in _list_texts(item["content"])
    ]


def list_responses_pieces(items: list[dict[str, Any]]) -> list[Piece]:
    """The pieces of a Responses request."""
    pieces: list[Piece] = []
    for item in items:
        is_reply = item.get("role") == "assistant" or item["type"] in ("function_call", "custom_tool_call")
        texts = _list_texts([item.get(name) for name in ("content", "input", "output")])
        texts += _list_texts(json.loads(item.get("arguments") or "{}"))
        pieces += [Piece("assistant" if is_reply else "user", text) for text in texts]
    return pieces


def list_chat_pieces(items: list[dict[str, Any]]) -> list[Piece]:
    """The pieces of a chat request."""
    pieces: list[Piece] = []
    for item in items:
        texts = _list_texts(item.get("content"))
        for call in item.get("tool_calls") or ():
            texts += _list_texts(json.loads(call["function"]["arguments"]))
        pieces += [Piece("assistant" if item["role"] == "assistant" else "user", text) for text in texts]
    return pieces


def list_gemini_pieces(contents: list[dict[str, Any]]) -> list[Piece]:
    """The pieces of a request of the Gemini API."""
    return [
        Piece("assistant" if content["role"] == "model" else "user", text)
        for content in contents
        for text in _list_texts(content["parts"])
    ]


def _list_texts(value: object) -> list[str]:
    """Every string in a value, in order."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in _list_texts(each)]
