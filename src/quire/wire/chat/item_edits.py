"""Edits of items in chat completions."""

from collections.abc import Iterator, Mapping, Sequence

from quire.model.json_values import filter_objects, get_object, get_text
from quire.wire import WireMessage
from quire.wire.item_edits import ItemEditor


class ChatItemEditor(ItemEditor):
    def list_results(self, item: WireMessage) -> Iterator[tuple[str, object]]:
        if item.get("role") == "tool" and (call_id := get_text(item, "tool_call_id")):
            yield call_id, item.get("content")

    def list_calls(self, item: WireMessage) -> Iterator[tuple[str, str, object]]:
        for call in filter_objects(item.get("tool_calls")):
            if call_id := get_text(call, "id"):
                function = get_object(call, "function")
                yield call_id, get_text(function, "name") or "", function.get("arguments")

    def replace_results(self, item: WireMessage, stubs: Mapping[str, str]) -> WireMessage:
        return {**item, "content": stubs[item["tool_call_id"]]}

    def is_question(self, item: WireMessage) -> bool:
        return item.get("role") == "user"

    def replace_text(self, item: WireMessage, text: str) -> WireMessage:
        return {**item, "content": text}

    def quote_behind(self, item: WireMessage, text: str) -> Sequence[WireMessage]:
        return [item, {"role": "user", "content": text}]
