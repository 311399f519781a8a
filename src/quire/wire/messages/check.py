"""Finds what Anthropic's Messages API would reject in a finished payload.

Thinking must be signed, be in an assistant message, and not be the last block. If the request enables thinking, a turn
with a running tool loop must begin with it. The signatures themselves cannot be verified here. Consecutive messages of
one role are one turn, as they are for the API.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import eq
from typing import Any, cast

from quire.model.json_values import filter_objects, is_object
from quire.wire.base import WireMessage
from quire.wire.fields import check_tool_names, is_valid_name
from quire.wire.messages.cache_markers import MAX_CACHE_MARKERS, list_cache_markers

_VALID_ID = re.compile(r"[a-zA-Z0-9_-]+")
_THINKING_TYPES = ("thinking", "redacted_thinking")
_Turn = tuple[int, WireMessage]
"""Index of the first message of a turn, and its messages as one."""


def find_problems(payload: Mapping[str, Any]) -> list[str]:
    messages = filter_objects(payload.get("messages"))
    roles = [message.get("role") for message in messages]
    turns: list[_Turn] = list(enumerate(messages))
    if any(map(eq, roles, roles[1:])):
        turns = []
        for role, members in groupby(range(len(roles)), key=roles.__getitem__):
            indexes = list(members)
            content = [block for index in indexes for block in _content_blocks(messages[index])]
            turns.append((indexes[0], {"role": role, "content": content}))
    return [
        *_check_request(payload),
        *_check_roles(messages),
        *(
            f"messages[{index}]: {problem}"
            for index, message in enumerate(messages)
            if not _is_plain_text(message)
            for problem in _check_message(message)
        ),
        *_check_results(turns),
        *_check_thinking_turn(payload, turns),
    ]


def accepts_system_message(previous: WireMessage | None, following: WireMessage | None) -> bool:
    """Whether a system message may be between two messages: after the user's, or after a result of a tool that the
    provider runs, and before the assistant's, if any."""
    if previous is None or (following is not None and following.get("role") != "assistant"):
        return False
    blocks = _content_blocks(previous)
    ends_in_server_result = bool(blocks) and str(blocks[-1].get("type")).endswith("_tool_result")
    return previous.get("role") == "user" or (previous.get("role") == "assistant" and ends_in_server_result)


def begins_with_compaction(message: WireMessage) -> bool:
    """Whether a message begins with a compaction of the provider: only then may the assistant's be the first."""
    return any(block.get("type") == "compaction" for block in _content_blocks(message)[:1])


def _is_plain_text(message: WireMessage) -> bool:
    """Fast path: most messages are one text, which cannot be invalid."""
    content = message.get("content")
    if type(content) is not list or len(cast("list[Any]", content)) != 1:
        return False
    block = cast("list[WireMessage]", content)[0]
    return block.get("type") == "text" and bool(str(block.get("text") or "").strip())


def _content_blocks(message: WireMessage) -> list[WireMessage]:
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else filter_objects(content)


def _check_request(payload: Mapping[str, Any]) -> Iterator[str]:
    limit, system, tools = payload.get("max_tokens"), payload.get("system"), payload.get("tools")
    if not isinstance(limit, int) or limit < 0:
        yield "max_tokens: must be set, and at least 0, which only writes the cache"
    if (markers := len(list_cache_markers(payload))) > MAX_CACHE_MARKERS:
        yield f"cache_control: there are {markers} markers, and the limit is {MAX_CACHE_MARKERS}"
    if isinstance(system, str) and not system.strip():
        yield "system: must hold more than blanks"
    yield from check_tool_names(tool.get("name") for tool in filter_objects(tools))
    for tool in filter_objects(tools):
        if "input_schema" in tool and tool["input_schema"].get("type") != "object":
            yield f"tools: the schema of {tool.get('name')!r} is not an object's"


def _check_roles(messages: Sequence[WireMessage]) -> Iterator[str]:
    roles = [message.get("role") for message in messages]
    if not roles:
        yield "messages: there are none"
        return
    if roles[0] != "user" and not (roles[0] == "assistant" and begins_with_compaction(messages[0])):
        yield "messages[0]: the first must be the user's, or begin with a compaction"
    if roles[-1] not in ("user", "system"):
        yield f"messages[{len(roles) - 1}]: the last must be the user's"
    for index, role in enumerate(roles):
        if role not in ("user", "assistant", "system"):
            yield f"messages[{index}]: unknown role {role!r}"
        if role == "system" and not accepts_system_message(
            messages[index - 1] if index else None, messages[index + 1] if index + 1 < len(messages) else None
        ):
            yield f"messages[{index}]: a system message must follow the user's, and precede the assistant's or be last"


def _check_message(message: WireMessage) -> Iterator[str]:
    role, blocks = message.get("role"), _content_blocks(message)
    if not blocks and not (role == "system" and message.get("output_config")):
        yield "the content is empty"
    elif blocks and blocks[-1].get("type") in _THINKING_TYPES:
        yield "thinking cannot be the last block"
    for block in blocks:
        kind = block.get("type")
        if kind == "text" and not str(block.get("text") or "").strip():
            yield "a text must hold more than blanks"
        if kind in (*_THINKING_TYPES, "tool_use") and role != "assistant":
            yield f"only the assistant's messages hold {kind}"
        if kind in ("tool_result", "image", "document") and role != "user":
            yield f"only the user's messages hold {kind}"
        if kind == "thinking" and not block.get("signature"):
            yield "thinking needs its signature"
        if kind == "tool_use":
            yield from _check_call(block)
        if kind == "tool_result":
            yield from _check_result(block)


def _check_call(block: WireMessage) -> Iterator[str]:
    if not _VALID_ID.fullmatch(str(block.get("id", ""))):
        yield f"{block.get('id')!r} is no valid id of a call"
    if not is_valid_name(block.get("name")):
        yield f"{block.get('name')!r} is no valid tool name"
    if not is_object(block.get("input")):
        yield f"the input of the call {block.get('id')!r} is not an object"


def _check_result(block: WireMessage) -> Iterator[str]:
    inner = filter_objects(block.get("content"))
    if any(piece.get("type") == "text" and not str(piece.get("text") or "").strip() for piece in inner):
        yield "a text in a result must hold more than blanks"
    if block.get("is_error") and not block.get("content"):
        yield "a failure needs content"
    if block.get("is_error") and any(piece.get("type") != "text" for piece in inner):
        yield "a failure may hold only text"


def _check_results(turns: Sequence[_Turn]) -> Iterator[str]:
    """Each call needs one result in the next turn, before any other block of it."""
    seen: set[Any] = set()
    pending_ids: list[Any] = []
    for index, message in turns:
        if not pending_ids and _is_plain_text(message):
            continue
        blocks = _content_blocks(message)
        results = [block for block in blocks if block.get("type") == "tool_result"]
        if any(block.get("type") != "tool_result" for block in blocks[: len(results)]):
            yield f"messages[{index}]: results must come before anything else"
        answered = Counter(block.get("tool_use_id") for block in results)
        for id_ in pending_ids:
            if id_ not in answered:
                yield f"messages[{index}]: the call {id_!r} before it has no result"
        for id_, times in answered.items():
            if id_ not in pending_ids:
                yield f"messages[{index}]: {id_!r} answers no call in the turn before it"
            if times > 1:
                yield f"messages[{index}]: the call {id_!r} has {times} results"
        pending_ids = [block.get("id") for block in blocks if block.get("type") == "tool_use"]
        for id_ in pending_ids:
            if id_ in seen:
                yield f"messages[{index}]: the id {id_!r} is taken by an earlier call"
            seen.add(id_)
    for id_ in pending_ids:
        yield f"messages: the call {id_!r} has no result"


def _check_thinking_turn(payload: Mapping[str, Any], turns: Sequence[_Turn]) -> Iterator[str]:
    thinking = payload.get("thinking")
    if not is_object(thinking) or thinking.get("type") != "enabled":
        return
    turns = [turn for turn in turns if turn[1].get("role") != "system"]
    if not turns or not _has_only_results(turns[-1][1]):
        return
    start = len(turns) - 1
    while start > 0 and (turns[start][1].get("role") == "assistant" or _has_only_results(turns[start][1])):
        start -= 1
    index, message = turns[min(start + 1, len(turns) - 1)]
    if not any(block.get("type") in _THINKING_TYPES for block in _content_blocks(message)[:1]):
        yield f"messages[{index}]: with thinking enabled, the turn of a tool loop must begin with thinking"


def _has_only_results(message: WireMessage) -> bool:
    blocks = _content_blocks(message)
    return bool(blocks) and all(block.get("type") == "tool_result" for block in blocks)
