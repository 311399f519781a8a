"""What a stored conversation recorded about its model calls: the steps, read page by page, and their contexts."""

from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from cachetools import LRUCache

from quire.context.builtin_tool_schemas import HISTORY_TOOLS
from quire.context.items import InclusionReason
from quire.context.memory import CORE_NOTE, MEMORIES_BLOCK_NAME
from quire.context.tools import IncludedTool, ToolSet
from quire.engine.context_gatherer import ContextGatherer, RecentTexts, RequestContext
from quire.engine.state import EngineState
from quire.errors import BlobNotFound, EntryNotFound
from quire.log import Branch
from quire.model import Compaction, ContextItem, Decision, Entry, Manifest, ToolDefinition
from quire.model.entry_bodies import EntryKind
from quire.store import SqlStore
from quire.view.budget import allocate_budget
from quire.view.inputs import ContextBlock
from quire.view.strategies import get_strategy

PAGE_ENTRIES = 500
"""Entries read at once."""
REPLAYED_KINDS: tuple[EntryKind, ...] = (
    "message", "pin", "unpin", "priority", "context_change", "drop", "undrop",
)  # fmt: skip
"""Entries that a backtest repeats. Compactions and their undo are the strategy's decisions, which it makes itself."""

MAX_CACHED_TEXTS = 256
"""Blocks and tool definitions in the LRU cache of one simulation."""

_REQUIRED_REASONS = frozenset({"instructions", "always", "manual", "memory"})
HISTORY_TOOL_NAMES = frozenset(tool.tool_name for tool in HISTORY_TOOLS)


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
    """Of the request as it was sent, or None for imported conversations."""
    starts_turn: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One branch of a stored conversation."""

    store: SqlStore
    conversation: str
    branch: int
    head: int
    has_manifests: bool
    offers_history_tools: bool | None
    """Whether its requests offered the history tools after a compaction, or None if no request shows it."""
    summaries: dict[int, Compaction]
    """Compactions whose summary a model wrote, by the last entry that they cover."""

    async def steps(self) -> AsyncGenerator[RecordedStep]:
        """The model calls in order. Messages after the last reply have no step."""
        waiting: list[Entry] = []
        reply: Entry | None = None
        later: list[Entry] = []
        for first in range(1, self.head + 1, PAGE_ENTRIES):
            last = min(first + PAGE_ENTRIES - 1, self.head)
            for entry in await self.store.read_range(
                self.conversation, branch=self.branch, first=first, last=last, kinds=REPLAYED_KINDS
            ):
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

    async def _build_step(self, waiting: list[Entry], reply: Entry, later: list[Entry]) -> RecordedStep:
        manifest: Manifest | None = None
        if self.has_manifests:
            with suppress(EntryNotFound):
                manifest = await self.store.get_manifest(self.conversation, reply.seq, branch=self.branch)
        if manifest is None:
            # An imported reply. Its entries are divided as Quire's own turns would store them: a question with its
            # reply, tool results before the next request. Agents add system messages after both, and no request may
            # end with one.
            last = max(index for index, each in enumerate(waiting) if each.role in ("user", "tool"))
            if waiting[last].role == "user":
                before, pending, after = [*waiting[:last], *waiting[last + 1 :]], [waiting[last]], []
            else:
                before, pending, after = waiting[: last + 1], [], waiting[last + 1 :]
        else:
            pending = [each for each in waiting if each.seq > manifest.head and each.kind == "message"]
            before, after = [each for each in waiting if each not in pending], []
        return RecordedStep(
            before=tuple(before),
            pending=tuple(pending),
            reply=reply,
            after=(*after, *later),
            manifest=manifest if manifest is not None and not manifest.thinned else None,
            starts_turn=any(each.role == "user" for each in waiting),
        )


async def open_recording(store: SqlStore, conversation: str, branch: int) -> Recording:
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


class RecordedContextGatherer(ContextGatherer):
    """Gives each request of a simulation the context of the recorded request, within the budget of the variant.

    `manifest` belongs to the step that is simulated next. A step without one has the context of the step before it.
    """

    def __init__(self, engine: EngineState, source: SqlStore) -> None:
        super().__init__(engine)
        self._source = source
        self._texts: LRUCache[str, str] = LRUCache(MAX_CACHED_TEXTS)
        self.manifest: Manifest | None = None

    async def gather(self, branch: Branch, question: str, *, recent: RecentTexts) -> RequestContext:
        rows = self.manifest.decisions if self.manifest is not None else ()
        blocks: list[ContextBlock] = []
        definitions: list[tuple[Decision, ToolDefinition]] = []
        for row in rows:
            if row.blob is None or row.slot == "newest":
                continue
            text = self._texts.get(row.blob)
            if text is None:
                try:
                    text = self._texts[row.blob] = (await self._source.get_blob(row.blob)).data.decode()
                except BlobNotFound:
                    # It was purged.
                    continue
            if row.kind == "tool":
                definitions.append((row, ToolDefinition.parse(text)))
            else:
                block = ContextBlock(
                    slot=row.slot,
                    kind=row.kind,
                    name=row.name or "",
                    text=text,
                    reason=row.reason,
                    score=row.score,
                    is_required=row.reason in _REQUIRED_REASONS and row.name != MEMORIES_BLOCK_NAME,
                    uses_spare_tokens=row.reason == "referenced" or row.kind == "document",
                    excerpt_chars=row.excerpt_chars,
                )
                blocks.append(block)
        return RequestContext(
            blocks=tuple(blocks),
            tools=self._fit_recorded_tools(definitions),
            omits_memories=any(each.name == MEMORIES_BLOCK_NAME and each.text.endswith(CORE_NOTE) for each in blocks),
        )

    def _fit_recorded_tools(self, recorded: list[tuple[Decision, ToolDefinition]]) -> ToolSet:
        """The recorded tools in their order, as far as they fit. The assembler adds history tools by itself."""
        policy, settings = self._engine.policy, self._engine.settings
        free_tokens = allocate_budget(policy, get_strategy(policy.strategy).shares).limit_for("tools")
        tools: list[IncludedTool] = []
        for row, definition in recorded:
            is_added_later = settings.context_tools is None and definition.name in HISTORY_TOOL_NAMES
            tokens = self.count_tool_tokens(definition)
            if is_added_later or tokens > free_tokens:
                continue
            free_tokens -= tokens
            item = ContextItem(type="tool", name=definition.name)
            tools.append(IncludedTool(definition, item, cast(InclusionReason, row.reason), tokens, row.score))
        return ToolSet(tools=tuple(tools), free_tokens=free_tokens)
