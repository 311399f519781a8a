"""What MCP servers send: validates their tool lists, and converts the results of tool calls to parts of a message."""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Awaitable, Collection, Iterable
from posixpath import basename
from typing import Any, Protocol, assert_never, cast

from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for  # pyright: ignore[reportUnknownVariableType]
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
)
from mcp_types.methods import validate_server_result
from pydantic import ValidationError
from pydantic_core import from_json, to_json

from quire.agent.tool_results import ToolResult, make_tool_result
from quire.model import FilePart, ImagePart, TextPart, ToolDefinition
from quire.model.agents import AgentTool, ToolServer
from quire.model.base import replace_lone_surrogates
from quire.model.json_values import is_object
from quire.model.messages import ToolResultContent
from quire.wire.media import build_data_url, read_image_size

_MAX_NAME_CHARS = 256
"""Maximum characters of a tool's name."""
_EXCERPT_CHARS = 80
"""Characters of a name or error that are quoted in a problem."""
_STRICTEST_PROTOCOL_VERSION = "2025-11-25"
"""The protocol revision with the strictest rules for a tool: what it accepts, all accept."""
_TOOL_FIELDS = ("name", "title", "description", "inputSchema")


class PutBlob(Protocol):
    """Stores data and returns the digest by which a part refers to it; the store's `put_blob` is one."""

    def __call__(self, data: bytes, *, media_type: str) -> Awaitable[str]: ...


def filter_valid_tools(listed: Iterable[object]) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the valid tools of a list, reduced to the fields that are used, and the problems of the others.

    The SDK rejects a whole list for one invalid entry, so this runs before it. The output schema is dropped as well:
    the SDK would validate every result against it, however large, and discard those that do not match.
    """
    valid: list[dict[str, Any]] = []
    problems: list[str] = []
    for number, entry in enumerate(listed, start=1):
        fields = {key: entry[key] for key in _TOOL_FIELDS if key in entry} if is_object(entry) else {}
        for key in ("title", "description"):
            if not isinstance(fields.get(key), str):
                fields.pop(key, None)
        if is_object(schema := fields.get("inputSchema")):
            fields["inputSchema"] = {"type": "object", **schema}
        try:
            validate_server_result("tools/list", _STRICTEST_PROTOCOL_VERSION, {"tools": [fields]})
        except ValidationError as exc:
            name = fields.get("name")
            label = repr(name[:_EXCERPT_CHARS]) if isinstance(name, str) else f"number {number}"
            first = exc.errors(include_input=False, include_url=False)[0]
            # Skips the path to the entry itself, which is the only one of its list.
            location = ".".join(str(step) for step in first["loc"][2:])
            problems.append(f"the tool {label} is skipped: `{location}`: {first['msg']}")
        else:
            valid.append(fields)
    return valid, problems


def build_agent_tools(server: ToolServer, tools: Iterable[Tool]) -> tuple[tuple[AgentTool, ...], list[str]]:
    """Returns the tools that can be offered to a model, and the problems of the others.

    Providers reject a whole request for one tool with an invalid schema, so such a tool must not be sent. Checking a
    schema takes about 2 ms: for many, run this in a thread.
    """
    offered: dict[str, AgentTool] = {}
    problems: list[str] = []
    for tool in tools:
        problem = _find_problem(tool, taken_names=offered)
        if problem is None:
            try:
                definition = ToolDefinition(
                    name=tool.name,
                    description=replace_lone_surrogates(tool.description or tool.title or ""),
                    parameters=tool.input_schema,
                )
                offered[tool.name] = server.make_tool(definition)
            except (ValidationError, RecursionError):
                problem = "its schema is not valid JSON"
        if problem is not None:
            problems.append(f"the tool {tool.name[:_EXCERPT_CHARS]!r} is skipped: {problem}")
    return tuple(offered.values()), problems


def _find_problem(tool: Tool, *, taken_names: Collection[str]) -> str | None:
    if not tool.name.strip():
        return "it has no name"
    if len(tool.name) > _MAX_NAME_CHARS:
        return f"its name has more than {_MAX_NAME_CHARS} characters"
    if not tool.name.isprintable():
        return "its name has unprintable characters"
    if tool.name in taken_names:
        return "another tool of this server has the same name"
    try:
        validator_for(tool.input_schema).check_schema(tool.input_schema)  # pyright: ignore[reportUnknownMemberType]
    except SchemaError as exc:
        where = ".".join(str(step) for step in exc.absolute_path)
        return f"its schema is invalid{f' at {where}' if where else ''}: {exc.message[:_EXCERPT_CHARS]}"
    except RecursionError:
        return "its schema is nested too deeply"
    except Exception as exc:  # noqa: BLE001  a schema can name any dialect and pattern, and crash the validator
        return f"its schema cannot be checked: {type(exc).__name__}"
    return None


async def convert_mcp_result(result: CallToolResult, *, max_chars: int, put_blob: PutBlob | None = None) -> ToolResult:
    """Converts the result of a tool call. Base64 data is stored as a blob if there is a blob store, else the part
    contains it as a data URL."""

    async def convert_data(data: str, media_type: str, *, name: str | None = None) -> ToolResultContent:
        try:
            raw = b64decode(data, validate=True)
        except (Base64Error, ValueError):
            return TextPart(text=f"[omitted: {media_type} with invalid base64]")
        blob = await put_blob(raw, media_type=media_type) if put_blob is not None and len(data) <= max_chars else None
        url = build_data_url(media_type, data) if blob is None else None
        if not media_type.startswith("image/"):
            return FilePart(url=url, blob=blob, media_type=media_type, name=name)
        width, height = read_image_size(raw) or (None, None)
        return ImagePart(url=url, blob=blob, media_type=media_type, width=width, height=height)

    parts: list[ToolResultContent] = []
    for block in result.content:
        match block:
            case TextContent():
                parts.append(TextPart(text=block.text))
            case ImageContent() | AudioContent():
                parts.append(await convert_data(block.data, block.mime_type))
            case ResourceLink():
                description = [block.title or block.name, block.uri, block.description]
                parts.append(TextPart(text=f"[resource: {', '.join(text for text in description if text)}]"))
            case EmbeddedResource(resource=TextResourceContents() as resource):
                parts.append(TextPart(text=f"[resource: {resource.uri}]\n{resource.text}"))
            case EmbeddedResource(resource=BlobResourceContents() as resource):
                media_type = resource.mime_type or "application/octet-stream"
                parts.append(await convert_data(resource.blob, media_type, name=basename(resource.uri) or None))
            case _:
                assert_never(block)  # pyright: ignore[reportArgumentType]
    structured = result.structured_content
    if structured is not None and not _repeats([part.text for part in parts if isinstance(part, TextPart)], structured):
        parts.append(TextPart(text=to_json(structured).decode()))
    return make_tool_result(parts, is_error=result.is_error, max_chars=max_chars)


def _repeats(texts: list[str], structured: object) -> bool:
    """Whether the text repeats the structured content, as the protocol recommends: the tokens would count twice.

    Servers built with the SDK wrap a result that is no object in `{"result": ...}`, and send one text block for each
    item of a list.
    """

    def equals(text: str, value: object) -> bool:
        if isinstance(value, str):
            return text == value
        try:
            return from_json(text) == value
        except ValueError:
            return False

    value: object = structured["result"] if is_object(structured) and list(structured) == ["result"] else structured
    if len(texts) == 1 and (equals(texts[0], structured) or equals(texts[0], value)):
        return True
    items = cast("list[object]", value) if isinstance(value, list) else []
    return bool(texts) and len(items) == len(texts) and all(map(equals, texts, items))
