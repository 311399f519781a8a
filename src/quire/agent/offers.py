"""The tools that a server lists, as far as they can be offered to a model; what cannot be is named with the reason.

Providers refuse a whole request for one tool with a broken schema, so a tool is left out rather than tried.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for  # pyright: ignore[reportUnknownVariableType]
from mcp_types import Tool
from mcp_types.methods import validate_server_result
from pydantic import ValidationError

from quire.agent.outcomes import storable
from quire.model import ToolDefinition
from quire.model.agents import OfferedTool, ToolServer
from quire.view.shapes.fields import is_object

_LONGEST_NAME = 256
_SHOWN = 80
_STRICTEST = "2025-11-25"
"""The revision of the protocol that asks most of a tool: what it takes, all take."""
_READ = ("name", "title", "description", "inputSchema")


class Offers(NamedTuple):
    tools: tuple[OfferedTool, ...]
    problems: tuple[str, ...]


def sifted(listed: Iterable[object]) -> tuple[list[dict[str, Any]], list[str]]:
    """The entries of a listing that have the shape of a tool, with the fields that are read; and what ails the others.

    The SDK refuses a whole listing for one bad entry, so this stands before it. The schema of a tool's output goes too:
    the SDK would hold every result against it, however large, and drop those that do not fit.
    """
    kept: list[dict[str, Any]] = []
    problems: list[str] = []
    for place, entry in enumerate(listed, start=1):
        reduced = _reduced(entry) if is_object(entry) else {}
        try:
            validate_server_result("tools/list", _STRICTEST, {"tools": [reduced]})
        except ValidationError as exc:
            name = _shown(reduced["name"]) if isinstance(reduced.get("name"), str) else f"number {place}"
            problems.append(f"the tool {name} is left out: {_first_fault(exc)}")
        else:
            kept.append(reduced)
    return kept, problems


def _reduced(entry: dict[str, Any]) -> dict[str, Any]:
    fields = {key: entry[key] for key in _READ if key in entry}
    for key in ("title", "description"):
        if not isinstance(fields.get(key), str):
            fields.pop(key, None)
    if is_object(schema := fields.get("inputSchema")):
        fields["inputSchema"] = {"type": "object", **schema}
    return fields


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_input=False, include_url=False)[0]
    # Without the way to the entry itself, which is the first and only one of its list.
    field = ".".join(str(step) for step in fault["loc"][2:])
    return f"`{field}`: {fault['msg']}"


def offers(server: ToolServer, tools: Iterable[Tool]) -> Offers:
    """A tool for each that can be offered. Checking a schema takes about 2 ms: for many, run this in a thread."""
    offered: dict[str, OfferedTool] = {}
    problems: list[str] = []
    for tool in tools:
        problem = _unusable(tool, known=tool.name in offered)
        definition = None if problem else _definition(tool)
        if definition is None:
            problems.append(f"the tool {_shown(tool.name)} is left out: {problem or 'its schema is no JSON'}")
        else:
            offered[tool.name] = server.offers(definition)
    return Offers(tuple(offered.values()), tuple(problems))


def _unusable(tool: Tool, *, known: bool) -> str | None:
    if not tool.name.strip():
        return "it has no name"
    if len(tool.name) > _LONGEST_NAME:
        return f"its name has more than {_LONGEST_NAME} characters"
    if not tool.name.isprintable():
        return "its name has characters that cannot be shown"
    if known:
        return "another tool of this server has the same name"
    return _schema_fault(tool.input_schema)


def _schema_fault(schema: dict[str, Any]) -> str | None:
    try:
        validator_for(schema).check_schema(schema)  # pyright: ignore[reportUnknownMemberType]
    except SchemaError as exc:
        where = ".".join(str(step) for step in exc.absolute_path)
        return f"its schema is wrong{f' at {where}' if where else ''}: {exc.message[:_SHOWN]}"
    except RecursionError:
        return "its schema is nested too deeply"
    except Exception as exc:  # noqa: BLE001  a schema can name any dialect and pattern, and break the validator itself
        return f"its schema cannot be checked: {type(exc).__name__}"
    return None


def _definition(tool: Tool) -> ToolDefinition | None:
    try:
        return ToolDefinition(
            name=tool.name,
            description=storable(tool.description or tool.title or ""),
            parameters=tool.input_schema,
        )
    except (ValidationError, RecursionError):
        return None


def _shown(name: str) -> str:
    return repr(name[:_SHOWN])
