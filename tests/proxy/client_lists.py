"""Lists of messages as clients of the four formats send them."""

from typing import Any

from quire.wire.chat.item_edits import ChatItemEditor
from quire.wire.gemini.item_edits import GeminiItemEditor
from quire.wire.item_edits import ItemEditor
from quire.wire.messages.item_edits import MessagesItemEditor
from quire.wire.responses.item_edits import ResponsesItemEditor

Item = dict[str, Any]
EDITORS: dict[str, ItemEditor] = {
    "messages": MessagesItemEditor(),
    "responses": ResponsesItemEditor(),
    "chat": ChatItemEditor(),
    "gemini": GeminiItemEditor(),
}


def make_question(wire: str, text: str) -> list[Item]:
    if wire == "gemini":
        return [{"role": "user", "parts": [{"text": text}]}]
    if wire == "responses":
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}]
    return [{"role": "user", "content": text if wire == "chat" else [{"type": "text", "text": text}]}]


def make_calls(wire: str, ids: list[str], thinking: str) -> list[Item]:
    if wire == "gemini":
        calls = [{"functionCall": {"id": id_, "name": "shell", "args": {}}} for id_ in ids]
        return [{"role": "model", "parts": [calls[0] | {"thoughtSignature": "c2ln"}, *calls[1:]]}]
    if wire == "messages":
        thought = [{"type": "thinking", "thinking": thinking, "signature": thinking}] if thinking else []
        calls = [{"type": "tool_use", "id": id_, "name": "Bash", "input": {"command": f"cat {id_}"}} for id_ in ids]
        return [{"role": "assistant", "content": [*thought, *calls]}]
    if wire == "responses":
        calls = [{"type": "function_call", "call_id": id_, "name": "shell", "arguments": "{}"} for id_ in ids]
        return [{"type": "reasoning", "id": f"rs_{ids[0]}", "encrypted_content": "x"}, *calls]
    calls = [{"id": id_, "type": "function", "function": {"name": "bash", "arguments": "{}"}} for id_ in ids]
    return [{"role": "assistant", "content": None, "tool_calls": calls}]


def make_results(wire: str, ids: list[str], size: int) -> list[Item]:
    text = "é" * size + "."
    if wire == "gemini":
        results = [{"id": id_, "name": "shell", "response": {"output": text}} for id_ in ids]
        return [{"role": "user", "parts": [{"functionResponse": each} for each in results]}]
    if wire == "messages":
        return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": i, "content": text} for i in ids]}]
    if wire == "responses":
        return [{"type": "function_call_output", "call_id": id_, "output": text} for id_ in ids]
    return [{"role": "tool", "tool_call_id": id_, "content": text} for id_ in ids]


def make_answer(wire: str, text: str, thinking: str) -> list[Item]:
    if wire == "gemini":
        return [{"role": "model", "parts": [{"text": text}]}]
    if wire == "messages":
        thought = [{"type": "thinking", "thinking": thinking, "signature": thinking}] if thinking else []
        return [{"role": "assistant", "content": [*thought, {"type": "text", "text": text}]}]
    if wire == "responses":
        return [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}]
    return [{"role": "assistant", "content": text}]
