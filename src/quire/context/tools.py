"""Fits tool definitions into the token budget of the tools slot, and searches the tools without room.

Within a session the list only grows, and only at its end, for prefix stability: any other change would invalidate the
provider's prompt cache for everything after it. A tool without room is excluded with a decision. With the tool
`tool_search` a model finds it, and can call it from the next request on. A hit is added to the session only if it fits
into the slot. One that does not is marked "no room", so that the model does not wait for it.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from quire.context.items import InclusionReason, RequestItem, build_exclusion, wire_name
from quire.model import ContextItem, Decision, ToolDefinition
from quire.model.agents import Agent, AgentTool, IncludeMode
from quire.model.base import FrozenModel
from quire.model.json_values import parse_object

ALWAYS_SHARE = 0.75
"""Share of the slot for `always` tools where they exceed it. The rest is for tools that are selected or searched."""

DEFAULT_TOOL_RESULTS, MAX_TOOL_RESULTS = 5, 20
MIN_TOOL_SCORE = 0.15
"""Lower than for a message: a search by name or purpose should return the nearest tools."""

TOOL_SEARCH = ToolDefinition(
    name="tool_search",
    description=(
        "Find tools that are not listed here, by name or by what they do. "
        "The tools that it finds can be called from your next step on."
    ),
    parameters={
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What the tool should do, in a few words, or its name."},
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_TOOL_RESULTS,
                "description": f"Maximum number of results; default {DEFAULT_TOOL_RESULTS}.",
            },
        },
        "required": ["query"],
    },
)
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
    by_item = {each.item: each for each in items if each.item.type == "tool"}
    for item in dict.fromkeys(chain((item for item in session_order if item in by_item), by_item)):
        filler.add(measured[item].definition, by_item[item], measured[item].tokens)
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


class ToolSearchCall(NamedTuple):
    query: str
    limit: int = DEFAULT_TOOL_RESULTS


class ToolHit(FrozenModel):
    """A search hit under its wire name; `fits` is false if the slot has no room for it."""

    name: str
    server: str | None = None
    description: str = ""
    score: float
    fits: bool = True
    item: ContextItem


def parse_tool_search(arguments: str) -> ToolSearchCall | None:
    """The arguments of a call, or None without a query."""
    fields = parse_object(arguments) or {}
    query, limit = fields.get("query"), fields.get("limit")
    if not isinstance(query, str) or not query.strip():
        return None
    requested = limit if isinstance(limit, int) and not isinstance(limit, bool) else DEFAULT_TOOL_RESULTS
    return ToolSearchCall(query, min(MAX_TOOL_RESULTS, max(1, requested)))


def find_tools(
    scores: Mapping[ContextItem, float],
    omitted: Sequence[AgentTool],
    *,
    free_tokens: int,
    count_tokens: Callable[[ToolDefinition], int],
    limit: int = DEFAULT_TOOL_RESULTS,
) -> list[ToolHit]:
    """The omitted tools with the best scores for the query. Each fits if it has room after those before it."""
    ranked = sorted(omitted, key=lambda tool: (-scores.get(tool.item, 0.0), tool.name, tool.server or ""))
    hits: list[ToolHit] = []
    for tool in ranked[:limit]:
        score = scores.get(tool.item, 0.0)
        if score < MIN_TOOL_SCORE:
            break
        name = wire_name(tool.item)
        tokens = count_tokens(tool.definition.model_copy(update={"name": name}))
        fits = tokens <= free_tokens
        free_tokens -= tokens if fits else 0
        description = tool.definition.description
        hits.append(
            ToolHit(name=name, server=tool.server, description=description, score=score, fits=fits, item=tool.item)
        )
    return hits


def list_fitting_items(hits: Sequence[ToolHit]) -> tuple[ContextItem, ...]:
    """Items that a search adds to the session."""
    return tuple(hit.item for hit in hits if hit.fits)


def format_tool_hits(hits: Sequence[ToolHit]) -> str:
    """Tool result text for the model."""
    if not hits:
        return "No tool was found. Try other words, or continue without one."
    lines: list[str] = []
    for hit in hits:
        fields = {"name": hit.name, "description": hit.description}
        if hit.server is not None:
            fields["server"] = hit.server
        if not hit.fits:
            fields["note"] = "no room"
        lines.append(json.dumps(fields, ensure_ascii=False))
    note = "These tools can be called from your next step on."
    if not all(hit.fits for hit in hits):
        note += " Those with a `note` have no room in this conversation."
    return "\n".join([note, *lines])
