"""What a model has said so far: the reply as it grows, and what of it can be kept if it breaks off."""

import json
from dataclasses import dataclass, field
from typing import Literal, assert_never

from quire.agent.outcomes import storable
from quire.llm import Chunk, Reply, TextDelta, ThinkingDelta, ToolCallDelta
from quire.model import Message, Part, TextPart, ThinkingPart, ToolCallPart


@dataclass(slots=True)
class _Saying:
    kind: Literal["text", "thinking"]
    pieces: list[str]

    def part(self) -> Part:
        text = storable("".join(self.pieces))
        return TextPart(text=text) if self.kind == "text" else ThinkingPart(text=text)


@dataclass(slots=True)
class _Calling:
    index: int
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])

    def add(self, delta: ToolCallDelta) -> None:
        self.id = delta.id or self.id
        self.name += delta.name or ""
        self.pieces.append(delta.arguments)

    def part(self) -> ToolCallPart | None:
        """The call, if it is whole: no beginning of a JSON object is itself one."""
        arguments = storable("".join(self.pieces))
        if not self.id or not self.name or not _is_object(arguments):
            return None
        return ToolCallPart(id=storable(self.id), name=storable(self.name), arguments=arguments)


class Heard:
    """Takes in the chunks of one stream."""

    def __init__(self) -> None:
        self.reply: Reply | None = None
        self._said: list[_Saying | _Calling] = []

    def add(self, chunk: Chunk) -> None:
        match chunk:
            case TextDelta(text=text):
                self._say("text", text)
            case ThinkingDelta(text=text):
                self._say("thinking", text)
            case ToolCallDelta():
                self._calling(chunk.index).add(chunk)
            case Reply():
                self.reply = chunk
            case _:
                assert_never(chunk)

    @property
    def silent(self) -> bool:
        """Whether nothing at all has come."""
        return self.reply is None and not self._said

    def unfinished(self) -> Message | None:
        """What had come, without calls that were not whole; None if that is nothing.

        After thinking no call is kept: the provider's seal on the thinking comes at its end and is missing, and some
        refuse a call whose thinking is not sealed. It was not run yet, so nothing is lost.
        """
        thought = any(isinstance(each, _Saying) and each.kind == "thinking" for each in self._said)
        said = [each.part() for each in self._said if not (thought and isinstance(each, _Calling))]
        parts = tuple(part for part in said if part is not None)
        return Message(role="assistant", parts=parts) if parts else None

    def _say(self, kind: Literal["text", "thinking"], text: str) -> None:
        last = self._said[-1] if self._said else None
        if isinstance(last, _Saying) and last.kind == kind:
            last.pieces.append(text)
        else:
            self._said.append(_Saying(kind, [text]))

    def _calling(self, index: int) -> _Calling:
        for each in self._said:
            if isinstance(each, _Calling) and each.index == index:
                return each
        self._said.append(_Calling(index))
        return self._calling(index)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
