"""Which tools a model is told of, within the tokens that the slot may take.

The list only grows within a session, and only at its end, because every change in it makes the provider read anew all
that follows. What has no room is left out with a decision, and can be found again by `tool_search`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from quire.context.items import Entered, RequestItem, left_out
from quire.context.names import by_name, sent_name
from quire.context.tool_search import TOOL_SEARCH
from quire.model import ContextItem, Decision, ToolDefinition
from quire.model.agents import Agent, Include, OfferedTool

ALWAYS_SHARE = 0.75
"""Where the tools that are always there exceed the slot, they get this part of it: the rest is for what is found."""

Tokens = Callable[[ToolDefinition], int]


@dataclass(frozen=True, slots=True)
class SentTool:
    """A tool as the model is told of it, under a name of its own."""

    definition: ToolDefinition
    item: ContextItem
    reason: Entered
    tokens: int
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSet:
    tools: tuple[SentTool, ...] = ()
    decided: tuple[Decision, ...] = ()
    """What had no room."""
    entered: tuple[ContextItem, ...] = ()
    """What this message brought in: to be kept in the session, so that the next request has it too."""
    omitted: tuple[OfferedTool, ...] = ()
    """What `tool_search` looks through."""
    room: int = 0
    """Tokens of the slot that are left."""

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        return tuple(tool.definition for tool in self.tools)

    def called(self, name: str) -> ContextItem | None:
        """Which tool it is that a model calls by this name."""
        return by_name(tool.item for tool in self.tools).get(name)


NO_TOOLS = ToolSet()


def fit_tools(
    agent: Agent,
    items: Iterable[RequestItem],
    *,
    ceiling: int,
    tokens: Tokens,
    order: Sequence[ContextItem] = (),
) -> ToolSet:
    """Takes tools in order while they fit.

    `order` is the session's own, from the log: items in it come first and keep their places; what it lacks comes after,
    as it stands in `items`. So with the same ceiling and definitions, adding to `order` only adds to the list.
    """
    offered = {tool.item: _Offer.of(tool, agent, tokens) for tool in agent.tools if tool.enabled}
    always = sum(offer.tokens for offer in offered.values() if offer.include == "always")
    filling = _Filling(ceiling, for_always=ceiling if always <= ceiling else int(ceiling * ALWAYS_SHARE))
    # By what the agent has and not by what is sent, so that within a session the answer stays the same.
    if always > ceiling or any(offer.include == "agent" for offer in offered.values()):
        filling.take(TOOL_SEARCH, RequestItem(item=SEARCH_ITEM, include="always"), tokens(TOOL_SEARCH))
    for each in _in_order([each for each in items if each.item.type == "tool"], order):
        filling.take(offered[each.item].definition, each, offered[each.item].tokens)
    sent = frozenset(tool.item for tool in filling.taken)
    by_message = (item for item, offer in offered.items() if offer.include == "agent")
    findable = frozenset(chain(filling.refused, by_message))
    return ToolSet(
        tools=tuple(filling.taken),
        decided=tuple(filling.decided),
        entered=tuple(tool.item for tool in filling.taken if tool.reason == "agent"),
        omitted=tuple(tool for tool in agent.tools if tool.item in findable and tool.item not in sent),
        room=max(0, ceiling - filling.used),
    )


SEARCH_ITEM = ContextItem(type="tool", name=TOOL_SEARCH.name)


class _Offer(NamedTuple):
    definition: ToolDefinition
    include: Include
    tokens: int

    @classmethod
    def of(cls, tool: OfferedTool, agent: Agent, tokens: Tokens) -> "_Offer":
        definition = sent_definition(tool)
        return cls(definition, agent.include_of(tool), tokens(definition))


class _Filling:
    """The slot as it fills."""

    def __init__(self, ceiling: int, *, for_always: int) -> None:
        self.used = 0
        self.refused: list[ContextItem] = []
        self.taken: list[SentTool] = []
        self.decided: list[Decision] = []
        self._ceiling, self._for_always = ceiling, for_always

    def take(self, definition: ToolDefinition, each: RequestItem, price: int) -> None:
        limit = self._for_always if each.include == "always" else self._ceiling
        if self.used + price > limit:
            self.refused.append(each.item)
            self.decided.append(left_out(each.item, "over_budget", score=each.score, tokens=price))
        else:
            self.used += price
            self.taken.append(SentTool(definition, each.item, each.include, price, each.score))


def sent_definition(tool: OfferedTool) -> ToolDefinition:
    return tool.definition.model_copy(update={"name": sent_name(tool.item)})


def _in_order(items: Sequence[RequestItem], order: Sequence[ContextItem]) -> list[RequestItem]:
    by_item = {each.item: each for each in items}
    placed = dict.fromkeys(chain((item for item in order if item in by_item), by_item))
    return [by_item[item] for item in placed]
