"""Reads the threads of Zed's agent: a database with one document each, as JSON or compressed with Zstandard."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from quire.importers.message_trees import MessageLinks
from quire.importers.places import find_data_folder, list_application_folders
from quire.importers.readers import MAX_CELL_BYTES, import_zstd, open_sqlite, parse_json
from quire.importers.source_fields import add_usage, list_values, make_url_part, parse_time, read_id, read_title
from quire.model import Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage
from quire.model.json_values import dump_json, filter_objects, get_object, get_text, is_object
from quire.sources.base import (
    SourceCompaction,
    SourceConversation,
    SourceError,
    SourceMessage,
    StoredSource,
    is_before,
    make_origin,
)
from quire.wire.labels import label_text
from quire.wire.media import build_data_url


class ZedSource(StoredSource):
    name = "zed"
    title = "Zed"
    patterns = ("threads.db",)
    is_experimental = True
    not_stored = ("times", "tokens of a message", "cost")

    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        yield find_data_folder(env) / "zed" / "threads"
        yield from (folder / "Zed" / "threads" for folder in list_application_folders(env))

    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        with open_sqlite(path) as database:
            if not database.has_tables("threads"):
                yield SourceError.of(path.name, "The database has no threads of Zed.")
                return
            for row in database.query("SELECT * FROM threads ORDER BY updated_at, id"):
                id_ = read_id(row["id"])
                if id_ is None or is_before(parse_time(row.get("updated_at")), since):
                    continue
                try:
                    thread = _unpack(row.get("data"), row.get("data_type"))
                except (ValueError, ImportError) as error:
                    yield SourceError.of(id_, f"The thread cannot be read: {error}.")
                    continue
                parent = read_id(row.get("parent_id"))
                folder = (get_text(row, "folder_paths") or "").partition("\n")[0] or None
                yield SourceConversation(
                    id=id_,
                    messages=self._read_messages(thread),
                    title=read_title(thread.get("title") or row.get("summary")),
                    origin=make_origin(self.name, parent or id_, folder, agent=id_ if parent else None, parent=parent),
                    created_at=parse_time(row.get("created_at")) or parse_time(row.get("updated_at")),
                )

    def _read_messages(self, thread: dict[str, Any]) -> Iterator[SourceMessage | SourceError]:
        links, usage = MessageLinks(), None
        counts, model = get_object(thread, "request_token_usage"), get_text(get_object(thread, "model"), "model")
        for index, raw in enumerate(list_values(thread.get("messages"))):
            messages: list[Message] = []
            compaction: SourceCompaction | None = None
            dropped: tuple[str, ...] = ()
            match raw:
                case {"User": dict()}:
                    user = get_object(raw, "User")
                    usage = _read_usage(get_object(counts, str(user.get("id"))), model)
                    parts = tuple(self._read_parts(user.get("content")))
                    messages = [Message(role="user", parts=parts)] if parts else []
                case {"Agent": dict()}:
                    messages = list(self._read_reply(get_object(raw, "Agent")))
                case {"Compaction": {"Summary": str(summary)}}:
                    messages, compaction = [Message.user(summary)], SourceCompaction(summary)
                case str():
                    pass
                case _:
                    dropped = (next(iter(raw), "message") if is_object(raw) else "message",)
                    messages = [Message.user(f"[{dropped[0]}]")] if is_object(raw) else []
            yield from links.add(
                f"message:{index}", messages, after=links.last, usage=usage, compaction=compaction, dropped=dropped
            )
            if any(message.role == "assistant" for message in messages):
                usage = None

    def _read_reply(self, raw: dict[str, Any]) -> Iterator[Message]:
        parts = tuple(self._read_parts(raw.get("content")))
        if parts:
            yield Message(role="assistant", parts=parts)
        for call_id, result in get_object(raw, "tool_results").items():
            if is_object(result):
                pieces = list_values(result.get("content")) or [result.get("content")]
                texts = [get_text(piece, "Text") if is_object(piece) else piece for piece in pieces]
                parts = tuple(TextPart(text=text) for text in texts if isinstance(text, str))
                is_error = result.get("is_error") is True
                yield Message(role="tool", parts=(ToolResultPart(call_id=call_id, content=parts, is_error=is_error),))

    def _read_parts(self, content: object) -> Iterator[Part]:
        for raw in filter_objects(content):
            match raw:
                case {"Text": str(text)}:
                    yield TextPart(text=text)
                case {"Thinking": {"text": str(text)}}:
                    yield ThinkingPart(text=text, signature=get_text(raw["Thinking"], "signature"))
                case {"RedactedThinking": str(data)}:
                    yield ThinkingPart(redacted=data)
                case {"Mention": {"content": str(text)}}:
                    yield TextPart(text=label_text("document", text, name=str(raw["Mention"].get("uri"))))
                case {"Image": {"source": str(data)}}:
                    if image := make_url_part(build_data_url("image/png", data)):
                        yield image
                case {"ToolUse": {"id": str(id_), "name": str(name)}}:
                    yield ToolCallPart(id=id_, name=name, arguments=dump_json(raw["ToolUse"].get("input") or {}))
                case _:
                    # A newer kind of content is named in the text and stored whole.
                    yield TextPart(text=f"[{next(iter(raw), 'empty')}]", provider_fields={self.name: raw})


def _unpack(data: object, data_type: object) -> dict[str, Any]:
    if not isinstance(data, bytes | str):
        raise ValueError("it has no data")
    packed = data.encode() if isinstance(data, str) else data
    if data_type == "zstd":
        zstd = import_zstd()
        try:
            packed = zstd.ZstdDecompressor().decompress(packed, max_length=MAX_CELL_BYTES)
        except zstd.ZstdError as error:
            raise ValueError(error) from error
    value = parse_json(packed)
    if not is_object(value):
        raise ValueError("it is no JSON object")
    return value


def _read_usage(counts: dict[str, Any], model: str | None) -> Usage | None:
    return add_usage(
        model,
        uncached=counts.get("input_tokens"),
        cache_read=counts.get("cache_read_input_tokens"),
        cache_write=counts.get("cache_creation_input_tokens"),
        output=counts.get("output_tokens"),
    )
