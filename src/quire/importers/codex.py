"""Reads the rollouts of Codex: one file per thread, with the items of the Responses API that make up its history.

A fork holds only its own items and names the rollout that it continues. A compaction names its summary and the items
that stay in the model's context. Files may be compressed with Zstandard.
"""

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, cast

from quire.errors import InvalidEntry
from quire.importers.base import (
    NotStored,
    SourceCompaction,
    SourceConversation,
    SourceError,
    SourceMessage,
    is_growing,
    is_older,
    list_files,
)
from quire.importers.readers import JsonLine, import_zstd, parse_json_lines
from quire.importers.source_fields import parse_time
from quire.log.types import ConversationOrigin
from quire.model import Message, Usage
from quire.model.json_values import filter_objects, get_object, get_text
from quire.wire.responses.parse import is_assistant_item, parse_messages

MAX_FORK_DEPTH = 50
"""Maximum rollouts that a fork continues, one from the other."""
MAX_UNPACKED_BYTES = 4_000_000_000
"""Maximum bytes of a compressed rollout that are read."""

_HEAD_BYTES = 200
"""Bytes of a line in which its types are searched."""
_SUFFIXES = (".jsonl", ".jsonl.zst")
_FOLDERS = ("sessions", "archived_sessions")
_ITEM_METADATA = "internal_chat_message_metadata_passthrough"
"""Field of an item that Codex writes for itself."""
_SKIPPED_ITEMS = frozenset({"ghost_snapshot", "compaction_trigger"})
_BOOKKEEPING_TYPES = frozenset({"event_msg", "session_meta", "turn_context", "world_state", "token_usage_record"})


class CodexSource:
    name = "codex"
    title = "Codex"
    is_experimental = False
    not_stored: tuple[NotStored, ...] = ("cost",)

    def find_default_paths(self, env: Mapping[str, str]) -> list[Path]:
        home = Path(env.get("CODEX_HOME") or Path(env.get("HOME") or Path.home()) / ".codex")
        return [path for name in _FOLDERS if (path := home / name).is_dir()]

    def find_files(self, path: Path) -> Iterator[Path]:
        if path.is_file():
            return iter([path])
        folders = [folder for name in _FOLDERS if (folder := path / name).is_dir()] or [path]
        files = (file for folder in folders for file in list_files(folder, *_SUFFIXES))
        return (file for file in files if file.name.startswith("rollout-"))

    def read(self, path: Path, *, since: int | None = None) -> Iterator[SourceConversation | SourceError]:
        if is_older(path, since):
            return
        try:
            first = next(_read_lines(path), None)
        except (OSError, ImportError) as error:
            yield SourceError.of(path.name, error)
            return
        if isinstance(first, SourceError) or first is None:
            if first is not None:
                yield first
            return
        meta = get_object(first.value, "payload") if first.value.get("type") == "session_meta" else {}
        thread = get_text(meta, "id") or path.name.removesuffix(".zst").removesuffix(".jsonl")
        parent, source = get_text(meta, "parent_thread_id"), meta.get("source")
        is_sub_agent = parent is not None or (isinstance(source, dict) and "subagent" in source)
        yield SourceConversation(
            id=thread,
            messages=_History(path).read(meta),
            origin=ConversationOrigin(
                client=self.name,
                session=get_text(meta, "session_id") or thread,
                project=get_text(meta, "cwd"),
                agent=thread if is_sub_agent else None,
                parent_agent=parent,
                purpose="subagent" if is_sub_agent else None,
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


class _History:
    """Turns lines to messages. The items of one response are one message. The record of its usage ends it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parent: str | None = None
        self._model: str | None = None
        self._reply: tuple[str, list[dict[str, Any]], int | None] | None = None
        """Id of the first item of the current response, its items so far, and the time of the last one."""
        self._ids: dict[str, str] = {}
        """Id of the message that each item belongs to."""
        self._dropped: dict[str, None] = {}
        self._summary_usage: Usage | None = None
        self._is_summarizing = False

    def read(self, meta: dict[str, Any]) -> Iterator[SourceMessage | SourceError]:
        """The messages of the rollouts that this fork continues, oldest first, then its own.

        Older versions copy the history into the fork instead.
        """
        bases: list[tuple[Path, int]] = []
        """Files, and the ordinals before which the lines belong to the fork's history."""
        root = next((folder.parent for folder in self._path.parents if folder.name in _FOLDERS), self._path.parent)
        while True:
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
        # Codex may be writing the last reply of a growing file.
        if not is_growing(self._path):
            yield from self._end_reply()

    def _read_rollout(self, path: Path, *, end: int | None) -> Iterator[SourceMessage | SourceError]:
        for line in _read_lines(path):
            if isinstance(line, SourceError):
                yield line
                continue
            ordinal = line.value.get("ordinal")
            if end is not None and isinstance(ordinal, int) and ordinal >= end:
                return
            try:
                yield from self._add_line(line.value)
            except (InvalidEntry, ValueError, TypeError) as error:
                yield SourceError.of(f"{path.name}:{line.number}", error)

    def _add_line(self, value: dict[str, Any]) -> Iterator[SourceMessage]:
        payload = get_object(value, "payload")
        match value.get("type"):
            case "turn_context":
                self._model = get_text(payload, "model") or self._model
            case "response_item":
                kind, at = payload.get("type"), parse_time(value.get("timestamp"))
                if kind in _SKIPPED_ITEMS:
                    self._dropped[str(kind)] = None
                    return
                if get_object(value, "metadata").get("compaction_output"):
                    yield from self._end_reply()
                    self._is_summarizing = True
                    return
                id_ = get_text(payload, "id") or _make_id(value)
                payload.pop(_ITEM_METADATA, None)
                is_own_message = kind == "message" and payload.get("role") == "assistant"
                if is_own_message or (isinstance(kind, str) and kind != "message" and is_assistant_item(payload)):
                    first, items, _ = self._reply or (id_, [], None)
                    self._reply = (first, [*items, payload], at)
                    self._ids[id_] = first
                    return
                yield from self._end_reply()
                for message in parse_messages([payload]):
                    if message.parts:
                        yield self._emit(SourceMessage(id_, self._parent, message, at))
            case "token_usage_record":
                yield from self._end_reply(_parse_usage(get_object(payload, "usage"), self._model))
            case "event_msg" if payload.get("type") == "token_count":
                info = get_object(payload, "info")
                yield from self._end_reply(_parse_usage(get_object(info, "last_token_usage"), self._model))
            case "compacted":
                yield from self._end_reply()
                # The summary replaces all earlier messages but those that the replacement names again.
                replacement = filter_objects(payload.get("replacement_history"))
                summary = get_text(payload, "message")
                if not summary:
                    # Older versions write the summary as the last message of the user's.
                    messages = reversed(parse_messages(replacement))
                    summary = next((each.text for each in messages if each.role == "user"), "")
                named = (self._ids.get(get_text(item, "id") or "") for item in replacement)
                preserved = tuple(dict.fromkeys(id_ for id_ in named if id_ is not None))
                usage, self._summary_usage, self._is_summarizing = self._summary_usage, None, False
                message = SourceMessage(
                    _make_id(value),
                    self._parent,
                    Message.user(summary),
                    parse_time(value.get("timestamp")),
                    usage=usage,
                    compaction=SourceCompaction(summary, preserved=preserved) if self._parent is not None else None,
                )
                if summary:
                    yield self._emit(message)
            case str(kind) if kind not in _BOOKKEEPING_TYPES:
                self._dropped[kind] = None
            case _:
                pass

    def _end_reply(self, usage: Usage | None = None) -> Iterator[SourceMessage]:
        if self._is_summarizing:
            self._summary_usage, self._is_summarizing = usage or self._summary_usage, usage is None
        if self._reply is None:
            return
        (id_, items, at), self._reply = self._reply, None
        for message in parse_messages(items):
            if message.parts:
                yield self._emit(SourceMessage(id_, self._parent, message, at, usage=usage))

    def _emit(self, message: SourceMessage) -> SourceMessage:
        self._parent = self._ids[message.id] = message.id
        dropped, self._dropped = tuple(self._dropped), {}
        return message._replace(dropped=dropped)


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
