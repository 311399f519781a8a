"""`Request`: the payload for a model client, and what is needed to record the reply."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from quire.access.spending import SpendReservation
from quire.context.tools import ToolSet
from quire.errors import InvalidRequest
from quire.log import Blob, Branch, ConversationRecord
from quire.model import Entry, Manifest, Message
from quire.model.entries import referenced_blobs
from quire.model.entry_metadata import DocumentReference
from quire.view.assembly import Assembly
from quire.wire import BlobLoader
from quire.wire.labels import LABEL_PREFIX

if TYPE_CHECKING:
    from quire.engine.exchanges import OpenExchange


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text of the application's to include in a request. It is stored, so that the request can be replayed."""

    name: str
    text: str
    recalled: bool = False
    """Chosen for this request alone: placed just before the question, where it does not invalidate the cached
    prefix."""


class PendingMessage(NamedTuple):
    """A message that is not in the log yet, and its document references."""

    message: Message
    references: tuple[DocumentReference, ...] = ()
    is_repeated: bool = False
    """Whether a client's list repeats it: a reply among them is no call of this conversation, and costs nothing."""
    tokens: int | None = None
    """Its tokens without the references, if they were counted."""

    def blob_digests(self) -> set[str]:
        """Digests of its images, files and injected documents."""
        return referenced_blobs(self.message, self.references)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prepared request: the payload for any client, and its manifest."""

    assembly: Assembly
    pending: tuple[PendingMessage, ...]
    after: bytes
    """Path of the branch head that the request was built on (optimistic concurrency)."""
    blobs: tuple[Blob, ...]
    branch: Branch | None = None
    """The branch that the request was built on, if its row was read: recording then need not read it again."""
    tools: ToolSet | None = None
    compactions: tuple[Entry, ...] = ()
    """Compactions made while preparing it."""
    needs_compaction: bool = False
    """Whether the history must be compacted before it is sent. A turn then records its question and rebuilds it."""
    load_blob: BlobLoader | None = None
    """Looks up the blobs that its messages reference."""
    id: str | None = None
    """Finds the manifest by request id, once the reply is recorded."""
    response_id: str | None = None
    """Id of the reply by which the client may refer to it later."""
    creates_conversation: ConversationRecord | None = None
    """The conversation to create together with this request's reply."""
    client_path: bytes | None = None
    """The path of the reply in the client's own message list, if it differs from the log's."""
    start_path: bytes | None = None
    """The path of a list that begins with the reply, where a compaction of the provider replaces all before."""
    strict_head: bool = False
    """Raises `StaleHead` if a concurrent append moved the head. Otherwise the reply is appended after it."""
    reservation: SpendReservation | None = None
    """The estimated cost that is reserved under a spend cap."""
    body: bytes | None = None
    """The body as it is sent upstream, where Quire forwards it."""
    exchange: "OpenExchange | None" = None
    """What is stored of it before it is sent."""
    stored: list[Entry] = field(default_factory=list[Entry], compare=False, repr=False)
    """What was recorded of this request."""

    def check_unrecorded(self) -> None:
        """Raises `InvalidRequest` if the request was recorded: after other entries, its question would be repeated."""
        if self.stored:
            raise InvalidRequest(
                f"This request was recorded already, from #{self.stored[0].seq} on, and other entries follow; prepare "
                "another one, or pass the request that `record_question` returned."
            )

    @property
    def manifest(self) -> Manifest:
        return self.assembly.manifest

    @property
    def tokens(self) -> int:
        return self.assembly.rendered.tokens

    def list_recalled_texts(self) -> list[str]:
        """Labelled texts after the stable prefix: what was recalled for this request."""
        rendered = self.assembly.rendered
        texts = [each.message.text for each in rendered.messages[rendered.stable_messages :]]
        return [text for text in texts if text.startswith(f"<{LABEL_PREFIX}:")]

    def to_chat(self, **options: Any) -> dict[str, Any]:
        """Keyword arguments for `client.chat.completions.create`.

        Args:
            options: More arguments, such as `temperature`.
        """
        return self.assembly.rendered.to_payload("chat", load_blob=self.load_blob) | options

    def to_responses(self, **options: Any) -> dict[str, Any]:
        """Keyword arguments for `client.responses.create`.

        Args:
            options: More arguments, such as `temperature`.
        """
        return self.assembly.rendered.to_payload("responses", load_blob=self.load_blob) | options

    def to_messages(self, *, max_tokens: int | None = None, **options: Any) -> dict[str, Any]:
        """Keyword arguments for `client.messages.create`.

        Args:
            max_tokens: Maximum tokens of the reply. Default: the reserved response tokens.
            options: More arguments, such as `temperature`.
        """
        reserved = self.assembly.policy.reserved_response_tokens
        payload = self.assembly.rendered.to_payload(
            "messages", max_tokens=max_tokens or max(1, reserved), load_blob=self.load_blob
        )
        return payload | options
