"""Results of tool calls, of any kind of tool: content for the log and the model, or an error text.

Text in a result is valid UTF-8 and bounded; content beyond the limit is truncated with a note of its size.
"""

from collections.abc import Iterable

from quire.model.base import FrozenModel, replace_lone_surrogates
from quire.model.messages import TextPart, ToolResultContent, ToolResultPart

MAX_RESULT_CHARS = 20_000_000
"""Maximum characters of a result. The log stores results untruncated; this limit only bounds memory."""
_MAX_ERROR_CHARS = 2_000
"""Maximum characters of an exception's description."""


class ToolResult(FrozenModel):
    content: tuple[ToolResultContent, ...] = ()
    is_error: bool = False

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    def to_part(self, call_id: str) -> ToolResultPart:
        """Converts to a message part that answers the call with this id."""
        return ToolResultPart(call_id=call_id, content=self.content, is_error=self.is_error)


def make_tool_error(text: str) -> ToolResult:
    """Makes an error result; `text` says what happened and what the model can do next."""
    return ToolResult(content=(TextPart(text=replace_lone_surrogates(text)),), is_error=True)


def describe_exception(error: BaseException) -> str:
    """Describes an exception by type and message. The traceback is of no use to the model."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")[:_MAX_ERROR_CHARS]


def make_tool_result(
    parts: Iterable[ToolResultContent], *, is_error: bool = False, max_chars: int = MAX_RESULT_CHARS
) -> ToolResult:
    """Makes a result of at most `max_chars`: text is truncated, an image or file is included whole or replaced by a
    note."""
    content: list[ToolResultContent] = []
    room_chars = max_chars
    for part in parts:
        size = len(part.text) if isinstance(part, TextPart) else len(part.url or "")
        if size <= room_chars:
            content.append(part)
            room_chars -= size
        elif isinstance(part, TextPart):
            note = f"\n[truncated: this text has {size:,} characters; the limit of a result is {max_chars:,}]"
            content.append(TextPart(text=part.text[:room_chars] + note))
            room_chars = 0
        else:
            note = f"[omitted: {part.type} of {size:,} characters; the limit of a result is {max_chars:,}]"
            content.append(TextPart(text=note))
    return ToolResult(content=tuple(content), is_error=is_error)
