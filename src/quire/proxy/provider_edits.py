"""What a provider left out of a request on its side: results and thinking that it cleared, messages that its compaction
replaced.

The reply reports how much was cleared, not what. Anthropic documents the order: tool results from the oldest on, except
results of `exclude_tools`; thinking from the oldest turn on. A compaction replaces all messages before its block. So
the messages can be named, and only the text in their place on the provider's side is unknown.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire.model import Decision, Message, Span, ThinkingPart, ToolCallPart, ToolResultPart, Usage
from quire.model.json_values import filter_objects, get_object, get_text
from quire.model.manifest import DecisionReason, ForwardedRequest, ProviderEdit
from quire.proxy.prepare import PreparedRequest
from quire.wire import Reply
from quire.wire.codec import get_token_limit
from quire.wire.codecs import MESSAGES
from quire.wire.compaction_blocks import find_compaction_block

MAX_PROVIDER_EDITS = 20
"""Edits of one reply that a manifest lists."""


def read_applied_edits(usage: Usage | None) -> tuple[ProviderEdit, ...]:
    """The edits that a reply reports. An edit that cleared nothing is left out."""
    response = get_object(usage.provider_fields or {}, "response") if usage is not None else {}
    edits = (
        ProviderEdit(
            type=(get_text(each, "type") or "unknown")[:100],
            cleared_tool_uses=get_token_limit(each, "cleared_tool_uses") or None,
            cleared_thinking_turns=get_token_limit(each, "cleared_thinking_turns") or None,
            cleared_input_tokens=get_token_limit(each, "cleared_input_tokens") or None,
        )
        for each in filter_objects(get_object(response, "context_management").get("applied_edits"))
    )
    applied = [
        each for each in edits if each.cleared_tool_uses or each.cleared_thinking_turns or each.cleared_input_tokens
    ]
    return tuple(applied[:MAX_PROVIDER_EDITS])


async def find_provider_changes(
    prepared: PreparedRequest, reply: Reply
) -> tuple[ForwardedRequest, tuple[Decision, ...]] | None:
    """The record of a request whose reply says that the provider changed it, and the decisions on what it left out, or
    None if it changed nothing."""
    forwarded = prepared.request.assembly.forwarded
    if forwarded is None or not prepared.recognized.is_native:
        return None
    edits = read_applied_edits(reply.usage)
    decisions: tuple[Decision, ...] = ()
    if not prepared.is_fitted:
        sent = prepared.client_request.messages
        compacted = len(sent) if find_compaction_block(reply.message) else 0
        if prepared.client_request.codec is MESSAGES and not compacted:
            # The model reads nothing before a block. Before an item of Responses, it reads the user's messages.
            compacted = max((index for index, each in enumerate(sent) if each.has_compaction), default=0)
        if edits or compacted:
            seqs = await _list_seqs(prepared)
            messages = [each.message for each in sent]
            left_out = list(_list_left_out(messages, edits, prepared.client_request.body))
            decisions = (
                *_to_decisions([(index, None) for index in range(compacted)], seqs, "compacted_by_provider"),
                *_to_decisions([each for each in left_out if each[0] >= compacted], seqs, "cleared_by_provider"),
            )
    if not edits and not decisions:
        return None
    return forwarded.model_copy(update={"provider_edits": edits, "replayable": False}), decisions


def _list_left_out(
    messages: Sequence[Message], edits: Sequence[ProviderEdit], body: Mapping[str, Any]
) -> Iterator[tuple[int, str | None]]:
    """Indexes of the messages of which something was cleared, and what, if it was not all of it. A tool result is a
    separate message."""
    requested = filter_objects(get_object(body, "context_management").get("edits"))
    excluded = {str(name) for each in requested for name in each.get("exclude_tools") or ()}
    names = {part.id: part.name for each in messages for part in each.parts if isinstance(part, ToolCallPart)}
    results = sum(edit.cleared_tool_uses or 0 for edit in edits)
    turns = sum(edit.cleared_thinking_turns or 0 for edit in edits)
    is_new_turn = True
    for index, message in enumerate(messages):
        calls = [part.call_id for part in message.parts if isinstance(part, ToolResultPart)]
        if results > 0 and any(names.get(call) not in excluded for call in calls):
            results -= len(calls)
            yield index, None
        is_new_turn = is_new_turn or message.role == "user"
        if any(isinstance(part, ThinkingPart) for part in message.parts):
            turns, is_new_turn = turns - is_new_turn, False
            if turns >= 0:
                yield index, "thinking"


async def _list_seqs(prepared: PreparedRequest) -> list[int | None]:
    """The number in the log of each message of the client's list, or None for those that are not recorded."""
    match = prepared.match
    seqs: list[int | None] = [None] * match.stored_start
    count = match.stored_end - match.stored_start
    if match.entry_range is not None and count:
        first, last = match.entry_range
        if last - first + 1 == count:
            seqs += range(first, last + 1)
        else:
            entries = match.entries or await prepared.recorder.engine.store.read_range(
                match.conversation, branch=match.branch, first=first, last=last, kinds=["message"]
            )
            seqs += ([None] * count + [entry.seq for entry in entries])[-count:]
    new, head = len(prepared.client_request.messages) - match.stored_end, match.head_seq
    if not match.creates_conversation:
        # A compaction may follow the last message.
        branch = await prepared.recorder.engine.store.get_branch(match.conversation, match.branch)
        head = branch.head_seq if branch.head_path == match.head_path else head
    return [*seqs, *range(head + 1, head + 1 + new)]


def _to_decisions(
    left_out: Sequence[tuple[int, str | None]], seqs: Sequence[int | None], reason: DecisionReason
) -> Iterator[Decision]:
    """One decision for each run of messages."""
    run: tuple[int, int, str | None] | None = None
    for index, name in (*left_out, (len(seqs), None)):
        seq = seqs[index] if index < len(seqs) else None
        if run is not None and seq is not None and (seq, name) == (run[1] + 1, run[2]):
            run = (run[0], seq, name)
            continue
        if run is not None:
            span = Span(first=run[0], last=run[1])
            yield Decision(slot="messages", kind="message", included=False, reason=reason, span=span, name=run[2])
        run = (seq, seq, name) if seq is not None else None
