"""Edits of items in Anthropic's Messages."""

from collections.abc import Iterator, Mapping, Sequence

from quire.model.json_values import filter_objects, get_text
from quire.rows.boilerplate import CLAUDE_SUMMARY_OPENING
from quire.wire import WireMessage
from quire.wire.item_edits import ItemEditor

THINKING_TYPES = ("thinking", "redacted_thinking")
_STRUCTURE_TYPES = frozenset({*THINKING_TYPES, "tool_use", "tool_result", "server_tool_use"})
"""Blocks that stay where the text of a message is replaced."""


class MessagesItemEditor(ItemEditor):
    def list_results(self, item: WireMessage) -> Iterator[tuple[str, object]]:
        for block in filter_objects(item.get("content")):
            if block.get("type") == "tool_result" and (call_id := get_text(block, "tool_use_id")):
                yield call_id, block.get("content")

    def list_calls(self, item: WireMessage) -> Iterator[tuple[str, str, object]]:
        for block in filter_objects(item.get("content")):
            if block.get("type") == "tool_use" and (call_id := get_text(block, "id")):
                yield call_id, get_text(block, "name") or "", block.get("input")

    def replace_results(self, item: WireMessage, stubs: Mapping[str, str]) -> WireMessage:
        blocks = [
            {**block, "content": stubs[block["tool_use_id"]]}
            if block.get("type") == "tool_result" and block.get("tool_use_id") in stubs
            else block
            for block in filter_objects(item.get("content"))
        ]
        return {**item, "content": blocks}

    def is_question(self, item: WireMessage) -> bool:
        return item.get("role") == "user" and not any(True for _ in self.list_results(item))

    def replace_text(self, item: WireMessage, text: str) -> WireMessage:
        blocks = filter_objects(item.get("content"))
        structure = [block for block in blocks if block.get("type") in _STRUCTURE_TYPES]
        # Reasoning comes first, results come before text, and calls last.
        place = sum(1 for block in structure if block.get("type") not in ("tool_use", "server_tool_use"))
        markers = [block["cache_control"] for block in blocks if "cache_control" in block and block not in structure]
        own = {"cache_control": markers[-1]} if markers else {}
        return {**item, "content": [*structure[:place], {"type": "text", "text": text, **own}, *structure[place:]]}

    def quote_behind(self, item: WireMessage, text: str) -> Sequence[WireMessage]:
        content = item.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else filter_objects(content)
        return [{**item, "content": [*blocks, {"type": "text", "text": text}]}]

    def split_summary(self, item: WireMessage) -> tuple[WireMessage, Sequence[WireMessage]]:
        blocks = filter_objects(item.get("content"))
        openings = (
            place
            for place, block in enumerate(blocks, 1)
            if (get_text(block, "text") or "").lstrip().startswith(CLAUDE_SUMMARY_OPENING)
        )
        end = next(openings, len(blocks))
        if end == len(blocks):
            return item, ()
        return {**item, "content": blocks[:end]}, [{**item, "content": blocks[end:]}]

    def has_signed_thinking(self, item: WireMessage) -> bool:
        return any(block.get("type") in THINKING_TYPES for block in filter_objects(item.get("content")))

    def strip_thinking(self, item: WireMessage) -> WireMessage | None:
        blocks = [block for block in filter_objects(item.get("content")) if block.get("type") not in THINKING_TYPES]
        return {**item, "content": blocks} if blocks else None
