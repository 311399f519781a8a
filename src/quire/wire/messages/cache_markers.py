"""Cache markers, `cache_control`, in requests of Anthropic's Messages format.

A marker belongs to one request: it is no content, costs no tokens, and is not stored with a message.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from quire.model.json_values import filter_objects, is_object
from quire.wire.base import WireMessage

CacheTtl = Literal["5m", "1h"]

MAX_CACHE_MARKERS = 4
"""Markers in one request, including the one of the request itself."""
MAX_BLOCK_DEPTH = 4
"""Levels of blocks within blocks in which markers are searched: the API nests a result, a document and its texts."""

_UNMARKABLE_TYPES = ("thinking", "redacted_thinking", "fallback", "mcp_tool_listing")
_Position = tuple[int, int]
"""Index of a message, and of a block in it."""


def drop_cache_markers(block: WireMessage, *, depth: int = MAX_BLOCK_DEPTH) -> WireMessage:
    """Copy of a block without its markers. The input of a tool call is not searched: there the key is data."""
    unmarked = {key: value for key, value in block.items() if key != "cache_control"}
    if depth and isinstance(content := block.get("content"), list):
        unmarked["content"] = [
            drop_cache_markers(inner, depth=depth - 1) if is_object(inner) else inner
            for inner in cast("list[object]", content)
        ]
    if depth and is_object(source := block.get("source")):
        unmarked["source"] = drop_cache_markers(source, depth=depth - 1)
    return unmarked


def list_cache_markers(payload: Mapping[str, Any]) -> list[WireMessage]:
    """Markers of a request in the order in which the API reads them. The marker of the request itself is last."""
    heads = [*filter_objects(payload.get("tools")), *filter_objects(payload.get("system"))]
    markers = [head["cache_control"] for head in heads if is_object(head.get("cache_control"))]
    for message in filter_objects(payload.get("messages")):
        content = message.get("content")
        # Skips plain texts, which most blocks are, without a call for each of them.
        for block in cast("list[WireMessage]", content) if type(content) is list else ():
            if type(block) is dict and (len(block) > 2 or block.get("type") != "text"):
                markers += _find_markers(block, MAX_BLOCK_DEPTH)
    return [*markers, payload["cache_control"]] if is_object(payload.get("cache_control")) else markers


def _find_markers(block: WireMessage, depth: int) -> Iterator[WireMessage]:
    if is_object(marker := block.get("cache_control")):
        yield marker
    if depth:
        for inner in filter_objects(block.get("content")):
            yield from _find_markers(inner, depth - 1)
        if is_object(source := block.get("source")):
            yield from _find_markers(source, depth - 1)


def add_cache_markers(
    payload: Mapping[str, Any], *, stable_prefix: Sequence[WireMessage], ttl: CacheTtl = "5m"
) -> dict[str, Any]:
    """Marks the end of the stable prefix and the end of the request, as far as the limit of markers permits.

    `stable_prefix` are the rendered messages that the next request repeats, as they were given to `build_payload`:
    merging preserves the order and the number of their blocks. Copies what it changes.
    """
    present = list_cache_markers(payload)
    if any(marker.get("ttl", "5m") == "5m" for marker in present):
        # The API rejects a longer lifetime after a shorter one.
        ttl = "5m"
    messages: list[WireMessage] = list(payload["messages"])
    # `build_payload` may have put an opener before the stable prefix.
    stable = sum(len(_content_blocks(message)) for message in stable_prefix)
    has_opener = bool(stable) and isinstance(messages[0]["content"], str)
    ends = [stable + (has_opener and not isinstance(stable_prefix[0]["content"], str))]
    if not payload.get("cache_control"):
        # The marker of the request itself marks its end.
        ends.append(sum(len(_content_blocks(message)) for message in messages))
    free_markers = max(0, MAX_CACHE_MARKERS - len(present))
    positions = dict.fromkeys(_find_markable(messages, end) for end in ends)
    unmarked = [
        (index, offset)
        for index, offset in filter(None, positions)
        if "cache_control" not in _content_blocks(messages[index])[offset]
    ]
    for index, offset in unmarked[:free_markers]:
        blocks = [*_content_blocks(messages[index])]
        blocks[offset] = {**blocks[offset], "cache_control": {"type": "ephemeral", "ttl": ttl}}
        messages[index] = {**messages[index], "content": blocks}
    return {**payload, "messages": messages}


def _content_blocks(message: WireMessage) -> list[WireMessage]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _find_markable(messages: Sequence[WireMessage], end: int) -> _Position | None:
    """Position of the last of the first `end` blocks that can carry a marker."""
    found: _Position | None = None
    for index, message in enumerate(messages):
        for offset, block in enumerate(_content_blocks(message)):
            if end <= 0:
                return found
            end -= 1
            if message["role"] != "system" and block["type"] not in _UNMARKABLE_TYPES:
                found = index, offset
    return found
