"""A request on its way to a model: what to send, for whichever client sends it, and how the reply is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from quire.context.tools import ToolSet
from quire.log import Blob
from quire.log import Conversation as Opened
from quire.model import Entry, Manifest, Message, Provider, Span
from quire.model.notes import DocumentReference
from quire.view.assemble import Assembly
from quire.view.shapes import Load, Reply, shape_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text that a request quotes; it is kept as it was, so that the request can be built again."""

    name: str
    text: str
    recalled: bool = False
    """Chosen for this request alone: it stands just before the question, where it costs no cached prefix."""


class Asked(NamedTuple):
    """A message on its way into the log, and the documents that it refers to."""

    message: Message
    references: tuple[DocumentReference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to send, for whichever client sends it, and the record of how it came about."""

    assembly: Assembly
    pending: tuple[Asked, ...]
    after: bytes
    blobs: tuple[Blob, ...]
    tools: ToolSet | None = None
    compacted: tuple[Entry, ...] = ()
    """The compactions that preparing it took."""
    load: Load | None = None
    """Finds the blobs that its messages quote."""
    id: str | None = None
    """By which its manifest is found, once it is answered."""
    opens: Opened | None = None
    """The conversation, if it begins with this request's reply."""
    told: bytes | None = None
    """The path by which a client knows the reply, where it is not the log's own."""
    alone: bool = False
    """If someone else speaks before the reply, `StaleHead` is raised; otherwise it goes behind what they said."""

    @property
    def manifest(self) -> Manifest:
        return self.assembly.manifest

    @property
    def tokens(self) -> int:
        return self.assembly.pages.tokens

    def to_openai(self, **options: Any) -> dict[str, Any]:
        """Keyword arguments for `client.chat.completions.create`; `options` are added to them."""
        return self.assembly.pages.payload("openai") | options

    def to_anthropic(self, *, max_tokens: int | None = None, **options: Any) -> dict[str, Any]:
        """Keyword arguments for `client.messages.create`; the reply may have as many tokens as are reserved for it."""
        reserved = self.manifest.policy.reserved_response_tokens
        return self.assembly.pages.payload("anthropic", max_tokens=max_tokens or max(1, reserved)) | options


def as_message(message: Message | str) -> Message:
    return Message.user(message) if isinstance(message, str) else message


def read_reply(response: object) -> Reply:
    """A reply in whichever form it comes: a provider's response, as an object or a dict, a message, or plain text."""
    if isinstance(response, str):
        return Reply(Message.assistant(response), None, None)
    if isinstance(response, Reply):
        return response
    if isinstance(response, Message):
        return Reply(response, None, None)
    fields = cast(Mapping[str, Any], response if isinstance(response, Mapping) else vars(response))
    provider: Provider = "openai" if "choices" in fields else "anthropic"
    return shape_for(provider).parse(cast(object, response))


def numbered(manifest: Manifest, asked: Sequence[Entry]) -> Manifest:
    """The manifest with the numbers that the messages got with their reply; a row may begin before them."""
    if not asked:
        return manifest
    span = Span(first=asked[0].seq, last=asked[-1].seq)
    rows = tuple(
        row.model_copy(update={"span": row.span.model_copy(update={"last": span.last}) if row.span else span})
        if row.asked
        else row
        for row in manifest.decisions
    )
    return manifest.model_copy(update={"decisions": rows})
