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
from pydantic_core import to_jsonable_python

from quire.model import (
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
)
from quire.model.base import JsonObject
from quire.model.json_values import dump_json
from quire.model.messages import ToolResultContent
from quire.wire import BlobLoader, Reply
from quire.wire.fields import to_safe_name
from quire.wire.media import PDF_MEDIA_TYPE, build_data_url, describe_media, resolve_url, split_data_url

PROVIDER_KEY = "pydantic_ai"
"""Key of a part's provider fields with pydantic-ai's own fields."""
_PROVIDER_FIELDS = ("id", "provider_name", "provider_details")
_REDACTED_ID = "redacted_thinking"
_DEFAULT_SIGNER = "anthropic"
"""Provider of signed thinking without provider fields: no other wire format of Quire reads signatures."""

PydanticAIContent = str | pai.ImageUrl | pai.BinaryContent


class VerbatimToolCallPart(pai.ToolCallPart[Any]):
    """A call whose arguments are sent as the model wrote them. Pydantic-ai would serialize them again."""

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


def to_reply(response: pai.ModelResponse) -> Reply:
    """Returns the reply in a response; `finish_reason` is the provider's own word, None if it gave none."""
    parts: list[Part] = []
    for part in response.parts:
        # The fields that pydantic-ai needs to send the part back: its id, its provider, and details.
        own = {name: value for name in _PROVIDER_FIELDS if (value := getattr(part, name, None))}
        fields: JsonObject | None = {PROVIDER_KEY: to_jsonable_python(own, fallback=str)} if own else None
        match part:
            case pai.TextPart():
                if part.content:
                    parts.append(TextPart(text=part.content, provider_fields=fields))
            case pai.ThinkingPart(id=id_, signature=str(signature)) if id_ == _REDACTED_ID:
                parts.append(ThinkingPart(redacted=signature, provider_fields=fields))
            case pai.ThinkingPart():
                parts.append(ThinkingPart(text=part.content, signature=part.signature, provider_fields=fields))
            case pai.ToolCallPart():
                arguments = part.args if isinstance(part.args, str) else dump_json(part.args or {})
                parts.append(
                    ToolCallPart(id=part.tool_call_id, name=part.tool_name, arguments=arguments, provider_fields=fields)
                )
            case pai.FilePart():
                url = build_data_url(part.content.media_type, b64encode(part.content.data).decode())
                kind = ImagePart if part.content.is_image else FilePart
                parts.append(kind(url=url, media_type=part.content.media_type, provider_fields=fields))
            case _:
                parts.append(TextPart(text=f"[{part.part_kind}]", provider_fields=fields))
    usage = None
    if not response.usage.unmeasured_requests and response.usage.has_values():
        response_id: JsonObject = {"response": response.provider_response_id} if response.provider_response_id else {}
        usage = Usage(
            model=response.model_name,
            # The whole prompt, cached tokens included.
            input_tokens=response.usage.input_tokens,
            output_tokens=response.usage.output_tokens,
            cache_read_tokens=response.usage.cache_read_tokens,
            cache_write_tokens=response.usage.cache_write_tokens,
            provider_fields={**response_id, **response.usage.details} or None,
        )
    finish_reason = (response.provider_details or {}).get("finish_reason")
    return Reply(
        Message(role="assistant", parts=tuple(parts)),
        usage,
        finish_reason if isinstance(finish_reason, str) else None,
    )


def _to_request_parts(
    message: Message, names: Mapping[str, str], load_blob: BlobLoader | None
) -> Iterator[pai.ModelRequestPart]:
    if message.role == "system":
        yield pai.SystemPromptPart(content=message.text)
    elif message.role == "tool":
        for part in message.tool_results:
            outcome: Literal["failed", "success"] = "failed" if part.is_error else "success"
            # One text, followed by the files: a single text is sent verbatim, a list of texts as JSON.
            pieces = [_to_content(piece, load_blob) for piece in part.content]
            text = "".join(piece for piece in pieces if isinstance(piece, str))
            files = [piece for piece in pieces if not isinstance(piece, str)]
            content: Any = [text, *files] if files else text
            yield pai.ToolReturnPart(names.get(part.call_id, ""), content, part.call_id, outcome=outcome)
    else:
        parts = (part for part in message.parts if isinstance(part, TextPart | ImagePart | FilePart))
        content = [_to_content(part, load_blob) for part in parts]
        single = content[0] if len(content) == 1 else None
        yield pai.UserPromptPart(content=single if isinstance(single, str) else content)


def _to_response_parts(message: Message) -> Iterator[pai.ModelResponsePart]:
    for part in message.parts:
        own = (part.provider_fields or {}).get(PROVIDER_KEY)
        fields: dict[str, Any] = (
            {name: own[name] for name in _PROVIDER_FIELDS if name in own} if isinstance(own, dict) else {}
        )
        match part:
            case TextPart():
                yield pai.TextPart(part.text, **fields)
            case ThinkingPart(redacted=str(redacted)):
                fields = {"provider_name": _DEFAULT_SIGNER, **fields, "id": _REDACTED_ID}
                yield pai.ThinkingPart("", signature=redacted, **fields)
            case ThinkingPart(signature=str(signature)):
                fields = {"provider_name": _DEFAULT_SIGNER, **fields}
                yield pai.ThinkingPart(part.text, signature=signature, **fields)
            case ThinkingPart():
                # Without a signature or provider fields, pydantic-ai would send the thinking as normal text.
                if fields:
                    yield pai.ThinkingPart(part.text, **fields)
            case ToolCallPart():
                yield VerbatimToolCallPart(to_safe_name(part.name), part.arguments, part.id, **fields)
            case ToolResultPart() | ImagePart() | FilePart():
                pass


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
