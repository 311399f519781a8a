"""Message batches, the units that a history is cut into. A tool call and all its results form one batch."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple, cast

from quire.model import Message
from quire.view.rendered import RenderedMessage

_EMPTY_QUESTION = Message.user("")


class MessageBatch(NamedTuple):
    messages: tuple[RenderedMessage, ...]
    tokens: int

    @classmethod
    def from_messages(cls, *messages: RenderedMessage) -> "MessageBatch":
        return cls(messages, sum(rendered.tokens for rendered in messages))

    @property
    def seqs(self) -> list[int]:
        """Sequence numbers of its stored messages."""
        return [rendered.seq for rendered in self.messages if rendered.seq is not None]

    @property
    def is_empty_question(self) -> bool:
        """Whether it is only a placeholder, for a request that is measured before the user writes."""
        first = self.messages[0]
        return first.seq is None and first.role == "user" and first.message == _EMPTY_QUESTION

    @property
    def starts_with_user(self) -> bool:
        return self.messages[0].role == "user"


def group_batches(messages: Sequence[RenderedMessage]) -> tuple[MessageBatch, ...]:
    """Groups messages whose tool calls are repaired: a tool result belongs to the call before it."""
    if "tool" not in {rendered.role for rendered in messages}:
        # Fast path in C: runs for every request, and most histories have no tool calls.
        return tuple(map(_to_batch, zip(zip(messages, strict=True), map(_get_tokens, messages), strict=True)))
    starts = [index for index, rendered in enumerate(messages) if rendered.role != "tool"]
    return tuple(MessageBatch.from_messages(*messages[start:end]) for start, end in pairwise([*starts, len(messages)]))


def find_newest_turn(batches: Sequence[MessageBatch]) -> int:
    """Index of the batch where the newest turn begins: the last user message. The tool loop after it belongs to it."""
    return next((index for index in range(len(batches) - 1, -1, -1) if batches[index].starts_with_user), 0)


def sum_tokens(batches: Iterable[MessageBatch]) -> int:
    return sum(map(_get_tokens, batches))


def count_messages(batches: Iterable[MessageBatch]) -> int:
    return sum(map(len, map(_get_messages, batches)))


# In C, because every request groups and adds up its whole history.
_get_tokens: Callable[[RenderedMessage | MessageBatch], int] = attrgetter("tokens")
_get_messages: Callable[[MessageBatch], tuple[RenderedMessage, ...]] = attrgetter("messages")
_to_batch: Callable[[tuple[tuple[RenderedMessage], int]], MessageBatch] = partial(
    cast(Any, tuple).__new__, MessageBatch
)


def list_seqs(batches: Iterable[MessageBatch]) -> tuple[int, ...]:
    """Sequence numbers of all stored messages, in ascending order."""
    return tuple(sorted(seq for batch in batches for seq in batch.seqs))


def flatten_batches(batches: Iterable[MessageBatch]) -> list[RenderedMessage]:
    return [rendered for batch in batches for rendered in batch.messages]
