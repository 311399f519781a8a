"""Messages and their parts, and the definitions of tools.

Unknown fields of a provider are preserved in `provider_fields`, large data in blobs.
"""

import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from quire.model.base import EncodableText, FrozenModel, JsonObject, ProviderFields

Role = Literal["system", "user", "assistant", "tool"]

PURGED_TEXT = "[purged]"
"""Replaces purged content."""


class _Part(FrozenModel):
    provider_fields: ProviderFields | None = None


class TextPart(_Part):
    """Text of a message or of a tool result."""

    type: Literal["text"] = "text"
    text: EncodableText


class ThinkingPart(_Part):
    """The model's reasoning. `signature` and `redacted` are the provider's, preserved byte for byte."""

    type: Literal["thinking"] = "thinking"
    text: EncodableText = ""
    signature: str | None = None
    redacted: str | None = None


class ToolCallPart(_Part):
    """A call as the model wrote it: `arguments` is its JSON text, valid or not, never reformatted."""

    type: Literal["tool_call"] = "tool_call"
    id: EncodableText
    name: EncodableText
    arguments: EncodableText = "{}"


class _MediaPart(_Part):
    """Data at a URL, or in the store as a blob."""

    url: str | None = None
    blob: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    media_type: str | None = None

    @model_validator(mode="after")
    def _check_one_source(self) -> "_MediaPart":
        if (self.url is None) == (self.blob is None):
            raise ValueError("set exactly one of `url` and `blob`")
        return self


class ImagePart(_MediaPart):
    type: Literal["image"] = "image"
    width: int | None = Field(default=None, gt=0)
    height: int | None = Field(default=None, gt=0)
    detail: Literal["low", "high", "auto"] | None = None


class FilePart(_MediaPart):
    type: Literal["file"] = "file"
    name: EncodableText | None = None


ToolResultContent = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")]


class ToolResultPart(_Part):
    """The result of a tool call, named by the id of the call."""

    type: Literal["tool_result"] = "tool_result"
    call_id: EncodableText
    content: tuple[ToolResultContent, ...] = ()
    is_error: bool = False

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, TextPart))


Part = Annotated[
    TextPart | ThinkingPart | ToolCallPart | ToolResultPart | ImagePart | FilePart,
    Field(discriminator="type"),
]


class Message(FrozenModel):
    """A message of any provider, in one form."""

    role: Role
    parts: tuple[Part, ...]
    provider_fields: ProviderFields | None = None
    name: EncodableText | None = None
    """The speaker, if a role has several. Sent to OpenAI. Anthropic has no field for it."""

    @classmethod
    def user(cls, text: str, *, name: str | None = None) -> Self:
        return cls(role="user", parts=(TextPart(text=text),), name=name)

    @classmethod
    def assistant(cls, text: str, *, name: str | None = None) -> Self:
        return cls(role="assistant", parts=(TextPart(text=text),), name=name)

    @classmethod
    def system(cls, text: str) -> Self:
        return cls(role="system", parts=(TextPart(text=text),))

    @classmethod
    def tool(cls, call_id: str, text: str, *, is_error: bool = False) -> Self:
        content = (TextPart(text=text),)
        return cls(role="tool", parts=(ToolResultPart(call_id=call_id, content=content, is_error=is_error),))

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCallPart))

    @property
    def tool_results(self) -> tuple[ToolResultPart, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolResultPart))

    def blob_digests(self) -> Iterator[str]:
        """Digests of the blobs that this message references."""
        for part in self.parts:
            inner = part.content if isinstance(part, ToolResultPart) else (part,)
            for piece in inner:
                if isinstance(piece, ImagePart | FilePart) and piece.blob is not None:
                    yield piece.blob

    def without_content(self) -> "Message":
        """The purged message: only the structure that a valid request needs, without any content."""
        return Message(role=self.role, parts=tuple(_purge_part(part) for part in self.parts))


def _purge_part(part: Part) -> Part:
    match part:
        case ToolCallPart(id=id_, name=name):
            return ToolCallPart(id=purge_identifier(id_), name=purge_identifier(name))
        case ToolResultPart(call_id=call_id, is_error=is_error):
            content = (TextPart(text=PURGED_TEXT),)
            return ToolResultPart(call_id=purge_identifier(call_id), content=content, is_error=is_error)
        case _:
            return TextPart(text=PURGED_TEXT)


_PURGED_IDENTIFIER = re.compile(r"purged_[0-9a-f]{32}")


def is_purged_identifier(value: str) -> bool:
    return _PURGED_IDENTIFIER.fullmatch(value) is not None


def purge_identifier(value: str) -> str:
    """The digest of an id or a name, which a valid request needs. A purged one is returned as it is."""
    if is_purged_identifier(value):
        return value
    digest = sha256(value.encode(errors="replace")).hexdigest()
    return f"purged_{digest[:32]}"


class ToolDefinition(FrozenModel):
    """`parameters` is a JSON schema; `server` names the MCP server that offers the tool, if one does."""

    name: str
    description: str = ""
    parameters: JsonObject
    server: str | None = None
