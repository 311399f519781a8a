"""Edits of items in OpenAI's Responses."""

from collections.abc import Iterator, Mapping, Sequence

from quire.model.json_values import get_text
from quire.wire import WireMessage
from quire.wire.compaction_blocks import COMPACTION_TYPES
from quire.wire.item_edits import ItemEditor

_RESULT_TYPES = frozenset({"function_call_output", "custom_tool_call_output"})
_CALL_ARGUMENTS = {"function_call": "arguments", "custom_tool_call": "input"}


class ResponsesItemEditor(ItemEditor):
    def list_results(self, item: WireMessage) -> Iterator[tuple[str, object]]:
        if item.get("type") in _RESULT_TYPES and (call_id := get_text(item, "call_id")):
            yield call_id, item.get("output")

    def list_calls(self, item: WireMessage) -> Iterator[tuple[str, str, object]]:
        arguments = _CALL_ARGUMENTS.get(get_text(item, "type") or "")
        if arguments and (call_id := get_text(item, "call_id")):
            yield call_id, get_text(item, "name") or "", item.get(arguments)

    def replace_results(self, item: WireMessage, stubs: Mapping[str, str]) -> WireMessage:
        return {**item, "output": stubs[item["call_id"]]}

    def is_question(self, item: WireMessage) -> bool:
        return item.get("role") == "user" and item.get("type") in (None, "message")

    def is_reply(self, item: WireMessage) -> bool:
        return item.get("role") == "assistant" or item.get("type") in ("reasoning", *_CALL_ARGUMENTS)

    def is_sealed_summary(self, item: WireMessage) -> bool:
        return item.get("type") in COMPACTION_TYPES

    def replace_text(self, item: WireMessage, text: str) -> WireMessage:
        if self.is_sealed_summary(item):
            return self.quote_behind(item, text)[-1]
        part_type = "output_text" if item.get("role") == "assistant" else "input_text"
        part: WireMessage = {"type": part_type, "text": text}
        return {**item, "content": [part | {"annotations": []} if part_type == "output_text" else part]}

    def quote_behind(self, item: WireMessage, text: str) -> Sequence[WireMessage]:
        return [item, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}]

    def strip_markers(self, item: WireMessage) -> WireMessage:
        return item
