"""Anthropic's messages: content blocks and tools as it takes them, and what they cost.

Checking and parsing stand in the modules beside it. Thinking keeps its bytes; costs hang on blocks and never on
messages, so that joining neighbours of one role changes nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from quire.model import (
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolDefinition,
    ToolResultPart,
)
from quire.model.parts import ResultPart
from quire.view.labels import labelled
from quire.view.shapes import anthropic_check, anthropic_parse
from quire.view.shapes.base import Load, Provider, Reply, Unit
from quire.view.shapes.fields import (
    compact,
    count_rest,
    is_object,
    own_fields,
    safe_name,
    schema,
    text_piece,
    with_fields,
)
from quire.view.shapes.media import PDF, count_file, count_image, note, source_url, split_data_url
from quire.view.tokens import Counter

NAME: Provider = "anthropic"

DEFAULT_MAX_TOKENS = 4_096
"""The API demands a limit; every Claude model takes this one."""
EMPTY = "[empty]"
"""Stands where the API refuses nothing: texts must hold more than blanks, and thinking cannot come last."""
OPENER = "[conversation continues]"
"""Put before an assistant's message that would come first. As a plain string, which no unit's content is, it is known
again when a payload is recounted; it is always charged, as part of the overhead."""

# The charges below are at or above what Anthropic's token counting shows, so that a sum errs upward.
PER_REQUEST = 4
PER_OPENER = 12
PER_BLOCK = 4
PER_CALL = 12
PER_RESULT = 12
PER_TOOL = 12
PER_TOOLS = 346
"""The instructions that Anthropic adds itself when there is any tool."""
SEALED = 5
"""Characters of a signature or of redacted thinking for one token of the thinking that is sealed in it."""

PICTURES = ("image/jpeg", "image/png", "image/gif", "image/webp")


@dataclass(slots=True)
class AnthropicShape:
    """`model` matters only to what pictures cost."""

    model: str = ""
    name: Provider = NAME
    overhead: int = PER_REQUEST + PER_OPENER
    per_text: int = PER_BLOCK

    def units(self, message: Message, *, load: Load | None = None) -> list[Unit]:
        """A message that would come out with nothing gets one block that says so; a tool's without results is none."""
        blocks = [block for part in message.parts if (block := _block(message, part, load)) is not None]
        if message.role == "tool" and not blocks:
            return []
        if not blocks or blocks[-1]["type"] in ("thinking", "redacted_thinking"):
            blocks.append({"type": "text", "text": EMPTY})
        return [{"role": "assistant" if message.role == "assistant" else "user", "content": blocks}]

    def tool(self, definition: ToolDefinition) -> Unit:
        unit: Unit = {"name": safe_name(definition.name)}
        if definition.description:
            unit["description"] = definition.description
        return {**unit, "input_schema": schema(definition)}

    def count_units(self, units: Sequence[Unit], counter: Counter) -> int:
        return sum(_block_tokens(block, counter, self.model) for unit in units for block in _blocks(unit))

    def count_tools(self, tools: Sequence[Unit], counter: Counter) -> int:
        return PER_TOOLS + sum(_tool_tokens(tool, counter) for tool in tools) if tools else 0

    def count_system(self, text: str | None, counter: Counter) -> int:
        return PER_BLOCK + counter.count(text) if text and text.strip() else 0

    def payload(
        self, *, model: str, system: str | None, tools: Sequence[Unit], units: Sequence[Unit], max_tokens: int | None
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": model.removeprefix("anthropic:"),
            "max_tokens": DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens,
        }
        if system and system.strip():
            body["system"] = system
        if tools:
            body["tools"] = list(tools)
        return {**body, "messages": _joined(units)}

    def check(self, payload: Mapping[str, Any]) -> list[str]:
        return anthropic_check.problems(payload)

    def recount(self, payload: Mapping[str, Any], counter: Counter) -> int:
        messages: list[Unit] = payload["messages"]
        if messages and messages[0]["content"] == OPENER:
            messages = messages[1:]
        tokens = self.count_units(messages, counter) + self.count_system(payload.get("system"), counter)
        return self.overhead + tokens + self.count_tools(payload.get("tools") or (), counter)

    def parse(self, response: object) -> Reply:
        return anthropic_parse.reply(response)

    def parse_messages(self, messages: Sequence[object], *, system: object = None) -> list[Message]:
        return anthropic_parse.messages(messages, system=system)


def _blocks(unit: Unit) -> list[Unit]:
    content: str | list[Unit] = unit["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _joined(units: Sequence[Unit]) -> list[Unit]:
    """Neighbours of one role as one message, the user's first. The lists are new, since units are shared."""
    messages: list[Unit] = []
    if units and units[0]["role"] == "assistant":
        messages.append({"role": "user", "content": OPENER})
    for unit in units:
        if messages and messages[-1]["role"] == unit["role"]:
            messages[-1]["content"].extend(unit["content"])
        else:
            messages.append({"role": unit["role"], "content": [*unit["content"]]})
    return messages


def _block(message: Message, part: Part, load: Load | None) -> Unit | None:
    """The part as a block, or None where its role cannot carry it or the API would refuse it."""
    match message.role:
        case "system":
            return _system_note(part) if isinstance(part, TextPart) else None
        case "user":
            return _shown(part, load) if isinstance(part, TextPart | ImagePart | FilePart) else None
        case "assistant":
            return _said(part)
        case "tool":
            return _result(part, load) if isinstance(part, ToolResultPart) else None
    assert_never(message.role)


def _system_note(part: TextPart) -> Unit | None:
    """Within a conversation there is no system role: the user's side carries it, labelled."""
    return {"type": "text", "text": labelled("system", part.text)} if part.text.strip() else None


def _shown(part: ResultPart, load: Load | None) -> Unit | None:
    match part:
        case TextPart():
            return _text(part)
        case ImagePart():
            return _image(part, load)
        case FilePart():
            return _file(part, load)
    assert_never(part)


def _said(part: Part) -> Unit | None:
    match part:
        case TextPart():
            return _text(part)
        case ThinkingPart():
            return _thinking(part)
        case ToolCallPart():
            unit = {"type": "tool_use", "id": safe_name(part.id), "name": safe_name(part.name), "input": _input(part)}
            return with_fields(unit, own_fields(part.provider, NAME))
        case _:
            return None


def _text(part: TextPart) -> Unit | None:
    block = text_piece(part, NAME)
    return None if block["type"] == "text" and not part.text.strip() else block


def _thinking(part: ThinkingPart) -> Unit | None:
    """As the provider gave it. Without a signature it is another's, and the API refuses it."""
    if part.redacted:
        unit = {"type": "redacted_thinking", "data": part.redacted}
    elif part.signature:
        unit = {"type": "thinking", "thinking": part.text, "signature": part.signature}
    else:
        return None
    return with_fields(unit, own_fields(part.provider, NAME))


def _input(part: ToolCallPart) -> Unit:
    """The call's arguments as an object; what is none, or what JSON in UTF-8 cannot carry, whole as raw text."""
    try:
        value = json.loads(part.arguments)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        value = None
    return value if is_object(value) else {"_raw": part.arguments}


def _image(part: ImagePart, load: Load | None) -> Unit:
    url = source_url(part, load, media_type="image/png")
    split = split_data_url(url) if url else None
    if split is not None and split[0] in PICTURES:
        source = {"type": "base64", "media_type": split[0], "data": split[1]}
    elif url is not None and url.startswith("https://"):
        source = {"type": "url", "url": url}
    else:
        return {"type": "text", "text": note(part)}
    return with_fields({"type": "image", "source": source}, own_fields(part.provider, NAME))


def _file(part: FilePart, load: Load | None) -> Unit:
    url = source_url(part, load, media_type=PDF)
    split = split_data_url(url) if url else None
    if split is not None and split[0] == PDF:
        source = {"type": "base64", "media_type": PDF, "data": split[1]}
    elif url is not None and url.startswith("https://") and _is_pdf(part, url):
        source = {"type": "url", "url": url}
    else:
        return {"type": "text", "text": note(part)}
    title = {"title": part.name} if part.name else {}
    return with_fields({"type": "document", "source": source, **title}, own_fields(part.provider, NAME))


def _is_pdf(part: FilePart, url: str) -> bool:
    return part.media_type == PDF or (part.media_type is None and url.partition("?")[0].lower().endswith(".pdf"))


def _result(part: ToolResultPart, load: Load | None) -> Unit:
    """What a tool gave. The API takes a failure only as text, and not as nothing."""
    blocks = [_failure(piece) if part.is_error else _shown(piece, load) for piece in part.content]
    content = [block for block in blocks if block is not None] or [{"type": "text", "text": EMPTY}]
    unit: Unit = {"type": "tool_result", "tool_use_id": safe_name(part.call_id), "content": content}
    fields = own_fields(part.provider, NAME)
    fields.pop("is_error", None)
    return with_fields({**unit, "is_error": True} if part.is_error else unit, fields)


def _failure(piece: ResultPart) -> Unit | None:
    text = piece.text if isinstance(piece, TextPart) else note(piece)
    return {"type": "text", "text": text} if text.strip() else None


def _block_tokens(block: Unit, counter: Counter, model: str) -> int:
    match block:
        case {"type": "text", "text": str(text)}:
            known, tokens = ("type", "text"), counter.count(text)
        case {"type": "thinking", "thinking": str(text), "signature": str(seal)}:
            known, tokens = ("type", "thinking", "signature"), max(counter.count(text), 1 + len(seal) // SEALED)
        case {"type": "redacted_thinking", "data": str(seal)}:
            known, tokens = ("type", "data"), 1 + len(seal) // SEALED
        case {"type": "tool_use", "name": str(name), "input": input_}:
            known, tokens = ("type", "id", "name", "input"), counter.count(name) + counter.count(compact(input_))
            tokens += PER_CALL
        case {"type": "tool_result", "content": list()}:
            content: list[Unit] = block["content"]
            known, tokens = ("type", "tool_use_id", "content", "is_error"), PER_RESULT
            tokens += sum(_block_tokens(inner, counter, model) for inner in content)
        case {"type": "image", "source": {"type": str(), **source}}:
            known, tokens = ("type", "source"), count_image(NAME, data=source.get("data"), detail=None, model=model)
        case {"type": "document", "source": {"type": "base64" | "url", **source}}:
            known, tokens = ("type", "source"), count_file(source.get("data"))
        case _:
            known, tokens = (), 0
    return PER_BLOCK + tokens + count_rest(block, known, counter)


def _tool_tokens(tool: Unit, counter: Counter) -> int:
    texts = (str(tool.get("name", "")), str(tool.get("description", "")), compact(tool.get("input_schema")))
    return (
        PER_TOOL + sum(map(counter.count, texts)) + count_rest(tool, ("name", "description", "input_schema"), counter)
    )
