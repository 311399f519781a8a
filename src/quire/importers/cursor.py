"""Reads transcripts of Cursor's agent: one JSON Lines file for each conversation."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from quire.importers.base import NotStored, SourceConversation, SourceError, SourceMessage, is_before
from quire.importers.message_trees import ToolTurn
from quire.importers.readers import read_json_lines
from quire.importers.source_fields import parse_time, read_id
from quire.log.types import ConversationOrigin
from quire.model import Message, Part, TextPart, ThinkingPart
from quire.model.json_values import filter_objects, get_object, get_text

_TRANSCRIPTS = "agent-transcripts"
_SUBAGENTS = "subagents"
_OPENING_TAG, _CLOSING_TAG = "<user_query>", "</user_query>"
"""Tags that Cursor puts around what the user wrote."""
_TIME_FIELDS = ("timestamp", "timestamp_ms", "createdAt")


class CursorSource:
    name = "cursor"
    title = "Cursor"
    is_experimental = False
    not_stored: tuple[NotStored, ...] = ("sub-agents", "models", "tokens", "cost")

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
        if is_before(changed_at, since):
            return
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
    changed_at = parse_time(path.stat().st_mtime)
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
        at = next((at for field in _TIME_FIELDS if (at := parse_time(raw.get(field)))), None) or changed_at
        for index, message in enumerate(turn.finish()):
            if role == "user" and message.role == "assistant":
                message = Message(role="user", parts=tuple(map(_strip_tags, message.parts)))
            id_ = f"line:{line.number}" if index == 0 else f"line:{line.number}#{index + 1}"
            yield SourceMessage(id_, parent, message, at, dropped=() if index else tuple(dropped))
            parent = id_


def _strip_tags(part: Part) -> Part:
    """The text that the user wrote, without the tags that Cursor puts around it."""
    if not isinstance(part, TextPart):
        return part
    text = part.text.strip()
    if not text.startswith(_OPENING_TAG) or not text.endswith(_CLOSING_TAG):
        return part
    return TextPart(text=text[len(_OPENING_TAG) : -len(_CLOSING_TAG)].strip("\n"))
