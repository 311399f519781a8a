"""What a call of a tool came to, whichever kind of tool it was: content for log and model, or an error in words.

The text in it can be stored and sent as it is, and is bounded: what exceeds the limit is cut with its size said.
"""

import re
from collections.abc import Iterable

from quire.model.parts import FilePart, ImagePart, ResultPart, TextPart, ToolResultPart
from quire.model.value import Value

LARGEST_RESULT = 20_000_000
"""Characters of a result that are kept. The log keeps whole what a tool gives; this only bounds the memory it takes."""

_SURROGATES = re.compile("[\ud800-\udfff]")


class Outcome(Value):
    content: tuple[ResultPart, ...] = ()
    is_error: bool = False

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    def part(self, call_id: str) -> ToolResultPart:
        """The result of the call with this id, as the log keeps it."""
        return ToolResultPart(call_id=call_id, content=self.content, is_error=self.is_error)


def failure(text: str) -> Outcome:
    """An error for the model to read: what happened, and what it can do next."""
    return Outcome(content=(TextPart(text=storable(text)),), is_error=True)


def outcome(parts: Iterable[ResultPart], *, is_error: bool = False, largest: int = LARGEST_RESULT) -> Outcome:
    """The parts as far as `largest` reaches; a text is cut, a picture or file is kept whole or not at all."""
    kept: list[ResultPart] = []
    room = largest
    for part in parts:
        kept.append(_fitting(part, room=room, largest=largest))
        if kept[-1] is part:
            room -= _size(part)
        elif isinstance(part, TextPart):
            room = 0
    return Outcome(content=tuple(kept), is_error=is_error)


def storable(text: str) -> str:
    """The text with U+FFFD for halves of characters, as a text has that was cut within one: JSON refuses those."""
    if _SURROGATES.search(text) is None:
        return text
    # By way of UTF-16, in which two halves that belong together are one character again.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _fitting(part: ResultPart, *, room: int, largest: int) -> ResultPart:
    size = _size(part)
    if size <= room:
        return part
    if isinstance(part, TextPart):
        said = f"\n[cut: this text had {size:,} characters, and a result may have {largest:,}]"
        return TextPart(text=part.text[:room] + said)
    return TextPart(text=f"[left out: a {part.type} of {size:,} characters; a result may have {largest:,}]")


def _size(part: ResultPart) -> int:
    match part:
        case TextPart():
            return len(part.text)
        case ImagePart() | FilePart():
            return len(part.url or "")
