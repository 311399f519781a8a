"""Pieces of a reply that is translated while it arrives."""

from typing import NamedTuple


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
