"""Repair of tool calls, which providers check: each call needs exactly one result, and each id is unique.

Histories can be incomplete, because a process died between a call and its result. They are repaired in the view and
never in the log: a missing result gets a stub, and an orphaned result is dropped.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

from quire.model import Message, TextPart, ToolCallPart, ToolResultPart
from quire.model.messages import is_purged_identifier, purge_identifier
from quire.view.batches import MessageBatch
from quire.view.rendered import MessageCounter, RenderedMessage

MISSING_RESULT_TEXT = "[no result was recorded]"


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
    make_key = _select_key(ids, tool_messages)
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
        stubs = tuple(_missing_result(new_id) for new_id in new_ids if new_id in missing)
        matched.append(message_counter.render_message(Message(role="tool", parts=stubs)))
    return matched, orphans


def _select_key(ids: Sequence[str], tool_messages: Sequence[RenderedMessage]) -> Callable[[str], str]:
    """Compares ids as they are; if some are purged, by their purged form, which a message without purge has too."""
    result_ids = (result.call_id for each in tool_messages for result in each.message.tool_results)
    return purge_identifier if any(map(is_purged_identifier, (*ids, *result_ids))) else str


def _missing_result(call_id: str) -> ToolResultPart:
    return ToolResultPart(call_id=call_id, content=(TextPart(text=MISSING_RESULT_TEXT),), is_error=True)


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
        unique.append(_rename_batch_calls(batch, dict(zip(ids, new_ids, strict=True)), message_counter))
    return unique


def _rename_batch_calls(batch: MessageBatch, new_ids: dict[str, str], message_counter: MessageCounter) -> MessageBatch:
    if all(old == new for old, new in new_ids.items()):
        return batch
    call, *tool_messages = batch.messages
    renamed = [_rename_calls(call, list(new_ids.values()), message_counter)]
    for tool_message in tool_messages:
        results = [
            part.model_copy(update={"call_id": new_ids[part.call_id]}) for part in tool_message.message.tool_results
        ]
        renamed.append(_replace_results(tool_message, results, message_counter))
    return MessageBatch.from_messages(*renamed)


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
