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
from typing import NamedTuple

from quire.engine import Conversation
from quire.engine.request import Request
from quire.errors import (
    BranchNotFound,
    ConversationNotFound,
    EntryNotFound,
    StaleHead,
    StoreBusy,
    StoreRolledBack,
    StoreUnavailable,
)
from quire.log import Branch
from quire.log.worker_threads import run_sized
from quire.model import Entry, Message, Usage
from quire.model.base import JsonObject
from quire.server.gateway.codecs.normal_form import extend_path
from quire.server.gateway.prepare import PreparedRequest
from quire.view.replies import drop_incomplete_calls, estimate_usage
from quire.view.wire_formats import Reply

_log = logging.getLogger(__name__)

STORE_RETRY_DELAYS_SECONDS = (0.1, 0.5, 2.0)
"""Backoff: seconds before each retry of a store that is unavailable or busy."""
MAX_STORE_RETRY_SECONDS = 3.0
"""Time after which no retry starts: one attempt may wait several seconds for a lock, and the client waits for it."""
MISSING_FROM_LOG = (ConversationNotFound, BranchNotFound, EntryNotFound)
"""Errors of a log that lacks what this process read or wrote there."""
CLIENT_RESPONSE_FIELD = "client_response"
"""Provider field of a reply's usage with the fields of a translated response; `response` has those of the upstream."""


class RecordedReply(NamedTuple):
    """A reply and its entry in the log."""

    entry: Entry
    reply: Reply
    client_path: bytes | None
    """The client's path after the reply; None if the client does not send the whole conversation."""


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
        first = _add_response_fields(first, response_fields)
    size += prepared.client_request.work_bytes
    client_path, log_path = await run_sized(size, _compute_paths, prepared, first.message)
    request = replace(
        prepared.request,
        client_path=client_path if client_path != log_path else None,
        response_id=response_id if is_stored else None,
    )
    entry = await _record_with_retry(prepared.conversation, request, first, incomplete=incomplete)
    for number, other in enumerate(others, start=1):
        await _record_alternative(prepared, entry, other, name=f"choice {number}")
    return RecordedReply(entry, first, client_path)


def _add_response_fields(reply: Reply, response_fields: JsonObject) -> Reply:
    usage = reply.usage or Usage()
    provider_fields = {**(usage.provider_fields or {}), CLIENT_RESPONSE_FIELD: response_fields}
    return reply._replace(usage=usage.model_copy(update={"provider_fields": provider_fields}))


def _complete_replies(prepared: PreparedRequest, replies: Sequence[Reply], *, incomplete: bool) -> list[Reply]:
    """Returns the replies that are not empty, without incomplete calls if the stream broke off.

    The usage of the first is estimated if the upstream reported none.
    """
    if incomplete:
        replies = [reply._replace(message=drop_incomplete_calls(reply.message)) for reply in replies]
    recorded = [reply for reply in replies if reply.message.parts or reply.message.provider_fields]
    if recorded and recorded[0].usage is None:
        manifest, counter = prepared.request.manifest, prepared.matched.message_counter
        usage = estimate_usage(recorded[0].message, model=manifest.policy.model, manifest=manifest, counter=counter)
        recorded[0] = recorded[0]._replace(usage=usage)
    return recorded


def _compute_paths(prepared: PreparedRequest, reply: Message) -> tuple[bytes | None, bytes]:
    """Computes the paths after the reply: of the client's list, and of the log."""
    pending = [each.message for each in prepared.request.pending]
    return prepared.compute_client_path(reply), extend_path(prepared.request.after, [*pending, reply])


async def _record_with_retry(conversation: Conversation, request: Request, reply: Reply, *, incomplete: bool) -> Entry:
    """Records a reply; forks if the branch head has moved, and retries with backoff if the store is unavailable."""
    delays, deadline = iter(STORE_RETRY_DELAYS_SECONDS), time.monotonic() + MAX_STORE_RETRY_SECONDS
    while True:
        try:
            try:
                return await conversation.record(reply, request=request, incomplete=incomplete)
            except StaleHead:
                conversation, request = await _fork_request(conversation, request)
        except MISSING_FROM_LOG as error:
            await _log_lost_entries(conversation, head=request.assembly.head)
            raise StoreRolledBack from error
        except (StoreUnavailable, StoreBusy):
            delay = next(delays, None)
            if delay is None or time.monotonic() + delay > deadline:
                raise
            await asyncio.sleep(delay)


async def _log_lost_entries(conversation: Conversation, *, head: int) -> None:
    """Names the entries that this process has seen in the log, and that are not there now."""
    try:
        stored = (await conversation.engine.store.get_branch(conversation.id, conversation.branch)).head_seq
    except MISSING_FROM_LOG:
        stored = 0
    _log.warning(
        "The database was set back: conversation %r, branch %d, lost the entries %d to %d. What its client sends again "
        "is restored.",
        conversation.id,
        conversation.branch,
        stored + 1,
        head,
    )


async def _fork_request(conversation: Conversation, request: Request) -> tuple[Conversation, Request]:
    """Forks at the head that the request was built on, so that both turns follow the message they answer."""
    head = request.assembly.head
    branch: Branch = await conversation.engine.store.fork(conversation.id, at=head, branch=conversation.branch)
    assembly = replace(request.assembly, branch=branch.number)
    forked = Conversation(conversation.engine, conversation.id, branch.number)
    return forked, replace(request, assembly=assembly, after=branch.head_path, creates_conversation=None)


async def _record_alternative(prepared: PreparedRequest, entry: Entry, reply: Reply, *, name: str) -> None:
    """Records another reply to the same question on a fork of its own."""
    conversation = Conversation(prepared.conversation.engine, entry.conversation, entry.branch)
    forked = await conversation.fork(entry.seq - 1, name=name)
    await forked.append(reply.message)
