"""Reads the sessions of Droid (Factory): JSON Lines, with messages of Anthropic's format.

The usage is stored for the whole session only, in a file next to it.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from quire.errors import InvalidEntry
from quire.importers.anthropic_content import parse_content
from quire.importers.message_trees import MessageLinks
from quire.importers.places import find_home
from quire.importers.readers import read_json_lines
from quire.importers.source_fields import parse_time, read_id, read_title, retain_fields
from quire.log.types import ConversationOrigin
from quire.model import Message, Usage
from quire.model.json_values import get_object, get_text
from quire.sources.base import SourceConversation, SourceError, SourceMessage, StoredSource

_MESSAGE_FIELDS = frozenset({"role", "content", "modelId"})


class DroidSource(StoredSource):
    name = "droid"
    title = "Droid (Factory)"
    patterns = ("*/*.jsonl", "*.jsonl")
    not_stored = ("tokens of a message", "cost")

    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        yield find_home(env) / ".factory" / "sessions"

    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        first = next(read_json_lines(path), None)
        if first is None or isinstance(first, SourceError) or first.value.get("type") != "session_start":
            yield SourceError.of(path.name, "The file does not begin with a session of Droid.")
            return
        id_ = read_id(first.value.get("id")) or path.stem
        yield SourceConversation(
            id=id_,
            messages=self._read_messages(path),
            title=read_title(first.value.get("title")),
            origin=ConversationOrigin(client=self.name, session=id_, project=get_text(first.value, "cwd")),
            dropped=("tokenUsage",),
        )

    def _read_messages(self, path: Path) -> Iterator[SourceMessage | SourceError]:
        links = MessageLinks()
        dropped: dict[str, None] = {}
        for line in read_json_lines(path):
            if isinstance(line, SourceError):
                yield line
                continue
            value, raw = line.value, get_object(line.value, "message")
            if value.get("type") != "message":
                if value.get("type") not in ("session_start", "agent_turn_outcome"):
                    dropped[str(value.get("type"))] = None
                continue
            try:
                messages = parse_content(raw.get("role"), raw.get("content"))
            except (InvalidEntry, ValueError, TypeError) as error:
                yield SourceError.of(f"{path.name}:{line.number}", error)
                continue
            if messages and (fields := retain_fields(raw, _MESSAGE_FIELDS, self.name)):
                messages[0] = messages[0].model_copy(update={"provider_fields": fields})
            yield from links.add(
                read_id(value.get("id")) or f"line:{line.number}",
                messages,
                after=read_id(value.get("parentId")) or links.last,
                at=parse_time(value.get("timestamp")),
                usage=_read_model(raw, messages),
                dropped=tuple(dropped),
            )
            dropped = {}


def _read_model(raw: dict[str, Any], messages: list[Message]) -> Usage | None:
    """The model of a reply, which is all that its line says of the usage."""
    model = get_text(raw, "modelId")
    return Usage(model=model, estimated=True) if model and any(each.role == "assistant" for each in messages) else None
