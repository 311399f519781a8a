"""Records a relayed reply with its question and manifest, atomically.

If the branch head has moved meanwhile, the turn is recorded on a fork. If the store is briefly unavailable, recording
is retried with backoff. If the log lacks what the turn follows, the database was set back, and the client must retry.
Recording is idempotent: the same turn after the same message is stored once.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple

from quire.concurrency.worker_threads import run_sized
from quire.engine import Conversation
from quire.engine.recorder import Recorder
from quire.engine.request import Request
from quire.engine.state import EngineState
from quire.errors import (
    BranchNotFound,
    ConversationNotFound,
    EntryNotFound,
    QuireError,
    StaleHead,
    StoreBusy,
    StoreRolledBack,
    StoreUnavailable,
)
from quire.model import CHAIN_ROOT, Compaction, Entry, Message, Span, Usage, next_path
from quire.model.base import JsonObject
from quire.proxy.prepare import PreparedRequest
from quire.proxy.provider_edits import find_provider_changes
from quire.wire import Reply
from quire.wire.client_messages import normalize_message
from quire.wire.compaction_blocks import find_compaction_block, is_compaction_trigger
from quire.wire.replies import drop_incomplete_calls, estimate_usage

_log = logging.getLogger(__name__)

STORE_RETRY_DELAYS_SECONDS = (0.1, 0.5, 2.0)
"""Backoff: seconds before each retry of a store that is unavailable or busy."""
MAX_STORE_RETRY_SECONDS = 3.0
"""Time after which no retry starts: one attempt may wait several seconds for a lock, and the client waits for it."""
MISSING_FROM_LOG = (ConversationNotFound, BranchNotFound, EntryNotFound)
"""Errors of a log that lacks what this process read or wrote there."""
CLIENT_RESPONSE_FIELD = "client_response"
"""Provider field of a reply's usage with the fields of a translated response; `response` has the upstream's fields."""


class RecordedReply(NamedTuple):
    """A reply and its entry in the log."""

    entry: Entry
    reply: Reply
    stored: Sequence[Entry]
    """The new messages of the request and the reply."""
    client_path: bytes | None
    """The client's path after the reply, or None if the client does not send the whole conversation."""


async def record_reply(
    prepared: PreparedRequest,
    replies: Sequence[Reply],
    *,
    size: int,
    incomplete: bool = False,
    response_id: str | None = None,
    response_fields: JsonObject | None = None,
) -> RecordedReply | None:
    """Records the first reply, and each further choice on a fork; None if all replies are empty.

    `size` is the number of bytes of all replies; later requests may refer to the first one by `response_id`, and a read
    of it repeats `response_fields`.
    """
    replies = await run_sized(size, _complete_replies, prepared, replies, incomplete=incomplete)
    if not replies:
        return None
    first, *others = replies
    is_stored = prepared.client_request.is_stored
    if is_stored and response_fields:
        usage = first.usage or Usage()
        provider_fields = {**(usage.provider_fields or {}), CLIENT_RESPONSE_FIELD: response_fields}
        first = first._replace(usage=usage.model_copy(update={"provider_fields": provider_fields}))
    size += prepared.client_request.work_bytes
    client_path, log_path = await run_sized(size, _compute_paths, prepared, first.message)
    request = prepared.request
    if (changes := await find_provider_changes(prepared, first)) is not None:
        forwarded, decisions = changes
        request = replace(
            request, assembly=request.assembly.with_record(forwarded=forwarded, provider_decisions=decisions)
        )
    block = find_compaction_block(first.message) if prepared.recognized.is_native else None
    request = replace(
        request,
        start_path=next_path(CHAIN_ROOT, normalize_message(first.message).canonical_json()) if block else None,
        # The log's own path has masks in place of secrets, if these are masked before storage.
        client_path=client_path if client_path != log_path or prepared.recorder.engine.store.masker else None,
        response_id=response_id if is_stored else None,
    )
    recorder = prepared.recorder
    stored = await _record_with_retry(recorder, request, first, incomplete=incomplete)
    entry = stored[-1]
    if block is not None:
        newest = prepared.client_request.messages[-1:]
        is_requested = any(is_compaction_trigger(each.message) for each in newest)
        await _append_compaction(
            prepared.recorder.engine,
            entry,
            block.summary or None,
            first.usage,
            trigger="client" if is_requested else "provider",
        )
    for number, other in enumerate(others, start=1):
        engine = prepared.recorder.engine
        fork = await engine.store.fork(
            entry.conversation, at=entry.seq - 1, branch=entry.branch, name=f"choice {number}"
        )
        await Recorder(engine, entry.conversation, fork.number).append(other.message)
    return RecordedReply(entry, first, stored, client_path)


async def _append_compaction(
    engine: EngineState,
    reply: Entry,
    summary: str | None,
    usage: Usage | None,
    *,
    trigger: Literal["client", "provider"],
) -> None:
    """Records a compaction by the provider, which the client may have requested: its summary replaces all messages
    before the reply that contains it.

    OpenAI seals its summary. The reply is recorded already, and has the block: what fails here is logged.
    """
    store = engine.store
    try:
        state = (await store.get_branch(reply.conversation, reply.branch)).state
        active = state.active_compaction
        compaction = Compaction(
            number=state.compaction_count + 1,
            covers=Span(first=1, last=reply.seq - 1),
            summary=summary,
            trigger=trigger,
            strategy=trigger,
            model=usage.model if usage is not None else None,
            supersedes=active.seq if active is not None else None,
        )
        if reply.seq > 1 and (active is None or active.seq < reply.seq):
            await store.append(reply.conversation, compaction, branch=reply.branch)
    except QuireError as error:
        _log.warning("The compaction in reply #%d of %r is not in the log: %s", reply.seq, reply.conversation, error)


def _complete_replies(prepared: PreparedRequest, replies: Sequence[Reply], *, incomplete: bool) -> list[Reply]:
    """Returns the replies that are not empty, without incomplete calls if the stream broke off.

    The usage of the first is estimated if the upstream reported none. A stream of Messages reports one output token
    before the reply begins, and the others after its end.
    """
    if incomplete:
        replies = [reply._replace(message=drop_incomplete_calls(reply.message)) for reply in replies]
    recorded = [reply for reply in replies if reply.message.parts or reply.message.provider_fields]
    if recorded and ((usage := recorded[0].usage) is None or incomplete):
        manifest, counter = prepared.request.manifest, prepared.recognized.message_counter
        output_tokens = counter.count(recorded[0].message)
        if usage is None:
            usage = estimate_usage(manifest, model=manifest.policy.model, output_tokens=output_tokens)
        elif usage.output_tokens < output_tokens:
            usage = usage.model_copy(update={"output_tokens": output_tokens})
        recorded[0] = recorded[0]._replace(usage=usage)
    return recorded


def _compute_paths(prepared: PreparedRequest, reply: Message) -> tuple[bytes | None, bytes]:
    """Computes the paths after the reply: of the client's list, and of the log."""
    log_path = prepared.request.after
    for message in (*(each.message for each in prepared.request.pending), reply):
        log_path = next_path(log_path, message.canonical_json())
    return prepared.compute_client_path(reply), log_path


async def _record_with_retry(
    recorder: Recorder, request: Request, reply: Reply, *, incomplete: bool
) -> Sequence[Entry]:
    """Records a reply. Forks if the branch head has moved, and retries with backoff if the store is unavailable."""
    delays, deadline = iter(STORE_RETRY_DELAYS_SECONDS), time.monotonic() + MAX_STORE_RETRY_SECONDS
    engine, head = recorder.engine, request.assembly.head
    while True:
        try:
            try:
                stored = await recorder.record(reply, request=request, incomplete=incomplete)
            except StaleHead:
                # A fork at the head that the request was built on: both turns follow the message that they answer.
                branch = await engine.store.fork(recorder.conversation, at=head, branch=recorder.branch)
                recorder = Recorder(engine, recorder.conversation, branch.number, lease=recorder.lease)
                assembly = request.assembly.with_record(branch=branch.number)
                request = replace(
                    request, assembly=assembly, after=branch.head_path, branch=None, creates_conversation=None
                )
                continue
            conversation = Conversation(engine, recorder.conversation, recorder.branch)
            recorder.defer_compaction(request, stored, partial(conversation.compact, trigger="background"))
            return stored
        except MISSING_FROM_LOG as error:
            # The next body must not be a delta of one that the log has lost, too.
            engine.runtime.sent_bodies.clear()
            try:
                found = (await engine.store.get_branch(recorder.conversation, recorder.branch)).head_seq
            except MISSING_FROM_LOG:
                found = 0
            _log.warning(
                "The database was set back: conversation %r, branch %d, lost the entries %d to %d. What its client "
                "sends again is restored.",
                recorder.conversation,
                recorder.branch,
                found + 1,
                head,
            )
            raise StoreRolledBack from error
        except (StoreUnavailable, StoreBusy):
            delay = next(delays, None)
            if delay is None or time.monotonic() + delay > deadline:
                raise
            await asyncio.sleep(delay)
