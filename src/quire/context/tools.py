"""Fits tool definitions into the token budget of the tools slot.

Within a session the list only grows, and only at its end, for prefix stability: any other change would invalidate the
provider's prompt cache for everything after it. A tool without room is excluded with a decision, and `tool_search` can
find it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from quire.context.items import InclusionReason, RequestItem, build_exclusion
from quire.context.tool_names import wire_name
from quire.context.tool_search import TOOL_SEARCH
from quire.model import ContextItem, Decision, ToolDefinition
from quire.model.agents import Agent, AgentTool, IncludeMode

ALWAYS_SHARE = 0.75
"""Share of the slot for `always` tools where they exceed it; the rest is for tools that are selected or searched."""

TOOL_SEARCH_ITEM = ContextItem(type="tool", name=TOOL_SEARCH.name)

ToolTokenCounter = Callable[[ToolDefinition], int]


@dataclass(frozen=True, slots=True)
class IncludedTool:
    """A tool in the request, under its wire name."""

    definition: ToolDefinition
    item: ContextItem
    reason: InclusionReason
    tokens: int
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSet:
    tools: tuple[IncludedTool, ...] = ()
    decisions: tuple[Decision, ...] = ()
    """One for each tool without room."""
    added_items: tuple[ContextItem, ...] = ()
    """Tools that this message added: recorded in the session, so that the next request has them too."""
    omitted: tuple[AgentTool, ...] = ()
    """Tools that `tool_search` searches."""
    free_tokens: int = 0
    """Unused tokens of the slot."""

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        return tuple(tool.definition for tool in self.tools)


NO_TOOLS = ToolSet()


def fit_tools(
    agent: Agent,
    items: Iterable[RequestItem],
    *,
    max_tokens: int,
    count_tokens: ToolTokenCounter,
    session_order: Sequence[ContextItem] = (),
) -> ToolSet:
    """Adds tools in order while they fit.

    Items of `session_order`, which comes from the log, are first and keep their positions; the others follow in the
    order of `items`. So with the same budget and definitions, a longer `session_order` only extends the list.
    """
    measured = {tool.item: _MeasuredTool.measure(tool, agent, count_tokens) for tool in agent.tools if tool.enabled}
    always_tokens = sum(tool.tokens for tool in measured.values() if tool.include == "always")
    filler = _SlotFiller(
        max_tokens, max_always_tokens=max_tokens if always_tokens <= max_tokens else int(max_tokens * ALWAYS_SHARE)
    )
    # Decided by what the agent has, not by what is sent, so that the decision is stable within a session.
    if always_tokens > max_tokens or any(tool.include == "agent" for tool in measured.values()):
        filler.add(TOOL_SEARCH, RequestItem(item=TOOL_SEARCH_ITEM, include="always"), count_tokens(TOOL_SEARCH))
    for each in _sort_by_session([each for each in items if each.item.type == "tool"], session_order):
        filler.add(measured[each.item].definition, each, measured[each.item].tokens)
    included = frozenset(tool.item for tool in filler.included)
    selectable = (item for item, tool in measured.items() if tool.include == "agent")
    findable = frozenset(chain(filler.rejected, selectable))
    return ToolSet(
        tools=tuple(filler.included),
        decisions=tuple(filler.decisions),
        added_items=tuple(tool.item for tool in filler.included if tool.reason == "agent"),
        omitted=tuple(tool for tool in agent.tools if tool.item in findable and tool.item not in included),
        free_tokens=max(0, max_tokens - filler.used_tokens),
    )


class _MeasuredTool(NamedTuple):
    definition: ToolDefinition
    include: IncludeMode
    tokens: int

    @classmethod
    def measure(cls, tool: AgentTool, agent: Agent, count_tokens: ToolTokenCounter) -> "_MeasuredTool":
        definition = to_wire_definition(tool)
        return cls(definition, agent.include_mode_of(tool), count_tokens(definition))


class _SlotFiller:
    """Accumulator of the tools that fit into the slot."""

    def __init__(self, max_tokens: int, *, max_always_tokens: int) -> None:
        self.used_tokens = 0
        self.rejected: list[ContextItem] = []
        self.included: list[IncludedTool] = []
        self.decisions: list[Decision] = []
        self._max_tokens, self._max_always_tokens = max_tokens, max_always_tokens

    def add(self, definition: ToolDefinition, each: RequestItem, tokens: int) -> None:
        limit = self._max_always_tokens if each.include == "always" else self._max_tokens
        if self.used_tokens + tokens > limit:
            self.rejected.append(each.item)
            self.decisions.append(build_exclusion(each.item, "over_budget", score=each.score, tokens=tokens))
        else:
            self.used_tokens += tokens
            self.included.append(IncludedTool(definition, each.item, each.include, tokens, each.score))


def to_wire_definition(tool: AgentTool) -> ToolDefinition:
    return tool.definition.model_copy(update={"name": wire_name(tool.item)})


def _sort_by_session(items: Sequence[RequestItem], order: Sequence[ContextItem]) -> list[RequestItem]:
    by_item = {each.item: each for each in items}
    ordered = dict.fromkeys(chain((item for item in order if item in by_item), by_item))
    return [by_item[item] for item in ordered]
