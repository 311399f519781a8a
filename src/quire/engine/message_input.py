"""What an application passes as messages and replies: text, `Message`, or a dict as in a provider's API.

Whatever is none of these raises `InvalidRequest`, which names what is accepted: a value that is taken for another would
lose a question without a word.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError

from quire.errors import InvalidEntry, InvalidRequest
from quire.model import Message, WireFormatName
from quire.wire import Reply, wire_format_for
from quire.wire.responses.parse import TEXT_TYPES

MessageInput = Message | str | Mapping[str, object]
"""A message as an application writes it."""

_ACCEPTED = (
    "A message is a text, a `quire.Message`, or a dict with `role` and `content` as in chat completions, Anthropic's "
    "Messages or OpenAI's Responses."
)
_ROLES = ("user", "assistant", "system", "developer", "tool")
_CHAT_TYPES = frozenset({"text", "refusal", "image_url", "input_audio", "file"})
_RESPONSES_TYPES = TEXT_TYPES | {"input_image", "input_file"}
_USER_BLOCK_TYPES = frozenset({"text", "image", "document", "tool_result", "search_result", "container_upload"})
"""Types of content that a user's message in Anthropic's Messages has. The assistant's are the provider's choice."""
_CONTENT_SUBSTITUTES = ("tool_calls", "function_call", "refusal", "audio")
"""Fields of an assistant's message in chat completions that may replace its content."""
_ITEM_FIELDS = {
    "function_call": ("call_id", "name"),
    "function_call_output": ("call_id",),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id",),
    "reasoning": (),
}
"""Items of Responses without a role, and the texts that each needs."""


def parse_messages(value: object) -> list[Message]:
    """The messages of a value. A user's dict of Anthropic's Messages may hold results and a question,
    which are two."""
    if isinstance(value, Message):
        return [value]
    if isinstance(value, str):
        return [Message.user(value)]
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{value!r:.80} is not a message. {_ACCEPTED}")
    raw = dict(cast(Mapping[str, Any], value))
    try:
        messages = wire_format_for(_find_format(raw)).parse_messages([raw])
    except (InvalidEntry, ValidationError, ValueError) as error:
        raise InvalidRequest(f"{raw!r:.80} is not a message: {error} {_ACCEPTED}") from error
    return messages


def parse_message_list(value: object) -> list[Message]:
    """The messages of a list, all of which are parsed before one is stored, or of a single message."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        return parse_messages(value)
    return [message for each in cast(Sequence[object], value) for message in parse_messages(each)]


def parse_question(value: object) -> Message:
    """The one message with which a turn begins."""
    messages = parse_message_list(value)
    if len(messages) != 1 or (isinstance(value, Sequence) and not isinstance(value, str)):
        raise InvalidRequest("A turn begins with one message; append the others first.")
    return messages[0]


def parse_reply(response: object) -> Reply:
    """Parses a reply: a provider's response, as an object or a dict, a message, or plain text."""
    if isinstance(response, Reply):
        return response
    if isinstance(response, str):
        return Reply(Message.assistant(response), None, None)
    is_dict = isinstance(response, Mapping)
    fields = cast(Mapping[str, Any], response if is_dict else getattr(response, "__dict__", {}))
    name: WireFormatName | None = next(
        (name for field, name in _RESPONSE_FORMATS.items() if fields.get(field) is not None), None
    )
    if isinstance(response, Message) or (is_dict and "role" in fields and name is None):
        messages = parse_messages(cast(object, response))
        if len(messages) != 1 or messages[0].role != "assistant":
            raise InvalidRequest(f"A reply is one message of the assistant, and this is of the {messages[0].role}.")
        return Reply(messages[0], None, None)
    if name is None and "content" not in fields:
        raise InvalidRequest(
            f"{response!r:.80} is not a reply. Pass the response of OpenAI's or Anthropic's client, as an object or a "
            "dict, a text, or a message of the assistant."
        )
    return wire_format_for(name or "messages").parse_reply(cast(object, response))


_RESPONSE_FORMATS: dict[str, WireFormatName] = {
    "choices": "chat",
    "output": "responses",
    "stop_reason": "messages",
    "usage": "messages",
}
"""Formats by a field that their responses have and messages do not."""


def _find_format(raw: Mapping[str, Any]) -> WireFormatName:
    """The format that a message is written in. Raises `ValueError` if it is none of them."""
    kind, role, content = raw.get("type"), raw.get("role"), raw.get("content")
    if role is None and kind in _ITEM_FIELDS:
        for field in _ITEM_FIELDS[kind]:
            if not isinstance(raw.get(field), str):
                raise ValueError(f"its `{field}` is no text.")
        return "responses"
    if role not in _ROLES:
        raise ValueError("it has no `role`." if role is None else f"{role!r} is no role; use {', '.join(_ROLES)}.")
    if role == "tool" and not isinstance(raw.get("tool_call_id"), str):
        raise ValueError("a result needs the `tool_call_id` of its call.")
    if isinstance(content, str):
        return "responses" if kind == "message" else "chat"
    if role == "assistant" and content is None and any(raw.get(field) for field in _CONTENT_SUBSTITUTES):
        return "chat"
    if not isinstance(content, list | tuple) or not content:
        raise ValueError("its `content` is neither a text nor a list.")
    types: set[str] = set()
    for piece in cast(Sequence[object], content):
        fields: Mapping[str, Any] = cast(Mapping[str, Any], piece) if isinstance(piece, Mapping) else {}
        if not isinstance(fields.get("type"), str):
            raise ValueError("a piece of its `content` has no `type`.")
        if fields["type"] in TEXT_TYPES - {"refusal"} and not isinstance(fields.get("text"), str):
            raise ValueError("a text of its `content` has no `text`.")
        types.add(fields["type"])
    if types <= _CHAT_TYPES:
        return "chat" if kind is None else "messages"
    if types <= _RESPONSES_TYPES:
        return "responses"
    if role != "assistant" and not types <= _USER_BLOCK_TYPES:
        unknown = ", ".join(sorted(types - _USER_BLOCK_TYPES - _CHAT_TYPES - _RESPONSES_TYPES)) or "its mixed types"
        raise ValueError(f"no format has content of the type {unknown}.")
    return "messages"
