"""Gathers the context of one request other than messages: session items, items selected for the question, memories.

Looks up only what the engine has: without agent items, a project folder or memories, this step costs no I/O.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from quire.context.item_use import learn_rank
from quire.context.items import (
    RequestItems,
    ResolvedSessionItem,
    build_blocks,
    collect_request_items,
    decision_name,
    index_agent_items,
    list_session_items,
    wire_name,
)
from quire.context.selection import ItemCandidate, SelectionSettings, list_candidates, to_candidate
from quire.context.tools import (
    NO_TOOLS,
    ToolSearchCall,
    ToolSet,
    ToolTokenCounter,
    find_tools,
    fit_tools,
    format_tool_hits,
    list_fitting_items,
)
from quire.engine.embeddings import search_passages
from quire.engine.state import EngineState
from quire.errors import DocumentNotFound, InvalidRequest, PathRefused
from quire.index.types import memory_scope
from quire.log import Branch
from quire.model import ContextChange, ContextItem, SessionItem, ToolDefinition
from quire.model.agents import Agent
from quire.model.manifest import Decision, DecisionKind, LearnedRank
from quire.usage.contribution import Dimension
from quire.view.budget import allocate_budget
from quire.view.counted_input import build_block_text
from quire.view.inputs import ContextBlock
from quire.view.strategies import get_strategy

MIN_MEMORY_TOKENS = 20
"""A memory with its id has at least this many tokens. It bounds how many are read for a slot."""
MEMORY_SLOT_SHARE = 0.9
"""Share of the memory slot for memories. The rest is for labels, and for requests whose tokens are counted too low."""
MAX_STABLE_MEMORIES = 1_000
"""Memories considered for the stable prefix, newest first."""
MAX_RECALLED_MEMORIES = 5
"""Memories recalled for one question, in addition to all that are older than the conversation."""
MAX_SEARCHED_MEMORIES = 40
"""Memories recalled for one question if the stable prefix has only a core of the older ones."""
SHARED_RECALL = 0.5
"""Share of the recall slot for memories, if the strategy also recalls messages."""

RecentTexts = Callable[[], Awaitable[Sequence[str]]]
"""Returns the texts of recent turns. Called only when items are to be selected, because it decodes messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Context blocks, tools and the decisions about them, for one request."""

    blocks: tuple[ContextBlock, ...] = ()
    tools: ToolSet = NO_TOOLS
    decisions: tuple[Decision, ...] = ()
    learned: Mapping[tuple[DecisionKind, str], LearnedRank] = field(
        default_factory=dict[tuple[DecisionKind, str], LearnedRank]
    )
    """Factors on the scores of items that the question could select, by kind and name."""
    omits_memories: bool = False
    """Whether the agent has more memories than the memory slot holds."""

    def with_blocks(self, *others: ContextBlock) -> "RequestContext":
        return replace(self, blocks=(*self.blocks, *others))


class ContextGatherer:
    """Gathers request context for the conversations of one engine."""

    def __init__(self, engine: EngineState) -> None:
        self._engine = engine

    async def gather(self, branch: Branch, question: str, *, recent: RecentTexts) -> RequestContext:
        """Gathers the context for a question on this branch; `recent` returns the texts of earlier turns, newest
        first."""
        agent = self._engine.agent
        has_items = agent.rules or agent.references or agent.tools or branch.state.items
        reads_project_files = agent.memory.reads_files and self._engine.config.project_root is not None
        if not (has_items or agent.memory.enabled or reads_project_files):
            return RequestContext(blocks=tuple(_instruction_blocks(agent)))
        session = [*list_application_tools(agent, branch.state.items), *branch.state.items]
        candidates = list_candidates(agent, session_items=[each.item for each in session])
        selected = ()
        learned: dict[ContextItem, LearnedRank] = {}
        if candidates and question:
            settings = self._engine.settings
            selection = SelectionSettings(top_k=settings.selection_top_k, min_score=settings.selection_min_score)
            selector = self._engine.runtime.selector_for(self._engine.embedder)
            learned = await self._learn_ranks(candidates)
            selected = (
                await selector.select(question, candidates, recent=await recent(), learned=learned, settings=selection)
            ).scored
        items = collect_request_items(agent, session, selected, removed=branch.state.removed_items)
        # Most items hold their text; only reading files is worth a thread.
        reads_files = any(reference.text is None for reference in agent.references)
        texts, missing = (
            await asyncio.to_thread(self._load_blocks, agent, items) if reads_files else self._load_blocks(agent, items)
        )
        policy = self._engine.policy
        tools = fit_tools(
            agent,
            items.items,
            max_tokens=allocate_budget(policy, get_strategy(policy.strategy).shares).limit_for("tools"),
            count_tokens=self.count_tool_tokens,
            session_order=[each.item for each in session],
        )
        memory = await self._gather_memory(agent, branch, question)
        return RequestContext(
            blocks=(*_instruction_blocks(agent), *texts, *memory.blocks),
            tools=tools,
            decisions=(*items.decisions, *missing, *tools.decisions, *memory.decisions),
            learned={(item.type, decision_name(item)): rank for item, rank in learned.items()},
            omits_memories=memory.omits_memories,
        )

    async def _learn_ranks(self, candidates: Sequence[ItemCandidate]) -> dict[ContextItem, LearnedRank]:
        """What the usage roll-up says about the candidates. Items of the same name share their counts."""
        keys: dict[ContextItem, tuple[Dimension, str]] = {
            each.item: (each.item.type, decision_name(each.item)) for each in candidates
        }
        counts = await self._engine.store.usage.read_item_counts(items=list(keys.values()))
        ranks = {
            item: learn_rank(chosen=counts[key].requests, used=counts[key].uses, added=counts[key].turns)
            for item, key in keys.items()
            if key in counts
        }
        return {item: rank for item, rank in ranks.items() if rank is not None}

    def count_tool_tokens(self, tool: ToolDefinition) -> int:
        return self._engine.message_counter.count_tools([tool])

    def _load_blocks(self, agent: Agent, items: RequestItems) -> tuple[list[ContextBlock], list[Decision]]:
        blocks: list[ContextBlock] = []
        missing: list[Decision] = []
        for each in items.items:
            try:
                blocks += build_blocks(agent, [each], read=self._read_file)
            except (DocumentNotFound, PathRefused):
                missing.append(
                    Decision(
                        slot="references", kind="reference", included=False, reason="not_found", name=each.item.name
                    )
                )
        return blocks, missing

    def _read_file(self, path: str) -> str:
        root = self._engine.config.project_root
        if root is None:
            raise DocumentNotFound(f"{path!r} cannot be read without a project folder; open the engine with a vault.")
        return root.read(path).text

    async def _gather_memory(self, agent: Agent, branch: Branch, question: str) -> RequestContext:
        if not self._engine.settings.memory_integration:
            return RequestContext()
        project = RequestContext()
        root = self._engine.config.project_root
        if root is not None and agent.memory.reads_files:
            from quire.context.memory import load_project_memory

            # Half of the input tokens, at four characters a token.
            max_chars = 2 * self._engine.policy.max_input_tokens
            loaded = await asyncio.to_thread(load_project_memory, root, agent.memory.files, max_chars=max_chars)
            project = RequestContext(blocks=loaded.blocks, decisions=loaded.decisions)
        if not agent.memory.enabled:
            return project
        return await self._add_memories(project, branch, question)

    async def _add_memories(self, project: RequestContext, branch: Branch, question: str) -> RequestContext:
        """Adds the agent's memories to the project's files.

        Those older than the conversation are in the stable prefix: all if they fit into the slot with
        the files, else a core that depends on no question. The others are recalled by the question.
        """
        engine, store, namespace = self._engine, self._engine.store, memory_namespace(self._engine.agent)
        newest = await store.memories.list(namespace, limit=1)
        if not newest:
            return project
        from quire.context.memory import build_memory_blocks, build_recalled_blocks, select_core

        count_tokens = engine.message_counter.token_counter.count
        strategy = get_strategy(engine.policy.strategy)
        budget = allocate_budget(engine.policy, strategy.shares)
        slot_tokens = budget.limit_for("memory") - sum(count_tokens(block.text) for block in project.blocks)
        started_at = (await store.get_conversation(branch.conversation)).created_at
        read_limit = min(MAX_STABLE_MEMORIES, max(0, slot_tokens) // MIN_MEMORY_TOKENS) + 1
        older = await store.memories.list(namespace, limit=read_limit, created_until=started_at)
        # The calibration lowers the slot. In steps, or every report of a provider would change the prefix.
        ratio = (await engine.runtime.load_calibration(store, engine.policy.model)).ratio
        max_tokens = slot_tokens / (max(4, ceil(ratio * 4)) / 4) * MEMORY_SLOT_SHARE
        listed = select_core(older, max_tokens=int(max_tokens), count_tokens=count_tokens)
        is_core = len(listed) < len(older) or len(older) == read_limit
        blocks = [*project.blocks, *build_memory_blocks(listed, is_core=is_core)]
        if question and (is_core or newest[0].created_at > started_at):
            limit = MAX_SEARCHED_MEMORIES if is_core else MAX_RECALLED_MEMORIES
            hits = await search_passages(store, engine.embedder, question, scope=memory_scope(namespace), limit=limit)
            free_tokens = int(budget.limit_for("recall") * (SHARED_RECALL if strategy.recalls else 1))
            for block in build_recalled_blocks(hits, included_ids=[each.id for each in listed]):
                free_tokens -= count_tokens(build_block_text(block.kind, block.text, name=block.name))
                if free_tokens < 0:
                    break
                blocks.append(block)
        return replace(project, blocks=tuple(blocks), omits_memories=is_core)


class SessionItems:
    """The session items of one branch (rules, references, tools): added or removed by the user, or added by the model's
    tool search."""

    def __init__(self, engine: EngineState, conversation: str, branch: int, *, count_tokens: ToolTokenCounter) -> None:
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
        """Searches the tools that this request omits. Those that fit are in the next request."""
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


def memory_namespace(agent: Agent) -> str:
    """The namespace of an agent's memories; agents with the same one share them."""
    return agent.memory.namespace or agent.name


def _instruction_blocks(agent: Agent) -> list[ContextBlock]:
    if not agent.instructions:
        return []
    text = agent.instructions
    return [ContextBlock(slot="system", kind="instructions", name="instructions", text=text, reason="instructions")]


def list_application_tools(agent: Agent, session: Sequence[SessionItem] = ()) -> list[SessionItem]:
    """Tools without an MCP server belong to the application: they are included without being added to the session."""
    present = [each.item for each in session]
    own = [tool for tool in agent.tools if tool.server is None and agent.include_mode_of(tool) == "always"]
    return [SessionItem(item=tool.item, include="always") for tool in own if tool.item not in present]


def _item_label(item: ContextItem) -> str:
    return f"{item.server}:{item.name}" if item.server else f"{item.type} {item.name}"
