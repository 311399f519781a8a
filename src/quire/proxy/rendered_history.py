"""Cache of rendered histories: the stored messages of a branch as a replay renders them, by the path of its head.

The digest of a request covers every message as the log renders it. A client adds a few messages to its last list, so
each turn extends the history of the turn before, instead of reading and rendering all messages again. A path covers all
messages before it: the same path has the same history.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cachetools import TTLCache

from quire.engine.runtime import IDLE_CONVERSATION_SECONDS
from quire.model.policy import WireFormatName
from quire.view.batches import group_batches, repair_tool_calls
from quire.view.layout import DigestStart, RequestContents, lay_out
from quire.view.rendered import MessageCounter, RenderedMessage

MAX_HISTORY_BYTES = 32 * 1024 * 1024
"""Maximum size of all cached histories, in bytes of their wire format. A longer one than a quarter is not cached."""
MIN_MESSAGE_BYTES = 500
"""Bytes that a message counts as at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedHistory:
    """The messages of a branch from its first one on, as they are in every request that continues it."""

    paths: tuple[bytes, ...] = ()
    """The log's path after each message."""
    laid_out: tuple[RenderedMessage, ...] = ()
    """Messages of complete batches, with repaired tool calls and unique call ids."""
    open_batch: tuple[RenderedMessage, ...] = ()
    """The last message, which may be a tool call, and the results that it has so far. Not repaired yet."""
    call_ids: frozenset[str] = frozenset()
    """Ids of the tool calls in `laid_out`."""
    is_unchanged: bool = True
    """Whether no message was repaired, so that `laid_out` has one for each path."""
    digest_start: DigestStart | None = None
    """The digest of the last request, up to messages of `laid_out`."""
    size: int = 0

    def extend(
        self, messages: Sequence[RenderedMessage], paths: Sequence[bytes], counter: MessageCounter
    ) -> "RenderedHistory | None":
        """Adds messages, or None if tool calls repeat earlier ids, so that they are renamed."""
        pending = (*self.open_batch, *messages)
        last_batch = max((index for index, each in enumerate(pending) if each.role != "tool"), default=0)
        complete = pending[:last_batch]
        added: Sequence[RenderedMessage] = ()
        if complete:
            repaired = repair_tool_calls(complete, counter).messages
            contents = RequestContents(system=None, tools=(), batches={"history": group_batches(repaired)})
            added = lay_out(contents, counter, model="", tokens=0).messages
        call_ids = list_call_ids((*complete, *added))
        if not self.call_ids.isdisjoint(call_ids):
            return None
        return RenderedHistory(
            paths=(*self.paths, *paths),
            laid_out=(*self.laid_out, *added),
            open_batch=pending[last_batch:],
            call_ids=self.call_ids.union(call_ids),
            is_unchanged=self.is_unchanged
            and len(complete) == len(added)
            and all(map(lambda before, after: before is after, complete, added)),
            digest_start=self.digest_start,
            size=self.size + sum(MIN_MESSAGE_BYTES + len(each.encoded) for each in messages),
        )


def list_call_ids(messages: Sequence[RenderedMessage]) -> list[str]:
    return [call_id for each in messages for call_id in each.call_ids]


class RenderedHistories:
    """Cache of rendered histories, bounded by their size and age. Used on the event loop only."""

    def __init__(self) -> None:
        self._histories: TTLCache[tuple[str, WireFormatName, bytes], RenderedHistory] = TTLCache(
            MAX_HISTORY_BYTES, IDLE_CONVERSATION_SECONDS, getsizeof=lambda history: history.size
        )

    def find(self, tenant: str, wire_format: WireFormatName, path: bytes) -> RenderedHistory | None:
        return self._histories.get((tenant, wire_format, path))

    def replace(self, tenant: str, wire_format: WireFormatName, old_path: bytes, history: RenderedHistory) -> None:
        """Caches a history in place of the shorter one that it extends."""
        self._histories.pop((tenant, wire_format, old_path), None)
        if history.size <= MAX_HISTORY_BYTES // 4:
            self._histories[tenant, wire_format, history.paths[-1]] = history

    def clear(self) -> None:
        self._histories.clear()
