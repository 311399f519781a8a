"""Reads JSON Lines of OpenAI's chat format: training examples, and requests and responses of the Batch API.

Every line is a conversation of its own. Its id is the digest of its content, so that the same line in another file, or
further down in a grown one, is not imported twice.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path

from quire.errors import InvalidEntry
from quire.importers.base import SourceConversation, SourceError, SourceMessage
from quire.importers.json_lines import JsonLine, read_json_lines
from quire.importers.source_fields import read_title
from quire.importers.times import parse_time
from quire.log.types import ConversationOrigin
from quire.model import Message, Usage
from quire.view.wire_formats.base import Reply
from quire.view.wire_formats.fields import dump_json, get_object, get_text
from quire.view.wire_formats.openai_chat_parse import parse_messages, parse_reply

_ID_CHARS = 32


class OpenAiJsonlSource:
    name = "openai-jsonl"
    title = "OpenAI chat JSON Lines"

    def find_default_paths(self, env: Mapping[str, str]) -> list[Path]:
        return []

    def find_files(self, path: Path) -> Iterator[Path]:
        if not path.is_dir():
            yield path
            return
        yield from (each for each in sorted(path.glob("*.jsonl")) if each.is_file())

    def read(self, path: Path, *, since: int | None = None) -> Iterator[SourceConversation | SourceError]:
        try:
            for line in read_json_lines(path):
                yield line if isinstance(line, SourceError) else _read_line(line, name=path.name)
        except OSError as error:
            yield SourceError.of(path.name, f"The file cannot be read: {error}.")


def _read_line(line: JsonLine, *, name: str) -> SourceConversation | SourceError:
    raw = line.value
    body = get_object(raw, "body") or raw
    try:
        if isinstance(body.get("messages"), list):
            messages, usage, at = parse_messages(body["messages"]), None, None
        else:
            response = get_object(get_object(raw, "response"), "body")
            reply = parse_reply(response)
            messages, usage, at = [reply.message], _get_usage(reply), parse_time(response.get("created"))
    except (InvalidEntry, ValueError, TypeError) as error:
        return SourceError.of(f"{name}:{line.number}", f"The line has no messages that can be read: {error}")
    id_ = sha256(dump_json(raw).encode(errors="replace")).hexdigest()[:_ID_CHARS]
    return SourceConversation(
        id=id_,
        messages=_chain(messages, usage=usage, at=at),
        title=read_title(raw.get("custom_id")),
        origin=ConversationOrigin(client=OpenAiJsonlSource.name, session=get_text(raw, "custom_id") or id_),
        created_at=at,
        dropped=tuple(name for name in ("tools", "functions", "response_format") if body.get(name)),
    )


def _get_usage(reply: Reply) -> Usage | None:
    return None if reply.usage is None else reply.usage.model_copy(update={"provider_fields": None})


def _chain(messages: list[Message], *, usage: Usage | None, at: int | None) -> Iterator[SourceMessage]:
    """Messages in order, without those that have no content."""
    parent: str | None = None
    for index, message in enumerate(messages):
        if message.parts:
            yield SourceMessage(id=f"message:{index}", parent=parent, message=message, at=at, usage=usage)
            parent = f"message:{index}"
