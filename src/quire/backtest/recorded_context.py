"""The context of a request other than its messages, as its manifest recorded it: instructions, memories, tools."""

from typing import cast

from cachetools import LRUCache

from quire.backtest.recorded_steps import HISTORY_TOOL_NAMES
from quire.context.items import InclusionReason
from quire.context.memory import MEMORIES_BLOCK_NAME
from quire.context.tools import IncludedTool, ToolSet
from quire.engine.context import EngineContext
from quire.engine.context_gatherer import ContextGatherer, RecentTexts, RequestContext
from quire.errors import BlobNotFound
from quire.log import Branch, LogStore
from quire.model import ContextItem, Decision, Manifest, ToolDefinition
from quire.view.budget import allocate_budget
from quire.view.inputs import ContextBlock
from quire.view.strategies import get_strategy

MAX_CACHED_TEXTS = 256
"""Blocks and tool definitions in the LRU cache of one simulation."""

_REQUIRED_REASONS = frozenset({"instructions", "always", "manual", "memory"})


class RecordedContextGatherer(ContextGatherer):
    """Gives each request of a simulation the context of the recorded request, within the budget of the variant.

    `manifest` is the one of the step that is simulated next; a step without one has the context of the step before it.
    """

    def __init__(self, engine: EngineContext, source: LogStore) -> None:
        super().__init__(engine)
        self._source = source
        self._texts: LRUCache[str, str] = LRUCache(MAX_CACHED_TEXTS)
        self.manifest: Manifest | None = None

    async def gather(self, branch: Branch, question: str, *, recent: RecentTexts) -> RequestContext:
        rows = self.manifest.decisions if self.manifest is not None else ()
        blocks: list[ContextBlock] = []
        definitions: list[tuple[Decision, ToolDefinition]] = []
        for row in rows:
            if row.blob is None or row.slot == "newest" or (text := await self._load_text(row.blob)) is None:
                continue
            if row.kind == "tool":
                definitions.append((row, ToolDefinition.parse(text)))
            else:
                blocks.append(_to_block(row, text))
        return RequestContext(blocks=tuple(blocks), tools=self._fit_recorded_tools(definitions))

    async def _load_text(self, digest: str) -> str | None:
        """The text of a blob; None if it was purged."""
        text = self._texts.get(digest)
        if text is None:
            try:
                text = self._texts[digest] = (await self._source.get_blob(digest)).data.decode()
            except BlobNotFound:
                return None
        return text

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


def _to_block(row: Decision, text: str) -> ContextBlock:
    return ContextBlock(
        slot=row.slot,
        kind=row.kind,
        name=row.name or "",
        text=text,
        reason=row.reason,
        score=row.score,
        is_required=row.reason in _REQUIRED_REASONS and row.name != MEMORIES_BLOCK_NAME,
        excerpt_chars=row.excerpt_chars,
    )
