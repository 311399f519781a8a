"""Parses OpenAI's Chat Completions format, requests and responses, into Quire messages.

Content without a matching Quire part becomes a text part that names it, with the content in its provider fields, so
that it is sent back unchanged. A content list with one plain text gives the same message as the text alone.
"""

from collections.abc import Callable, Sequence
from typing import Any

from quire.errors import InvalidEntry
from quire.model import FilePart, ImagePart, Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage
from quire.model.json_values import dump_json, filter_objects, get_object, get_text, is_object, to_plain_json
from quire.model.messages import ToolResultContent
from quire.wire.base import Reply
from quire.wire.chat import FORMAT
from quire.wire.fields import collect_unknown_fields
from quire.wire.media import split_data_url

_REASONING_FIELDS = ("reasoning_content", "reasoning")
_KNOWN_FIELDS = ("role", "name", "content", "tool_calls", *_REASONING_FIELDS)
_ENVELOPE_FIELDS = ("choices", "usage", "model", "object")
_USAGE_FIELDS = ("prompt_tokens", "completion_tokens", "total_tokens")


def parse_reply(response: object) -> Reply:
    """Parses a response. `usage.input_tokens` is the whole prompt, including cached tokens, as OpenAI reports it."""
    body = to_plain_json(response)
    choices = filter_objects(body.get("choices")) if is_object(body) else []
    if not choices or not is_object(choices[0].get("message")):
        raise InvalidEntry("The response has no choices, so it contains no reply; see the provider's error.")
    return Reply(
        _parse_assistant(_replace_audio(choices[0]["message"])),
        _parse_usage(body),
        get_text(choices[0], "finish_reason"),
    )


def parse_messages(raw_messages: Sequence[object], *, system: object = None) -> list[Message]:
    """Parses each message to one Quire message, so that tool results stay separate as in the client's history."""
    first = [Message(role="system", parts=tuple(_parse_parts(to_plain_json(system))))] if system else []
    return [*first, *(_parse_message(index, to_plain_json(message)) for index, message in enumerate(raw_messages))]


def _parse_message(index: int, raw: Any) -> Message:
    role = raw.get("role") if is_object(raw) else None
    match role:
        case "assistant":
            return _parse_assistant(raw)
        case "tool":
            return Message(role="tool", parts=(_parse_result(raw),))
        case "user":
            parts = tuple(_parse_parts(raw.get("content"), parse_media=_parse_media))
            return Message(
                role="user", parts=parts, provider_fields=_unknown_message_fields(raw), name=_parse_name(raw)
            )
        case "system":
            parts = tuple(_parse_parts(raw.get("content")))
            return Message(
                role="system", parts=parts, provider_fields=_unknown_message_fields(raw), name=_parse_name(raw)
            )
        case "developer":
            parts, unknown_fields = (
                tuple(_parse_parts(raw.get("content"))),
                collect_unknown_fields(raw, ("name", "content"), FORMAT),
            )
            return Message(role="system", parts=parts, provider_fields=unknown_fields, name=_parse_name(raw))
        case _:
            raise InvalidEntry(f"Message {index} has the role {role!r}; use system, user, assistant or tool.")


def _parse_name(raw: dict[str, Any]) -> str | None:
    return get_text(raw, "name") or None


def _unknown_message_fields(raw: dict[str, Any]) -> Any:
    return collect_unknown_fields(raw, _KNOWN_FIELDS, FORMAT)


def _parse_assistant(raw: dict[str, Any]) -> Message:
    thoughts = next((raw[field] for field in _REASONING_FIELDS if isinstance(raw.get(field), str) and raw[field]), None)
    thinking: list[Part] = [ThinkingPart(text=thoughts)] if thoughts else []
    calls = [_parse_call(call) for call in filter_objects(raw.get("tool_calls"))]
    parts = (*thinking, *_parse_parts(raw.get("content")), *calls)
    return Message(role="assistant", parts=parts, provider_fields=_unknown_message_fields(raw), name=_parse_name(raw))


def _replace_audio(raw: dict[str, Any]) -> dict[str, Any]:
    """Replaces the audio of a reply by its id and transcript, which is how a request may repeat it."""
    audio = raw.get("audio")
    if not is_object(audio):
        return raw
    return {**raw, "content": raw.get("content") or audio.get("transcript"), "audio": {"id": audio.get("id")}}


def _parse_call(raw: dict[str, Any]) -> ToolCallPart:
    if is_object(raw.get("custom")):
        name, text = raw["custom"].get("name"), raw["custom"].get("input")
        unknown_fields = collect_unknown_fields(raw, ("id", "custom", "index"), FORMAT)
    else:
        function = get_object(raw, "function")
        name, text = function.get("name"), function.get("arguments")
        unknown_fields = collect_unknown_fields(raw, ("id", "type", "function", "index"), FORMAT)
    arguments = text if isinstance(text, str) else dump_json(text or {})
    return ToolCallPart(
        id=str(raw.get("id") or ""), name=str(name or ""), arguments=arguments, provider_fields=unknown_fields
    )


def _parse_result(raw: dict[str, Any]) -> ToolResultPart:
    unknown_fields = collect_unknown_fields(raw, ("role", "content", "tool_call_id"), FORMAT)
    content = tuple(_parse_parts(raw.get("content"), parse_media=_parse_media))
    return ToolResultPart(call_id=str(raw.get("tool_call_id") or ""), content=content, provider_fields=unknown_fields)


def _parse_parts(
    content: object, *, parse_media: Callable[[dict[str, Any]], ToolResultContent | None] | None = None
) -> list[ToolResultContent]:
    if isinstance(content, str):
        return [TextPart(text=content)]
    return [(parse_media(piece) if parse_media else None) or _parse_text(piece) for piece in filter_objects(content)]


def _parse_text(piece: dict[str, Any]) -> TextPart:
    if piece.get("type") == "text" and isinstance(piece.get("text"), str):
        return TextPart(text=piece["text"], provider_fields=collect_unknown_fields(piece, ("type", "text"), FORMAT))
    refusal = piece.get("refusal")
    return TextPart(
        text=refusal if isinstance(refusal, str) else f"[{piece.get('type')}]", provider_fields={FORMAT: piece}
    )


def _parse_media(piece: dict[str, Any]) -> ImagePart | FilePart | None:
    """Parses an image or a file, if Quire's parts can hold all its fields."""
    match piece:
        case {"type": "image_url", "image_url": {"url": str(url), **more}} if more.keys() <= {"detail"} and more.get(
            "detail"
        ) in (None, "low", "high", "auto"):
            unknown_fields = collect_unknown_fields(piece, ("type", "image_url"), FORMAT)
            return ImagePart(url=url, detail=more.get("detail"), provider_fields=unknown_fields)
        case {"type": "file", "file": {"file_data": str(url), **more}} if more.keys() <= {
            "filename"
        } and split_data_url(url):
            unknown_fields = collect_unknown_fields(piece, ("type", "file"), FORMAT)
            return FilePart(url=url, name=get_text(more, "filename"), provider_fields=unknown_fields)
        case _:
            return None


def _parse_usage(body: dict[str, Any]) -> Usage | None:
    usage = body.get("usage")
    if not is_object(usage):
        return None
    response_fields = {key: value for key, value in body.items() if key not in _ENVELOPE_FIELDS and value is not None}
    return Usage(
        model=get_text(body, "model"),
        input_tokens=usage.get("prompt_tokens") or 0,
        output_tokens=usage.get("completion_tokens") or 0,
        cache_read_tokens=get_object(usage, "prompt_tokens_details").get("cached_tokens") or 0,
        provider_fields={
            **{key: value for key, value in usage.items() if key not in _USAGE_FIELDS},
            "response": response_fields,
        },
    )
