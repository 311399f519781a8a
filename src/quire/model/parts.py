"""What a message is made of. Each part keeps its provider's unknown fields in `provider`, and large data as a blob."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from quire.model.value import Foreign, Value


class _Part(Value):
    provider: Foreign | None = None


class TextPart(_Part):
    type: Literal["text"] = "text"
    text: str


class ThinkingPart(_Part):
    """The model's reasoning. The signature and the redacted form are the provider's, kept to the byte."""

    type: Literal["thinking"] = "thinking"
    text: str = ""
    signature: str | None = None
    redacted: str | None = None


class ToolCallPart(_Part):
    """A call as the model wrote it: `arguments` is its JSON text, valid or not, never reformatted."""

    type: Literal["tool_call"] = "tool_call"
    id: str
    name: str
    arguments: str = "{}"


class _Sourced(_Part):
    """Data that stands elsewhere: under a URL, or in the store as a blob."""

    url: str | None = None
    blob: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    media_type: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> "_Sourced":
        if (self.url is None) == (self.blob is None):
            raise ValueError("give either a url or a blob's digest")
        return self


class ImagePart(_Sourced):
    type: Literal["image"] = "image"
    width: int | None = Field(default=None, gt=0)
    height: int | None = Field(default=None, gt=0)
    detail: Literal["low", "high", "auto"] | None = None


class FilePart(_Sourced):
    type: Literal["file"] = "file"
    name: str | None = None


ResultPart = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")]


class ToolResultPart(_Part):
    type: Literal["tool_result"] = "tool_result"
    call_id: str
    content: tuple[ResultPart, ...] = ()
    is_error: bool = False

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, TextPart))


Part = Annotated[
    TextPart | ThinkingPart | ToolCallPart | ToolResultPart | ImagePart | FilePart,
    Field(discriminator="type"),
]
