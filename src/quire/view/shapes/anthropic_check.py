"""What Anthropic's messages API would refuse a request for. Reads the finished payload and nothing else.

Of thinking it checks that it is signed, the assistant's, and never the last block; and, where the request enables
thinking, that the turn whose tool loop is under way begins with it. Signatures it cannot check.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from quire.view.shapes.base import Unit
from quire.view.shapes.fields import is_object, objects, valid_name

_ID = re.compile(r"[a-zA-Z0-9_-]+")
_THINKING = ("thinking", "redacted_thinking")


def problems(payload: Mapping[str, Any]) -> list[str]:
    messages = objects(payload.get("messages"))
    found = [
        problem
        for place, message in enumerate(messages)
        if not _is_plain(message)
        for problem in _of_message(place, message)
    ]
    return [*_of_request(payload), *_roles(messages), *found, *_answers(messages), *_turn(payload, messages)]


def _is_plain(message: Unit) -> bool:
    """Most messages are: one text that someone said. They have nothing to be refused for."""
    content = message.get("content")
    if type(content) is not list or len(cast("list[Any]", content)) != 1:
        return False
    block = cast("list[Unit]", content)[0]
    return block.get("type") == "text" and bool(str(block.get("text") or "").strip())


def _blocks(message: Unit) -> list[Unit]:
    return objects(message.get("content"))


def _of_request(payload: Mapping[str, Any]) -> Iterator[str]:
    limit, system, tools = payload.get("max_tokens"), payload.get("system"), payload.get("tools")
    if not isinstance(limit, int) or limit < 1:
        yield "max_tokens: must be given, and at least 1"
    if isinstance(system, str) and not system.strip():
        yield "system: must hold more than blanks"
    for name, times in Counter(tool.get("name") for tool in objects(tools)).items():
        if not valid_name(name):
            yield f"tools: {name!r} is no valid name"
        if times > 1:
            yield f"tools: two are named {name!r}"
    for tool in objects(tools):
        if "input_schema" in tool and tool["input_schema"].get("type") != "object":
            yield f"tools: the schema of {tool.get('name')!r} is not an object's"


def _roles(messages: Sequence[Unit]) -> Iterator[str]:
    roles = [message.get("role") for message in messages]
    if not roles:
        yield "messages: there are none"
        return
    if roles[0] != "user":
        yield "messages[0]: the first must be the user's"
    if roles[-1] != "user":
        yield f"messages[{len(roles) - 1}]: the last must be the user's"
    for place, role in enumerate(roles):
        if role not in ("user", "assistant"):
            yield f"messages[{place}]: unknown role {role!r}"
        if place and role == roles[place - 1]:
            yield f"messages[{place}]: two {role} messages follow each other"


def _of_message(place: int, message: Unit) -> Iterator[str]:
    content, blocks = message.get("content"), _blocks(message)
    if isinstance(content, str):
        blocks = [{"type": "text", "text": content}]
    if not blocks:
        yield f"messages[{place}]: the content is empty"
    elif blocks[-1].get("type") in _THINKING:
        yield f"messages[{place}]: thinking cannot be the last block"
    for block in blocks:
        for problem in _of_block(block, message.get("role")):
            yield f"messages[{place}]: {problem}"


def _of_block(block: Unit, role: object) -> Iterator[str]:
    kind = block.get("type")
    if kind == "text" and not str(block.get("text") or "").strip():
        yield "a text must hold more than blanks"
    if kind in (*_THINKING, "tool_use") and role != "assistant":
        yield f"only the assistant's messages hold {kind}"
    if kind in ("tool_result", "image", "document") and role != "user":
        yield f"only the user's messages hold {kind}"
    if kind == "thinking" and not block.get("signature"):
        yield "thinking needs its signature"
    if kind == "tool_use":
        yield from _of_call(block)
    if kind == "tool_result":
        yield from _of_result(block)


def _of_call(block: Unit) -> Iterator[str]:
    if not _ID.fullmatch(str(block.get("id", ""))):
        yield f"{block.get('id')!r} is no valid id of a call"
    if not valid_name(block.get("name")):
        yield f"{block.get('name')!r} is no valid tool name"
    if not is_object(block.get("input")):
        yield f"the input of the call {block.get('id')!r} is not an object"


def _of_result(block: Unit) -> Iterator[str]:
    inner = _blocks(block)
    if any(piece.get("type") == "text" and not str(piece.get("text") or "").strip() for piece in inner):
        yield "a text in a result must hold more than blanks"
    if block.get("is_error") and not block.get("content"):
        yield "a failure needs content"
    if block.get("is_error") and any(piece.get("type") != "text" for piece in inner):
        yield "a failure may hold only text"


def _answers(messages: Sequence[Unit]) -> Iterator[str]:
    """Calls are answered in the very next message, before anything else in it, each call once."""
    seen: set[Any] = set()
    waiting: list[Any] = []
    for place, message in enumerate(messages):
        if not waiting and _is_plain(message):
            continue
        yield from (f"messages[{place}]: {problem}" for problem in _of_answers(_blocks(message), waiting))
        waiting = [block.get("id") for block in _blocks(message) if block.get("type") == "tool_use"]
        for id_ in waiting:
            if id_ in seen:
                yield f"messages[{place}]: the id {id_!r} is taken by an earlier call"
            seen.add(id_)
    for id_ in waiting:
        yield f"messages: the call {id_!r} has no result"


def _of_answers(blocks: Sequence[Unit], waiting: Sequence[Any]) -> Iterator[str]:
    results = [block for block in blocks if block.get("type") == "tool_result"]
    if any(block.get("type") != "tool_result" for block in blocks[: len(results)]):
        yield "results must come before anything else"
    answered = Counter(block.get("tool_use_id") for block in results)
    for id_ in waiting:
        if id_ not in answered:
            yield f"the call {id_!r} before it has no result"
    for id_, times in answered.items():
        if id_ not in waiting:
            yield f"{id_!r} answers no call in the message before it"
        if times > 1:
            yield f"the call {id_!r} has {times} results"


def _turn(payload: Mapping[str, Any], messages: Sequence[Unit]) -> Iterator[str]:
    thinking = payload.get("thinking")
    if not is_object(thinking) or thinking.get("type") != "enabled" or not messages or not _only_results(messages[-1]):
        return
    start = len(messages) - 1
    while start > 0 and (messages[start].get("role") == "assistant" or _only_results(messages[start])):
        start -= 1
    blocks = _blocks(messages[start + 1]) if start + 1 < len(messages) else []
    if not blocks or blocks[0].get("type") not in _THINKING:
        yield f"messages[{start + 1}]: with thinking enabled, the turn of a tool loop must begin with thinking"


def _only_results(message: Unit) -> bool:
    blocks = _blocks(message)
    return bool(blocks) and all(block.get("type") == "tool_result" for block in blocks)
