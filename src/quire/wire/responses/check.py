"""Finds what OpenAI's Responses API would reject in a finished payload.

A call and its output are matched by `call_id`, and need not be adjacent. Items of types that Quire does not render are
not checked.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from quire.model.json_values import filter_objects
from quire.wire.base import WireMessage
from quire.wire.chat.check import KNOWN_ROLES as CHAT_ROLES
from quire.wire.fields import check_tool_names, is_valid_name

KNOWN_ROLES = tuple(role for role in CHAT_ROLES if role != "tool")
_PLAIN_TEXT_ROLES = frozenset({"system", "user", "assistant"})
_ASSISTANT_CONTENT = ("output_text", "refusal")
_CALL_TYPES = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
_NAMED_TOOLS = ("function", "custom", "namespace")


def find_problems(payload: Mapping[str, Any]) -> list[str]:
    items: list[WireMessage] = filter_objects(payload.get("input"))
    problems = [
        f"input[{index}]: {problem}"
        for index, item in enumerate(items)
        # Fast path: most items are one text, which cannot be invalid.
        if item.get("type") != "message"
        or type(item.get("content")) is not str
        or item.get("role") not in _PLAIN_TEXT_ROLES
        for problem in _check_item(item)
    ]
    if all(item.get("role") in ("system", "developer") for item in items):
        problems.append("input: at least one item must not be a system message")
    elif _is_assistant_item(items[-1]):
        problems.append(f"input[{len(items) - 1}]: the last item must be the user's or a tool's")
    for index, (item, following) in enumerate(zip_longest(items, items[1:], fillvalue=WireMessage())):
        if item.get("type") != "reasoning":
            continue
        is_client_item = _get_type(following) == "message" or _get_type(following) in _CALL_TYPES.values()
        if not following or (is_client_item and not _is_assistant_item(following)):
            problems.append(f"input[{index}]: reasoning needs an item of its turn after it")
    problems += _check_outputs(items)
    tools: object = payload.get("tools")
    if tools == []:
        problems.append("tools: the list is empty")
    named = (tool for tool in filter_objects(tools) if tool.get("type") in _NAMED_TOOLS)
    problems += check_tool_names(tool.get("name") for tool in named)
    return problems


def _check_item(item: WireMessage) -> Iterator[str]:
    type_ = _get_type(item)
    if not isinstance(type_, str):
        yield "an item needs a type"
    elif type_ == "message":
        role, content = item.get("role"), item.get("content")
        if role not in KNOWN_ROLES:
            yield f"unknown role {role!r}"
        if not isinstance(content, str | list) or content == []:
            yield "a message needs content"
        for piece in filter_objects(item.get("content")):
            if (piece.get("type") in _ASSISTANT_CONTENT) != (role == "assistant"):
                yield f"a message with the role {role!r} cannot contain {piece.get('type')!r}"
    elif type_ in _CALL_TYPES:
        field = "arguments" if type_ == "function_call" else "input"
        if not is_valid_name(item.get("name")):
            yield f"{item.get('name')!r} is no valid tool name"
        if not isinstance(item.get(field), str):
            yield f"the {field} of a call must be a text"
        if not item.get("call_id"):
            yield "a tool call needs a call_id"
    elif type_ in _CALL_TYPES.values() and not isinstance(item.get("output"), str | list):
        yield "an output is a text or a list of content"


def _get_type(item: WireMessage) -> object:
    """Type of an item. One with a role alone is a message."""
    return item.get("type") or ("message" if "role" in item else None)


def _is_assistant_item(item: WireMessage) -> bool:
    type_ = _get_type(item)
    return item.get("role") == "assistant" if type_ == "message" else type_ in ("reasoning", *_CALL_TYPES)


def _check_outputs(items: Sequence[WireMessage]) -> Iterator[str]:
    """Each call needs one output of its kind after it, and each output a call."""
    pending: dict[object, str] = {}
    seen: set[object] = set()
    for index, item in enumerate(items):
        type_, id_ = item.get("type"), item.get("call_id")
        if type_ in _CALL_TYPES:
            if id_ in seen:
                yield f"input[{index}]: two calls have the call_id {id_!r}"
            seen.add(id_)
            pending[id_] = _CALL_TYPES[type_]
        elif type_ in _CALL_TYPES.values() and pending.pop(id_, None) != type_:
            yield f"input[{index}]: the {type_} with call_id {id_!r} matches no pending call"
    for id_ in pending:
        yield f"input: the call {id_!r} has no output"
