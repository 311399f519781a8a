"""A message: a value without identity. Two messages with the same role and parts are the same message."""

from collections.abc import Iterator
from typing import Literal, Self

from quire.model.parts import FilePart, ImagePart, Part, TextPart, ToolCallPart, ToolResultPart
from quire.model.value import Foreign, Value

Role = Literal["system", "user", "assistant", "tool"]

PURGED = "[purged]"


class Message(Value):
    role: Role
    parts: tuple[Part, ...]
    provider: Foreign | None = None
    name: str | None = None
    """Who speaks, where a role has several speakers. OpenAI is told, Anthropic has no place for it."""

    @classmethod
    def user(cls, text: str, *, name: str | None = None) -> Self:
        return cls(role="user", parts=(TextPart(text=text),), name=name)

    @classmethod
    def assistant(cls, text: str, *, name: str | None = None) -> Self:
        return cls(role="assistant", parts=(TextPart(text=text),), name=name)

    @classmethod
    def system(cls, text: str) -> Self:
        return cls(role="system", parts=(TextPart(text=text),))

    @classmethod
    def tool(cls, call_id: str, text: str, *, is_error: bool = False) -> Self:
        content = (TextPart(text=text),)
        return cls(role="tool", parts=(ToolResultPart(call_id=call_id, content=content, is_error=is_error),))

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCallPart))

    @property
    def tool_results(self) -> tuple[ToolResultPart, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolResultPart))

    def blobs(self) -> Iterator[str]:
        """The digests of the blobs that this message quotes."""
        for part in self.parts:
            inner = part.content if isinstance(part, ToolResultPart) else (part,)
            for piece in inner:
                if isinstance(piece, ImagePart | FilePart) and piece.blob is not None:
                    yield piece.blob

    def purged(self) -> "Message":
        """What is left when the content goes: the shape that keeps a request valid, and nothing that was said."""
        return Message(role=self.role, parts=tuple(_purged_part(part) for part in self.parts))


def _purged_part(part: Part) -> Part:
    match part:
        case ToolCallPart(id=id_, name=name):
            return ToolCallPart(id=id_, name=name)
        case ToolResultPart(call_id=call_id, is_error=is_error):
            return ToolResultPart(call_id=call_id, content=(TextPart(text=PURGED),), is_error=is_error)
        case _:
            return TextPart(text=PURGED)
