"""Counts items of OpenAI's Responses format: each as the chat message that says the same, by `openai_chat`'s recipe."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from quire.model.json_values import dump_json, filter_objects, get_text
from quire.wire.base import WireMessage
from quire.wire.chat.render import TOKENS_PER_MESSAGE, TOKENS_PER_PARALLEL_CALLS, TOKENS_PER_ROLE, OpenAIChatFormat
from quire.wire.fields import count_other_fields
from quire.wire.tokens import TokenCounter

TOKENS_PER_CALL_ITEM = TOKENS_PER_PARALLEL_CALLS // 2
"""Added to each call: half of what two parallel calls cost together, because items are counted one by one."""
ENCRYPTED_CHARS_PER_TOKEN = 5
"""Base64 characters of encrypted reasoning for each token in it: four characters hold three bytes."""

_UNCOUNTED_FIELDS = ("type", "id", "status", "call_id")
"""Fields that the model does not read."""


def count_item(item: WireMessage, counter: TokenCounter, *, model: str) -> int:
    match item:
        case {"type": "reasoning"}:
            return TOKENS_PER_MESSAGE + TOKENS_PER_ROLE + _count_reasoning(item, counter)
        case {"type": "message", "role": str(role), "content": str() | list()}:
            chat = {
                "role": role,
                "content": _to_chat_content(item["content"]),
                **_other_fields(item, ("role", "content")),
            }
        case {"type": "function_call", "name": str(name), "arguments": str(arguments)}:
            call = {"function": {"name": name, "arguments": arguments}, **_other_fields(item, ("name", "arguments"))}
            return TOKENS_PER_CALL_ITEM + _count_chat({"role": "assistant", "tool_calls": [call]}, counter, model)
        case {"type": "custom_tool_call", "name": str(name), "input": str(text)}:
            call = {"custom": {"name": name, "input": text}, **_other_fields(item, ("name", "input"))}
            return TOKENS_PER_CALL_ITEM + _count_chat({"role": "assistant", "tool_calls": [call]}, counter, model)
        case {"type": "function_call_output" | "custom_tool_call_output", "output": str() | list()}:
            chat = {"role": "tool", "content": _to_chat_content(item["output"]), **_other_fields(item, ("output",))}
        case _:
            return TOKENS_PER_MESSAGE + TOKENS_PER_ROLE + counter.count(dump_json(item))
    return _count_chat(chat, counter, model)


def count_tools(tools: Sequence[WireMessage], counter: TokenCounter) -> int:
    return OpenAIChatFormat().count_tools([_to_chat_tool(tool) for tool in tools], counter)


def _count_chat(message: WireMessage, counter: TokenCounter, model: str) -> int:
    return OpenAIChatFormat(model).count_messages([message], counter)


def _other_fields(item: Mapping[str, Any], known: Collection[str]) -> WireMessage:
    return {key: value for key, value in item.items() if key not in known and key not in _UNCOUNTED_FIELDS}


def _to_chat_content(content: str | list[Any]) -> str | list[WireMessage]:
    return content if isinstance(content, str) else [_to_chat_piece(piece) for piece in filter_objects(content)]


def _to_chat_piece(piece: WireMessage) -> WireMessage:
    match piece:
        case {"type": "input_text" | "output_text", "text": str(text), **more}:
            if more.get("annotations") == []:
                del more["annotations"]
            return {**more, "type": "text", "text": text}
        case {"type": "refusal", "refusal": str(text), **more}:
            return {**more, "type": "text", "text": text}
        case {"type": "input_image", "image_url": str(url), **more}:
            image = {"url": url, "detail": more.pop("detail", None)}
            return {**more, "type": "image_url", "image_url": image}
        case {"type": "input_file", "file_data": str(url), **more} | {
            "type": "input_file",
            "file_url": str(url),
            **more,
        }:
            file = {"filename": str(more.pop("filename", "")), "file_data": url}
            return {**more, "type": "file", "file": file}
        case _:
            return piece


def _to_chat_tool(tool: WireMessage) -> WireMessage:
    if tool.get("type") != "function":
        return tool
    return {
        "type": "function",
        "function": {key: value for key, value in tool.items() if key not in ("type", "strict")},
    }


def _count_reasoning(item: WireMessage, counter: TokenCounter) -> int:
    """Counts what can be read, or estimates what is encrypted, whichever is more."""
    pieces = [*filter_objects(item.get("summary")), *filter_objects(item.get("content"))]
    readable = sum(counter.count(get_text(piece, "text") or "") for piece in pieces)
    encrypted = len(get_text(item, "encrypted_content") or "") // ENCRYPTED_CHARS_PER_TOKEN
    known = (*_UNCOUNTED_FIELDS, "summary", "content", "encrypted_content")
    return max(readable, 1 + encrypted) + count_other_fields(item, known, counter)
