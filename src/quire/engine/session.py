"""A session's items, by name: what the user puts in or takes out, and what a tool search of the model's brings in."""

from collections.abc import Sequence

from quire.context.items import InSession, available, items_in_session
from quire.context.names import sent_name
from quire.context.selection import Selector, candidate
from quire.context.tool_search import SearchCall, brought, found_tools, told
from quire.context.tools import Tokens, ToolSet
from quire.engine.core import Core
from quire.errors import InvalidRequest
from quire.model import ContextChange, ContextItem


class Session:
    """The items of one branch."""

    def __init__(self, engine: Core, conversation: str, branch: int, *, price: Tokens) -> None:
        self._engine, self._conversation, self._branch, self._price = engine, conversation, branch, price

    async def items(self) -> list[InSession]:
        branch = await self._engine.store.branch(self._conversation, self._branch)
        return items_in_session(branch.state, self._engine.agent)

    async def add(self, item: ContextItem | str) -> ContextItem:
        found = self._named(item, [*available(self._engine.agent)])
        return await self._change(ContextChange(action="add", item=found))

    async def remove(self, item: ContextItem | str) -> ContextItem:
        found = self._named(item, [each.item for each in await self.items()])
        return await self._change(ContextChange(action="remove", item=found))

    async def carry(self, items: Sequence[ContextItem]) -> None:
        """Tools that a message or a search called for stay, so that the list of tools only grows."""
        changes = [ContextChange(action="add", item=item, include="agent") for item in items]
        if changes:
            await self._engine.store.append(self._conversation, *changes, branch=self._branch)

    async def search_tools(self, call: SearchCall, tools: ToolSet) -> str:
        """Looks through the tools that had no room or were not called for; what fits is there from the next request."""
        engine = self._engine
        scores, _ = await Selector(engine.embedder).scores(call.query, [candidate(tool) for tool in tools.omitted])
        hits = found_tools(scores, tools.omitted, room=tools.room, tokens=self._price, limit=call.limit)
        await self.carry(brought(hits))
        return told(hits)

    async def _change(self, change: ContextChange) -> ContextItem:
        await self._engine.store.append(self._conversation, change, branch=self._branch)
        return change.item

    def _named(self, item: ContextItem | str, known: Sequence[ContextItem]) -> ContextItem:
        """An item by its name, or by the name under which a model knows it."""
        if isinstance(item, ContextItem):
            matching = [each for each in known if each == item]
        else:
            matching = [each for each in known if item in (each.name, f"{each.server}:{each.name}", sent_name(each))]
        if len(matching) == 1:
            return matching[0]
        names = ", ".join(sorted(_shown(each) for each in (matching or known))) or "nothing"
        problem = "is the name of several items" if matching else "is not there"
        raise InvalidRequest(f"{item if isinstance(item, str) else _shown(item)!r} {problem}; there is {names}.")


def _shown(item: ContextItem) -> str:
    return f"{item.server}:{item.name}" if item.server else f"{item.type} {item.name}"
