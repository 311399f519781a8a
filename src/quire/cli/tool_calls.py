"""Tool calls in the terminal: one line for each, and the fold of a long run of them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from rich.text import Text

from quire.cli.output import pluralize, to_one_line
from quire.model import ToolCallPart, ToolResultPart

if TYPE_CHECKING:
    from quire.model import Entry

MAX_CALL_LINES = 8
"""Calls of a turn that have a line each; the others are counted, except those that failed."""
MAX_NAMED_TOOLS = 4
"""Tools that the line of folded calls names."""
_MAX_ARGUMENT_CHARS = 60


class CompletedCall(NamedTuple):
    seq: int
    """Entry number of the result."""
    call: ToolCallPart
    result: ToolResultPart


def pair_calls(entries: "Iterable[Entry]") -> Iterator[CompletedCall]:
    """The calls of these entries with their results, in the order of the results."""
    pending: dict[str, ToolCallPart] = {}
    for entry in entries:
        message = entry.message
        pending.update((call.id, call) for call in message.tool_calls)
        for result in message.tool_results:
            if (call := pending.pop(result.call_id, None)) is not None:
                yield CompletedCall(entry.seq, call, result)


def format_tool_call(call: ToolCallPart, *, max_chars: int = 120) -> str:
    """Formats a call on one line: `read_document(path="places/Mill.md")`."""
    arguments = parse_arguments(call)
    if arguments is None:
        return to_one_line(f"{call.name}({call.arguments})", max_chars)
    pairs = [
        f"{name}={to_one_line(json.dumps(value, ensure_ascii=False), _MAX_ARGUMENT_CHARS)}"
        for name, value in arguments.items()
    ]
    return to_one_line(f"{call.name}({', '.join(pairs)})", max_chars)


def parse_arguments(call: ToolCallPart) -> dict[str, Any] | None:
    """The arguments of a call; None if the model wrote no JSON object."""
    try:
        value = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def render_tool_result(call: ToolCallPart, result: ToolResultPart, *, width: int, prefix: str = "") -> Text:
    """A call with the size of its result, or with the error, on one line."""
    sign, style = ("✗", "red") if result.is_error else ("✓", "green")
    room = width - len(prefix) - len("✓  ")
    # An error and its call share the line; the size of a result takes only what it needs.
    size = ""
    if not result.is_error:
        others = sum(part.type != "text" for part in result.content)
        length = pluralize(len(result.text), "character") if result.text or not others else ""
        size = " and ".join(filter(None, (length, pluralize(others, "file") if others else "")))
    head = format_tool_call(call, max_chars=max(20, width // 2 if result.is_error else room - len(size)))
    tail = size or to_one_line(result.text, max(20, room - len(head)))
    return Text.assemble((prefix, "dim"), (f"{sign} ", style), (head, "cyan"), (f" {tail}", "dim"))


def format_folded_calls(counts: Mapping[str, int], *, detail: str = "") -> str:
    """`56 more calls: read_module 50, grep 6`, the most frequent tools first; a `detail` comes before them."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    names = [f"{to_one_line(name, _MAX_ARGUMENT_CHARS)} {count:,}" for name, count in ranked[:MAX_NAMED_TOOLS]]
    if others := len(ranked) - len(names):
        names.append(pluralize(others, "other tool"))
    return f"{pluralize(sum(counts.values()), 'more call')}{detail}: {', '.join(names)}"
