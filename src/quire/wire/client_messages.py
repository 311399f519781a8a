"""Messages of a client's list: as the log stores them, and normalized for matching."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, TypeGuard

from quire.model import (
    CHAIN_ROOT,
    FilePart,
    ImagePart,
    Message,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    iter_paths,
)
from quire.model.base import JsonObject, lazy_property
from quire.model.json_values import dump_json
from quire.model.messages import Part, Role, ToolResultContent
from quire.model.policy import WireFormatName
from quire.rows.boilerplate import SESSION_CONTEXT_OPENING
from quire.wire.chat import FORMAT as CHAT_FORMAT
from quire.wire.compaction_blocks import COMPACTION_TYPES, find_compaction_block
from quire.wire.responses import FORMAT as RESPONSES_FORMAT
from quire.wire.responses.parse import TEXT_TYPES

_CONTENT_SUBSTITUTES = ("refusal", "audio", "function_call")
"""Fields of an assistant message in chat completions that replace its content."""


def normalize_message(message: Message) -> Message:
    """Returns the message without what clients drop or reformat when they send it back."""
    if message.role == "assistant":
        # One text, then all other parts in order.
        text = "".join(part.text for part in message.parts if _is_own_text(part)).strip()
        others = tuple(
            _normalize_part(part)
            for part in message.parts
            if not _is_own_text(part) and not isinstance(part, ThinkingPart) and not _is_empty(part)
        )
        substitutes = get_content_substitutes(message)
        return Message(
            role="assistant",
            parts=((TextPart(text=text), *others) if text else others),
            provider_fields={CHAT_FORMAT: substitutes} if substitutes else None,
        )
    parts = tuple(_normalize_part(part) for part in message.parts if not _is_empty(part) and not _is_context(part))
    return Message(role=message.role, parts=parts, name=message.name)


def get_content_substitutes(message: Message) -> dict[str, Any]:
    """Fields of a reply in chat completions that replace its content."""
    fields = message.provider_fields.get(CHAT_FORMAT) if message.provider_fields is not None else None
    return {name: fields[name] for name in _CONTENT_SUBSTITUTES if name in fields} if isinstance(fields, dict) else {}


def _is_own_text(part: Part) -> TypeGuard[TextPart]:
    return isinstance(part, TextPart) and get_placeholder_type(part) is None


def get_placeholder_type(part: TextPart) -> str | None:
    """The type of content that Quire has no part for, if the text only names it. It is in the provider's fields."""
    for provider, fields in (part.provider_fields or {}).items():
        if not isinstance(fields, dict):
            continue
        content, text_types = fields.get("content"), TEXT_TYPES if provider == RESPONSES_FORMAT else ("text",)
        kind = content.get("type") if isinstance(content, dict) else fields.get("type")
        if isinstance(kind, str) and kind not in text_types:
            return kind
    return None


def _is_context(part: Part) -> bool:
    """Whether a client writes the part again at each start, so that a resumed session has another one."""
    return isinstance(part, TextPart) and part.text.startswith(SESSION_CONTEXT_OPENING)


def _is_empty(part: Part) -> bool:
    return isinstance(part, TextPart) and not part.text.strip()


def _normalize_part(part: Part) -> Part:
    match part:
        case ToolCallPart():
            return ToolCallPart(id=part.id, name=part.name, arguments=_normalize_arguments(part.arguments))
        case ToolResultPart():
            content = tuple(_normalize_content(piece) for piece in part.content if not _is_empty(piece))
            return ToolResultPart(call_id=part.call_id, content=content, is_error=part.is_error)
        case TextPart() | ImagePart() | FilePart():
            return _normalize_content(part)
        case ThinkingPart():
            return part


def _normalize_content(part: ToolResultContent) -> ToolResultContent:
    match part:
        case TextPart():
            kind = get_placeholder_type(part)
            if kind in COMPACTION_TYPES:
                return TextPart(text=part.text, provider_fields=_normalize_compaction(part))
            return part if kind is not None else TextPart(text=part.text)
        case ImagePart() | FilePart():
            return part.model_copy(update={"provider_fields": None})


def _normalize_compaction(part: TextPart) -> JsonObject:
    """The content of a provider's compaction: clients drop its ID, and use either name of its type."""
    return {
        provider: {name: fields.get(name) for name in ("content", "encrypted_content")}
        for provider, fields in (part.provider_fields or {}).items()
        if isinstance(fields, dict)
    }


def _normalize_arguments(arguments: str) -> str:
    try:
        return dump_json(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments


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

    @lazy_property
    def has_compaction(self) -> bool:
        """Whether it contains a compaction of a provider; computed once, because lists repeat their messages."""
        # A message of text alone has none, and is not parsed to see it: there may be ten thousand.
        return not self.is_plain_text and find_compaction_block(self.message) is not None

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


class EditedStart(NamedTuple):
    """The first items of a list as they are sent, with the user's edits."""

    epoch: str = ""
    """Digest of the epoch that was applied."""
    item_count: int = 0
    """Items of the client's list."""
    size: int = 0
    """Bytes of the client's list up to the end of the last of them."""
    content: bytes = b""
    dropped: frozenset[int] = frozenset()
    """Messages of which the list has stubs."""
    quoted: frozenset[int] = frozenset()
    """Messages that are quoted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownStart:
    """The first messages of a list that an earlier request had too, and what is known of them. A reply follows them."""

    messages: tuple[ClientMessage, ...] = ()
    paths: tuple[bytes, ...] = ()
    """The client's path after each message."""
    items: tuple[object, ...] = ()
    """The items of the list that they were parsed from, with the instructions before them."""
    first_item: int = 0
    """Index of the item of the first message."""
    size: int = 0
    """Bytes of the list up to the end of the last item."""
    equivalents: dict[WireFormatName, EquivalentStart] = field(default_factory=dict[WireFormatName, EquivalentStart])
    """Cache by wire format of the comparison with the log, of all messages or of the first."""
    edited: list[EditedStart] = field(default_factory=list[EditedStart])
    """Cache of the items with the user's edits: at most one."""


def compute_client_paths(messages: Iterable[ClientMessage], *, known_paths: Sequence[bytes] = ()) -> list[bytes]:
    """Computes the path after each message; the store looks conversations up by these.

    The messages follow the ones of `known_paths`, which begin the result.
    """
    start = known_paths[-1] if known_paths else CHAIN_ROOT
    return [*known_paths, *iter_paths(map(attrgetter("match_key"), messages), start=start)]


def merge_user_messages(messages: Iterable[Message]) -> list[Message]:
    """Merges adjacent messages of the user: for the model they are one, and clients join and split them."""
    merged: list[Message] = []
    for message in messages:
        if merged and message.role == merged[-1].role == "user" and message.name == merged[-1].name:
            merged[-1] = merged[-1].model_copy(update={"parts": (*merged[-1].parts, *message.parts)})
        else:
            merged.append(message)
    return merged
