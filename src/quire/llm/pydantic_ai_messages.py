"""Converts messages to pydantic-ai, and its responses to replies.

What a provider verifies passes through unchanged: signatures and redacted thinking, call ids, the text of arguments,
image data. pydantic-ai's own fields of a part are stored in the part's `provider_fields` under `pydantic_ai`.
"""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from pydantic_ai import messages as pai
from pydantic_ai.tools import ToolDefinition as PydanticAITool
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
from quire.model.base import JsonObject
from quire.model.messages import ToolResultContent
from quire.view.wire_formats import BlobLoader, Reply
from quire.view.wire_formats.fields import build_parameters_schema, dump_json, to_safe_name
from quire.view.wire_formats.media import PDF_MEDIA_TYPE, build_data_url, describe_media, resolve_url, split_data_url

PROVIDER_KEY = "pydantic_ai"
_PROVIDER_FIELDS = ("id", "provider_name", "provider_details")
_REDACTED_ID = "redacted_thinking"
_DEFAULT_SIGNER = "anthropic"
"""Provider of signed thinking without provider fields: no other wire format of Quire reads signatures."""

PydanticAIContent = str | pai.ImageUrl | pai.BinaryContent


class VerbatimToolCallPart(pai.ToolCallPart[Any]):
    """A call whose arguments are sent as the model wrote them; pydantic-ai would serialize them again."""

    def args_as_json_str(self) -> str:
        return self.args if isinstance(self.args, str) else super().args_as_json_str()


def to_pydantic_ai(messages: Sequence[Message], *, load_blob: BlobLoader | None = None) -> list[pai.ModelMessage]:
    """Makes one response of each assistant message, and one request of the messages between two of them."""
    names = {call.id: to_safe_name(call.name) for message in messages for call in message.tool_calls}
    history: list[pai.ModelMessage] = []
    for is_assistant, group in groupby(messages, lambda message: message.role == "assistant"):
        if is_assistant:
            history += [pai.ModelResponse(parts=list(_to_response_parts(message))) for message in group]
        else:
            parts = [part for message in group for part in _to_request_parts(message, names, load_blob)]
            history.append(pai.ModelRequest(parts=parts))
    return history


def to_pydantic_ai_tool(tool: ToolDefinition) -> PydanticAITool:
    name, parameters = to_safe_name(tool.name), build_parameters_schema(tool)
    # Without an explicit `strict`, pydantic-ai would rewrite the schema and request strict adherence to it.
    return PydanticAITool(
        name=name, description=tool.description or None, parameters_json_schema=parameters, strict=False
    )


def to_reply(response: pai.ModelResponse) -> Reply:
    """Returns the reply in a response; `finish_reason` is the provider's own word, None if it gave none."""
    details = response.provider_details or {}
    finish_reason = details.get("finish_reason")
    message = Message(role="assistant", parts=tuple(_to_parts(response)))
    return Reply(message, _to_usage(response), finish_reason if isinstance(finish_reason, str) else None)


def _to_request_parts(
    message: Message, names: Mapping[str, str], load_blob: BlobLoader | None
) -> Iterator[pai.ModelRequestPart]:
    if message.role == "system":
        yield pai.SystemPromptPart(content=message.text)
    elif message.role == "tool":
        for part in message.tool_results:
            outcome: Literal["failed", "success"] = "failed" if part.is_error else "success"
            content = _to_result_content(part, load_blob)
            yield pai.ToolReturnPart(names.get(part.call_id, ""), content, part.call_id, outcome=outcome)
    else:
        parts = (part for part in message.parts if isinstance(part, TextPart | ImagePart | FilePart))
        content = [_to_content(part, load_blob) for part in parts]
        single = content[0] if len(content) == 1 else None
        yield pai.UserPromptPart(content=single if isinstance(single, str) else content)


def _to_response_parts(message: Message) -> Iterator[pai.ModelResponsePart]:
    for part in message.parts:
        fields = _restore_provider_fields(part)
        match part:
            case TextPart():
                yield pai.TextPart(part.text, **fields)
            case ThinkingPart():
                yield from _to_thinking_parts(part, fields)
            case ToolCallPart():
                yield VerbatimToolCallPart(to_safe_name(part.name), part.arguments, part.id, **fields)
            case ToolResultPart() | ImagePart() | FilePart():
                pass


def _to_thinking_parts(part: ThinkingPart, provider_fields: dict[str, Any]) -> Iterator[pai.ThinkingPart]:
    signed: dict[str, Any] = {"provider_name": _DEFAULT_SIGNER, **provider_fields}
    if part.redacted is not None:
        signed["id"] = _REDACTED_ID
        yield pai.ThinkingPart("", signature=part.redacted, **signed)
    elif part.signature is not None:
        yield pai.ThinkingPart(part.text, signature=part.signature, **signed)
    elif provider_fields:
        yield pai.ThinkingPart(part.text, **provider_fields)
    # Without a signature or provider fields, pydantic-ai would send the thinking as normal text.


def _to_content(part: ToolResultContent, load_blob: BlobLoader | None) -> PydanticAIContent:
    if isinstance(part, TextPart):
        return part.text
    url = resolve_url(part, load_blob, media_type="image/png" if isinstance(part, ImagePart) else PDF_MEDIA_TYPE)
    split = split_data_url(url) if url is not None else None
    detail = {"detail": part.detail} if isinstance(part, ImagePart) and part.detail is not None else None
    if split is not None:
        try:
            data = b64decode(split[1], validate=True)
        except (Base64Error, ValueError):
            return describe_media(part)
        return pai.BinaryContent(data=data, media_type=split[0], vendor_metadata=detail)
    # pydantic-ai would download a file behind a URL from here, so the model sees only its name.
    if isinstance(part, ImagePart) and url is not None and url.startswith(("http://", "https://")):
        return pai.ImageUrl(url=url, media_type=part.media_type, vendor_metadata=detail)
    return describe_media(part)


def _to_result_content(part: ToolResultPart, load_blob: BlobLoader | None) -> Any:
    """Joins the texts into one, followed by the files: a single text is sent verbatim, a list of texts as JSON."""
    pieces = [_to_content(piece, load_blob) for piece in part.content]
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    files = [piece for piece in pieces if not isinstance(piece, str)]
    return [text, *files] if files else text


def _to_parts(response: pai.ModelResponse) -> Iterator[Part]:
    for part in response.parts:
        match part:
            case pai.TextPart():
                if part.content:
                    yield TextPart(text=part.content, provider_fields=_extract_provider_fields(part))
            case pai.ThinkingPart(id=id_, signature=str(signature)) if id_ == _REDACTED_ID:
                yield ThinkingPart(redacted=signature, provider_fields=_extract_provider_fields(part))
            case pai.ThinkingPart():
                yield ThinkingPart(
                    text=part.content, signature=part.signature, provider_fields=_extract_provider_fields(part)
                )
            case pai.ToolCallPart():
                arguments = part.args if isinstance(part.args, str) else dump_json(part.args or {})
                yield ToolCallPart(
                    id=part.tool_call_id,
                    name=part.tool_name,
                    arguments=arguments,
                    provider_fields=_extract_provider_fields(part),
                )
            case pai.FilePart():
                url = build_data_url(part.content.media_type, b64encode(part.content.data).decode())
                kind = ImagePart if part.content.is_image else FilePart
                yield kind(url=url, media_type=part.content.media_type, provider_fields=_extract_provider_fields(part))
            case _:
                yield TextPart(text=f"[{part.part_kind}]", provider_fields=_extract_provider_fields(part))


def _extract_provider_fields(part: Any) -> JsonObject | None:
    """Returns the fields that pydantic-ai needs to send the part back: its id, its provider, and details."""
    fields = {name: getattr(part, name, None) for name in _PROVIDER_FIELDS}
    present = to_jsonable_python({name: value for name, value in fields.items() if value}, fallback=str)
    return {PROVIDER_KEY: present} if present else None


def _restore_provider_fields(part: Part) -> dict[str, Any]:
    fields = (part.provider_fields or {}).get(PROVIDER_KEY)
    return {name: fields[name] for name in _PROVIDER_FIELDS if name in fields} if isinstance(fields, dict) else {}


def _to_usage(response: pai.ModelResponse) -> Usage | None:
    """Converts the provider's usage report; `input_tokens` is the whole prompt, cached tokens included."""
    usage = response.usage
    if usage.unmeasured_requests or not usage.has_values():
        return None
    response_id: JsonObject = {"response": response.provider_response_id} if response.provider_response_id else {}
    return Usage(
        model=response.model_name,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        provider_fields={**response_id, **usage.details} or None,
    )
