"""Tools that only the format responses has: namespaces, and custom tools, whose input is plain text.

A translated request offers each as a function. A call of that function becomes the call that the client's tool expects.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from quire.model import Message, ToolCallPart, ToolDefinition
from quire.model.base import JsonObject
from quire.model.json_values import dump_json, filter_objects, get_object, get_text, is_object
from quire.wire import WireMessage
from quire.wire.codec import TranslatedTools
from quire.wire.fields import get_provider_fields, to_safe_name
from quire.wire.responses import FORMAT
from quire.wire.responses.parse import NAMESPACE_SEPARATOR
from quire.wire.responses.render import OpenAIResponsesFormat

_CUSTOM_PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Parameters of the function that a custom tool becomes."""


class ClientTool(NamedTuple):
    """A tool that a function can stand for."""

    definition: WireMessage
    namespace: str | None = None

    @property
    def is_custom(self) -> bool:
        return self.definition.get("type") == "custom"

    @property
    def name(self) -> str:
        """Name of the function, which is also the name in the log."""
        return join_name(self.namespace, get_text(self.definition, "name") or "")


def join_name(namespace: str | None, name: str) -> str:
    return f"{namespace}{NAMESPACE_SEPARATOR}{name}" if namespace else name


def list_client_tools(tools: Iterable[WireMessage]) -> Iterator[ClientTool]:
    """Lists functions and custom tools, also those in namespaces."""
    for tool in tools:
        if tool.get("type") == "namespace":
            inner = [each for each in filter_objects(tool.get("tools")) if _is_callable(each)]
            yield from (ClientTool(each, get_text(tool, "name")) for each in inner)
        elif _is_callable(tool):
            yield ClientTool(tool)


def _is_callable(tool: WireMessage) -> bool:
    return tool.get("type") in ("function", "custom") and isinstance(tool.get("name"), str)


def translate_tools(tools: Iterable[WireMessage]) -> TranslatedTools:
    """Translates every tool that a function can stand for. The provider's own tools are dropped."""
    tools = tuple(tools)
    own = tuple(list_client_tools(tools))
    hosted = [tool for tool in tools if not _is_callable(tool) and tool.get("type") != "namespace"]
    return TranslatedTools(
        tuple(_to_definition(tool) for tool in own),
        (
            *dict.fromkeys(f"tools[{get_text(tool, 'type') or 'unknown'}]" for tool in hosted),
            *(["tools.strict"] if any(tool.definition.get("strict") is True for tool in own) else []),
        ),
    )


def _to_definition(tool: ClientTool) -> ToolDefinition:
    definition = tool.definition
    description, parameters = get_text(definition, "description") or "", definition.get("parameters")
    if tool.is_custom:
        format_ = get_object(definition, "format")
        if grammar := get_text(format_, "definition"):
            rule = f"`input` must match this grammar ({get_text(format_, 'syntax')}):\n{grammar}"
            description = f"{description}\n\n{rule}" if description else rule
        return ToolDefinition(name=tool.name, description=description, parameters=_CUSTOM_PARAMETERS)
    schema: dict[str, Any] = parameters if is_object(parameters) else {}
    return ToolDefinition(name=tool.name, description=description, parameters=schema)


def index_tools(tools: Iterable[WireMessage]) -> dict[str, ClientTool]:
    """Tools by their names, and by those that upstreams get instead of names that not every format accepts."""
    return {name: tool for tool in list_client_tools(tools) for name in (tool.name, to_safe_name(tool.name))}


def restore_calls(message: Message, tools: Mapping[str, ClientTool]) -> Message:
    """Returns the message with calls of the client's own tools."""
    parts = tuple(restore_call(part, tools) if isinstance(part, ToolCallPart) else part for part in message.parts)
    return message.model_copy(update={"parts": parts})


def restore_call(call: ToolCallPart, tools: Mapping[str, ClientTool]) -> ToolCallPart:
    """Returns the call in the form that the log has of the client's own call, so that both are equal."""
    tool = tools.get(call.name)
    if tool is None:
        return call
    fields: JsonObject = {"namespace": tool.namespace} if tool.namespace else {}
    if tool.is_custom:
        fields["type"] = "custom_tool_call"
    provider_fields: JsonObject | None = {**(call.provider_fields or {}), FORMAT: fields} if fields else None
    call = call.model_copy(update={"name": tool.name, "provider_fields": provider_fields or call.provider_fields})
    if not tool.is_custom:
        return call
    return call.model_copy(update={"arguments": dump_json({"input": render_call(call)["input"]})})


def render_call(call: ToolCallPart) -> WireMessage:
    """The item of a call with the name of the client's tool, without ID and status."""
    (item,) = OpenAIResponsesFormat().render_message(Message(role="assistant", parts=(call,)))
    namespace = get_provider_fields(call.provider_fields, FORMAT).get("namespace")
    prefix = join_name(namespace, "") if isinstance(namespace, str) else ""
    return {**item, "call_id": call.id, "name": call.name.removeprefix(prefix)}
