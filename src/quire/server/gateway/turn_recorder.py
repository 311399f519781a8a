"""Records the reply of one relayed turn, settles what it cost, and describes both in response headers.

Recording and settling are shielded from cancellation, so they complete even if the client disconnects.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from quire.concurrency.cancellation import run_shielded
from quire.errors import StoreError, StoreRolledBack
from quire.model import Usage
from quire.model.base import JsonObject
from quire.proxy.prepare import PreparedRequest
from quire.proxy.recognition import HistoryMatch
from quire.proxy.reply_recorder import RecordedReply, record_reply
from quire.server.gateway.header_rules import encode_conversation_header, filter_response_headers
from quire.server.upstream_client import UpstreamResponse
from quire.wire import Reply

_log = logging.getLogger(__name__)

UNRECORDED_HEADERS = {"x-quire-recorded": "no"}

UpdateHead = Callable[[bytes | None, HistoryMatch], None]
"""Replaces the head at an old path with a new one in the head cache."""


class TurnRecorder:
    """The prepared request of a turn, and what is recorded of its reply."""

    def __init__(
        self,
        prepared: PreparedRequest,
        *,
        update_head: UpdateHead,
        on_store_failure: Literal["refuse", "pass_through"],
    ) -> None:
        self.prepared = prepared
        """Replaced if the request is refitted."""
        self.recorded_reply: RecordedReply | None = None
        self.is_billed = False
        """Whether the upstream may charge for a call without a recorded reply."""
        self._update_head, self._on_store_failure = update_head, on_store_failure

    async def record(
        self,
        replies: Sequence[Reply],
        *,
        size: int,
        incomplete: bool = False,
        response_id: str | None,
        response_fields: JsonObject | None = None,
    ) -> bool:
        """Records the replies, which have `size` bytes; returns whether they are in the log.

        If the store fails, `on_store_failure` decides whether the client gets the reply unrecorded.
        """
        reported_usage = next((reply.usage for reply in replies), None)
        if not self.prepared.is_recorded:
            await self.settle_spend(reported_usage)
            return False
        try:
            self.recorded_reply = await run_shielded(
                record_reply(
                    self.prepared,
                    replies,
                    size=size,
                    incomplete=incomplete,
                    response_id=response_id,
                    response_fields=response_fields,
                )
            )
        except StoreError as error:
            await self.settle_spend(reported_usage)
            if isinstance(error, StoreRolledBack):
                # The next request finds in the log where it continues.
                match = self.prepared.match
                self._update_head(match.client_path, replace(match, client_path=None))
            if self._on_store_failure == "refuse":
                raise
            _log.warning("Reply passed through unrecorded, store failure: %s", error)
            return False
        if self.recorded_reply is None:
            # An empty reply, such as one that a reasoning model did not get to.
            await self.settle_spend(reported_usage)
            return False
        entry, reply, client_path = self.recorded_reply
        self._update_head(self.prepared.match.client_path, self.prepared.build_next_match(entry, client_path))
        await self.prepared.extend_history(reply.message, entry.path, client_path)
        return True

    async def settle_spend(self, usage: Usage | None = None) -> None:
        """Settles the reservation of a call without a recorded reply, before the client can send its next request."""
        if self.recorded_reply is None and self.prepared.request.reservation is not None:
            await run_shielded(self._settle_reservation(usage))

    async def _settle_reservation(self, usage: Usage | None) -> None:
        prepared = self.prepared
        self.prepared = replace(prepared, request=replace(prepared.request, reservation=None))
        try:
            await prepared.recorder.settle_spend(prepared.request, is_billed=self.is_billed, usage=usage)
        except StoreError as error:
            _log.warning("Reservation of a call without a recorded reply stays until it expires: %s", error)

    def build_response_headers(self, response: UpstreamResponse) -> dict[str, str]:
        """The upstream's headers that are for the client, and Quire's own."""
        return filter_response_headers(response.raw_headers) | self.build_quire_headers()

    def build_quire_headers(self) -> dict[str, str]:
        prepared, recorded = self.prepared, self.recorded_reply
        branch = prepared.match.branch if recorded is None else recorded.entry.branch
        headers = {
            "x-quire-request": prepared.request.id or "",
            "x-quire-conversation": encode_conversation_header(prepared.match.conversation),
            "x-quire-branch": str(branch),
        }
        if not prepared.recognized.is_native:
            headers["request-id"] = f"req_{prepared.request.id}"
        if not prepared.is_recorded:
            headers |= UNRECORDED_HEADERS
        forwarded = prepared.request.assembly.forwarded
        dropped = len(forwarded.dropped) if forwarded is not None else 0
        return headers | {"x-quire-dropped": str(dropped)} if dropped else headers
