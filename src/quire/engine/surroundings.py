"""What stands around the messages of one request: the session's items, what the question calls for, what is remembered.

Nothing is looked up that the engine was not given: without an agent's items, a folder or memories a request costs no
more than its messages.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quire.context.items import RequestItems, blocks, request_items
from quire.context.selection import SelectionSettings, Selector, candidates
from quire.context.tools import NO_TOOLS, ToolSet, fit_tools
from quire.engine.core import Core
from quire.engine.meaning import meaning_of
from quire.errors import DocumentNotFound, PathRefused
from quire.log import Branch
from quire.log.found import memory_scope
from quire.model import SessionItem, ToolDefinition
from quire.model.agents import Agent
from quire.model.manifest import Decision
from quire.view.budget import allot
from quire.view.material import Block
from quire.view.strategies import strategy_named

LASTING = 200
"""So many of an agent's entries are looked at for the stable part, the newest first."""
RECALLED = 5
"""So many of them may come in for one question."""


Recent = Callable[[], Sequence[str]]
"""Asked only where something is to be chosen: it means decoding messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    blocks: tuple[Block, ...] = ()
    tools: ToolSet = NO_TOOLS
    decided: tuple[Decision, ...] = ()

    def joined(self, *others: Block) -> "Surroundings":
        return Surroundings(blocks=(*self.blocks, *others), tools=self.tools, decided=self.decided)


class Gatherer:
    """Gathers surroundings for the conversations of one engine."""

    def __init__(self, engine: Core) -> None:
        self._engine = engine
        self._selector = Selector(engine.embedder)

    async def around(self, branch: Branch, question: str, *, recent: Recent) -> Surroundings:
        """For a question on this branch; `recent` gives the turns before it, the latest first."""
        agent = self._engine.agent
        if not (agent.rules or agent.references or agent.tools or branch.state.items or agent.memory.enabled):
            return Surroundings(blocks=tuple(_instructions(agent)))
        session = [*own_items(agent, branch.state.items), *branch.state.items]
        items = await self._items(agent, session, question, recent)
        # Most items have their text; only what must be read from a file is worth a thread.
        reads = any(reference.text is None for reference in agent.references)
        texts, missing = await asyncio.to_thread(self._texts, agent, items) if reads else self._texts(agent, items)
        tools = self._tools(agent, items, session)
        remembered = await self._remembered(agent, branch, question) if self._remembers else Surroundings()
        return Surroundings(
            blocks=(*_instructions(agent), *texts, *remembered.blocks),
            tools=tools,
            decided=(*items.decided, *missing, *tools.decided, *remembered.decided),
        )

    @property
    def _remembers(self) -> bool:
        return self._engine.agent.memory.enabled and self._engine.settings.memory_integration

    async def _items(self, agent: Agent, session: Sequence[SessionItem], question: str, recent: Recent) -> RequestItems:
        open_to_choice = candidates(agent, present=[each.item for each in session])
        found = ()
        if open_to_choice and question:
            settings = self._engine.settings
            selection = SelectionSettings(
                top_k=settings.selection_top_k,
                top_n=settings.selection_top_n,
                min_score=settings.selection_min_score,
            )
            found = (await self._selector.select(question, open_to_choice, recent=recent(), settings=selection)).found
        return request_items(agent, session, found)

    def _tools(self, agent: Agent, items: RequestItems, session: Sequence[SessionItem]) -> ToolSet:
        engine = self._engine
        ceiling = allot(engine.policy, strategy_named(engine.policy.strategy).shares).ceiling("tools")
        order = [each.item for each in session]
        return fit_tools(agent, items.items, ceiling=ceiling, tokens=self.price, order=order)

    def price(self, tool: ToolDefinition) -> int:
        return self._engine.meter.tools([tool])

    def _texts(self, agent: Agent, items: RequestItems) -> tuple[list[Block], list[Decision]]:
        made: list[Block] = []
        missing: list[Decision] = []
        for each in items.items:
            try:
                made += blocks(agent, [each], read=self._read)
            except (DocumentNotFound, PathRefused):
                missing.append(
                    Decision(
                        slot="references", what="reference", included=False, reason="not_found", name=each.item.name
                    )
                )
        return made, missing

    def _read(self, path: str) -> str:
        folder = self._engine.folder
        if folder is None:
            raise DocumentNotFound(f"{path!r} cannot be read without a project folder.")
        return folder.read(path).text

    async def _remembered(self, agent: Agent, branch: Branch, question: str) -> Surroundings:
        entries = await self._entries(agent, branch, question)
        folder = self._engine.folder
        if folder is None:
            return Surroundings(blocks=tuple(entries))
        from quire.context.memory import project_memory

        longest = 2 * self._engine.policy.room  # About half of the room, at four characters a token.
        project = await asyncio.to_thread(project_memory, folder, agent.memory.files, longest=longest)
        return Surroundings(blocks=(*project.blocks, *entries), decided=project.decided)

    async def _entries(self, agent: Agent, branch: Branch, question: str) -> list[Block]:
        """Those from before the conversation began are there always, so that the prefix holds; of the others some."""
        store, shelf = self._engine.store, memory_shelf(agent)
        known = await store.memories(shelf, limit=LASTING)
        if not known:
            return []
        from quire.context.memory import lasting, recalled

        began = (await store.conversation(branch.conversation)).created_at
        older = [each for each in known if each.created_at <= began]
        made = list(lasting(older))
        if question and len(older) < len(known):
            meaning = await meaning_of(question, self._engine.embedder)
            hits = await store.search(question, scopes=[memory_scope(shelf)], limit=RECALLED, **meaning)
            made += recalled(hits, shown=[each.id for each in older])
        return made


def memory_shelf(agent: Agent) -> str:
    """The name that an agent's memories are kept under."""
    return agent.memory.shelf or agent.name


def _instructions(agent: Agent) -> list[Block]:
    if not agent.instructions:
        return []
    text = agent.instructions
    return [Block(slot="system", what="instructions", name="instructions", text=text, reason="instructions")]


def own_items(agent: Agent, session: Sequence[SessionItem] = ()) -> list[SessionItem]:
    """Tools without a server are the program's own: they are there whenever the program offers them."""
    there = [each.item for each in session]
    own = [tool for tool in agent.tools if tool.server is None and agent.include_of(tool) == "always"]
    return [SessionItem(item=tool.item, include="always") for tool in own if tool.item not in there]
