"""A conversation as a file: the whole log as JSON Lines, or its messages to read."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from quire.errors import InvalidRequest

if TYPE_CHECKING:
    from quire.engine import Conversation
    from quire.log import Store
    from quire.model import Entry

_SPEAKERS = {"user": "You", "assistant": "Model", "tool": "Tool", "system": "System"}


async def export(store: "Store", conversation: "Conversation", given: str) -> Path:
    """Writes to a path that is free: nothing is overwritten."""
    path = await asyncio.to_thread(Path(given).expanduser)
    if path.suffix.lower() in (".md", ".markdown"):
        text = transcript(conversation.id, await conversation.messages())
    else:
        text = "".join([f"{line.rstrip()}\n" async for line in store.export(conversation.id)])
    await asyncio.to_thread(_write, path, text)
    return path


def transcript(name: str, entries: "list[Entry]") -> str:
    """What was said, archived or not, each message under its number."""
    parts = [f"# {name}\n"]
    for entry in entries:
        message = entry.message
        said = message.text or "\n".join(result.text for result in message.tool_results)
        calls = "".join(f"\n\n`{call.name}({call.arguments})`" for call in message.tool_calls)
        unfinished = " (unfinished)" if entry.notes.unfinished else ""
        parts.append(f"## #{entry.seq} {_SPEAKERS[message.role]}{unfinished}\n\n{said}{calls}\n")
    return "\n".join(parts)


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise InvalidRequest(f"{path} is there already, and stays as it is; choose another name.") from error
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}.") from error
