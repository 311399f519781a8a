"""Offers the built-in reading tools once there is something to read: listed documents, archived messages, memories.

A list of tools that changes invalidates the provider's prompt cache, so the tools stay while the reason for them does.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import chain

from cachetools import LRUCache

from quire.context.builtin_tool_schemas import DOCUMENT_TOOLS, HISTORY_TOOLS, ToolArguments
from quire.context.tools import IncludedTool, ToolSet, ToolTokenCounter
from quire.engine.request import PendingMessage
from quire.engine.state import EngineState
from quire.model import ContextItem, Entry, ToolDefinition
from quire.view.budget import allocate_budget
from quire.view.strategies import get_strategy

MAX_CACHED_COUNTS = 1_000
_TOKEN_COUNTS: LRUCache[tuple[str, str], int] = LRUCache(MAX_CACHED_COUNTS)
"""Tokens of each tool by the name of the counter. Every request looks them up, and the definitions never change."""


@cache
def _build_definition(tool: type[ToolArguments]) -> ToolDefinition:
    """Building the JSON schema takes milliseconds."""
    return tool.to_definition()


class ReadingTools:
    """Adds reading tools to the requests of one engine, if the setting `context_tools` is unset.

    The history tools are for turns that Quire runs, because a program that sends requests itself may not run calls. The
    document tools belong to a vault, which such a program has configured.
    """

    def __init__(self, engine: EngineState, *, count_tokens: ToolTokenCounter) -> None:
        self._engine, self._count_tokens = engine, count_tokens

    def offer(self, tools: ToolSet, *, archived: bool, listed: bool) -> ToolSet:
        """Adds the tools that fit into the slot. `archived` says that there are archived messages or memories without a
        place, `listed` that there are listed documents.

        Document tools reserve the space of history tools: a later compaction then adds tools and removes none.
        """
        config = self._engine.config
        reads_history = archived and config.runs_turns
        reads_documents = config.vault is not None and (listed or reads_history)
        chosen = (*(DOCUMENT_TOOLS if reads_documents else ()), *(HISTORY_TOOLS if reads_history else ()))
        if not chosen or config.settings.context_tools is not None:
            return tools
        present = {tool.definition.name for tool in tools.tools}
        policy = self._engine.policy
        limit = allocate_budget(policy, get_strategy(policy.strategy).shares).limit_for("tools")
        free_tokens = max(0, limit - sum(tool.tokens for tool in tools.tools))
        history = list(map(_build_definition, HISTORY_TOOLS)) if config.runs_turns else []
        reserved_tokens = sum(self._count_cached(each) for each in history if each.name not in present)
        added: list[IncludedTool] = []
        for definition in map(_build_definition, chosen):
            tokens = self._count_cached(definition)
            max_tokens = free_tokens if definition in history else free_tokens - reserved_tokens
            if definition.name not in present and tokens <= max_tokens:
                item = ContextItem(type="tool", name=definition.name)
                added.append(IncludedTool(definition, item, "always", tokens))
                free_tokens -= tokens
        return replace(tools, tools=(*tools.tools, *added), free_tokens=free_tokens) if added else tools

    def _count_cached(self, definition: ToolDefinition) -> int:
        key = (self._engine.message_counter.name, definition.name)
        if key not in _TOKEN_COUNTS:
            _TOKEN_COUNTS[key] = self._count_tokens(definition)
        return _TOKEN_COUNTS[key]


def lists_documents(messages: Sequence[Entry], pending: Sequence[PendingMessage]) -> bool:
    """Whether a message of the view lists a document without its text."""
    stored = (
        entry.metadata.references or ()
        for entry in messages
        # Decoding the metadata of every message would be slow.
        if entry.role == "user" and entry.raw_metadata is not None and '"references"' in entry.raw_metadata
    )
    references = chain(*(each.references for each in pending), *stored)
    return any(each.path is not None and not each.injected for each in references)
