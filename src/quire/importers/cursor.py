"""Reads transcripts of Cursor's agent: one JSON Lines file for each conversation."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from quire.importers.base import SourceConversation, SourceError, SourceMessage
from quire.importers.json_lines import JsonLine, read_json_lines
from quire.importers.source_fields import read_id
from quire.importers.times import parse_time
from quire.importers.tool_turns import ToolTurn
from quire.log.types import ConversationOrigin
from quire.model import Message, TextPart, ThinkingPart
from quire.view.wire_formats.fields import filter_objects, get_object, get_text

_TRANSCRIPTS = "agent-transcripts"
_SUBAGENTS = "subagents"
_QUERY_TAGS = ("<user_query>", "</user_query>")
_TIME_FIELDS = ("timestamp", "timestamp_ms", "createdAt")


class CursorSource:
    name = "cursor"
    title = "Cursor"

    def find_default_paths(self, env: Mapping[str, str]) -> list[Path]:
        home = env.get("HOME") or env.get("USERPROFILE")
        projects = Path(home, ".cursor", "projects") if home else None
        return [projects] if projects is not None and projects.is_dir() else []

    def find_files(self, path: Path) -> Iterator[Path]:
        if not path.is_dir():
            yield path
            return
        for each in sorted(path.rglob("*.jsonl")):
            folders = each.relative_to(path).parts[:-1]
            if _SUBAGENTS not in folders and (_TRANSCRIPTS in each.parts[:-1] or not folders):
                yield each

    def read(self, path: Path, *, since: int | None = None) -> Iterator[SourceConversation | SourceError]:
        try:
            changed_at = parse_time(path.stat().st_mtime)
        except OSError as error:
            yield SourceError.of(path.name, f"The file cannot be read: {error}.")
            return
        if since is not None and changed_at is not None and changed_at < since:
            return
        yield SourceConversation(
            id=read_id(path.stem) or path.name,
            messages=_read_messages(path),
            origin=ConversationOrigin(client=CursorSource.name, session=path.stem, project=_find_project(path)),
            created_at=None,
        )


def _find_project(path: Path) -> str | None:
    """Name of the project's directory in Cursor's data: the path of the project with its separators as dashes."""
    folders = path.parts[:-1]
    index = folders.index(_TRANSCRIPTS) if _TRANSCRIPTS in folders else 0
    return folders[index - 1] if index else None


def _read_messages(path: Path) -> Iterator[SourceMessage | SourceError]:
    parent: str | None = None
    open_calls: list[str] = []
    changed_at = parse_time(path.stat().st_mtime)
    for line in read_json_lines(path):
        if isinstance(line, SourceError):
            yield line
            continue
        dropped: list[str] = []
        at = next((at for field in _TIME_FIELDS if (at := parse_time(line.value.get(field)))), None)
        for index, message in enumerate(_read_line(line, open_calls, dropped)):
            id_ = f"line:{line.number}" if index == 0 else f"line:{line.number}#{index + 1}"
            yield SourceMessage(
                id=id_, parent=parent, message=message, at=at or changed_at, dropped=() if index else tuple(dropped)
            )
            parent = id_


def _read_line(line: JsonLine, open_calls: list[str], dropped: list[str]) -> Iterator[Message]:
    raw = line.value
    role = raw.get("role") or raw.get("type")
    if role not in ("user", "assistant") or raw.get("isMeta") is True or raw.get("isSidechain") is True:
        return
    content = get_object(raw, "message").get("content", raw.get("content"))
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else filter_objects(content)
    turn = ToolTurn(f"line:{line.number}", open_calls=open_calls)
    for block in blocks:
        _add_block(turn, block, dropped)
    for message in turn.finish():
        is_question = role == "user" and message.role == "assistant"
        yield Message(role="user", parts=tuple(_strip_tags(part) for part in message.parts)) if is_question else message


def _add_block(turn: ToolTurn, block: dict[str, Any], dropped: list[str]) -> None:
    match block:
        case {"type": "text", "text": str(text)}:
            if text:
                turn.add(TextPart(text=text))
        case {"type": "thinking", "thinking": str(text)}:
            turn.add(ThinkingPart(text=text))
        case {"type": "tool_use", "name": str(name)}:
            turn.call(name, block.get("input"), call_id=read_id(block.get("id")))
        case {"type": "tool_result"}:
            content = block.get("content")
            texts = (
                [content] if isinstance(content, str) else [get_text(each, "text") for each in filter_objects(content)]
            )
            turn.answer([TextPart(text=text) for text in texts if text], call_id=read_id(block.get("tool_use_id")))
        case _:
            dropped.append(f"block {block.get('type')}")


def _strip_tags(part: Any) -> Any:
    """The text that the user wrote, without the tags that Cursor puts around it."""
    if not isinstance(part, TextPart):
        return part
    opening, closing = _QUERY_TAGS
    text = part.text.strip()
    if not text.startswith(opening) or not text.endswith(closing):
        return part
    return TextPart(text=text[len(opening) : -len(closing)].strip("\n"))
