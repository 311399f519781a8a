"""Quire's messages as pydantic-ai's, and back.

What a provider checks goes through unchanged: signatures and redacted thinking, ids of calls, the text of arguments,
the data of images. What pydantic-ai notes on a part is kept under `pydantic_ai` among the part's foreign fields.
"""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from pydantic_ai import messages as foreign
from pydantic_ai.tools import ToolDefinition as ForeignTool
from pydantic_core import to_jsonable_python

from quire.model import (
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolDefinition,
    ToolResultPart,
    Usage,
)
from quire.model.parts import ResultPart
from quire.model.value import Foreign
from quire.view.shapes import Load, Reply
from quire.view.shapes.fields import compact, safe_name, schema
from quire.view.shapes.media import PDF, data_url, note, source_url, split_data_url

NOTES = "pydantic_ai"
_NOTED = ("id", "provider_name", "provider_details")
_REDACTED = "redacted_thinking"
_SIGNER = "anthropic"
"""Who signed thinking that carries no note: no other shape of Quire's reads signatures."""

Content = str | foreign.ImageUrl | foreign.BinaryContent


class VerbatimCall(foreign.ToolCallPart[Any]):
    """A call whose arguments are sent as the model wrote them; pydantic-ai would write their JSON anew."""

    def args_as_json_str(self) -> str:
        return self.args if isinstance(self.args, str) else super().args_as_json_str()


def to_foreign(messages: Sequence[Message], *, load: Load | None = None) -> list[foreign.ModelMessage]:
    """One response for each assistant's message, one request for what stands between two of them."""
    names = {call.id: safe_name(call.name) for message in messages for call in message.tool_calls}
    history: list[foreign.ModelMessage] = []
    for answers, group in groupby(messages, lambda message: message.role == "assistant"):
        if answers:
            history += [foreign.ModelResponse(parts=list(_response_parts(message))) for message in group]
        else:
            parts = [part for message in group for part in _request_parts(message, names, load)]
            history.append(foreign.ModelRequest(parts=parts))
    return history


def from_foreign(history: Sequence[foreign.ModelMessage]) -> list[Message]:
    return [message for item in history for message in _messages(item)]


def to_foreign_tool(tool: ToolDefinition) -> ForeignTool:
    name, parameters = safe_name(tool.name), schema(tool)
    # Left open, pydantic-ai would rewrite the schema where it can, and ask for strict adherence to it.
    return ForeignTool(name=name, description=tool.description or None, parameters_json_schema=parameters, strict=False)


def reply_of(response: foreign.ModelResponse) -> Reply:
    """The reply in a response; `finish` is the provider's own word, None where it gave none."""
    details = response.provider_details or {}
    finish = details.get("finish_reason")
    message = Message(role="assistant", parts=tuple(_parts(response)))
    return Reply(message, _usage(response), finish if isinstance(finish, str) else None)


def _request_parts(message: Message, names: Mapping[str, str], load: Load | None) -> Iterator[foreign.ModelRequestPart]:
    if message.role == "system":
        yield foreign.SystemPromptPart(content=message.text)
    elif message.role == "tool":
        for part in message.tool_results:
            outcome: Literal["failed", "success"] = "failed" if part.is_error else "success"
            content = _result_content(part, load)
            yield foreign.ToolReturnPart(names.get(part.call_id, ""), content, part.call_id, outcome=outcome)
    else:
        shown = (part for part in message.parts if isinstance(part, TextPart | ImagePart | FilePart))
        content = [_content(part, load) for part in shown]
        only = content[0] if len(content) == 1 else None
        yield foreign.UserPromptPart(content=only if isinstance(only, str) else content)


def _response_parts(message: Message) -> Iterator[foreign.ModelResponsePart]:
    for part in message.parts:
        notes = _notes_on(part)
        match part:
            case TextPart():
                yield foreign.TextPart(part.text, **notes)
            case ThinkingPart():
                yield from _thinking(part, notes)
            case ToolCallPart():
                yield VerbatimCall(safe_name(part.name), part.arguments, part.id, **notes)
            case ToolResultPart() | ImagePart() | FilePart():
                pass


def _thinking(part: ThinkingPart, notes: dict[str, Any]) -> Iterator[foreign.ThinkingPart]:
    signed: dict[str, Any] = {"provider_name": _SIGNER, **notes}
    if part.redacted is not None:
        signed["id"] = _REDACTED
        yield foreign.ThinkingPart("", signature=part.redacted, **signed)
    elif part.signature is not None:
        yield foreign.ThinkingPart(part.text, signature=part.signature, **signed)
    elif notes:
        yield foreign.ThinkingPart(part.text, **notes)
    # Without a signature or a note of where it came from it would be sent as something that was said.


def _content(part: ResultPart, load: Load | None) -> Content:
    if isinstance(part, TextPart):
        return part.text
    url = source_url(part, load, media_type="image/png" if isinstance(part, ImagePart) else PDF)
    split = split_data_url(url) if url is not None else None
    detail = {"detail": part.detail} if isinstance(part, ImagePart) and part.detail is not None else None
    if split is not None:
        try:
            data = b64decode(split[1], validate=True)
        except (Base64Error, ValueError):
            return note(part)
        return foreign.BinaryContent(data=data, media_type=split[0], vendor_metadata=detail)
    # A file behind an address would be fetched from here by pydantic-ai, so it is only named.
    if isinstance(part, ImagePart) and url is not None and url.startswith(("http://", "https://")):
        return foreign.ImageUrl(url=url, media_type=part.media_type, vendor_metadata=detail)
    return note(part)


def _result_content(part: ToolResultPart, load: Load | None) -> Any:
    """One text, and after it the pictures: text alone is sent to the byte, a list of texts would be sent as JSON."""
    pieces = [_content(piece, load) for piece in part.content]
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    files = [piece for piece in pieces if not isinstance(piece, str)]
    return [text, *files] if files else text


def _messages(item: foreign.ModelMessage) -> Iterator[Message]:
    if isinstance(item, foreign.ModelResponse):
        yield Message(role="assistant", parts=tuple(_parts(item)))
        return
    for part in item.parts:
        match part:
            case foreign.SystemPromptPart():
                yield Message.system(part.content)
            case foreign.UserPromptPart():
                pieces = [part.content] if isinstance(part.content, str) else part.content
                yield Message(role="user", parts=tuple(_shown(piece) for piece in pieces))
            case foreign.ToolReturnPart():
                content = tuple(_shown(piece) for piece in part.content_items(mode="str", wrap_if_error=False))
                failed = part.outcome != "success"
                result = ToolResultPart(call_id=part.tool_call_id, content=content, is_error=failed)
                yield Message(role="tool", parts=(result,))
            case _:
                # pydantic-ai's agents write further parts, none of which a conversation of Quire's holds.
                yield Message(role="user", parts=(TextPart(text=f"[{part.part_kind}]"),))


def _shown(piece: object) -> ResultPart:
    match piece:
        case str():
            return TextPart(text=piece)
        case foreign.TextContent():
            return TextPart(text=piece.content)
        case foreign.ImageUrl():
            return ImagePart(url=piece.url, detail=_detail(piece.vendor_metadata))
        case foreign.BinaryContent():
            url = data_url(piece.media_type, b64encode(piece.data).decode())
            if piece.is_image:
                return ImagePart(url=url, media_type=piece.media_type, detail=_detail(piece.vendor_metadata))
            return FilePart(url=url, media_type=piece.media_type)
        case foreign.DocumentUrl():
            return FilePart(url=piece.url)
        case _:
            return TextPart(text=f"[{type(piece).__name__}]")


def _detail(metadata: dict[str, Any] | None) -> Any:
    detail = (metadata or {}).get("detail")
    return detail if detail in ("low", "high", "auto") else None


def _parts(response: foreign.ModelResponse) -> Iterator[Part]:
    for part in response.parts:
        match part:
            case foreign.TextPart():
                if part.content:
                    yield TextPart(text=part.content, provider=_noted(part))
            case foreign.ThinkingPart(id=id_, signature=str(signature)) if id_ == _REDACTED:
                yield ThinkingPart(redacted=signature, provider=_noted(part))
            case foreign.ThinkingPart():
                yield ThinkingPart(text=part.content, signature=part.signature, provider=_noted(part))
            case foreign.ToolCallPart():
                arguments = part.args if isinstance(part.args, str) else compact(part.args or {})
                yield ToolCallPart(
                    id=part.tool_call_id, name=part.tool_name, arguments=arguments, provider=_noted(part)
                )
            case foreign.FilePart():
                url = data_url(part.content.media_type, b64encode(part.content.data).decode())
                kind = ImagePart if part.content.is_image else FilePart
                yield kind(url=url, media_type=part.content.media_type, provider=_noted(part))
            case _:
                yield TextPart(text=f"[{part.part_kind}]", provider=_noted(part))


def _noted(part: Any) -> Foreign | None:
    """Who wrote the part, and what must be sent back with it."""
    fields = {name: getattr(part, name, None) for name in _NOTED}
    notes = to_jsonable_python({name: value for name, value in fields.items() if value}, fallback=str)
    return {NOTES: notes} if notes else None


def _notes_on(part: Part) -> dict[str, Any]:
    notes = (part.provider or {}).get(NOTES)
    return {name: notes[name] for name in _NOTED if name in notes} if isinstance(notes, dict) else {}


def _usage(response: foreign.ModelResponse) -> Usage | None:
    """Tokens as the provider reports them; `input_tokens` is the whole prompt, cached tokens included."""
    usage = response.usage
    if usage.unmeasured_requests or not usage.has_values():
        return None
    about: Foreign = {"response": response.provider_response_id} if response.provider_response_id else {}
    return Usage(
        model=response.model_name,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        provider={**about, **usage.details} or None,
    )
