"""OpenAI's chat completions: messages and tools as it takes them, and what they cost.

Checking and parsing stand in the modules beside it. Call arguments pass through to the byte; thinking is never sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.model import FilePart, ImagePart, Message, Part, TextPart, ToolCallPart, ToolDefinition, ToolResultPart
from quire.model.parts import ResultPart
from quire.view.shapes import openai_check, openai_parse
from quire.view.shapes.base import Load, Provider, Reply, Unit
from quire.view.shapes.fields import (
    compact,
    count_rest,
    own_fields,
    safe_name,
    schema,
    speaker_name,
    text_piece,
    with_fields,
)
from quire.view.shapes.media import PDF, count_file, count_image, note, source_url, split_data_url
from quire.view.tokens import Counter

NAME: Provider = "openai"

# The charges below are at or a little above what OpenAI's own recipes count, so that a sum errs upward.
PER_REQUEST = 3
PER_MESSAGE = 3
PER_CALL = 8
PER_RESULT = 4
PER_TOOL = 8
PER_TOOLS = 12

_SAID_OTHERWISE = {"refusal", "audio", "function_call"}
"""Fields that stand in for an assistant's content."""
_NOT_SENT = ("role", "content", "tool_calls", "tool_call_id", "annotations")
"""Fields that Quire alone writes, and those of responses that requests do not have."""
_WEB = ("http://", "https://", "data:")


@dataclass(slots=True)
class OpenAIShape:
    """`model` matters only to what pictures cost."""

    model: str = ""
    name: Provider = NAME
    overhead: int = PER_REQUEST
    per_text: int = PER_MESSAGE

    def units(self, message: Message, *, load: Load | None = None) -> list[Unit]:
        if message.role == "tool":
            return [_result(part) for part in message.tool_results]
        fields = own_fields(message.provider, NAME)
        content = [piece for part in message.parts for piece in _pieces(message, part, load)]
        unit: Unit = {"role": message.role, "content": _content(content)}
        fields.pop("name", None)  # The message's own field says who speaks.
        if message.name:
            unit["name"] = speaker_name(message.name)
        if message.role == "system" and fields.get("role") == "developer":
            unit["role"] = "developer"
        if message.role == "assistant":
            calls = [_call(part) for part in message.tool_calls]
            if calls:
                unit["tool_calls"] = calls
            if not content and (calls or fields.keys() & _SAID_OTHERWISE):
                unit["content"] = None
        return [_with_sendable(unit, fields)]

    def tool(self, definition: ToolDefinition) -> Unit:
        function: Unit = {"name": safe_name(definition.name)}
        if definition.description:
            function["description"] = definition.description
        return {"type": "function", "function": {**function, "parameters": schema(definition)}}

    def count_units(self, units: Sequence[Unit], counter: Counter) -> int:
        return sum(_message_tokens(unit, counter, self.model) for unit in units)

    def count_tools(self, tools: Sequence[Unit], counter: Counter) -> int:
        return PER_TOOLS + sum(_tool_tokens(tool, counter) for tool in tools) if tools else 0

    def count_system(self, text: str | None, counter: Counter) -> int:
        return PER_MESSAGE + counter.count(text) if text else 0

    def payload(
        self, *, model: str, system: str | None, tools: Sequence[Unit], units: Sequence[Unit], max_tokens: int | None
    ) -> dict[str, Any]:
        first: list[Unit] = [{"role": "system", "content": system}] if system else []
        body: dict[str, Any] = {"model": model.removeprefix("openai:"), "messages": [*first, *units]}
        if tools:
            body["tools"] = list(tools)
        if max_tokens is not None:
            body["max_completion_tokens"] = max_tokens
        return body

    def check(self, payload: Mapping[str, Any]) -> list[str]:
        return openai_check.problems(payload)

    def recount(self, payload: Mapping[str, Any], counter: Counter) -> int:
        messages = sum(_message_tokens(message, counter, self.model) for message in payload["messages"])
        return self.overhead + messages + self.count_tools(payload.get("tools") or (), counter)

    def parse(self, response: object) -> Reply:
        return openai_parse.reply(response)

    def parse_messages(self, messages: Sequence[object], *, system: object = None) -> list[Message]:
        return openai_parse.messages(messages, system=system)


def _pieces(message: Message, part: Part, load: Load | None) -> list[Unit]:
    """The content pieces of a part; only users may show pictures and files."""
    if message.role != "user":
        return [_words(part)] if isinstance(part, TextPart) else []
    if isinstance(part, TextPart):
        return [text_piece(part, NAME)]
    if isinstance(part, ImagePart):
        return [_image(part, load)]
    return [_file(part, load)] if isinstance(part, FilePart) else []


def _content(pieces: list[Unit]) -> str | list[Unit]:
    """One plain text as a string, which every server takes; anything else as a list."""
    if not pieces:
        return ""
    return pieces[0]["text"] if len(pieces) == 1 and pieces[0].keys() == {"type", "text"} else pieces


def _words(part: ResultPart) -> Unit:
    """A part where only text may stand."""
    if not isinstance(part, TextPart):
        return {"type": "text", "text": note(part)}
    piece = text_piece(part, NAME)
    return piece if piece["type"] in ("text", "refusal") else {"type": "text", "text": part.text}


def _id(id_: str) -> str:
    """Ids pass as they are, for servers hide things in them; only an empty one is refused."""
    return id_ or safe_name(id_)


def _image(part: ImagePart, load: Load | None) -> Unit:
    url = source_url(part, load, media_type="image/png")
    if url is None or not url.startswith(_WEB):
        return {"type": "text", "text": note(part)}
    image: Unit = {"url": url} if part.detail is None else {"url": url, "detail": part.detail}
    return with_fields({"type": "image_url", "image_url": image}, own_fields(part.provider, NAME))


def _file(part: FilePart, load: Load | None) -> Unit:
    url = source_url(part, load, media_type=PDF)
    if url is None or split_data_url(url) is None:
        return {"type": "text", "text": note(part)}
    file = {"filename": part.name or "file", "file_data": url}
    return with_fields({"type": "file", "file": file}, own_fields(part.provider, NAME))


def _call(part: ToolCallPart) -> Unit:
    name, fields = safe_name(part.name), own_fields(part.provider, NAME)
    if fields.get("type") == "custom":
        unit: Unit = {"id": _id(part.id), "type": "custom", "custom": {"name": name, "input": part.arguments}}
    else:
        unit = {"id": _id(part.id), "type": "function", "function": {"name": name, "arguments": part.arguments}}
    return with_fields(unit, {key: value for key, value in fields.items() if key not in ("function", "custom")})


def _result(part: ToolResultPart) -> Unit:
    content = _content([_words(piece) for piece in part.content])
    unit = {"role": "tool", "tool_call_id": _id(part.call_id), "content": content}
    return _with_sendable(unit, own_fields(part.provider, NAME))


def _with_sendable(unit: Unit, fields: Unit) -> Unit:
    return with_fields(unit, {key: value for key, value in fields.items() if key not in _NOT_SENT})


def _message_tokens(message: Unit, counter: Counter, model: str) -> int:
    content: str | list[Unit] | None = message.get("content")
    if isinstance(content, str):
        tokens = counter.count(content)
    else:
        tokens = sum(_piece_tokens(piece, counter, model) for piece in content or ())
    tokens += sum(_call_tokens(call, counter) for call in message.get("tool_calls") or ())
    tokens += PER_RESULT if message["role"] == "tool" else 0
    return PER_MESSAGE + tokens + count_rest(message, ("role", "content", "tool_calls", "tool_call_id"), counter)


def _piece_tokens(piece: Unit, counter: Counter, model: str) -> int:
    match piece:
        case {"type": "text", "text": str(text)}:
            return counter.count(text) + count_rest(piece, ("type", "text"), counter)
        case {"type": "image_url", "image_url": {"url": str(url), **more}}:
            split = split_data_url(url)
            tokens = count_image(NAME, data=split[1] if split else None, detail=more.get("detail"), model=model)
            return tokens + count_rest(piece, ("type", "image_url"), counter)
        case {"type": "file", "file": {"filename": str(name), "file_data": str(url)}}:
            split = split_data_url(url)
            tokens = counter.count(name) + count_file(split[1] if split else None)
            return tokens + count_rest(piece, ("type", "file"), counter)
        case _:
            return counter.count(compact(piece))


def _call_tokens(call: Unit, counter: Counter) -> int:
    match call:
        case {"function": {"name": str(name), "arguments": str(text)}} | {
            "custom": {"name": str(name), "input": str(text)}
        }:
            tokens = counter.count(name) + counter.count(text)
        case _:
            tokens = counter.count(compact(call))
    return PER_CALL + tokens + count_rest(call, ("id", "type", "function", "custom"), counter)


def _tool_tokens(tool: Unit, counter: Counter) -> int:
    function: Unit = tool.get("function", {})
    texts = (str(function.get("name", "")), str(function.get("description", "")), compact(function.get("parameters")))
    rest = count_rest(function, ("name", "description", "parameters"), counter)
    return PER_TOOL + sum(map(counter.count, texts)) + rest + count_rest(tool, ("type", "function"), counter)
