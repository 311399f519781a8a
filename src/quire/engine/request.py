"""`Request`: the payload for a model client, and what is needed to record the reply."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from quire.access.spending import SpendReservation
from quire.context.tools import ToolSet
from quire.log import Blob, Branch, ConversationRecord
from quire.model import Entry, Manifest, Message, WireFormatName
from quire.model.entries import referenced_blobs
from quire.model.entry_metadata import DocumentReference
from quire.view.assembly import Assembly
from quire.wire import BlobLoader, Reply, wire_format_for
from quire.wire.labels import LABEL_PREFIX


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


def to_message(message: Message | str) -> Message:
    return Message.user(message) if isinstance(message, str) else message


def parse_reply(response: object) -> Reply:
    """Parses a reply: a provider's response, as an object or a dict, a `Message`, or plain text."""
    if isinstance(response, str):
        return Reply(Message.assistant(response), None, None)
    if isinstance(response, Reply):
        return response
    if isinstance(response, Message):
        return Reply(response, None, None)
    fields = cast(Mapping[str, Any], response if isinstance(response, Mapping) else vars(response))
    name: WireFormatName = "chat" if "choices" in fields else "responses" if "output" in fields else "messages"
    return wire_format_for(name).parse_reply(cast(object, response))
