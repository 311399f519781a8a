"""Validates the tool list of an MCP server. Tools that cannot be offered to a model are skipped with a reason.

Providers reject a whole request for one tool with an invalid schema, so such a tool must not be sent.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for  # pyright: ignore[reportUnknownVariableType]
from mcp_types import Tool
from mcp_types.methods import validate_server_result
from pydantic import ValidationError

from quire.model import ToolDefinition
from quire.model.agents import AgentTool, ToolServer
from quire.model.text import replace_lone_surrogates
from quire.view.wire_formats.fields import is_object

_MAX_NAME_CHARS = 256
"""Maximum characters of a tool's name."""
_EXCERPT_CHARS = 80
"""Characters of a name or error that are quoted in a problem."""
_STRICTEST_PROTOCOL_VERSION = "2025-11-25"
"""The protocol revision with the strictest rules for a tool: what it accepts, all accept."""
_TOOL_FIELDS = ("name", "title", "description", "inputSchema")


class ToolListing(NamedTuple):
    tools: tuple[AgentTool, ...]
    problems: tuple[str, ...]


def filter_valid_tools(listed: Iterable[object]) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the valid tools of a list, reduced to the fields that are used, and the problems of the others.

    The SDK rejects a whole list for one invalid entry, so this runs before it. The output schema is dropped as well:
    the SDK would validate every result against it, however large, and discard those that do not match.
    """
    valid: list[dict[str, Any]] = []
    problems: list[str] = []
    for number, entry in enumerate(listed, start=1):
        reduced = _select_tool_fields(entry) if is_object(entry) else {}
        try:
            validate_server_result("tools/list", _STRICTEST_PROTOCOL_VERSION, {"tools": [reduced]})
        except ValidationError as exc:
            name = _quote_name(reduced["name"]) if isinstance(reduced.get("name"), str) else f"number {number}"
            problems.append(f"the tool {name} is skipped: {_describe_validation_error(exc)}")
        else:
            valid.append(reduced)
    return valid, problems


def _select_tool_fields(entry: dict[str, Any]) -> dict[str, Any]:
    fields = {key: entry[key] for key in _TOOL_FIELDS if key in entry}
    for key in ("title", "description"):
        if not isinstance(fields.get(key), str):
            fields.pop(key, None)
    if is_object(schema := fields.get("inputSchema")):
        fields["inputSchema"] = {"type": "object", **schema}
    return fields


def _describe_validation_error(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    # Skips the path to the entry itself, which is the only one of its list.
    field = ".".join(str(step) for step in first["loc"][2:])
    return f"`{field}`: {first['msg']}"


def build_tool_listing(server: ToolServer, tools: Iterable[Tool]) -> ToolListing:
    """Builds the tools that can be offered. Checking a schema takes about 2 ms: for many, run this in a thread."""
    offered: dict[str, AgentTool] = {}
    problems: list[str] = []
    for tool in tools:
        problem = _find_problem(tool, is_duplicate=tool.name in offered)
        definition = None if problem else _build_definition(tool)
        if definition is None:
            problems.append(
                f"the tool {_quote_name(tool.name)} is skipped: {problem or 'its schema is not valid JSON'}"
            )
        else:
            offered[tool.name] = server.make_tool(definition)
    return ToolListing(tuple(offered.values()), tuple(problems))


def _find_problem(tool: Tool, *, is_duplicate: bool) -> str | None:
    if not tool.name.strip():
        return "it has no name"
    if len(tool.name) > _MAX_NAME_CHARS:
        return f"its name has more than {_MAX_NAME_CHARS} characters"
    if not tool.name.isprintable():
        return "its name has unprintable characters"
    if is_duplicate:
        return "another tool of this server has the same name"
    return _find_schema_problem(tool.input_schema)


def _find_schema_problem(schema: dict[str, Any]) -> str | None:
    try:
        validator_for(schema).check_schema(schema)  # pyright: ignore[reportUnknownMemberType]
    except SchemaError as exc:
        where = ".".join(str(step) for step in exc.absolute_path)
        return f"its schema is invalid{f' at {where}' if where else ''}: {exc.message[:_EXCERPT_CHARS]}"
    except RecursionError:
        return "its schema is nested too deeply"
    except Exception as exc:  # noqa: BLE001  a schema can name any dialect and pattern, and crash the validator
        return f"its schema cannot be checked: {type(exc).__name__}"
    return None


def _build_definition(tool: Tool) -> ToolDefinition | None:
    try:
        return ToolDefinition(
            name=tool.name,
            description=replace_lone_surrogates(tool.description or tool.title or ""),
            parameters=tool.input_schema,
        )
    except (ValidationError, RecursionError):
        return None


def _quote_name(name: str) -> str:
    return repr(name[:_EXCERPT_CHARS])
