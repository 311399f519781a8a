"""Reads transcripts of Cursor's agent: one JSON Lines file for each conversation."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from quire.importers.message_trees import ToolTurn
from quire.importers.places import find_home
from quire.importers.readers import read_json_lines
from quire.importers.source_fields import parse_time, read_id
from quire.log.types import ConversationOrigin
from quire.model import Message, Part, TextPart, ThinkingPart
from quire.model.json_values import filter_objects, get_object, get_text
from quire.sources.base import SourceConversation, SourceError, SourceMessage, StoredSource

_TRANSCRIPTS = "agent-transcripts"
_SUBAGENTS = "subagents"
_OPENING_TAG, _CLOSING_TAG = "<user_query>", "</user_query>"
"""Tags around what the user wrote. Cursor puts the time and its additions before or after them."""
_TIME = re.compile(r"<timestamp>\w+, (\w+ \d+, \d+, \d+:\d+ [AP]M)(?: \(UTC([+-])(\d+):?(\d*)\))?[^<]*</timestamp>\s*")
_TIME_FIELDS = ("timestamp", "timestamp_ms", "createdAt")


class CursorSource(StoredSource):
    name = "cursor"
    title = "Cursor"
    not_stored = ("sub-agents", "models", "tokens", "cost")
    reads = 2

    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        yield find_home(env) / ".cursor" / "projects"

    def find_files(self, path: Path) -> Iterator[Path]:
        if not path.is_dir():
            yield path
            return
        for each in sorted(path.rglob("*.jsonl")):
            folders = each.relative_to(path).parts[:-1]
            if _SUBAGENTS not in folders and (_TRANSCRIPTS in each.parts[:-1] or not folders):
                yield each

    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        # The project's directory in Cursor's data is named by the path of the project with its separators as dashes.
        folders = path.parts[:-1]
        index = folders.index(_TRANSCRIPTS) if _TRANSCRIPTS in folders else 0
        yield SourceConversation(
            id=read_id(path.stem) or path.name,
            messages=_read_messages(path),
            origin=ConversationOrigin(
                client=self.name, session=path.stem, project=folders[index - 1] if index else None
            ),
        )


def _read_messages(path: Path) -> Iterator[SourceMessage | SourceError]:
    parent: str | None = None
    open_calls: list[str] = []
    said_at = parse_time(path.stat().st_mtime)
    """Time of the last prompt that has one, which the messages after it get."""
    for line in read_json_lines(path):
        if isinstance(line, SourceError):
            yield line
            continue
        raw = line.value
        role = raw.get("role") or raw.get("type")
        if role not in ("user", "assistant") or raw.get("isMeta") is True or raw.get("isSidechain") is True:
            continue
        content = get_object(raw, "message").get("content", raw.get("content"))
        dropped: list[str] = []
        turn = ToolTurn(f"line:{line.number}", open_calls=open_calls)
        if isinstance(content, str) and content:
            turn.add(TextPart(text=content))
        for block in filter_objects(content):
            match block:
                case {"type": "text", "text": str(text)}:
                    if text:
                        turn.add(TextPart(text=text))
                case {"type": "thinking", "thinking": str(text)}:
                    turn.add(ThinkingPart(text=text))
                case {"type": "tool_use", "name": str(name)}:
                    turn.call(name, block.get("input"), call_id=read_id(block.get("id")))
                case {"type": "tool_result"}:
                    result = block.get("content")
                    texts = [get_text(each, "text") for each in filter_objects(result)]
                    parts = [TextPart(text=text) for text in ([result] if isinstance(result, str) else texts) if text]
                    turn.answer(parts, call_id=read_id(block.get("tool_use_id")))
                case _:
                    dropped.append(f"block {block.get('type')}")
        messages = list(turn.finish())
        if role == "user":
            said_at = next((at for each in messages if (at := _find_time(each.text))), said_at)
        at = next((at for field in _TIME_FIELDS if (at := parse_time(raw.get(field)))), None) or said_at
        for index, message in enumerate(messages):
            if role == "user" and message.role == "assistant":
                parts = tuple(part for each in message.parts for part in _split_prompt(each))
                message = Message(role="user", parts=parts)
            id_ = f"line:{line.number}" if index == 0 else f"line:{line.number}#{index + 1}"
            yield SourceMessage(id_, parent, message, at, dropped=() if index else tuple(dropped))
            parent = id_


def _split_prompt(part: Part) -> Iterator[Part]:
    """The text that the user wrote, and after it what Cursor added."""
    if not isinstance(part, TextPart):
        yield part
        return
    text = _TIME.sub("", part.text)
    before, _, rest = text.partition(_OPENING_TAG)
    query, closing, after = rest.rpartition(_CLOSING_TAG)
    pieces = (query.strip("\n"), (before + after).strip()) if closing else (text,)
    yield from (TextPart(text=each) for each in pieces if each)


def _find_time(text: str) -> int | None:
    """The time in a prompt, such as `Friday, Sep 4, 2026, 2:21 AM (UTC+8)`."""
    with suppress(ValueError):
        if (found := _TIME.search(text)) is not None:
            zone = f"{found[2] or '+'}{found[3] or '0':0>2}{found[4] or '0':0>2}"
            return parse_time(datetime.strptime(f"{found[1]} {zone}", "%b %d, %Y, %I:%M %p %z").timestamp())
    return None
