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

    kind: Literal["user", "system", "text", "call", "result"]
    """`user` is a prompt, `system` instructions in the middle, `text` a paragraph of a reply."""
    key: str
    """Digest of the text; of a call and its result, the call's id."""
    digest: str = ""
    """Digest of a call's arguments or of a result's text."""
    by: Literal["", "person", "harness"] = ""
    """Who wrote a prompt: what the program adds in the user's name is not the person's."""
    reply: str = ""
    """Id of the reply that a text or call is part of."""


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
    models: dict[str, Tokens] = field(default_factory=dict[str, Tokens])
    shared_requests: int = 0
    """Requests that another file, read before, holds too. They are counted there."""
    copied_items: int = 0
    """Lines at the start that repeat another session's."""
    first: float | None = None
    last: float | None = None
    """Times of the first and the last message, in seconds since 1970."""

    def add_tokens(self, model: str | None, tokens: Tokens) -> None:
        name = model or "unknown"
        self.models[name] = self.models.get(name, Tokens()).add(tokens)

    def add_time(self, value: object) -> None:
        """Adds the time of a message: ISO 8601, or milliseconds since 1970."""
        at = float(value) / 1000 if isinstance(value, int | float) else None
        if isinstance(value, str) and value:
            at = datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
        if at is not None:
            self.first = at if self.first is None else min(self.first, at)
            self.last = at if self.last is None else max(self.last, at)

    def count_replies(self) -> int:
        return len({item.reply for item in self.path if item.reply})


def digest_texts(texts: Iterable[str]) -> str:
    """Digest of a message's text blocks. What no database stores, as NUL or half a surrogate pair, is left out."""
    text = "\n".join(texts).replace("\x00", "").encode("utf-8", "ignore")
    return hashlib.sha256(text).hexdigest()[:16]


def list_texts(content: object) -> list[str]:
    """Texts of a content that is a string or a list of blocks; the name of what a block other than a text holds."""
    blocks: Any = content if isinstance(content, list) else [{"text": content or ""}]
    return [str(block["text"]) if "text" in block else f"[{block.get('type')}]" for block in blocks]


def digest_json(value: object) -> str:
    return digest_texts([json.dumps(value, sort_keys=True, ensure_ascii=False)])


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file of lines. A program that was interrupted may have put two of them on one line."""
    decoder = json.JSONDecoder()
    for raw in path.open("rb"):
        text = raw.decode("utf-8", "replace").strip()
        while text:
            try:
                value, end = decoder.raw_decode(text)
            except ValueError:
                break
            if isinstance(value, dict):
                yield value
            text = text[end:].lstrip()
