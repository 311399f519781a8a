"""Recorded steps: what a stored conversation says about each of its model calls, read page by page."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from quire.context.builtin_tool_schemas import HISTORY_TOOLS
from quire.errors import EntryNotFound
from quire.log import LedgerStore, LogStore
from quire.model import Compaction, Entry, Manifest
from quire.model.entry_bodies import EntryKind

PAGE_ENTRIES = 500
"""Entries read at once."""
REPLAYED_KINDS: tuple[EntryKind, ...] = ("message", "pin", "unpin", "priority", "context_change")
"""Entries that a backtest repeats. Compactions and their undo are the strategy's decisions, which it makes itself."""

HISTORY_TOOL_NAMES = frozenset(tool.tool_name for tool in HISTORY_TOOLS)


class RecordingStore(LogStore, LedgerStore, Protocol):
    """What a backtest reads of the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """A reply, and the entries since the reply before it."""

    before: tuple[Entry, ...]
    """Entries that were stored before the request was made."""
    pending: tuple[Entry, ...]
    """Messages that the request sent and that were stored with the reply."""
    reply: Entry
    after: tuple[Entry, ...] = ()
    """Entries that follow the reply without a request: an import may divide one reply into several messages."""
    manifest: Manifest | None
    """Of the request as it was sent; None for imported conversations."""
    starts_turn: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One branch of a stored conversation."""

    store: RecordingStore
    conversation: str
    branch: int
    head: int
    has_manifests: bool
    offers_history_tools: bool | None
    """Whether its requests offered the history tools after a compaction; None if no request shows it."""
    summaries: dict[int, Compaction]
    """Compactions whose summary a model wrote, by the last entry that they cover."""

    async def steps(self) -> AsyncGenerator[RecordedStep]:
        """The model calls in order. Messages after the last reply have no step."""
        waiting: list[Entry] = []
        reply: Entry | None = None
        later: list[Entry] = []
        async for entry in self._entries():
            if entry.role == "assistant":
                if reply is not None:
                    later.append(entry)
                elif any(each.role in ("user", "tool") for each in waiting):
                    reply = entry
                else:
                    waiting.append(entry)
            else:
                if reply is not None:
                    yield await self._build_step(waiting, reply, later)
                    waiting, reply, later = [], None, []
                waiting.append(entry)
        if reply is not None:
            yield await self._build_step(waiting, reply, later)

    async def _entries(self) -> AsyncGenerator[Entry]:
        for first in range(1, self.head + 1, PAGE_ENTRIES):
            last = min(first + PAGE_ENTRIES - 1, self.head)
            for entry in await self.store.read_range(
                self.conversation, branch=self.branch, first=first, last=last, kinds=REPLAYED_KINDS
            ):
                yield entry

    async def _build_step(self, waiting: list[Entry], reply: Entry, later: list[Entry]) -> RecordedStep:
        manifest = await self._find_manifest(reply.seq) if self.has_manifests else None
        if manifest is None:
            before, pending, after = _divide(waiting)
        else:
            pending = [each for each in waiting if each.seq > manifest.head and each.kind == "message"]
            before, after = [each for each in waiting if each not in pending], []
        return RecordedStep(
            before=tuple(before),
            pending=tuple(pending),
            reply=reply,
            after=(*after, *later),
            manifest=manifest,
            starts_turn=any(each.role == "user" for each in waiting),
        )

    async def _find_manifest(self, seq: int) -> Manifest | None:
        try:
            return await self.store.get_manifest(self.conversation, seq, branch=self.branch)
        except EntryNotFound:
            return None


def _divide(waiting: list[Entry]) -> tuple[list[Entry], list[Entry], list[Entry]]:
    """Divides the entries before an imported reply as Quire's own turns would store them: a question with its reply,
    tool results before the next request. Agents add system messages after both, and no request may end with one."""
    last = max(index for index, each in enumerate(waiting) if each.role in ("user", "tool"))
    if waiting[last].role == "user":
        return [*waiting[:last], *waiting[last + 1 :]], [waiting[last]], []
    return waiting[: last + 1], [], waiting[last + 1 :]


async def open_recording(store: RecordingStore, conversation: str, branch: int) -> Recording:
    """Reads what all steps share: where the branch ends, and the summaries that a model wrote for it."""
    head = (await store.get_branch(conversation, branch)).head_seq
    compactions = await store.read_range(conversation, branch=branch, last=head, kinds=["compaction"])
    newest = await store.list_manifests(conversation, branch=branch, limit=1)
    summaries: dict[int, Compaction] = {}
    for entry in compactions:
        body = entry.body
        if isinstance(body, Compaction) and body.model is not None and body.summary and body.covers is not None:
            summaries.setdefault(body.covers.last, body)
    # Of the newest request, since history tools stay in the list once they are in it.
    rows = newest[-1][1].included if newest else ()
    offered = any(row.kind == "tool" and row.name in HISTORY_TOOL_NAMES for row in rows)
    archives = any(row.kind == "summary" for row in rows)
    return Recording(
        store=store,
        conversation=conversation,
        branch=branch,
        head=head,
        has_manifests=bool(newest),
        offers_history_tools=offered if offered or archives else None,
        summaries=summaries,
    )
