"""Removes from messages what coding agents add to them, and marks it; `quire.rows.boilerplate` recognizes it."""

from quire.model import Message, TextPart, ToolResultPart
from quire.model.messages import Part
from quire.rows.boilerplate import AGENTS, META_FIELDS, is_client_text, strip_text


def mark_boilerplate(message: Message) -> Message:
    """The message of a user with all of its texts marked as written by Claude Code, as its transcript says."""
    if message.role != "user":
        return message
    parts = (
        part.model_copy(update={"provider_fields": {**(part.provider_fields or {}), **META_FIELDS}})
        if isinstance(part, TextPart)
        else part
        for part in message.parts
    )
    return message.model_copy(update={"parts": tuple(parts)})


def remove_boilerplate(message: Message, *, agent: str | None = None) -> Message:
    """The message without what an agent added to it; without parts if that is all.

    Words in the blocks that it removes follow the message's own: a file that the user named, arguments of a command.
    `agent` is the client of the conversation, if known: every system message of a coding agent is its own.
    """
    if message.role == "assistant":
        return message
    if message.role == "system" and agent in AGENTS:
        return message.model_copy(update={"parts": ()})
    own: list[Part] = []
    quoted: list[str] = []

    def strip(part: TextPart, role: str) -> TextPart:
        text = strip_text(part.text, role, quoted)
        return part if text == part.text else TextPart(text=text)

    for part in message.parts:
        if isinstance(part, ToolResultPart):
            content = (strip(each, "tool") if isinstance(each, TextPart) else each for each in part.content)
            own.append(part.model_copy(update={"content": tuple(content)}))
        elif isinstance(part, TextPart) and not is_client_text(part.provider_fields):
            own.append(strip(part, message.role))
        elif not isinstance(part, TextPart):
            own.append(part)
    own = [part for part in own if not isinstance(part, TextPart) or part.text]
    parts = (*own, *(TextPart(text=text) for text in quoted if text))
    return message if parts == message.parts else message.model_copy(update={"parts": parts})
