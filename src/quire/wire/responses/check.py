"""Finds what OpenAI's Responses API would reject in a finished payload.

A call and its output are matched by `call_id`, and need not be adjacent. Items of types that Quire does not render are
not checked.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from quire.model.json_values import filter_objects
from quire.wire.base import WireMessage
from quire.wire.chat.check import KNOWN_ROLES as CHAT_ROLES
from quire.wire.fields import is_valid_name

KNOWN_ROLES = tuple(role for role in CHAT_ROLES if role != "tool")
_PLAIN_TEXT_ROLES = frozenset({"system", "user", "assistant"})
_ASSISTANT_CONTENT = ("output_text", "refusal")
_CALL_TYPES = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
_NAMED_TOOLS = ("function", "custom", "namespace")


def find_problems(payload: Mapping[str, Any]) -> list[str]:
    items: list[WireMessage] = filter_objects(payload.get("input"))
    problems = [
        problem for index, item in enumerate(items) if not _is_plain_text(item) for problem in _check_item(index, item)
    ]
    return [
        *problems,
        *_check_order(items),
        *_check_reasoning(items),
        *_check_outputs(items),
        *_check_tools(payload.get("tools")),
    ]


def _is_plain_text(item: WireMessage) -> bool:
    """Fast path: most items are one text, which cannot be invalid."""
    return item.get("type") == "message" and type(item.get("content")) is str and item.get("role") in _PLAIN_TEXT_ROLES


def _check_item(index: int, item: WireMessage) -> Iterator[str]:
    type_ = _get_type(item)
    if not isinstance(type_, str):
        yield f"input[{index}]: an item needs a type"
    elif type_ == "message":
        yield from _check_message(index, item)
    elif type_ in _CALL_TYPES:
        yield from _check_call(index, item)
    elif type_ in _CALL_TYPES.values() and not isinstance(item.get("output"), str | list):
        yield f"input[{index}]: an output is a text or a list of content"


def _get_type(item: WireMessage) -> object:
    """Type of an item; one with a role alone is a message."""
    return item.get("type") or ("message" if "role" in item else None)


def _check_message(index: int, item: WireMessage) -> Iterator[str]:
    role, content = item.get("role"), item.get("content")
    if role not in KNOWN_ROLES:
        yield f"input[{index}]: unknown role {role!r}"
    if not isinstance(content, str | list) or content == []:
        yield f"input[{index}]: a message needs content"
    for piece in filter_objects(item.get("content")):
        if (piece.get("type") in _ASSISTANT_CONTENT) != (role == "assistant"):
            yield f"input[{index}]: a message with the role {role!r} cannot contain {piece.get('type')!r}"


def _check_call(index: int, item: WireMessage) -> Iterator[str]:
    field = "arguments" if item["type"] == "function_call" else "input"
    if not is_valid_name(item.get("name")):
        yield f"input[{index}]: {item.get('name')!r} is no valid tool name"
    if not isinstance(item.get(field), str):
        yield f"input[{index}]: the {field} of a call must be a text"
    if not item.get("call_id"):
        yield f"input[{index}]: a tool call needs a call_id"


def _is_assistant_item(item: WireMessage) -> bool:
    type_ = _get_type(item)
    return item.get("role") == "assistant" if type_ == "message" else type_ in ("reasoning", *_CALL_TYPES)


def _check_order(items: Sequence[WireMessage]) -> Iterator[str]:
    if all(item.get("role") in ("system", "developer") for item in items):
        yield "input: at least one item must not be a system message"
    elif _is_assistant_item(items[-1]):
        yield f"input[{len(items) - 1}]: the last item must be the user's or a tool's"


def _check_reasoning(items: Sequence[WireMessage]) -> Iterator[str]:
    for index, (item, following) in enumerate(zip_longest(items, items[1:], fillvalue=WireMessage())):
        if item.get("type") != "reasoning":
            continue
        is_client_item = _get_type(following) == "message" or _get_type(following) in _CALL_TYPES.values()
        if not following or (is_client_item and not _is_assistant_item(following)):
            yield f"input[{index}]: reasoning needs an item of its turn after it"


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


def _check_tools(tools: object) -> Iterator[str]:
    if tools == []:
        yield "tools: the list is empty"
    named = [tool for tool in filter_objects(tools) if tool.get("type") in _NAMED_TOOLS]
    for name, times in Counter(tool.get("name") for tool in named).items():
        if not is_valid_name(name):
            yield f"tools: {name!r} is no valid name"
        if times > 1:
            yield f"tools: two are named {name!r}"
