"""The prompt of a request as a provider's cache reads it: tools, instructions, then messages, block by block.

A provider serves the blocks that are equal from the start. What it does not read as part of the prompt is left out:
cache markers, IDs of items, and whether a single text is written as a string or as a block.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from quire.model.json_values import filter_objects, get_object, is_object
from quire.wire.codec import Codec
from quire.wire.messages.cache_markers import drop_cache_markers, list_cache_markers

ATTRIBUTION_PREFIX = "x-anthropic-billing-header:"
"""Start of the instruction in which Claude Code names its version. Its suffix changes with the first message."""
MARKER_LOOKBACK_BLOCKS = 20
"""Blocks before a cache marker in which Anthropic looks for an earlier entry."""

_TEXT_TYPES = ("text", "input_text", "output_text")
_BLOCK_FIELDS = ("content", "parts")
"""Fields of a message with its blocks."""
_UNREAD_ITEM_FIELDS = ("id", "status", "internal_chat_message_metadata_passthrough")
_CONTINUING_FIELDS = ("previous_response_id", "conversation")
"""Fields of a request whose list has only what is new: the rest of the prompt is with the provider."""


class PrefixChange(NamedTuple):
    """The first block of the prompt that differs between two requests."""

    field: str
    """Field of the body: `tools`, `system`, `messages`, or a parameter such as `thinking.type`."""
    position: int
    """Index in the field."""
    before: Any
    """The block in the earlier request, or None if it had none here."""
    after: Any


def find_prefix_change(codec: Codec, before: Mapping[str, Any], after: Mapping[str, Any]) -> PrefixChange | None:
    """The first block of the earlier prompt that the later one does not repeat, or None if the later one extends it.

    Claude Code's attribution is not compared. `find_unread_change` does that.
    """
    for field in codec.prefix_fields:
        if before.get(field) == after.get(field):
            continue
        old, new = (_list_blocks(fields.get(field)) for fields in (before, after))
        for index in range(max(len(old), len(new))):
            pair = [_clean(blocks[index]) if index < len(blocks) else None for blocks in (old, new)]
            if pair[0] != pair[1] and not all(map(_is_attribution, pair)):
                return PrefixChange(field, index, *pair)
    if any(fields.get(name) for fields in (before, after) for name in _CONTINUING_FIELDS):
        return None
    old_items, new_items = list_items(codec, before), list_items(codec, after)
    for index, old in enumerate(old_items):
        new = new_items[index] if index < len(new_items) else None
        # Most are equal as they are.
        if old != new and (pair := _compare_items(old, new, is_last=index == len(old_items) - 1)) is not None:
            return PrefixChange(codec.item_field, index, *pair)
    return None


def find_unread_change(codec: Codec, before: Mapping[str, Any], after: Mapping[str, Any]) -> PrefixChange | None:
    """A difference that may or may not change the prompt: a parameter, or Claude Code's attribution."""
    for path in codec.prefix_parameters:
        name, _, inner = path.partition(".")
        pair = [get_object(fields, name).get(inner) if inner else fields.get(name) for fields in (before, after)]
        if pair[0] != pair[1]:
            return PrefixChange(path, 0, *pair)
    for field in codec.prefix_fields:
        pairs = zip(*(map(_clean, _list_blocks(fields.get(field))) for fields in (before, after)), strict=False)
        for index, (old, new) in enumerate(pairs):
            if old != new:
                return PrefixChange(field, index, old, new)
    return None


def list_items(codec: Codec, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    items = fields.get(codec.item_field)
    return [{"role": "user", "content": items}] if isinstance(items, str) else filter_objects(items)


def repeats_last_item(codec: Codec, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether the later request still has the last message of the earlier one, wherever the two differ."""
    old_items = list_items(codec, before)
    if not old_items:
        return False
    return any(_compare_items(old_items[-1], item, is_last=True) is None for item in list_items(codec, after))


def get_block_text(block: object) -> str | None:
    """The text of a block, or of the content of a tool's result, or None if it has none."""
    if is_object(block):
        for name in ("text", "content", "output", "thinking"):
            value = block.get(name)
            if isinstance(value, str):
                return value
            if isinstance(value, list):
                texts = [get_block_text(each) for each in cast("list[object]", value)]
                return "\n".join(text for text in texts if text is not None)
    return None


def find_lost_marker(
    before: Mapping[str, Any], after: Mapping[str, Any], *, is_missed: bool
) -> tuple[int, int | None] | None:
    """The message of the earlier request's last cache marker, if no marker of the later request finds its entry.

    Also the number of blocks from it to the next marker, which is too large, or None if no marker follows. A marker
    that moved back a few blocks finds the entries of earlier requests, so it is lost only if the provider reports a
    miss.
    """
    old = list(_iter_marked(before))
    marked = [position for position, (_, is_marked) in enumerate(old) if is_marked]
    if not marked:
        return None
    last = marked[-1]
    new = [position for position, (_, is_marked) in enumerate(_iter_marked(after)) if is_marked]
    distances = [position - last for position in new if position >= last]
    if distances and distances[0] <= MARKER_LOOKBACK_BLOCKS:
        return None
    if not is_missed and not distances and new and last - new[-1] <= MARKER_LOOKBACK_BLOCKS:
        return None
    return max(0, old[last][0]), distances[0] if distances else None


def _iter_marked(fields: Mapping[str, Any]) -> Iterator[tuple[int, bool]]:
    """Every block of a request in Anthropic's format: the index of its message, and whether it has a marker."""
    heads = [*_list_blocks(fields.get("tools")), *_list_blocks(fields.get("system"))]
    blocks = [(-1, block) for block in heads]
    for index, item in enumerate(filter_objects(fields.get("messages"))):
        blocks += [(index, block) for block in _list_blocks(item.get("content"))]
    for position, (index, block) in enumerate(blocks):
        is_end = position == len(blocks) - 1 and is_object(fields.get("cache_control"))
        yield index, is_end or (is_object(block) and bool(list_cache_markers({"system": [block]})))


def _compare_items(old: dict[str, Any], new: dict[str, Any] | None, *, is_last: bool) -> tuple[Any, Any] | None:
    """The first blocks of a message that differ. The last message of a request may grow by blocks."""
    if new is None:
        return _clean(old), None
    heads = [{key: value for key, value in _clean(item).items() if key not in _BLOCK_FIELDS} for item in (old, new)]
    if heads[0] != heads[1]:
        return _clean(old), _clean(new)
    old_blocks, new_blocks = (
        [block for name in _BLOCK_FIELDS for block in _list_blocks(item.get(name))] for item in (old, new)
    )
    for index in range(len(old_blocks) if is_last else max(len(old_blocks), len(new_blocks))):
        pair = [_clean(blocks[index]) if index < len(blocks) else None for blocks in (old_blocks, new_blocks)]
        if pair[0] != pair[1]:
            return pair[0], pair[1]
    return None


def _list_blocks(content: object) -> Sequence[object]:
    if content is None or content == "":
        return ()
    return cast("list[object]", content) if isinstance(content, list) else [{"type": "text", "text": content}]


def _clean(block: object) -> Any:
    """The block as the provider reads it."""
    if not is_object(block):
        return block
    unmarked = drop_cache_markers(block)
    if "role" in unmarked or str(unmarked.get("type", "")).endswith(("_call", "_output", "reasoning", "compaction")):
        unmarked = {key: value for key, value in unmarked.items() if key not in _UNREAD_ITEM_FIELDS}
        if unmarked.get("type") == "message":
            del unmarked["type"]
    if unmarked.get("type") in _TEXT_TYPES:
        unmarked["type"] = "text"
    return {key: value for key, value in unmarked.items() if value is not None and value != []}


def _is_attribution(block: object) -> bool:
    return (get_block_text(block) or "").startswith(ATTRIBUTION_PREFIX)
