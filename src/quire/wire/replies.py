"""Rules of a reply as it grows, shared by the agent and the gateway: each translates its own chunks into them."""

from dataclasses import dataclass, field
from typing import NamedTuple

from quire.model import Manifest, Message, Part, ThinkingPart, ToolCallPart, Usage
from quire.model.base import replace_lone_surrogates
from quire.model.json_values import parse_object


class ReplyText(NamedTuple):
    text: str


class ReplyThinking(NamedTuple):
    text: str


class ReplyToolCall(NamedTuple):
    """A piece of the call at `position` in the reply; its first piece has the ID and the name."""

    position: int
    id: str = ""
    name: str = ""
    arguments: str = ""


ReplyDelta = ReplyText | ReplyThinking | ReplyToolCall
"""A piece of a reply that is translated while it arrives."""


@dataclass(slots=True)
class TextPieces:
    """Text that arrives in pieces. Adding one is an append: to join the text for every chunk takes quadratic time."""

    pieces: list[str] = field(default_factory=list[str])

    def add(self, piece: str) -> None:
        self.pieces.append(piece)

    def join(self) -> str:
        """Joins the pieces. A character whose surrogates arrived in two pieces becomes whole."""
        return replace_lone_surrogates("".join(self.pieces))


def drop_incomplete_calls(message: Message) -> Message:
    """Returns what is recorded of an incomplete reply: all of it, except tool calls that may be incomplete.

    A call is complete if it has an id, a name and a JSON object as arguments: no proper prefix of an object is one.
    After thinking, all calls are dropped: the provider's signature comes at the end of the thinking and is missing
    here, and some providers reject a call whose thinking is unsigned. The calls have not run, so nothing is lost.
    """
    has_thinking = any(isinstance(part, ThinkingPart) for part in message.parts)
    parts: tuple[Part, ...] = tuple(
        part
        for part in message.parts
        if not isinstance(part, ToolCallPart) or (not has_thinking and _is_complete_call(part))
    )
    return message if len(parts) == len(message.parts) else message.model_copy(update={"parts": parts})


def _is_complete_call(call: ToolCallPart) -> bool:
    return bool(call.id and call.name) and parse_object(call.arguments) is not None


def estimate_usage(manifest: Manifest, *, model: str, output_tokens: int) -> Usage:
    """Estimates the usage of a reply whose provider reports none: the counted reply, and the counted request, scaled by
    the calibration ratio from the provider's earlier reports."""
    return Usage(
        model=model,
        input_tokens=round(manifest.total_tokens * manifest.ratio),
        output_tokens=output_tokens,
        estimated=True,
    )
