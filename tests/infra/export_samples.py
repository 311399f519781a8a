"""Exports of other programs in their documented shape, and what a source reads of a file."""

import base64
import json
import sqlite3
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from quire.sources.base import Source, SourceConversation, SourceError, SourceMessage

DATA = Path(__file__).parents[1] / "importers/data"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class ReadConversation(NamedTuple):
    conversation: SourceConversation
    messages: list[SourceMessage]

    def outline(self) -> list[tuple[str, str | None, str, str]]:
        """Id, parent, role and text of each message."""
        return [(each.id, each.parent, each.message.role, describe(each)) for each in self.messages]


class ReadItems(NamedTuple):
    conversations: list[ReadConversation]
    errors: list[SourceError]

    @property
    def only(self) -> ReadConversation:
        (conversation,) = self.conversations
        return conversation


def read_source(source: Source, path: Path, *, since: int | None = None) -> ReadItems:
    """Everything that the source reads at this path, as a writer would consume it."""
    conversations: list[ReadConversation] = []
    errors: list[SourceError] = []
    for file in source.find_files(path):
        for item in source.read(file, since=since):
            if isinstance(item, SourceError):
                errors.append(item)
                continue
            read = list(item.messages)
            errors += [each for each in read if isinstance(each, SourceError)]
            conversations.append(ReadConversation(item, [each for each in read if isinstance(each, SourceMessage)]))
    return ReadItems(conversations, errors)


def describe(message: SourceMessage) -> str:
    """The parts of a message as one line: `text`, `<thinking>`, `name(arguments)`, `-> result`, `[image]`."""
    return " | ".join(map(_describe_part, message.message.parts))


def _describe_part(part: Any) -> str:
    match part.type:
        case "text":
            return part.text
        case "thinking":
            return f"<{part.text}>"
        case "tool_call":
            return f"{part.name}({part.arguments})"
        case "tool_result":
            return f"-> {' | '.join(map(_describe_part, part.content))}"
        case kind:
            return f"[{kind}]"


def write_zip(path: Path, files: dict[str, bytes | str | list[Any]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, json.dumps(content) if isinstance(content, list) else content)
    return path


def write_json(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


def load_llm_log(name: str, path: Path) -> Path:
    """A log database of simonw/llm from its dump."""
    connection = sqlite3.connect(path)
    connection.executescript((DATA / name).read_text())
    connection.close()
    return path


def make_chatgpt_message(role: str, *parts: Any, **fields: Any) -> dict[str, Any]:
    content = fields.pop("content", {"content_type": "text", "parts": list(parts)})
    author = {"role": role, **fields.pop("author", {})}
    return {"author": author, "create_time": 1_700_000_000.5, "content": content, "metadata": {}, **fields}


def make_chatgpt_conversation(id_: str, nodes: dict[str, tuple[str | None, Any]], **fields: Any) -> dict[str, Any]:
    """A conversation of nodes: id to parent and message."""
    mapping: dict[str, Any] = {
        key: {"id": key, "parent": parent, "children": [], "message": message}
        for key, (parent, message) in nodes.items()
    }
    for key, (parent, _) in nodes.items():
        if parent in mapping:
            mapping[parent]["children"].append(key)
    return {
        "conversation_id": id_,
        "title": f"Title of {id_}",
        "create_time": 1_700_000_000.123456,
        "update_time": 1_700_000_100.0,
        "current_node": list(nodes)[-1] if nodes else None,
        "mapping": mapping,
        **fields,
    }
