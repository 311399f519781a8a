"""OpenAI's messages, of requests and of responses, as Quire's.

What Quire has no part for is kept as a text part that names it, with the piece itself among its fields, so that it goes
back as it came. A content list of one plain text becomes the same message as the text alone.
"""

from collections.abc import Callable, Sequence
from typing import Any

from quire.errors import InvalidEntry
from quire.model import FilePart, ImagePart, Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage
from quire.model.parts import ResultPart
from quire.view.shapes.base import Provider, Reply
from quire.view.shapes.fields import compact, is_object, object_in, objects, plain, text_in, unknown_fields
from quire.view.shapes.media import split_data_url

NAME: Provider = "openai"

_REASONING = ("reasoning_content", "reasoning")
_READ = ("role", "name", "content", "tool_calls", *_REASONING)
_ENVELOPE = ("choices", "usage", "model", "object")
_COUNTED = ("prompt_tokens", "completion_tokens", "total_tokens")


def reply(response: object) -> Reply:
    """`usage.input_tokens` is the whole prompt, cached tokens included, as OpenAI reports it."""
    body = plain(response)
    choices = objects(body.get("choices")) if is_object(body) else []
    if not choices or not is_object(choices[0].get("message")):
        raise InvalidEntry("The response has no choices, so there is no reply in it; look at the provider's error.")
    return Reply(_assistant(_spoken(choices[0]["message"])), _usage(body), text_in(choices[0], "finish_reason"))


def messages(given: Sequence[object], *, system: object = None) -> list[Message]:
    """One Quire message for each of these, so that a tool's answers stay apart as the client has them."""
    first = [Message(role="system", parts=tuple(_parts(plain(system))))] if system else []
    return [*first, *(_message(place, plain(message)) for place, message in enumerate(given))]


def _message(place: int, raw: Any) -> Message:
    role = raw.get("role") if is_object(raw) else None
    match role:
        case "assistant":
            return _assistant(raw)
        case "tool":
            return Message(role="tool", parts=(_result(raw),))
        case "user":
            parts = tuple(_parts(raw.get("content"), media=_media))
            return Message(role="user", parts=parts, provider=_kept(raw), name=_speaker(raw))
        case "system":
            parts = tuple(_parts(raw.get("content")))
            return Message(role="system", parts=parts, provider=_kept(raw), name=_speaker(raw))
        case "developer":
            parts, kept = tuple(_parts(raw.get("content"))), unknown_fields(raw, ("name", "content"), NAME)
            return Message(role="system", parts=parts, provider=kept, name=_speaker(raw))
        case _:
            raise InvalidEntry(f"Message {place} has the role {role!r}; use system, user, assistant or tool.")


def _speaker(raw: dict[str, Any]) -> str | None:
    return text_in(raw, "name") or None


def _kept(raw: dict[str, Any]) -> Any:
    return unknown_fields(raw, _READ, NAME)


def _assistant(raw: dict[str, Any]) -> Message:
    thoughts = next((raw[field] for field in _REASONING if isinstance(raw.get(field), str) and raw[field]), None)
    thinking: list[Part] = [ThinkingPart(text=thoughts)] if thoughts else []
    calls = [_call(call) for call in objects(raw.get("tool_calls"))]
    parts = (*thinking, *_parts(raw.get("content")), *calls)
    return Message(role="assistant", parts=parts, provider=_kept(raw), name=_speaker(raw))


def _spoken(raw: dict[str, Any]) -> dict[str, Any]:
    """A spoken reply as a request may quote it: by its id, with what was said as text."""
    audio = raw.get("audio")
    if not is_object(audio):
        return raw
    return {**raw, "content": raw.get("content") or audio.get("transcript"), "audio": {"id": audio.get("id")}}


def _call(raw: dict[str, Any]) -> ToolCallPart:
    if is_object(raw.get("custom")):
        name, text = raw["custom"].get("name"), raw["custom"].get("input")
        kept = unknown_fields(raw, ("id", "custom", "index"), NAME)
    else:
        function = object_in(raw, "function")
        name, text = function.get("name"), function.get("arguments")
        kept = unknown_fields(raw, ("id", "type", "function", "index"), NAME)
    arguments = text if isinstance(text, str) else compact(text or {})
    return ToolCallPart(id=str(raw.get("id") or ""), name=str(name or ""), arguments=arguments, provider=kept)


def _result(raw: dict[str, Any]) -> ToolResultPart:
    kept = unknown_fields(raw, ("role", "content", "tool_call_id"), NAME)
    content = tuple(_parts(raw.get("content"), media=_media))
    return ToolResultPart(call_id=str(raw.get("tool_call_id") or ""), content=content, provider=kept)


def _parts(content: object, *, media: Callable[[dict[str, Any]], ResultPart | None] | None = None) -> list[ResultPart]:
    if isinstance(content, str):
        return [TextPart(text=content)]
    return [(media(piece) if media else None) or _text(piece) for piece in objects(content)]


def _text(piece: dict[str, Any]) -> TextPart:
    if piece.get("type") == "text" and isinstance(piece.get("text"), str):
        return TextPart(text=piece["text"], provider=unknown_fields(piece, ("type", "text"), NAME))
    refusal = piece.get("refusal")
    return TextPart(text=refusal if isinstance(refusal, str) else f"[{piece.get('type')}]", provider={NAME: piece})


def _media(piece: dict[str, Any]) -> ImagePart | FilePart | None:
    """A picture or a file, if Quire's parts can hold all that is said of it."""
    match piece:
        case {"type": "image_url", "image_url": {"url": str(url), **more}} if more.keys() <= {"detail"} and more.get(
            "detail"
        ) in (None, "low", "high", "auto"):
            kept = unknown_fields(piece, ("type", "image_url"), NAME)
            return ImagePart(url=url, detail=more.get("detail"), provider=kept)
        case {"type": "file", "file": {"file_data": str(url), **more}} if more.keys() <= {
            "filename"
        } and split_data_url(url):
            kept = unknown_fields(piece, ("type", "file"), NAME)
            return FilePart(url=url, name=text_in(more, "filename"), provider=kept)
        case _:
            return None


def _usage(body: dict[str, Any]) -> Usage | None:
    usage = body.get("usage")
    if not is_object(usage):
        return None
    about = {key: value for key, value in body.items() if key not in _ENVELOPE and value is not None}
    return Usage(
        model=text_in(body, "model"),
        input_tokens=usage.get("prompt_tokens") or 0,
        output_tokens=usage.get("completion_tokens") or 0,
        cache_read_tokens=object_in(usage, "prompt_tokens_details").get("cached_tokens") or 0,
        provider={**{key: value for key, value in usage.items() if key not in _COUNTED}, "response": about},
    )
