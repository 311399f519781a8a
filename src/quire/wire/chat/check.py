"""Finds what OpenAI's Chat Completions API would reject in a finished payload."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire.model.json_values import filter_objects, get_object
from quire.wire.base import WireMessage
from quire.wire.fields import check_tool_names, is_valid_name

KNOWN_ROLES = ("system", "developer", "user", "assistant", "tool")
SYSTEM_ROLES = ("system", "developer")
_PLAIN_TEXT_ROLES = frozenset({"system", "user", "assistant"})


def find_problems(payload: Mapping[str, Any]) -> list[str]:
    messages: list[WireMessage] = filter_objects(payload.get("messages"))
    # Fast path: most messages are one text, which cannot be invalid and neither calls a tool nor answers a call.
    unusual = [
        (index, message)
        for index, message in enumerate(messages)
        if type(message.get("content")) is not str
        or message.get("role") not in _PLAIN_TEXT_ROLES
        or "tool_calls" in message
    ]
    problems = [problem for index, message in unusual for problem in _check_message(index, message)]
    others = (index for index in reversed(range(len(messages))) if messages[index].get("role") not in SYSTEM_ROLES)
    last = next(others, None)
    if last is None:
        problems.append("messages: at least one must not be a system message")
    elif messages[last].get("role") not in ("user", "tool"):
        problems.append(f"messages[{last}]: the last message must be the user's or a tool's")
    if unusual:
        problems += _check_results(messages)
    tools: object = payload.get("tools")
    if tools == []:
        problems.append("tools: the list is empty")
    problems += check_tool_names(get_object(tool, "function", "custom").get("name") for tool in filter_objects(tools))
    return problems


def _check_message(index: int, message: WireMessage) -> Iterator[str]:
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    if role not in KNOWN_ROLES:
        yield f"messages[{index}]: unknown role {role!r}"
    elif role == "assistant":
        if content is None and not any(
            message.get(field) for field in ("tool_calls", "refusal", "audio", "function_call")
        ):
            yield f"messages[{index}]: an assistant message needs content or tool calls"
        if calls == []:
            yield f"messages[{index}]: the list of tool calls is empty"
        for call in filter_objects(calls):
            body = get_object(call, "function", "custom")
            if not is_valid_name(body.get("name")):
                yield f"messages[{index}]: {body.get('name')!r} is no valid tool name"
            if "function" in call and not isinstance(body.get("arguments"), str):
                yield f"messages[{index}]: the arguments of a call are its JSON text"
            if not call.get("id"):
                yield f"messages[{index}]: a tool call needs an id"
    elif not isinstance(content, str | list):
        yield f"messages[{index}]: a {role} message needs content"
    if content == []:
        yield f"messages[{index}]: the content list is empty"
    if role != "user" and any(
        piece.get("type") in ("image_url", "file", "input_audio") for piece in filter_objects(message.get("content"))
    ):
        yield f"messages[{index}]: only user messages may contain images, files and audio"


def _check_results(messages: Sequence[WireMessage]) -> Iterator[str]:
    """Each call needs one result directly after its batch of calls, and each result a call."""
    pending_ids: list[Any] = []
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            if message.get("tool_call_id") in pending_ids:
                pending_ids.remove(message.get("tool_call_id"))
            else:
                yield f"messages[{index}]: {message.get('tool_call_id')!r} matches no pending call"
            continue
        if not pending_ids and "tool_calls" not in message:
            continue
        for id_ in pending_ids:
            yield f"messages[{index}]: the call {id_!r} before it has no result"
        pending_ids = [call.get("id") for call in filter_objects(message.get("tool_calls"))]
        for id_, times in Counter(pending_ids).items():
            if times > 1:
                yield f"messages[{index}]: two calls have the id {id_!r}"
    for id_ in pending_ids:
        yield f"messages: the call {id_!r} has no result"
