"""Accumulator of streamed reply chunks, which can also build the incomplete message of an interrupted reply."""

from dataclasses import dataclass, field
from typing import assert_never

from quire.llm import ModelChunk, Reply, TextDelta, ThinkingDelta, ToolCallDelta
from quire.model import Message, Part, TextPart, ThinkingPart, ToolCallPart
from quire.model.text import replace_lone_surrogates
from quire.view.replies import TextPieces, drop_incomplete_calls


@dataclass(slots=True)
class _TextAccumulator:
    part_class: type[TextPart | ThinkingPart]
    text: TextPieces = field(default_factory=TextPieces)

    def to_part(self) -> Part:
        return self.part_class(text=self.text.join())


@dataclass(slots=True)
class _ToolCallAccumulator:
    id: str = ""
    name: str = ""
    arguments: TextPieces = field(default_factory=TextPieces)

    def add(self, delta: ToolCallDelta) -> None:
        self.id = delta.id or self.id
        self.name += delta.name or ""
        self.arguments.add(delta.arguments)

    def to_part(self) -> Part:
        return ToolCallPart(
            id=replace_lone_surrogates(self.id),
            name=replace_lone_surrogates(self.name),
            arguments=self.arguments.join(),
        )


class ReplyAccumulator:
    """Accumulates the chunks of one stream. `reply` is set once the stream has delivered the complete reply."""

    def __init__(self) -> None:
        self.reply: Reply | None = None
        self._parts: list[_TextAccumulator | _ToolCallAccumulator] = []
        self._calls: dict[int, _ToolCallAccumulator] = {}

    def add(self, chunk: ModelChunk) -> None:
        match chunk:
            case TextDelta(text=text):
                self._add_text(TextPart, text)
            case ThinkingDelta(text=text):
                self._add_text(ThinkingPart, text)
            case ToolCallDelta():
                self._get_tool_call(chunk.index).add(chunk)
            case Reply():
                self.reply = chunk
            case _:
                assert_never(chunk)

    @property
    def is_empty(self) -> bool:
        return self.reply is None and not self._parts

    def build_incomplete_message(self) -> Message | None:
        """Returns what has arrived, without incomplete tool calls; None if that is nothing."""
        parts = tuple(each.to_part() for each in self._parts)
        message = drop_incomplete_calls(Message(role="assistant", parts=parts))
        return message if message.parts else None

    def _add_text(self, part_class: type[TextPart | ThinkingPart], text: str) -> None:
        last = self._parts[-1] if self._parts else None
        if not isinstance(last, _TextAccumulator) or last.part_class is not part_class:
            last = _TextAccumulator(part_class)
            self._parts.append(last)
        last.text.add(text)

    def _get_tool_call(self, index: int) -> _ToolCallAccumulator:
        if index not in self._calls:
            self._calls[index] = _ToolCallAccumulator()
            self._parts.append(self._calls[index])
        return self._calls[index]
