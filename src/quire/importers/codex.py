"""Reads the rollouts of Codex: one file per thread, with the items of the Responses API that make up its history.

A fork holds only its own items and names the rollout that it continues; older versions copy that history into its
file. A compaction names the items that stay in the model's context, and its summary unless only the provider can read
it. Files may be compressed with Zstandard.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from quire.errors import InvalidEntry
from quire.importers.places import find_home
from quire.importers.readers import JsonLine, import_zstd, parse_json_lines
from quire.importers.source_fields import parse_time
from quire.model import Message, Usage
from quire.model.json_values import filter_objects, get_object, get_text
from quire.rows.boilerplate import CODEX_SUMMARY_OPENING
from quire.sources.base import (
    ABANDONED_SECONDS,
    HOLD_BACK_SECONDS,
    SourceCompaction,
    SourceConversation,
    SourceError,
    SourceMessage,
    StoredSource,
    is_growing,
    list_files,
    make_origin,
)
from quire.wire.responses.parse import is_assistant_item, parse_messages

MAX_FORK_DEPTH = 50
"""Maximum rollouts that a fork continues, one from the other."""
MAX_UNPACKED_BYTES = 4_000_000_000
"""Maximum bytes of a compressed rollout that are read."""
MAX_COPY_PAUSE_MICROS = 500_000
"""Maximum time between two lines of a history that is copied into a new file."""

_HEAD_BYTES = 200
"""Bytes of a line in which its types are searched."""
_SUFFIXES = (".jsonl", ".jsonl.zst")
_FOLDERS = ("sessions", "archived_sessions")
_ITEM_METADATA = "internal_chat_message_metadata_passthrough"
"""Field of an item that Codex writes for itself."""
_SKIPPED_ITEMS = frozenset({"ghost_snapshot", "compaction_trigger"})
_BOOKKEEPING_TYPES = frozenset({"event_msg", "session_meta", "turn_context", "world_state", "token_usage_record"})


class CodexSource(StoredSource):
    name = "codex"
    title = "Codex"
    not_stored = ("summaries of the provider", "cost")
    reads = 2

    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        home = Path(env.get("CODEX_HOME") or find_home(env) / ".codex")
        return (home / name for name in _FOLDERS)

    def find_files(self, path: Path) -> Iterator[Path]:
        if path.is_file():
            return iter([path])
        folders = [folder for name in _FOLDERS if (folder := path / name).is_dir()] or [path]
        files = (file for folder in folders for file in list_files(folder, *_SUFFIXES))
        return (file for file in files if file.name.startswith("rollout-"))

    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        first = next(_read_lines(path), None)
        if not isinstance(first, JsonLine):
            yield from [first] if first is not None else []
            return
        meta = get_object(first.value, "payload") if first.value.get("type") == "session_meta" else {}
        thread = get_text(meta, "id") or path.name.removesuffix(".zst").removesuffix(".jsonl")
        source = get_object(meta, "source")
        spawned_by = get_text(get_object(get_object(source, "subagent"), "thread_spawn"), "parent_thread_id")
        parent = get_text(meta, "parent_thread_id") or spawned_by
        is_sub_agent = parent is not None or "subagent" in source
        session = get_text(meta, "session_id") or parent or thread
        history = _History(path, is_sub_agent=is_sub_agent)
        # Only after a growing file was read, it is known whether its last reply waits.
        unfinished = is_growing(path, ABANDONED_SECONDS) and history.has_unfinished(meta)
        yield SourceConversation(
            id=thread,
            messages=_History(path, is_sub_agent=is_sub_agent).read(meta),
            unfinished_replies=int(unfinished),
            origin=make_origin(
                self.name, session, get_text(meta, "cwd"), agent=thread if is_sub_agent else None, parent=parent
            ),
            created_at=parse_time(meta.get("timestamp") or first.value.get("timestamp")),
            dropped=("base_instructions",) if "base_instructions" in meta else (),
        )


def _read_lines(path: Path) -> Iterator[JsonLine | SourceError]:
    """The lines of a rollout. One error if it is compressed and cannot be unpacked."""
    if path.suffix != ".zst":
        with path.open("rb") as stream:
            yield from parse_json_lines(stream, name=path.name, is_skipped=_is_bookkeeping)
        return
    try:
        zstd = import_zstd()
        with zstd.open(path, "rb") as stream:
            bounded = cast("IO[bytes]", _BoundedStream(stream))
            yield from parse_json_lines(bounded, name=path.name, is_skipped=_is_bookkeeping)
    except ImportError:
        yield SourceError.of(path.name, "The file is compressed: use Python 3.14, or install `quire[import]`.")
    except (OSError, ValueError, EOFError) as error:
        yield SourceError.of(path.name, f"The file cannot be unpacked: {error}.")
    except Exception as error:
        # The library's own error for damaged data has no base class but `Exception`.
        if type(error).__name__ != "ZstdError":
            raise
        yield SourceError.of(path.name, f"The file cannot be unpacked: {error}.")


def _is_bookkeeping(line: bytes) -> bool:
    """Whether a line is an event that repeats an item, or a state, by its first bytes."""
    start = line[:_HEAD_BYTES]
    return b'"type":"world_state"' in start or (b'"type":"event_msg"' in start and b'"token_count"' not in start)


class _BoundedStream:
    """Lines of an unpacked file, up to `MAX_UNPACKED_BYTES`."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._remaining = stream, MAX_UNPACKED_BYTES

    def readline(self, limit: int) -> bytes:
        line = self._stream.readline(limit)
        self._remaining -= len(line)
        if self._remaining < 0:
            raise ValueError(f"it has more than {MAX_UNPACKED_BYTES:,} bytes")
        return line


class _Reply(NamedTuple):
    """The items of one response, and the outputs of its calls. Newer versions write its usage after both."""

    id: str
    items: list[dict[str, Any]]
    times: list[int | None]
    outputs: list[tuple[str, dict[str, Any], int | None]]


class _History:
    """Turns lines to messages. The items of one response are one message. The record of its usage ends it."""

    def __init__(self, path: Path, *, is_sub_agent: bool) -> None:
        self._path = path
        self._parent: str | None = None
        self._model: str | None = None
        self._reply: _Reply | None = None
        self._total: object = None
        """Tokens of all requests. Codex repeats the usage of a request, which has then the same total."""
        self._ids: dict[str, str] = {}
        """Id of the message that each item belongs to."""
        self._ids_by_content: dict[bytes, list[str]] = {}
        """Ids of the messages with the same content, by its digest."""
        self._dropped: dict[str, None] = {}
        self._summary_usage: Usage | None = None
        self._is_summarizing = False
        self._is_sub_agent = is_sub_agent
        self._is_copy = False
        """Whether the line is a copy of another file's, which has the usage."""

    def read(self, meta: dict[str, Any]) -> Iterator[SourceMessage | SourceError]:
        """The messages of the rollouts that this fork continues, oldest first, then its own.

        A sub-agent has its own ones only, also if it began with the history of its parent.
        """
        bases: list[tuple[Path, int]] = []
        """Files, and the ordinals before which the lines belong to the fork's history."""
        root = next((folder.parent for folder in self._path.parents if folder.name in _FOLDERS), self._path.parent)
        while not self._is_sub_agent:
            thread, end = get_text(meta, "forked_from_id"), meta.get("forked_from_ordinal_exclusive")
            if thread is None or not isinstance(end, int):
                break
            # The id is part of a glob pattern.
            is_id = thread.replace("-", "").isalnum()
            base = next(root.rglob(f"rollout-*{thread}*.jsonl*"), None) if is_id else None
            if base is None or len(bases) >= MAX_FORK_DEPTH:
                reason = f"The rollout of the thread {thread} that it continues was not found."
                yield SourceError.of(self._path.name, reason)
                bases = []
                break
            bases.insert(0, (base, end))
            first = next(_read_lines(base), None)
            meta = get_object(first.value, "payload") if isinstance(first, JsonLine) else {}
        for base, end in bases:
            yield from self._read_rollout(base, end=end)
        yield from self._read_rollout(self._path, end=None)
        # Codex may be writing the last reply of a growing file, or a tool is running.
        _, items, _, outputs = self._reply or _Reply("", [], [], [])
        is_running = sum("call_id" in item for item in items) > len(outputs)
        if not is_growing(self._path, ABANDONED_SECONDS if is_running else HOLD_BACK_SECONDS):
            yield from self._end_reply()

    def has_unfinished(self, meta: dict[str, Any]) -> bool:
        """Reads to the end. Returns whether a reply is held back."""
        deque(self.read(meta), maxlen=0)
        return self._reply is not None

    def _read_rollout(self, path: Path, *, end: int | None) -> Iterator[SourceMessage | SourceError]:
        """The messages of a file. The copy of another thread's history begins with the meta line of that thread, and is
        written at once. A sub-agent is without it."""
        thread, copied_at = None, 0
        for line in _read_lines(path):
            if isinstance(line, SourceError):
                yield line
                continue
            value, payload = line.value, get_object(line.value, "payload")
            ordinal, at = value.get("ordinal"), parse_time(value.get("timestamp")) or 0
            if end is not None and isinstance(ordinal, int) and ordinal >= end:
                return
            if value.get("type") == "session_meta":
                thread = thread or get_text(payload, "id")
                copied_at = at if get_text(payload, "id") != thread else copied_at
            self._is_copy = copied_at > 0 and at - copied_at < MAX_COPY_PAUSE_MICROS
            copied_at = at if self._is_copy else 0
            if self._is_copy and self._is_sub_agent:
                self._total = get_object(payload, "info").get("total_token_usage") or self._total
                continue
            try:
                yield from self._add_line(value, payload)
            except (InvalidEntry, ValueError, TypeError) as error:
                yield SourceError.of(f"{path.name}:{line.number}", error)

    def _add_line(self, value: dict[str, Any], payload: dict[str, Any]) -> Iterator[SourceMessage]:
        match value.get("type"):
            case "turn_context":
                self._model = get_text(payload, "model") or self._model
            case "response_item":
                yield from self._add_item(value, payload, parse_time(value.get("timestamp")))
            case "token_usage_record":
                yield from self._end_reply(_parse_usage(get_object(payload, "usage"), self._model))
            case "event_msg" if payload.get("type") == "token_count":
                info = get_object(payload, "info")
                total = info.get("total_token_usage")
                if total is None or total != self._total:
                    yield from self._end_reply(_parse_usage(get_object(info, "last_token_usage"), self._model))
                self._total = total or self._total
            case "compacted":
                yield from self._end_reply()
                yield from self._add_compaction(value, payload)
            case str(kind) if kind not in _BOOKKEEPING_TYPES:
                self._dropped[kind] = None
            case _:
                pass

    def _add_item(self, value: dict[str, Any], item: dict[str, Any], at: int | None) -> Iterator[SourceMessage]:
        kind = item.get("type")
        if kind in _SKIPPED_ITEMS:
            self._dropped[str(kind)] = None
            return
        if get_object(value, "metadata").get("compaction_output"):
            yield from self._end_reply()
            self._is_summarizing = True
            return
        id_ = get_text(item, "id") or _make_id(value)
        item.pop(_ITEM_METADATA, None)
        if kind == "agent_message":
            # A message of another agent. A part of it may be encrypted.
            texts = [get_text(each, "text") or f"[{each.get('type')}]" for each in filter_objects(item.get("content"))]
            kind, item = "message", {"type": "message", "role": "user", "content": "\n".join(texts)}
        is_own_message = kind == "message" and item.get("role") == "assistant"
        is_own = is_own_message or (isinstance(kind, str) and kind != "message" and is_assistant_item(item))
        if self._reply is not None and not is_own and kind != "message":
            self._reply.outputs.append((id_, item, at))
            return
        if not is_own or (self._reply is not None and self._reply.outputs):
            # Nothing was written of the usage of the response before.
            yield from self._end_reply()
        if is_own:
            self._reply = self._reply or _Reply(id_, [], [], [])
            self._reply.items.append(item)
            self._reply.times.append(at)
        self._ids[id_] = self._reply.id if self._reply is not None else id_
        if kind == "message":
            self._ids_by_content.setdefault(_digest_content(item), []).append(self._ids[id_])
        if not is_own:
            yield from self._emit(id_, [item], at)

    def _add_compaction(self, value: dict[str, Any], payload: dict[str, Any]) -> Iterator[SourceMessage]:
        """The summary replaces all earlier messages but those that the replacement repeats, by id or, in older
        versions, by content: of several with the same content, the newest. A summary of the provider is encrypted."""
        replacement = filter_objects(payload.get("replacement_history"))
        summary = get_text(payload, "message") or None
        if summary is None:
            texts = (each.text for each in reversed(parse_messages(replacement)) if each.role == "user")
            summary = next((text for text in texts if text.startswith(CODEX_SUMMARY_OPENING)), None)
        preserved: dict[str, None] = {}
        unused: dict[bytes, list[str]] = {}
        for item in reversed(replacement):
            digest = _digest_content(item)
            same = unused.setdefault(digest, list(self._ids_by_content.get(digest, ())))
            if (id_ := self._ids.get(get_text(item, "id") or "") or (same.pop() if same else None)) is not None:
                preserved[id_] = None
        usage, self._summary_usage, self._is_summarizing = self._summary_usage, None, False
        trigger = "threshold" if summary is not None else "provider"
        compaction = SourceCompaction(summary, trigger, preserved=tuple(reversed(preserved)))
        message = Message.user(summary or "")
        made = SourceMessage(_make_id(value), self._parent, message, parse_time(value.get("timestamp")), usage=usage)
        if self._parent is not None:
            yield self._link(made._replace(compaction=compaction))
        elif summary is not None:
            yield self._link(made)

    def _end_reply(self, usage: Usage | None = None) -> Iterator[SourceMessage]:
        if self._is_summarizing:
            self._summary_usage, self._is_summarizing = usage or self._summary_usage, usage is None
        if self._reply is None:
            return
        reply, self._reply = self._reply, None
        yield from self._emit(reply.id, reply.items, reply.times[-1], None if self._is_copy else usage)
        for id_, item, at in reply.outputs:
            yield from self._emit(id_, [item], at)

    def _emit(
        self, id_: str, items: list[dict[str, Any]], at: int | None, usage: Usage | None = None
    ) -> Iterator[SourceMessage]:
        for message in parse_messages(items):
            if message.parts:
                cost = 0.0 if self._is_copy and message.role == "assistant" else None
                yield self._link(SourceMessage(id_, self._parent, message, at, usage=usage, cost_usd=cost))

    def _link(self, message: SourceMessage) -> SourceMessage:
        self._parent = self._ids[message.id] = message.id
        dropped, self._dropped = tuple(self._dropped), {}
        return message._replace(dropped=dropped)


def _digest_content(item: dict[str, Any]) -> bytes:
    content = json.dumps([item.get("type"), item.get("role"), item.get("content")], sort_keys=True)
    return sha256(content.encode()).digest()


def _make_id(value: dict[str, Any]) -> str:
    """An id for a line without one. Line numbers are none: Codex may rewrite a file without its first lines."""
    content = json.dumps([value.get("timestamp"), value.get("payload")], sort_keys=True)
    return sha256(content.encode()).hexdigest()[:32]


def _parse_usage(usage: dict[str, Any], model: str | None) -> Usage | None:
    if not usage.get("total_tokens"):
        return None
    return Usage(
        model=model,
        input_tokens=usage.get("input_tokens") or 0,
        output_tokens=usage.get("output_tokens") or 0,
        cache_read_tokens=usage.get("cached_input_tokens") or 0,
        cache_write_tokens=usage.get("cache_write_input_tokens") or 0,
        provider_fields={"reasoning_output_tokens": usage.get("reasoning_output_tokens") or 0},
    )
