"""What OpenAI's chat completions would refuse a request for. Reads the finished payload and nothing else."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire.view.shapes.base import Unit
from quire.view.shapes.fields import object_in, objects, valid_name

ROLES = ("system", "developer", "user", "assistant", "tool")


def problems(payload: Mapping[str, Any]) -> list[str]:
    messages: list[Unit] = objects(payload.get("messages"))
    found = [
        problem
        for place, message in enumerate(messages)
        if not _is_plain(message)
        for problem in _of_message(place, message)
    ]
    return [*found, *_order(messages), *_answers(messages), *_tools(payload.get("tools"))]


def _is_plain(message: Unit) -> bool:
    """Most messages are: a text that someone said. They have nothing to be refused for."""
    return type(message.get("content")) is str and "tool_calls" not in message and message.get("role") in _SPEAKERS


_SPEAKERS = frozenset({"system", "user", "assistant"})


def _of_message(place: int, message: Unit) -> Iterator[str]:
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        yield f"messages[{place}]: unknown role {role!r}"
    elif role == "assistant":
        yield from _of_assistant(place, message)
    elif not isinstance(content, str | list):
        yield f"messages[{place}]: a {role} message needs content"
    if content == []:
        yield f"messages[{place}]: the content list is empty"
    if role != "user" and any(
        piece.get("type") in ("image_url", "file", "input_audio") for piece in objects(message.get("content"))
    ):
        yield f"messages[{place}]: only users may show pictures, files and sounds"


def _of_assistant(place: int, message: Unit) -> Iterator[str]:
    calls = message.get("tool_calls")
    if message.get("content") is None and not any(
        message.get(field) for field in ("tool_calls", "refusal", "audio", "function_call")
    ):
        yield f"messages[{place}]: an assistant message needs content or tool calls"
    if calls == []:
        yield f"messages[{place}]: the list of tool calls is empty"
    for call in objects(calls):
        body = object_in(call, "function", "custom")
        if not valid_name(body.get("name")):
            yield f"messages[{place}]: {body.get('name')!r} is no valid tool name"
        if "function" in call and not isinstance(body.get("arguments"), str):
            yield f"messages[{place}]: the arguments of a call are its JSON text"
        if not call.get("id"):
            yield f"messages[{place}]: a tool call needs an id"


def _order(messages: Sequence[Unit]) -> Iterator[str]:
    if all(message.get("role") in ("system", "developer") for message in messages):
        yield "messages: at least one must not be a system message"
    elif messages[-1].get("role") not in ("user", "tool"):
        yield f"messages[{len(messages) - 1}]: the last message must be the user's or a tool's"


def _answers(messages: Sequence[Unit]) -> Iterator[str]:
    """Every batch of calls is answered at once, each call once, and nothing else is answered."""
    waiting: list[Any] = []
    for place, message in enumerate(messages):
        if message.get("role") == "tool":
            if message.get("tool_call_id") in waiting:
                waiting.remove(message.get("tool_call_id"))
            else:
                yield f"messages[{place}]: {message.get('tool_call_id')!r} answers no call that is waiting"
            continue
        if not waiting and "tool_calls" not in message:
            continue
        for id_ in waiting:
            yield f"messages[{place}]: the call {id_!r} before it has no result"
        waiting = [call.get("id") for call in objects(message.get("tool_calls"))]
        for id_, times in Counter(waiting).items():
            if times > 1:
                yield f"messages[{place}]: two calls have the id {id_!r}"
    for id_ in waiting:
        yield f"messages: the call {id_!r} has no result"


def _tools(tools: object) -> Iterator[str]:
    if tools == []:
        yield "tools: the list is empty"
    names = [object_in(tool, "function", "custom").get("name") for tool in objects(tools)]
    for name, times in Counter(names).items():
        if not valid_name(name):
            yield f"tools: {name!r} is no valid name"
        if times > 1:
            yield f"tools: two are named {name!r}"
