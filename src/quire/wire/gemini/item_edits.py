"""Edits of contents in Google's Gemini API."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from quire.model.json_values import filter_objects, get_object, get_text
from quire.wire import WireMessage
from quire.wire.gemini.parse import ERROR_FIELD, RESULT_FIELD, list_texts
from quire.wire.item_edits import ItemEditor

_STRUCTURE_FIELDS = ("functionCall", "functionResponse", "thought")
"""Fields of parts that stay where the text of a content is replaced."""


class GeminiItemEditor(ItemEditor):
    """A call without an ID cannot be named, so its result is not edited."""

    def list_results(self, item: WireMessage) -> Iterator[tuple[str, object]]:
        for part in filter_objects(item.get("parts")):
            result = get_object(part, "functionResponse")
            if call_id := get_text(result, "id"):
                response = get_object(result, "response")
                text = get_text(response, RESULT_FIELD) or get_text(response, ERROR_FIELD)
                yield call_id, response if text is None else text

    def list_calls(self, item: WireMessage) -> Iterator[tuple[str, str, object]]:
        for part in filter_objects(item.get("parts")):
            call = get_object(part, "functionCall")
            if call_id := get_text(call, "id"):
                yield call_id, get_text(call, "name") or "", call.get("args")

    def replace_results(self, item: WireMessage, stubs: Mapping[str, str]) -> WireMessage:
        parts: list[WireMessage] = []
        for part in filter_objects(item.get("parts")):
            result = get_object(part, "functionResponse")
            if (stub := stubs.get(get_text(result, "id") or "")) is not None:
                rest = {name: value for name, value in result.items() if name != "parts"}
                part = {**part, "functionResponse": {**rest, "response": {RESULT_FIELD: stub}}}
            parts.append(part)
        return {**item, "parts": parts}

    def is_question(self, item: WireMessage) -> bool:
        return not self.is_reply(item) and not any(
            "functionResponse" in part for part in filter_objects(item.get("parts"))
        )

    def is_user_item(self, item: WireMessage) -> bool:
        return not self.is_reply(item)

    def is_reply(self, item: WireMessage) -> bool:
        return item.get("role") == "model"

    def replace_text(self, item: WireMessage, text: str) -> WireMessage:
        parts = filter_objects(item.get("parts"))
        structure = [part for part in parts if any(part.get(name) for name in _STRUCTURE_FIELDS)]
        # Thoughts and results come before the text, and calls after it.
        place = sum("functionCall" not in part for part in structure)
        signature = next((part["thoughtSignature"] for part in parts if part not in structure
                          and "thoughtSignature" in part), None)  # fmt: skip
        own = {"thoughtSignature": signature} if signature is not None else {}
        return {**item, "parts": [*structure[:place], {"text": text, **own}, *structure[place:]]}

    def quote_behind(self, item: WireMessage, text: str) -> Sequence[WireMessage]:
        return [{**item, "parts": [*filter_objects(item.get("parts")), {"text": text}]}]

    def list_texts(self, item: WireMessage) -> list[str]:
        return list_texts(item)

    def has_role(self, item: WireMessage, role: str) -> bool:
        return item.get("role", "user") == ("model" if role == "assistant" else role)

    def remove_texts(self, item: WireMessage, texts: Collection[str]) -> WireMessage:
        parts = filter_objects(item.get("parts"))
        remaining = [part for part in parts if part.get("text") not in texts]
        return {**item, "parts": remaining} if remaining and len(remaining) < len(parts) else item

    def strip_markers(self, item: WireMessage) -> WireMessage:
        return item
