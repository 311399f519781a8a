"""Parses the content of Google's API, in which Gemini CLI and Qwen Code store their messages."""

from collections.abc import Iterable
from typing import Any

from quire.importers.source_fields import list_values, make_url_part, read_count, read_id, retain_fields
from quire.model import Message, Part, Role, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage
from quire.model.json_values import dump_json, filter_objects, get_object, get_text
from quire.wire.media import build_data_url

_TEXT_FIELDS = ("text", "thought")


def parse_parts(raw_parts: Iterable[dict[str, Any]], *, role: Role, source: str) -> list[Message]:
    """The message of some parts, and one tool message for each function response in them."""
    parts: list[Part] = []
    results: list[ToolResultPart] = []
    for raw in raw_parts:
        match raw:
            case {"functionCall": dict()}:
                call = get_object(raw, "functionCall")
                name = get_text(call, "name") or "tool"
                parts.append(
                    ToolCallPart(
                        id=read_id(call.get("id")) or name,
                        name=name,
                        arguments=dump_json(call.get("args") or {}),
                        provider_fields=retain_fields(raw, ("functionCall",), source),
                    )
                )
            case {"functionResponse": dict()}:
                response = get_object(raw, "functionResponse")
                result = get_object(response, "response")
                error = get_text(result, "error")
                text = error or get_text(result, "output")
                content = TextPart(text=dump_json(result) if text is None else text)
                call_id = read_id(response.get("id")) or get_text(response, "name") or "tool"
                results.append(ToolResultPart(call_id=call_id, content=(content,), is_error=error is not None))
            case {"text": str(text), "thought": True}:
                parts.append(ThinkingPart(text=text, provider_fields=retain_fields(raw, _TEXT_FIELDS, source)))
            case {"text": str(text)}:
                if text:
                    parts.append(TextPart(text=text, provider_fields=retain_fields(raw, _TEXT_FIELDS, source)))
            case {"inlineData": {"mimeType": str(kind), "data": str(data)}}:
                part = make_url_part(build_data_url(kind, data))
                parts += [part] if part is not None else []
            case _:
                # A newer kind of part is named in the text and stored whole.
                parts.append(TextPart(text=f"[{next(iter(raw), 'empty')}]", provider_fields={source: raw}))
    messages = [Message(role=role, parts=tuple(parts))] if parts else []
    return messages + [Message(role="tool", parts=(result,)) for result in results]


def list_parts(content: object) -> list[dict[str, Any]]:
    """Parts of a content, which is a text, a part or a list of parts."""
    if isinstance(content, str):
        return [{"text": content}]
    items = list_values(content) or [content]
    return filter_objects([{"text": each} if isinstance(each, str) else each for each in items])


def make_usage(counts: dict[str, Any], names: tuple[str, str, str, str], *, model: object) -> Usage | None:
    """Usage by the names of the counts: the prompt, its cached part, the reply, and thoughts, which the reply lacks."""
    sent, cached, replied, thought = (read_count(counts.get(name)) for name in names)
    if not sent and not replied:
        return None
    return Usage(
        model=model if isinstance(model, str) and model else None,
        input_tokens=sent,
        output_tokens=replied + thought,
        cache_read_tokens=min(cached, sent),
        provider_fields={"reasoning_tokens": thought} if thought else None,
    )
