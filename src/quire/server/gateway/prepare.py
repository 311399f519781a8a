"""Prepare a matched request: the body to forward, and the manifest that records how it was made.

A request that fits is passed through byte for byte. One that does not is fitted: Quire replaces its messages with
those that fit the window; all other fields stay unchanged.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Literal

from quire.engine import Conversation
from quire.engine.request import Request
from quire.errors import ContextOverflow, ConversationExists, InvalidRequest, StaleHead
from quire.log import ConversationRecord
from quire.log.costs import SpendingKey
from quire.log.ids import new_id, now
from quire.log.worker_threads import run_sized
from quire.model import Entry, ForwardedRequest, Message
from quire.server.gateway.chat_request import ChatRequest, encode_body, extend_path, normalize_message
from quire.server.gateway.engine_variants import EngineVariant
from quire.server.gateway.passthrough import MatchedRequest, build_passthrough_request
from quire.server.gateway.recognition import HistoryMatch

APPEND_BATCH_MESSAGES = 500
"""Messages that are appended in one transaction; each one takes time on the event loop."""

ForwardedForm = Literal["unchanged", "model_renamed", "fitted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """The body to forward, and the conversation that its reply is recorded in."""

    content: bytes
    request: Request
    matched: MatchedRequest
    conversation: Conversation

    @property
    def match(self) -> HistoryMatch:
        return self.matched.match

    @property
    def is_fitted(self) -> bool:
        forwarded = self.request.assembly.forwarded
        return forwarded is not None and forwarded.form == "fitted"

    def compute_client_path(self, reply: Message) -> bytes | None:
        """Computes the client's path after the reply; None if the client does not send the whole conversation."""
        if self.match.client_path is None:
            return None
        return extend_path(self.matched.extend_client_path(self.match.client_path), [normalize_message(reply)])

    def build_next_match(self, reply: Entry, client_path: bytes | None) -> HistoryMatch:
        """Builds the match for the client's next request, which continues after this reply."""
        forwarded = self.request.assembly.forwarded
        list_tokens = forwarded.client_list_tokens if forwarded is not None else None
        return HistoryMatch(
            conversation=reply.conversation,
            branch=reply.branch,
            head_seq=reply.seq,
            head_path=reply.path,
            stored_end=len(self.matched.chat_request.messages) + 1,
            entry_range=(1, reply.seq),
            client_path=client_path,
            recorded_tokens=(list_tokens + (reply.tokens or 0), self.matched.message_counter.name)
            if list_tokens is not None
            else None,
        )


async def prepare_request(
    chat_request: ChatRequest,
    match: HistoryMatch,
    variant: EngineVariant,
    *,
    upstream_model: str | None,
    spending_key: SpendingKey | None,
    force_fit: bool = False,
) -> PreparedRequest:
    """Prepares a request, passed through if it fits, else fitted. Its call is charged to `spending_key`.

    `upstream_model` is the upstream's own name for the model, if it differs. `force_fit` rules out a pass-through
    where fitting is possible.
    """
    envelope = await variant.load_envelope(chat_request)
    engine = variant.engine.with_changes(agent=envelope.agent, spending_key=spending_key)
    await engine.check_spend_cap(match.conversation)
    calibration = await engine.load_calibration(engine.policy.model)
    matched = MatchedRequest(
        chat_request=chat_request, match=match, variant=variant, envelope=envelope, calibration=calibration
    )
    await run_sized(len(chat_request.raw), matched.count_tokens)
    conversation = Conversation(engine, match.conversation, match.branch)
    request_id = new_id()
    if force_fit or not matched.fits:
        fitted = await _fit_request(matched, conversation, id=request_id, upstream_model=upstream_model)
        if fitted is not None:
            return fitted
    content = chat_request.raw
    if upstream_model:
        content = await run_sized(len(content), encode_body, {**chat_request.body, "model": upstream_model})
    form: ForwardedForm = "model_renamed" if upstream_model else "unchanged"
    forwarded = await run_sized(len(content), _build_forwarded, form, content, matched)
    request = await build_passthrough_request(matched, engine.store, id=request_id, forwarded=forwarded)
    return PreparedRequest(
        content=content, request=_add_new_conversation(request, match), matched=matched, conversation=conversation
    )


def _build_forwarded(form: ForwardedForm, content: bytes, matched: MatchedRequest) -> ForwardedRequest:
    list_tokens = matched.stored_tokens + matched.new_tokens if matched.match.client_path is not None else None
    return ForwardedRequest(
        form=form,
        digest=sha256(content).hexdigest(),
        replayable=matched.envelope.replayable,
        client_list_tokens=list_tokens,
    )


def _add_new_conversation(request: Request, match: HistoryMatch) -> Request:
    if not match.creates_conversation:
        return request
    created_at = now()
    record = ConversationRecord(match.conversation, "", created_at, created_at)
    return replace(request, creates_conversation=record)


async def _fit_request(
    matched: MatchedRequest, conversation: Conversation, *, id: str, upstream_model: str | None
) -> PreparedRequest | None:
    """Replaces the messages with those that fit; None if no valid request results or context management is off."""
    if not conversation.engine.policy.context_management_enabled:
        return None
    _check_envelope(matched)
    matched = await _store_new_messages(matched, conversation)
    question = matched.new_messages[0].message if matched.new_messages else None
    try:
        request = await conversation.prepare(question)
    except InvalidRequest:
        return None
    if request.after != matched.match.head_path:
        raise StaleHead
    size = len(matched.chat_request.raw)
    content = await run_sized(size, _encode_fitted, matched.chat_request, request, upstream_model)
    forwarded = await run_sized(size, _build_forwarded, "fitted", content, matched)
    assembly = replace(request.assembly, forwarded=forwarded)
    request = replace(request, id=id, strict_head=True, assembly=assembly)
    return PreparedRequest(content=content, request=request, matched=matched, conversation=conversation)


def _check_envelope(matched: MatchedRequest) -> None:
    """Raises `ContextOverflow` if instructions and tools, which are never shortened, fill the window."""
    envelope, room = matched.envelope, matched.budget.max_input_tokens
    if envelope.tokens >= room:
        largest = sorted(envelope.decisions, key=lambda decision: -decision.tokens)[:5]
        largest_items = [(f"{decision.kind} {decision.name!r}", decision.tokens) for decision in largest]
        raise ContextOverflow(
            needed_tokens=envelope.tokens + matched.new_tokens, available_tokens=room, largest_items=largest_items
        )


async def _store_new_messages(matched: MatchedRequest, conversation: Conversation) -> MatchedRequest:
    """Creates the conversation and appends the new messages, except a single question.

    A question is recorded with its reply. A tool result belongs to the call before it and must be in the log first.
    """
    match, new = matched.match, matched.new_messages
    if match.creates_conversation:
        with suppress(ConversationExists):
            await conversation.engine.store.create_conversation(match.conversation)
        match = replace(match, creates_conversation=False)
    is_single_question = len(new) == 1 and new[0].role == "user"
    if new and not is_single_question:
        stored = await _append_batches(conversation, [each.message for each in new], after=match.head_path)
        client_path = match.client_path
        if client_path is not None:
            client_path = await run_sized(len(matched.chat_request.raw), matched.extend_client_path, client_path)
        match = replace(
            match,
            head_seq=stored[-1].seq,
            head_path=stored[-1].path,
            stored_end=match.stored_end + len(new),
            entry_range=(1 if match.entry_range is None else match.entry_range[0], stored[-1].seq),
            client_path=client_path,
            recorded_tokens=(matched.stored_tokens + matched.new_tokens, matched.message_counter.name),
        )
    return replace(matched, match=match)


async def _append_batches(conversation: Conversation, messages: Sequence[Message], *, after: bytes) -> list[Entry]:
    """Appends messages in batches, and returns the entries of the last; an interrupted append continues at a retry."""
    stored: list[Entry] = []
    for start in range(0, len(messages), APPEND_BATCH_MESSAGES):
        batch = messages[start : start + APPEND_BATCH_MESSAGES]
        stored = await conversation.append(*batch, after=stored[-1].path if stored else after)
    return stored


def _encode_fitted(chat_request: ChatRequest, request: Request, upstream_model: str | None) -> bytes:
    messages = [*chat_request.system_messages, *_to_openai_messages(request)]
    return chat_request.encode_with_messages(messages, model=upstream_model)


def _to_openai_messages(request: Request) -> list[dict[str, Any]]:
    """Returns the messages without the instructions, which the client's own system messages replace."""
    messages = request.to_openai()["messages"]
    return messages[1:] if request.assembly.rendered.system is not None else messages
