"""What a stored session of a coding agent holds, as facts that two readings of it can be compared by.

The readers `corpus_*.py` make them from the files of one program each, and share no code with `quire.importers`:
`corpus.py` makes them a second time from what Quire stored. Texts stand as digests, so a result can be published.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple


class Item(NamedTuple):
    """One thing that was said, in the order in which a person sees the session. A reply of several parts is several."""

    kind: Literal["user", "system", "thinking", "text", "call", "result"]
    """`user` is a prompt, `system` are instructions in the middle; thinking, texts and calls are parts of a reply."""
    key: str
    """Digest of the text; of a call and its result, the call's id."""
    digest: str = ""
    """Digest of a call's arguments or of a result's text."""
    by: Literal["", "person", "harness"] = ""
    """Who wrote a prompt: what the program adds in the user's name is not the person's."""
    reply: str = ""
    """Id of the reply that a thinking, text or call is part of."""


class Compaction(NamedTuple):
    place: int
    """Replies of the path before it."""
    kind: Literal["summary", "opaque"]
    """An opaque one was made by the provider, and its summary cannot be read."""
    digest: str = ""
    """Digest of the summary's text."""
    kept: tuple[str, ...] = ()
    """Keys of the earlier items that remain in the model's context verbatim, sorted."""


class Tokens(NamedTuple):
    requests: int = 0
    input: int = 0
    """With what was read from and written to the cache."""
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    def add(self, other: "Tokens") -> "Tokens":
        return Tokens(*(mine + its for mine, its in zip(self, other, strict=True)))


class Request(NamedTuple):
    """One call of a model, with what its price depends on."""

    model: str
    tokens: Tokens
    at: float | None
    hour_tokens: int = 0
    """Part of what was written to the cache: for an hour instead of the default time."""
    cost: float | None = None
    """In US dollars, if the file states it."""


@dataclass
class Facts:
    program: str
    session: str
    version: str = ""
    path: list[Item] = field(default_factory=list[Item])
    """What a person sees who opens the session."""
    branches: list[list[Item]] = field(default_factory=list[list[Item]])
    """What a person withdrew: each holds the items that are on no other branch."""
    compactions: list[Compaction] = field(default_factory=list[Compaction])
    agents: int = 0
    """Sub-agents whose lines are in this file beside the session's own."""
    parent: str | None = None
    """Session that started this one as a sub-agent, or that this one was forked from."""
    requests: list[Request] = field(default_factory=list[Request])
    shared_requests: int = 0
    """Requests that another file, read before, holds too. They are counted there."""
    begins_in_middle: bool = False
    """Whether the first line follows one that the file does not have."""
    copied_lines: int = 0
    """Lines at the start that repeat another session's."""
    first: float | None = None
    last: float | None = None
    """Times of the first and the last message, in seconds since 1970."""

    def add_request(
        self, model: object, tokens: Tokens, at: object, *, hour_tokens: int = 0, cost: float | None = None
    ) -> None:
        self.requests.append(Request(str(model or "unknown"), tokens, parse_time(at), hour_tokens, cost))

    @property
    def models(self) -> dict[str, Tokens]:
        """Sums of the requests by model."""
        sums: dict[str, Tokens] = {}
        for request in self.requests:
            sums[request.model] = sums.get(request.model, Tokens()).add(request.tokens)
        return sums

    def add_time(self, value: object) -> None:
        if (at := parse_time(value)) is not None:
            self.first = at if self.first is None else min(self.first, at)
            self.last = at if self.last is None else max(self.last, at)

    def count_replies(self) -> int:
        return len({item.reply for item in self.path if item.reply})


def parse_time(value: object) -> float | None:
    """Seconds since 1970, of a time in ISO 8601 or in milliseconds."""
    if isinstance(value, str) and value:
        return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
    return float(value) / 1000 if isinstance(value, int | float) else None


def digest_texts(texts: Iterable[str]) -> str:
    """Digest of a message's text blocks. What no database stores, as NUL or half a surrogate pair, is left out."""
    text = "\n".join(texts).replace("\x00", "").encode("utf-8", "ignore")
    return hashlib.sha256(text).hexdigest()[:16]


def list_texts(content: object) -> list[str]:
    """Texts of a content that is a string or a list of blocks; the name of what a block other than a text holds."""
    blocks: Any = content if isinstance(content, list) else [{"text": content or ""}]
    texts: list[str] = []
    for block in blocks:
        name = f": {block['tool_name']}" if block.get("type") == "tool_reference" else ""
        kind = str(block.get("type")).removeprefix("input_")
        texts.append(str(block["text"]) if "text" in block else f"[{kind}{name}]")
    return texts


def digest_call(name: object, arguments: object) -> str:
    """Digest of a call: the last part of its tool's name, which programs prefix with a server's or a namespace."""
    return digest_json([str(name or "").rpartition("__")[2], arguments])


def digest_json(value: object) -> str:
    return digest_texts([json.dumps(value, sort_keys=True, ensure_ascii=False)])


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file of lines. A program that was interrupted may have put two of them on one line."""
    decoder = json.JSONDecoder()
    with path.open("rb") as stream:
        for raw in stream:
            text = raw.decode("utf-8", "replace").strip()
            while text:
                try:
                    value, end = decoder.raw_decode(text)
                except ValueError:
                    break
                if isinstance(value, dict):
                    yield value
                text = text[end:].lstrip()
