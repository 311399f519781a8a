"""Items of an OpenAI Agents SDK session as messages, and back: the items of a message equal those it was made from."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from quire.model import Message
from quire.model.json_values import dump_json, filter_objects, get_object, to_plain_json
from quire.wire.responses.parse import is_assistant_item
from quire.wire.responses.render import OpenAIResponsesFormat

FIELDS_KEY = "openai_agents"
"""Key of `provider_fields` with the changes that turn rendered items into the original ones."""
_UNSENT_FIELDS = ("id", "status")
"""Fields that a model does not see, and that the SDK or a provider may add or drop."""

_format = OpenAIResponsesFormat()


def parse_items(items: Sequence[object]) -> list[Message]:
    """Parses items as messages: adjacent items of the assistant become one, every other item one of its own."""
    plain = [to_plain_json(item) for item in items]
    messages: list[Message] = []
    for is_assistant, group in groupby(plain, _is_assistant):
        originals = list(group)
        for group_items in [originals] if is_assistant else [[item] for item in originals]:
            [message] = _format.parse_messages(group_items)
            messages.append(_add_changes(message, group_items))
    return messages


def list_items(message: Message) -> list[dict[str, Any]]:
    """The items that a message was made from."""
    fields, rendered = get_object(message.provider_fields or {}, FIELDS_KEY), _format.render_message(message)
    if "items" in fields:
        return filter_objects(fields["items"])
    changes = filter_objects(fields.get("changes")) or [{} for _ in rendered]
    return [_apply_change(item, change) for item, change in zip(rendered, changes, strict=True)]


def make_item_key(item: dict[str, Any]) -> str:
    """Text that two forms of the same item share."""
    [message] = _format.parse_messages([item])
    rendered = _format.render_message(message) or [item]
    return dump_json([{key: each[key] for key in sorted(each) if key not in _UNSENT_FIELDS} for each in rendered])


def _is_assistant(item: dict[str, Any]) -> bool:
    return is_assistant_item({"type": "message", **item})


def _add_changes(message: Message, originals: Sequence[dict[str, Any]]) -> Message:
    """The message with what its rendering lacks. Items that cannot be rendered are stored whole."""
    rendered = _format.render_message(message)
    if len(rendered) != len(originals):
        return _with_fields(message, {"items": list(originals)})
    changes = [_find_change(item, original) for item, original in zip(rendered, originals, strict=True)]
    return _with_fields(message, {"changes": changes}) if any(changes) else message


def _find_change(rendered: dict[str, Any], original: dict[str, Any]) -> dict[str, Any]:
    missing = object()
    added = {key: value for key, value in original.items() if rendered.get(key, missing) != value}
    removed = [key for key in rendered if key not in original]
    return {**({"set": added} if added else {}), **({"unset": removed} if removed else {})}


def _apply_change(rendered: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    removed = change.get("unset") or ()
    return {key: value for key, value in rendered.items() if key not in removed} | get_object(change, "set")


def _with_fields(message: Message, fields: dict[str, Any]) -> Message:
    return message.model_copy(update={"provider_fields": {**(message.provider_fields or {}), FIELDS_KEY: fields}})
