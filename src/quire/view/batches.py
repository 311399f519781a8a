"""Message batches, the units that a history is cut into. A tool call and all its results form one batch.

Providers check tool calls: each call needs exactly one result, and each id is unique. Histories can be incomplete,
because a process died between a call and its result. They are repaired in the view and never in the log: a missing
result gets a stub, and an orphaned result is dropped.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise, takewhile
from operator import attrgetter
from typing import Any, NamedTuple, cast

from quire.model import Message, TextPart, ToolCallPart, ToolResultPart
from quire.model.messages import is_purged_identifier, purge_identifier
from quire.view.rendered import MessageCounter, RenderedMessage

MISSING_RESULT_TEXT = "[no result was recorded]"
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
    """Groups messages whose tool calls are repaired: a tool result belongs to the call before it.

    So does a system message after the results, such as the reminder of an agent.
    """
    if "tool" not in {rendered.role for rendered in messages}:
        # Fast path in C: runs for every request, and most histories have no tool calls.
        return tuple(map(_to_batch, zip(zip(messages, strict=True), map(_get_tokens, messages), strict=True)))
    starts: list[int] = []
    follows_results = False
    for index, rendered in enumerate(messages):
        follows_results = rendered.role == "tool" or (follows_results and rendered.role == "system")
        if not follows_results:
            starts.append(index)
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


class RepairedMessages(NamedTuple):
    messages: Sequence[RenderedMessage]
    """Each message with tool calls is followed by their results."""
    orphan_results: tuple[RenderedMessage, ...]
    """Tool results without their call, which no provider accepts."""


def repair_tool_calls(messages: Sequence[RenderedMessage], message_counter: MessageCounter) -> RepairedMessages:
    if not any(rendered.call_ids or rendered.role == "tool" for rendered in messages):
        # Fast path: runs for every request, and most histories have no tool calls.
        return RepairedMessages(messages, ())
    repaired: list[RenderedMessage] = []
    orphans: list[RenderedMessage] = []
    index = 0
    while index < len(messages):
        rendered = messages[index]
        index += 1
        if rendered.role == "tool":
            orphans.append(rendered)
        elif not rendered.call_ids:
            repaired.append(rendered)
        else:
            tool_messages = list(takewhile(lambda each: each.role == "tool", messages[index:]))
            index += len(tool_messages)
            matched, unmatched = _match_results(rendered, tool_messages, message_counter)
            repaired.extend(matched)
            orphans.extend(unmatched)
    return RepairedMessages(repaired, tuple(orphans))


def _match_results(
    call: RenderedMessage, tool_messages: Sequence[RenderedMessage], message_counter: MessageCounter
) -> tuple[list[RenderedMessage], list[RenderedMessage]]:
    """Returns the call with one result for each of its ids, and the tool messages that match none."""
    ids = list(call.call_ids)
    new_ids = _unique_ids(ids, taken=set())
    # Ids are compared as they are; if some are purged, by their purged form, which a message without purge has too.
    result_ids = (result.call_id for each in tool_messages for result in each.message.tool_results)
    make_key = purge_identifier if any(map(is_purged_identifier, (*ids, *result_ids))) else str
    unanswered: defaultdict[str, deque[str]] = defaultdict(deque)
    for id_, new_id in zip(ids, new_ids, strict=True):
        unanswered[make_key(id_)].append(new_id)
    matched = [_rename_calls(call, new_ids, message_counter)]
    orphans: list[RenderedMessage] = []
    for tool_message in tool_messages:
        results = [
            result.model_copy(update={"call_id": waiting.popleft()})
            for result in tool_message.message.tool_results
            if (waiting := unanswered.get(make_key(result.call_id)))
        ]
        if results:
            matched.append(_replace_results(tool_message, results, message_counter))
        else:
            orphans.append(tool_message)
    missing = {new_id for waiting in unanswered.values() for new_id in waiting}
    if missing:
        text = TextPart(text=MISSING_RESULT_TEXT)
        stubs = tuple(
            ToolResultPart(call_id=new_id, content=(text,), is_error=True) for new_id in new_ids if new_id in missing
        )
        matched.append(message_counter.render_message(Message(role="tool", parts=stubs)))
    return matched, orphans


def narrow_batch(batch: MessageBatch, max_results: int, message_counter: MessageCounter) -> MessageBatch:
    """The batch with its first results only, and without the calls of the others. A note says what was left out."""
    call, *tool_messages = batch.messages
    if len(call.call_ids) <= max_results:
        return batch
    included: list[RenderedMessage] = []
    ids: set[str] = set()
    for tool_message in tool_messages:
        results = tool_message.message.tool_results[: max_results - len(ids)]
        if tool_message.role == "system":
            included.append(tool_message)
        elif results:
            ids.update(result.call_id for result in results)
            included.append(_replace_results(tool_message, results, message_counter))
    reference = f"; read #{call.seq}" if call.seq is not None else ""
    omitted = len(call.call_ids) - len(ids)
    note = f"[… {omitted} of {len(call.call_ids)} tool calls and their results left out{reference} …]"
    parts = [part for part in call.message.parts if not isinstance(part, ToolCallPart) or part.id in ids]
    # After thinking, which comes first, and before the calls, which come last.
    place = next(index for index, part in enumerate(parts) if isinstance(part, ToolCallPart))
    parts.insert(place, TextPart(text=note))
    narrowed = Message(role=call.role, parts=tuple(parts), name=call.message.name)
    return MessageBatch.from_messages(message_counter.render_message(narrowed, seq=call.seq), *included)


def deduplicate_call_ids(batches: Sequence[MessageBatch], message_counter: MessageCounter) -> Sequence[MessageBatch]:
    """Makes call ids unique over the whole request: providers demand it, and models repeat them."""
    if not any(batch.messages[0].call_ids for batch in batches):
        return batches
    taken: set[str] = set()
    unique: list[MessageBatch] = []
    for batch in batches:
        ids = batch.messages[0].call_ids
        new_ids = _unique_ids(ids, taken=taken)
        taken.update(new_ids)
        if list(ids) == new_ids:
            unique.append(batch)
            continue
        call, *tool_messages = batch.messages
        renamed = [_rename_calls(call, new_ids, message_counter)]
        by_old_id = dict(zip(ids, new_ids, strict=True))
        for tool_message in tool_messages:
            results = [
                part.model_copy(update={"call_id": by_old_id[part.call_id]})
                for part in tool_message.message.tool_results
            ]
            renamed.append(_replace_results(tool_message, results, message_counter) if results else tool_message)
        unique.append(MessageBatch.from_messages(*renamed))
    return unique


def _unique_ids(ids: Sequence[str], *, taken: set[str]) -> list[str]:
    new_ids: list[str] = []
    for id_ in ids:
        name, number = id_, 1
        while name in taken or name in new_ids:
            number += 1
            name = f"{id_}-{number}"
        new_ids.append(name)
    return new_ids


def _rename_calls(call: RenderedMessage, ids: Sequence[str], message_counter: MessageCounter) -> RenderedMessage:
    if tuple(ids) == call.call_ids:
        return call
    new_ids = iter(ids)
    parts = tuple(
        part.model_copy(update={"id": next(new_ids)}) if isinstance(part, ToolCallPart) else part
        for part in call.message.parts
    )
    return message_counter.render_message(call.message.model_copy(update={"parts": parts}), seq=call.seq)


def _replace_results(
    tool_message: RenderedMessage, results: Sequence[ToolResultPart], message_counter: MessageCounter
) -> RenderedMessage:
    if tuple(results) == tool_message.message.parts:
        return tool_message
    message = tool_message.message.model_copy(update={"parts": tuple(results)})
    return message_counter.render_message(message, seq=tool_message.seq)
