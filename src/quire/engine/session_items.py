"""Items of a session (rules, references, tools): added or removed by the user, or added by the model's tool search."""

from collections.abc import Sequence

from quire.context.items import ResolvedSessionItem, index_agent_items, list_session_items, wire_name
from quire.context.selection import to_candidate
from quire.context.tools import (
    ToolSearchCall,
    ToolSet,
    ToolTokenCounter,
    find_tools,
    format_tool_hits,
    list_fitting_items,
)
from quire.engine.context import EngineContext
from quire.errors import InvalidRequest
from quire.model import ContextChange, ContextItem


class SessionItems:
    """The session items of one branch."""

    def __init__(
        self, engine: EngineContext, conversation: str, branch: int, *, count_tokens: ToolTokenCounter
    ) -> None:
        self._engine, self._conversation, self._branch, self._count_tokens = engine, conversation, branch, count_tokens

    async def items(self) -> list[ResolvedSessionItem]:
        branch = await self._engine.store.get_branch(self._conversation, self._branch)
        return list_session_items(branch.state, self._engine.agent)

    async def add(self, item: ContextItem | str) -> ContextItem:
        match = self._find_item(item, [*index_agent_items(self._engine.agent)])
        return await self._append_change(ContextChange(action="add", item=match))

    async def remove(self, item: ContextItem | str) -> ContextItem:
        match = self._find_item(item, [each.item for each in await self.items()])
        return await self._append_change(ContextChange(action="remove", item=match))

    async def add_tools(self, items: Sequence[ContextItem]) -> None:
        """Adds tools that were selected for a message or by a search. They stay, so that the cached prefix only
        grows."""
        changes = [ContextChange(action="add", item=item, include="agent") for item in items]
        if changes:
            await self._engine.store.append(self._conversation, *changes, branch=self._branch)

    async def search_tools(self, call: ToolSearchCall, tools: ToolSet) -> str:
        """Searches the tools that this request omits; those that fit are in the next request."""
        engine = self._engine
        selector = engine.runtime.selector_for(engine.embedder)
        scores, _ = await selector.score(call.query, [to_candidate(tool) for tool in tools.omitted])
        hits = find_tools(
            scores, tools.omitted, free_tokens=tools.free_tokens, count_tokens=self._count_tokens, limit=call.limit
        )
        await self.add_tools(list_fitting_items(hits))
        return format_tool_hits(hits)

    async def _append_change(self, change: ContextChange) -> ContextItem:
        await self._engine.store.append(self._conversation, change, branch=self._branch)
        return change.item

    def _find_item(self, item: ContextItem | str, known: Sequence[ContextItem]) -> ContextItem:
        """Finds an item by its name, by `server:name`, or by its wire name."""
        if isinstance(item, ContextItem):
            matching = [each for each in known if each == item]
        else:
            matching = [each for each in known if item in (each.name, f"{each.server}:{each.name}", wire_name(each))]
        if len(matching) == 1:
            return matching[0]
        names = ", ".join(sorted(_item_label(each) for each in (matching or known))) or "none"
        problem = "matches several items" if matching else "is not an item"
        label = item if isinstance(item, str) else _item_label(item)
        raise InvalidRequest(f"{label!r} {problem}; choose one of: {names}.")


def _item_label(item: ContextItem) -> str:
    return f"{item.server}:{item.name}" if item.server else f"{item.type} {item.name}"
