"""Schemas of log entries, a union discriminated by `kind`."""

from typing import Annotated, Any, Literal, assert_never

from pydantic import BeforeValidator, Field
from typing_extensions import TypeAliasType

from quire.model import (
    Author,
    Compaction,
    ContextChange,
    ContextEpoch,
    DocumentReference,
    Drop,
    Entry,
    Message,
    Pin,
    Priority,
    Restore,
    Role,
    TopicIndex,
    TurnTotals,
    Undrop,
    Unpin,
    Usage,
)
from quire.schemas import JsonModel
from quire.wire.tokens import ESTIMATE_COUNTER_NAME


class _EntryBase(JsonModel):
    seq: int = Field(description="Sequence number on the branch.")
    branch: int = Field(description="Branch that the entry was written on: the requested branch, or an ancestor of it.")
    author: Author
    created_at: int
    tokens: int | None = Field(description="Null for entries that no model sees, and for purged entries.")
    estimated: bool = Field(description="The tokens are estimated, not counted with the model's own tokenizer.")
    references: list[DocumentReference] = Field(description="Documents that the message names or tools found for it.")
    usage: Usage | None = Field(description="Usage that the provider reported for this reply.")
    incomplete: bool = Field(description="The reply was cut off before its end.")
    turn: TurnTotals | None = Field(
        description="Steps, usage, cost and compactions of the whole turn, if this reply ends it. Its `references` "
        "then cover all steps."
    )
    purged: bool = Field(description="The content was erased permanently.")


class MessageEntry(_EntryBase):
    kind: Literal["message"] = "message"
    written_tokens: int | None = Field(
        description="Tokens of the message as written; `tokens` includes the documents that were added to it."
    )
    role: Role
    body: Message


class CompactionEntry(_EntryBase):
    kind: Literal["compaction"] = "compaction"
    role: None = None
    body: Compaction


class RestoreEntry(_EntryBase):
    kind: Literal["restore"] = "restore"
    role: None = None
    body: Restore


class PinEntry(_EntryBase):
    kind: Literal["pin"] = "pin"
    role: None = None
    body: Pin


class UnpinEntry(_EntryBase):
    kind: Literal["unpin"] = "unpin"
    role: None = None
    body: Unpin


class PriorityEntry(_EntryBase):
    kind: Literal["priority"] = "priority"
    role: None = None
    body: Priority


class ContextChangeEntry(_EntryBase):
    kind: Literal["context_change"] = "context_change"
    role: None = None
    body: ContextChange


class DropEntry(_EntryBase):
    kind: Literal["drop"] = "drop"
    role: None = None
    body: Drop


class UndropEntry(_EntryBase):
    kind: Literal["undrop"] = "undrop"
    role: None = None
    body: Undrop


class EpochEntry(_EntryBase):
    kind: Literal["epoch"] = "epoch"
    role: None = None
    body: ContextEpoch


class TopicIndexEntry(_EntryBase):
    kind: Literal["topic_index"] = "topic_index"
    role: None = None
    body: TopicIndex


EntrySchema = TypeAliasType(
    "EntrySchema",
    Annotated[
        MessageEntry
        | CompactionEntry
        | RestoreEntry
        | PinEntry
        | UnpinEntry
        | PriorityEntry
        | ContextChangeEntry
        | DropEntry
        | UndropEntry
        | EpochEntry
        | TopicIndexEntry,
        Field(discriminator="kind"),
        BeforeValidator(lambda value: entry_to_schema(value) if isinstance(value, Entry) else value),
    ],
)
"""The JSON of an entry. A document that has it as a field is read from the entry itself."""


def entry_to_schema(entry: Entry) -> EntrySchema:
    body, common = entry.body, _common_fields(entry)
    match body:
        case Message():
            written_tokens = entry.metadata.written_tokens
            return MessageEntry(
                **common,
                role=body.role,
                body=body,
                written_tokens=entry.tokens if written_tokens is None else written_tokens,
            )
        case Compaction():
            return CompactionEntry(**common, body=body)
        case Restore():
            return RestoreEntry(**common, body=body)
        case Pin():
            return PinEntry(**common, body=body)
        case Unpin():
            return UnpinEntry(**common, body=body)
        case Priority():
            return PriorityEntry(**common, body=body)
        case ContextChange():
            return ContextChangeEntry(**common, body=body)
        case Drop():
            return DropEntry(**common, body=body)
        case Undrop():
            return UndropEntry(**common, body=body)
        case ContextEpoch():
            return EpochEntry(**common, body=body)
        case TopicIndex():
            return TopicIndexEntry(**common, body=body)
    assert_never(body)


def _common_fields(entry: Entry) -> dict[str, Any]:
    metadata = entry.metadata
    return {
        "seq": entry.seq,
        "branch": entry.branch,
        "author": entry.author,
        "created_at": entry.created_at,
        "tokens": entry.tokens,
        "estimated": entry.counter is not None and entry.counter.endswith(f":{ESTIMATE_COUNTER_NAME}"),
        "references": list(metadata.references or ()),
        "usage": metadata.usage,
        "incomplete": bool(metadata.incomplete),
        "turn": metadata.turn,
        "purged": entry.purged_at is not None,
    }
