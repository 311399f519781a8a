"""Messages of a client's list: as the log stores them, and normalized for matching."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

from quire.model import CHAIN_ROOT, Message
from quire.model.lazy import lazy_property
from quire.model.messages import Role
from quire.model.policy import Provider
from quire.server.gateway.codecs.normal_form import normalize_message


class ClientMessage(ABC):
    """One message of a client's list: as the log stores it, and normalized for matching."""

    is_plain_text = False
    """Whether this is a user or assistant message of text alone whose JSON is known without rendering it."""
    wire_json = b""
    """Wire format of a plain text message, as it enters a request's digest."""

    @property
    def role(self) -> Role:
        return self.message.role

    @lazy_property
    def message(self) -> Message:
        return self.parse()

    @abstractmethod
    def parse(self) -> Message: ...

    @lazy_property
    def normalized(self) -> Message:
        return normalize_message(self.message)

    @property
    def match_key(self) -> bytes:
        """Canonical JSON of `normalized`."""
        return self.normalized.canonical_json().encode()


class ParsedMessage(ClientMessage):
    """A message that was parsed together with those around it."""

    def __init__(self, message: Message) -> None:
        self._parsed = message

    def parse(self) -> Message:
        return self._parsed


class EquivalentStart(NamedTuple):
    """Whether the first messages of a list are those that the log renders, except for what has no meaning."""

    message_count: int
    item_count: int
    """Items of the list before the next message."""
    log_path: bytes
    """The log's path after these messages."""
    is_equivalent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownStart:
    """The first messages of a list that an earlier request had too, and what is known of them; a reply follows them."""

    messages: tuple[ClientMessage, ...] = ()
    paths: tuple[bytes, ...] = ()
    """The client's path after each message."""
    items: tuple[object, ...] = ()
    """The items of the list that they were parsed from, with the instructions before them."""
    first_item: int = 0
    """Index of the item of the first message."""
    size: int = 0
    """Bytes of the list up to the end of the last item."""
    equivalents: dict[Provider, EquivalentStart] = field(default_factory=dict[Provider, EquivalentStart])
    """Cache by wire format of the comparison with the log, of all messages or of the first."""


def compute_client_paths(messages: Iterable[ClientMessage], *, known_paths: Sequence[bytes] = ()) -> list[bytes]:
    """Computes the path after each message; the store looks conversations up by these.

    The messages follow those of `known_paths`, which are the first of the result.
    """
    paths = list(known_paths)
    path = paths[-1] if paths else CHAIN_ROOT
    for message in messages:
        path = sha256(path + message.match_key).digest()
        paths.append(path)
    return paths


def merge_user_messages(messages: Iterable[Message]) -> list[Message]:
    """Merges adjacent messages of the user: for the model they are one, and clients join and split them."""
    merged: list[Message] = []
    for message in messages:
        if merged and message.role == merged[-1].role == "user" and message.name == merged[-1].name:
            merged[-1] = merged[-1].model_copy(update={"parts": (*merged[-1].parts, *message.parts)})
        else:
            merged.append(message)
    return merged
