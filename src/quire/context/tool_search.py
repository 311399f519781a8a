"""`tool_search`: how a model finds the tools that it was not told of, and gets them from the next request on.

What it finds is named only if it has room in the slot; what has none is said to have none, so that no model waits for a
tool that never comes.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from quire.context.names import sent_name
from quire.model import ContextItem, ToolDefinition
from quire.model.agents import OfferedTool
from quire.model.value import Value

FOUND, MOST = 5, 20
LEAST_SCORE = 0.15
"""Lower than for a message: who asks for a tool by name or purpose wants the nearest there is."""

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
            "limit": {"type": "integer", "minimum": 1, "maximum": MOST, "description": f"At most so many; {FOUND}."},
        },
        "required": ["query"],
    },
)


class SearchCall(NamedTuple):
    query: str
    limit: int = FOUND


class ToolHit(Value):
    """A tool that was found, under the name that the model calls it by; without `fits` there is no room for it."""

    name: str
    server: str | None = None
    description: str = ""
    score: float
    fits: bool = True
    item: ContextItem


def read_call(arguments: str) -> SearchCall | None:
    """What the model asks for; None where its arguments hold no query."""
    try:
        given: object = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict):
        return None
    fields = cast("dict[str, Any]", given)
    query, limit = fields.get("query"), fields.get("limit")
    if not isinstance(query, str) or not query.strip():
        return None
    wanted = limit if isinstance(limit, int) and not isinstance(limit, bool) else FOUND
    return SearchCall(query, min(MOST, max(1, wanted)))


def found_tools(
    scores: Mapping[ContextItem, float],
    omitted: Sequence[OfferedTool],
    *,
    room: int,
    tokens: Callable[[ToolDefinition], int],
    limit: int = FOUND,
) -> list[ToolHit]:
    """The best of the omitted tools, as far as they fit together; `scores` are those of the query."""
    ranked = sorted(omitted, key=lambda tool: (-scores.get(tool.item, 0.0), tool.name, tool.server or ""))
    hits: list[ToolHit] = []
    for tool in ranked[:limit]:
        score = scores.get(tool.item, 0.0)
        if score < LEAST_SCORE:
            break
        name = sent_name(tool.item)
        price = tokens(tool.definition.model_copy(update={"name": name}))
        fits = price <= room
        room -= price if fits else 0
        about = tool.definition.description
        hits.append(ToolHit(name=name, server=tool.server, description=about, score=score, fits=fits, item=tool.item))
    return hits


def brought(hits: Sequence[ToolHit]) -> tuple[ContextItem, ...]:
    """What enters the session by a search."""
    return tuple(hit.item for hit in hits if hit.fits)


def told(hits: Sequence[ToolHit]) -> str:
    """The result as the model reads it."""
    if not hits:
        return "No tool was found. Try other words, or go on without one."
    lines = [json.dumps(_shown(hit), ensure_ascii=False) for hit in hits]
    note = "These tools can be called from your next step on."
    if not all(hit.fits for hit in hits):
        note += " Those with a `note` have no room in this conversation."
    return "\n".join([note, *lines])


def _shown(hit: ToolHit) -> dict[str, str]:
    shown = {"name": hit.name, "description": hit.description}
    if hit.server is not None:
        shown["server"] = hit.server
    return shown if hit.fits else {**shown, "note": "no room"}
