"""Rendered messages: messages in a provider's wire format, with their tokens and sequence numbers.

Each message is counted and rendered once. The cache is keyed by digest, and a digest always has the same content.

The documents that a user message references are injected in full after its text, or listed with their summaries. That
decision is stored with the message when it is sent, so that later requests repeat its bytes (prefix stability).
"""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from json.encoder import encode_basestring
from threading import Lock
from typing import NamedTuple, cast
from weakref import WeakSet

from quire.model import (
    DocumentReference,
    Entry,
    FilePart,
    ImagePart,
    Message,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolDefinition,
    ToolResultPart,
)
from quire.view.excerpts import clear_message, excerpt_message
from quire.wire import BlobLoader, WireFormat, WireMessage
from quire.wire.labels import label_text
from quire.wire.tokens import TokenCounter

MAX_CACHED_MESSAGES = 10_000
"""Maximum number of messages in the caches of all counters of the process, which are cleared when full."""
MAX_CACHED_BYTES = 32 * 1024 * 1024
"""Maximum size of the wire formats in those caches."""
MAX_CACHED_SHARE = 1 / 8
"""What would take a larger share of a cache is not cached."""
READ_INSTRUCTION = (
    "The text of these documents is not included. Before you rely on one, read it with the tool read_document by its "
    "path in parentheses; without that tool, say that you have not read it."
)
"""Precedes a list of documents. It stays outside their label, which marks what it contains as data."""
TextLoader = Callable[[str], str | None]
"""Loads the text of a document by its digest, or None if it no longer exists."""

PIECE_CHARS = 250_000
"""Maximum length of what is encoded at once of a text."""
_PLAIN_TEXT_ROLES = frozenset({"user", "assistant"})
_SUPPORTED_PARTS: dict[str, tuple[type, ...]] = {
    "system": (TextPart,),
    "user": (TextPart, ImagePart, FilePart),
    "assistant": (TextPart, ThinkingPart, ToolCallPart),
    "tool": (ToolResultPart,),
}


class RenderedMessage(NamedTuple):
    """A message in wire format. `seq` is None if it is not in the log: a pending message, labelled data, a stub."""

    seq: int | None
    message: Message
    wire_messages: tuple[WireMessage, ...]
    encoded: bytes
    tokens: int
    role: Role
    call_ids: tuple[str, ...]
    """Ids of its tool calls."""
    document_tokens: int = 0
    """How many of its tokens come from documents that were added to the message as written."""


class _CacheBudget:
    """Limits the caches of all counters together: a process has one for each format, model and tenant in use."""

    def __init__(self) -> None:
        self._counters: WeakSet[MessageCounter] = WeakSet()
        self._counters_lock = Lock()
        self._messages = self._bytes = 0

    def register(self, counter: "MessageCounter") -> None:
        with self._counters_lock:
            self._counters.add(counter)

    def spend(self, size_bytes: int) -> None:
        """Adds one message. Clears all caches if that is one too many."""
        self._messages += 1
        self._bytes += size_bytes
        if self._messages > MAX_CACHED_MESSAGES or self._bytes > MAX_CACHED_BYTES:
            with self._counters_lock:
                for counter in self._counters:
                    counter.clear_cache()
            self._messages, self._bytes = 1, size_bytes


_budget = _CacheBudget()


class MessageCounter:
    """Counts and renders messages with one token counter and wire format. Stored counts carry its name."""

    def __init__(self, counter: TokenCounter, wire_format: WireFormat, *, load_blob: BlobLoader | None = None) -> None:
        self.token_counter, self.wire_format = counter, wire_format
        self.name = f"{wire_format.name}:{counter.name}"
        self._load_blob, self._count_text, self._text_overhead = load_blob, counter.count, wire_format.text_overhead
        # A plain dictionary, cleared when full: cachetools adds 0.5 µs to a hit, 3 to 6 % of a `prepare`.
        self._cache: dict[bytes, RenderedMessage] = {}
        _budget.register(self)
        self._system_counts: dict[str, int] = {}

    def count(self, message: Message) -> int:
        """Tokens of the message in a request. Plain texts, which most messages are, are counted without rendering."""
        text = _plain_text(message)
        if text is not None:
            return self._text_overhead + self._count_text(text)
        return self.wire_format.count_messages(
            self.wire_format.render_message(drop_unsupported_parts(message), load_blob=self._load_blob),
            self.token_counter,
        )

    def render_message(self, message: Message, *, seq: int | None = None, tokens: int | None = None) -> RenderedMessage:
        wire_messages = self.wire_format.render_message(message, load_blob=self._load_blob)
        counted = self.wire_format.count_messages(wire_messages, self.token_counter) if tokens is None else tokens
        calls = tuple([call.id for call in message.tool_calls])
        return RenderedMessage(
            seq, message, tuple(wire_messages), encode_wire_messages(wire_messages), counted, message.role, calls
        )

    def render_changed(self, rendered: RenderedMessage, message: Message) -> RenderedMessage:
        """Renders a message that replaces a rendered one. A message that did not change is not rendered again."""
        return rendered if message is rendered.message else self.render_message(message, seq=rendered.seq)

    def render_entry(
        self, entry: Entry, *, max_chars: int | None = None, summary: str | None = None
    ) -> RenderedMessage:
        """Renders a stored message, with its stored count if that has the same counter name.

        With `max_chars`, each text of the message is truncated to that length, around a `summary` if there is one.
        """
        if max_chars is not None:
            return self._render_excerpt(entry, max_chars, summary)
        rendered = self._cache.get(entry.digest) if entry.purged_at is None else None
        if rendered is None:
            # The cost of an image depends on the model, which is not part of the counter's name. The cost of a file
            # depends on its blob, which may not have been loaded when the message was stored.
            has_media = '"image"' in entry.raw or '"file"' in entry.raw
            count_is_valid = entry.counter == self.name and not has_media
            tokens = entry.tokens if count_is_valid else None
            rendered = self.render_message(self._inline_documents(entry), seq=entry.seq, tokens=tokens)
            if _list_references(entry):
                written_tokens = self.count(drop_unsupported_parts(entry.message))
                rendered = rendered._replace(document_tokens=max(0, rendered.tokens - written_tokens))
            self._cache_message(entry.digest, rendered)
        return rendered

    def render_entries(self, entries: Sequence[Entry]) -> list[RenderedMessage]:
        """Renders many entries. Inlines the cache lookup: runs for every request, and most entries are cached."""
        cached = self._cache.get
        return [(entry.purged_at is None and cached(entry.digest)) or self.render_entry(entry) for entry in entries]

    def render_reduced(
        self, entries: Sequence[Entry], reductions: Mapping[int, int], summaries: Mapping[int, str]
    ) -> list[RenderedMessage]:
        """Renders many entries, some of them truncated to that many characters, by number; 0 makes a stub.

        `summaries` are the summaries of truncated messages, by number.
        """
        if not reductions:
            return self.render_entries(entries)
        messages: list[RenderedMessage] = []
        for index, entry in enumerate(entries):
            limit = reductions.get(entry.seq)
            if limit != 0:
                messages.append(self.render_entry(entry, max_chars=limit, summary=summaries.get(entry.seq)))
                continue
            key = b"cleared " + entry.digest
            rendered = self._cache.get(key) if entry.purged_at is None else None
            if rendered is None:
                # A tool message answers the calls of the last message before it that is no tool message.
                caller = index
                while caller > 0 and entries[caller].role == "tool":
                    caller -= 1
                calls = entries[caller].message.tool_calls
                cleared = clear_message(drop_unsupported_parts(entry.message), seq=entry.seq, calls=calls)
                rendered = self._cache_message(key, self.render_message(cleared, seq=entry.seq))
            messages.append(rendered)
        return messages

    def _render_excerpt(self, entry: Entry, max_chars: int, summary: str | None) -> RenderedMessage:
        key = b"%d %b" % (max_chars, entry.digest)
        if summary is not None:
            key += sha256(summary.encode()).digest()
        rendered = self._cache.get(key) if entry.purged_at is None else None
        if rendered is None:
            excerpt = excerpt_message(self._inline_documents(entry), max_chars, seq=entry.seq, summary=summary)
            rendered = self._cache_message(key, self.render_message(excerpt, seq=entry.seq))
        return rendered

    def _inline_documents(self, entry: Entry) -> Message:
        message, references = drop_unsupported_parts(entry.message), _list_references(entry)
        return inline_documents(message, references, self.load_text) if references else message

    def load_text(self, digest: str) -> str | None:
        """Text of a document, or None if its blob is not available."""
        data = self._load_blob(digest) if self._load_blob is not None else None
        return None if data is None else b64decode(data).decode(errors="replace")

    def render_data(self, text: str, *, seq: int | None = None, tokens: int | None = None) -> RenderedMessage:
        """Renders labelled text as a user message; `tokens` is its count, if known."""
        key = sha256(text.encode()).digest()
        rendered = self._cache.get(key) or self._cache_message(
            key, self.render_message(Message.user(text), tokens=tokens)
        )
        return rendered if seq is None else rendered._replace(seq=seq)

    def _cache_message(self, key: bytes, rendered: RenderedMessage) -> RenderedMessage:
        if len(rendered.encoded) <= MAX_CACHED_SHARE * MAX_CACHED_BYTES:
            _budget.spend(len(rendered.encoded))
            self._cache[key] = rendered
        return rendered

    def clear_cache(self) -> None:
        self._cache.clear()

    def count_system(self, text: str | None) -> int:
        if not text:
            return 0
        if len(text) > MAX_CACHED_SHARE * MAX_CACHED_BYTES:
            return self.wire_format.count_system(text, self.token_counter)
        if text not in self._system_counts:
            self._system_counts = {text: self.wire_format.count_system(text, self.token_counter)}
        return self._system_counts[text]

    def count_tools(self, tools: Sequence[ToolDefinition]) -> int:
        return self.wire_format.count_tools([self.wire_format.render_tool(tool) for tool in tools], self.token_counter)


def _list_references(entry: Entry) -> Sequence[DocumentReference]:
    """The documents that are added to a message. The references of a reply only record what its tools found."""
    return (entry.metadata.references or ()) if entry.raw_metadata is not None and entry.role == "user" else ()


def _plain_text(message: Message) -> str | None:
    """The text of a user or assistant message that consists of one text, or None if it has anything else."""
    if len(message.parts) != 1 or message.role not in _PLAIN_TEXT_ROLES:
        return None
    [part] = message.parts
    if not isinstance(part, TextPart) or part.provider_fields or message.provider_fields or message.name is not None:
        return None
    return part.text if part.text and not part.text.isspace() else None


def encode_wire_messages(wire_messages: Sequence[WireMessage]) -> bytes:
    """Encodes the messages as JSON; long texts in pieces, between which other threads run.

    JSON of 19 MB takes up to a third of a second, for which the encoder would hold the interpreter.
    """
    if _has_long_text(wire_messages):
        return b"".join([piece.encode() for piece in _encode_pieces(wire_messages)])
    return _encode_json(wire_messages).encode()


def _has_long_text(value: object) -> bool:
    if isinstance(value, str):
        return len(value) > PIECE_CHARS
    if isinstance(value, dict):
        return any(map(_has_long_text, cast("dict[str, object]", value).values()))
    return isinstance(value, list | tuple) and any(map(_has_long_text, cast("Sequence[object]", value)))


def _encode_pieces(value: object) -> Iterator[str]:
    if isinstance(value, str) and len(value) > PIECE_CHARS:
        yield '"'
        for start in range(0, len(value), PIECE_CHARS):
            yield encode_basestring(value[start : start + PIECE_CHARS])[1:-1]
        yield '"'
    elif isinstance(value, dict):
        for number, (key, item) in enumerate(cast("dict[str, object]", value).items()):
            yield f"{',' if number else '{'}{_encode_json(key)}:"
            yield from _encode_pieces(item)
        yield "}" if value else "{}"
    elif isinstance(value, list | tuple):
        for number, item in enumerate(cast("Sequence[object]", value)):
            yield "," if number else "["
            yield from _encode_pieces(item)
        yield "]" if value else "[]"
    else:
        yield _encode_json(value)


_encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def drop_unsupported_parts(message: Message) -> Message:
    """Drops parts that the role cannot carry, which no provider accepts. The log still has them."""
    kinds = _SUPPORTED_PARTS[message.role]
    if all(isinstance(part, kinds) for part in message.parts):
        return message
    supported: tuple[Part, ...] = tuple(part for part in message.parts if isinstance(part, kinds))
    return message.model_copy(update={"parts": supported})


def inline_documents(message: Message, references: Sequence[DocumentReference], load_text: TextLoader) -> Message:
    """Appends the referenced documents to a user message. Other roles have no references."""
    if message.role != "user" or not references:
        return message
    sections: list[str] = []
    listed: list[DocumentReference] = []
    for reference in references:
        text = load_text(reference.blob) if reference.injected and reference.blob is not None else None
        if text is None:
            listed.append(reference)
        else:
            sections.append(label_text("document", text, name=reference.path, link=reference.link))
    if listed:
        text = label_text("references", "\n".join(map(_format_reference, listed)))
        is_readable = any(reference.path is not None for reference in listed)
        sections.append(f"{READ_INSTRUCTION}\n{text}" if is_readable else text)
    appended = "\n\n".join(sections)
    # Appended to the last text part, because every server accepts a message with a single text.
    *others, last = message.parts or (TextPart(text=""),)
    if isinstance(last, TextPart) and last.provider_fields is None:
        joined = f"{last.text}\n\n{appended}" if last.text else appended
        return message.model_copy(update={"parts": (*others, TextPart(text=joined))})
    return message.model_copy(update={"parts": (*message.parts, TextPart(text=appended))})


def _format_reference(reference: DocumentReference) -> str:
    """One line for each reference, so that no summary can pass for another document."""
    if reference.path is None:
        note = f": {reference.snippet}" if reference.snippet else ": not found"
        return f"- {_collapse_whitespace(reference.link)}{_collapse_whitespace(note)}"
    note = f": {reference.summary}" if reference.summary else ""
    return _collapse_whitespace(f"- {reference.link} ({reference.path}){note}")


def _collapse_whitespace(text: str) -> str:
    return " ".join(text.split())
