"""The `tool_search` tool: a model finds tools that the request omits, and can call them from the next request on.

A hit is added to the session only if it fits into the slot; one that does not is marked "no room", so that the model
does not wait for it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from quire.context.tool_names import wire_name
from quire.model import ContextItem, ToolDefinition
from quire.model.agents import AgentTool
from quire.model.base import FrozenModel
from quire.view.wire_formats.fields import parse_object

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
    """The arguments of a call; None without a query."""
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
    """The omitted tools with the best scores for the query; each fits if it has room after those before it."""
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
    lines = [json.dumps(_hit_to_dict(hit), ensure_ascii=False) for hit in hits]
    note = "These tools can be called from your next step on."
    if not all(hit.fits for hit in hits):
        note += " Those with a `note` have no room in this conversation."
    return "\n".join([note, *lines])


def _hit_to_dict(hit: ToolHit) -> dict[str, str]:
    fields = {"name": hit.name, "description": hit.description}
    if hit.server is not None:
        fields["server"] = hit.server
    return fields if hit.fits else {**fields, "note": "no room"}
