"""Calls of tools, one line each: what was called, and what came of it."""

import json
from typing import Any, cast

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from quire.cli.output import counted, one_line, plain
from quire.model import ToolCallPart, ToolResultPart

_ARGUMENT = 60
_LINES = 20
"""Of a call that is asked about, so many lines are shown; the rest is counted."""


def called(call: ToolCallPart, *, longest: int = 120) -> str:
    """`read_document(path="places/Mill.md")`."""
    given = _object(call.arguments)
    if given is None:
        return one_line(f"{call.name}({call.arguments})", longest)
    shown = ", ".join(f"{name}={one_line(_value(value), _ARGUMENT)}" for name, value in given.items())
    return one_line(f"{call.name}({shown})", longest)


def outcome_line(call: ToolCallPart, result: ToolResultPart, *, width: int) -> Text:
    sign, style = ("✗", "red") if result.is_error else ("✓", "green")
    first = called(call, longest=max(20, width // 2))
    said = one_line(result.text, max(20, width - len(first) - 6)) if result.is_error else _size(result)
    return Text.assemble((f"{sign} ", style), (first, "cyan"), (f" {said}", "dim"))


def _size(result: ToolResultPart) -> str:
    others = len(result.content) - sum(part.type == "text" for part in result.content)
    size = counted(len(result.text), "character") if result.text or not others else ""
    files = counted(others, "file") if others else ""
    return " and ".join(filter(None, (size, files)))


def asked_line(call: ToolCallPart) -> Group:
    """All of a call, as far as it can be read: whoever allows it must see what it does."""
    given = _object(call.arguments)
    text = call.arguments if given is None else json.dumps(given, ensure_ascii=False, indent=2)
    lines = plain(text).splitlines()
    hidden = len(lines) - _LINES
    more = [Text(f"… and {hidden} more lines", style="bold red")] if hidden > 0 else []
    head = Text.assemble(("Run ", "bold yellow"), (plain(call.name), "bold cyan"), ("?", "bold yellow"))
    return Group(head, *(Padding(Text(line), (0, 0, 0, 2)) for line in lines[:_LINES]), *more)


def _value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _object(arguments: str) -> dict[str, Any] | None:
    try:
        read = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", read) if isinstance(read, dict) else None
