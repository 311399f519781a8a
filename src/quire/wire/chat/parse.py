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

REASONING_FIELDS = ("reasoning_content", "reasoning")
_KNOWN_FIELDS = ("role", "name", "content", "tool_calls", *REASONING_FIELDS)
_ENVELOPE_FIELDS = ("choices", "usage", "model", "object")
_USAGE_FIELDS = ("prompt_tokens", "completion_tokens", "total_tokens")


def parse_reply(response: object) -> Reply:
    """Parses a response. `usage.input_tokens` is the whole prompt, including cached tokens, as OpenAI reports it."""
    body = to_plain_json(response)
    choices = filter_objects(body.get("choices")) if is_object(body) else []
    if not choices or not is_object(choices[0].get("message")):
        raise InvalidEntry("The response has no choices, so it contains no reply; see the provider's error.")
    message = choices[0]["message"]
    if is_object(audio := message.get("audio")):
        # A request may repeat audio only by its id, so the text of the message is the transcript.
        text = message.get("content") or audio.get("transcript")
        message = {**message, "content": text, "audio": {"id": audio.get("id")}}
    return Reply(_parse_assistant(message), parse_usage(body), get_text(choices[0], "finish_reason"))


def parse_usage(body: dict[str, Any]) -> Usage | None:
    """The usage of a response; `input_tokens` is the whole prompt, `output_tokens` includes reasoning."""
    if not is_object(counts := body.get("usage")):
        return None
    sent, received = counts.get("prompt_tokens") or 0, counts.get("completion_tokens") or 0
    reasoning = get_object(counts, "completion_tokens_details").get("reasoning_tokens") or 0
    if counts.get("total_tokens") == sent + received + reasoning:
        # Some providers, such as xAI, state reasoning tokens in addition to the others instead of among them.
        received += reasoning
    cache = get_object(counts, "prompt_tokens_details")
    others = {key: value for key, value in body.items() if key not in _ENVELOPE_FIELDS and value is not None}
    return Usage(
        model=get_text(body, "model"),
        input_tokens=sent,
        output_tokens=received,
        cache_read_tokens=cache.get("cached_tokens") or counts.get("prompt_cache_hit_tokens") or 0,
        cache_write_tokens=cache.get("cache_write_tokens") or 0,
        provider_fields={
            **{key: value for key, value in counts.items() if key not in _USAGE_FIELDS},
            "response": others,
        },
    )


def parse_messages(raw_messages: Sequence[object], *, system: object = None) -> list[Message]:
    """Parses each message to one Quire message, so that tool results stay separate as in the client's history."""
    messages = [Message(role="system", parts=tuple(_parse_parts(to_plain_json(system))))] if system else []
    for index, raw in enumerate(map(to_plain_json, raw_messages)):
        role = raw.get("role") if is_object(raw) else None
        if role == "assistant":
            messages.append(_parse_assistant(raw))
        elif role == "tool":
            result = ToolResultPart(
                call_id=str(raw.get("tool_call_id") or ""),
                content=tuple(_parse_parts(raw.get("content"), parse_media=_parse_media)),
                provider_fields=collect_unknown_fields(raw, ("role", "content", "tool_call_id"), FORMAT),
            )
            messages.append(Message(role="tool", parts=(result,)))
        elif role in ("user", "system", "developer"):
            # Quire has no developer role: it is stored as a provider field, and sent back with it.
            known = ("name", "content") if role == "developer" else _KNOWN_FIELDS
            message = Message(
                role="user" if role == "user" else "system",
                parts=tuple(_parse_parts(raw.get("content"), parse_media=_parse_media if role == "user" else None)),
                provider_fields=collect_unknown_fields(raw, known, FORMAT),
                name=get_text(raw, "name") or None,
            )
            messages.append(message)
        else:
            raise InvalidEntry(f"Message {index} has the role {role!r}; use system, user, assistant or tool.")
    return messages


def _parse_assistant(raw: dict[str, Any]) -> Message:
    thoughts = next((raw[field] for field in REASONING_FIELDS if isinstance(raw.get(field), str) and raw[field]), None)
    parts: list[Part] = [ThinkingPart(text=thoughts)] if thoughts else []
    parts += _parse_parts(raw.get("content"))
    for call in filter_objects(raw.get("tool_calls")):
        if is_object(call.get("custom")):
            name, text = call["custom"].get("name"), call["custom"].get("input")
            unknown_fields = collect_unknown_fields(call, ("id", "custom", "index"), FORMAT)
        else:
            function = get_object(call, "function")
            name, text = function.get("name"), function.get("arguments")
            unknown_fields = collect_unknown_fields(call, ("id", "type", "function", "index"), FORMAT)
        arguments = text if isinstance(text, str) else dump_json(text or {})
        parts.append(
            ToolCallPart(
                id=str(call.get("id") or ""), name=str(name or ""), arguments=arguments, provider_fields=unknown_fields
            )
        )
    return Message(
        role="assistant",
        parts=tuple(parts),
        provider_fields=collect_unknown_fields(raw, _KNOWN_FIELDS, FORMAT),
        name=get_text(raw, "name") or None,
    )


def _parse_parts(
    content: object, *, parse_media: Callable[[dict[str, Any]], ToolResultContent | None] | None = None
) -> list[ToolResultContent]:
    if isinstance(content, str):
        return [TextPart(text=content)]
    parts: list[ToolResultContent] = []
    for piece in filter_objects(content):
        if parse_media is not None and (media := parse_media(piece)) is not None:
            parts.append(media)
        elif piece.get("type") == "text" and isinstance(piece.get("text"), str):
            unknown_fields = collect_unknown_fields(piece, ("type", "text"), FORMAT)
            parts.append(TextPart(text=piece["text"], provider_fields=unknown_fields))
        else:
            refusal = piece.get("refusal")
            text = refusal if isinstance(refusal, str) else f"[{piece.get('type')}]"
            parts.append(TextPart(text=text, provider_fields={FORMAT: piece}))
    return parts


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
