"""Reads JSON Lines of OpenAI's chat format: training examples, and requests and responses of the Batch API.

Every line is one conversation. Its id is the digest of its content, so that the same line in another file, or
further down in a grown one, is not imported twice.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from quire.errors import InvalidEntry
from quire.importers.readers import read_json_lines
from quire.importers.source_fields import parse_time, read_title
from quire.log.types import ConversationOrigin
from quire.model.json_values import dump_json, get_object, get_text
from quire.sources.base import NotStored, SourceConversation, SourceError, SourceMessage
from quire.wire.chat.parse import parse_messages, parse_reply

_ID_CHARS = 32


class OpenAiJsonlSource:
    name = "openai-jsonl"
    title = "OpenAI chat JSON Lines"
    is_experimental = False
    reads: int = 1
    not_stored: tuple[NotStored, ...] = ("times", "cost")

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
                if isinstance(line, SourceError):
                    yield line
                    continue
                try:
                    conversation = self.read_conversation(line.value)
                except (InvalidEntry, ValueError, TypeError) as error:
                    reason = f"The line has no messages that can be read: {error}"
                    yield SourceError.of(f"{path.name}:{line.number}", reason)
                else:
                    yield conversation
        except OSError as error:
            yield SourceError.of(path.name, f"The file cannot be read: {error}.")

    def read_conversation(self, raw: dict[str, Any]) -> SourceConversation:
        body = get_object(raw, "body") or raw
        usage, at = None, None
        if isinstance(body.get("messages"), list):
            parsed = parse_messages(body["messages"])
        else:
            response = get_object(get_object(raw, "response"), "body")
            reply = parse_reply(response)
            parsed, at = [reply.message], parse_time(response.get("created"))
            usage = reply.usage and reply.usage.model_copy(update={"provider_fields": None})
        messages: list[SourceMessage] = []
        for index, message in enumerate(parsed):
            if message.parts:
                parent = messages[-1].id if messages else None
                messages.append(SourceMessage(f"message:{index}", parent, message, at, usage=usage))
        id_ = sha256(dump_json(raw).encode(errors="replace")).hexdigest()[:_ID_CHARS]
        return SourceConversation(
            id=id_,
            messages=messages,
            title=read_title(raw.get("custom_id")),
            origin=ConversationOrigin(client=self.name, session=get_text(raw, "custom_id") or id_),
            created_at=at,
            dropped=tuple(name for name in ("tools", "functions", "response_format") if body.get(name)),
        )
