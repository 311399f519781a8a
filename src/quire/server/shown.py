"""How entries and problems look in JSON. An entry says by its `kind` what its body is."""

from http import HTTPStatus
from typing import Annotated, Any, Literal, assert_never

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypeAliasType

from quire.errors import QuireError
from quire.model import (
    Author,
    Compaction,
    ContextChange,
    DocumentReference,
    Entry,
    Message,
    Pin,
    Restore,
    Role,
    Unpin,
    Usage,
)
from quire.server.problems import Problem, code_of, status_of
from quire.view.tokens import ESTIMATE


class Shown(BaseModel):
    """Every field is always there, so that whoever reads need not ask whether it is."""

    model_config = ConfigDict(frozen=True, json_schema_serialization_defaults_required=True)


class _EntryShown(Shown):
    seq: int = Field(description="Its number on the branch.")
    branch: int = Field(description="Whose own entry it is: the branch that was read, or one that it goes on from.")
    author: Author
    at: int
    tokens: int | None = Field(description="Null for what is not shown to models, and for what was purged.")
    estimated: bool = Field(description="The tokens are an estimate, not counted with the model's own vocabulary.")
    references: list[DocumentReference] = Field(description="The documents that it names, or that tools found for it.")
    usage: Usage | None = Field(description="What the provider reported for the request that it answers.")
    unfinished: bool = Field(description="A reply that broke off.")
    purged: bool = Field(description="Its content was removed for good.")


class MessageEntry(_EntryShown):
    kind: Literal["message"] = "message"
    role: Role
    body: Message


class CompactionEntry(_EntryShown):
    kind: Literal["compaction"] = "compaction"
    role: None = None
    body: Compaction


class RestoreEntry(_EntryShown):
    kind: Literal["restore"] = "restore"
    role: None = None
    body: Restore


class PinEntry(_EntryShown):
    kind: Literal["pin"] = "pin"
    role: None = None
    body: Pin


class UnpinEntry(_EntryShown):
    kind: Literal["unpin"] = "unpin"
    role: None = None
    body: Unpin


class ContextChangeEntry(_EntryShown):
    kind: Literal["context_change"] = "context_change"
    role: None = None
    body: ContextChange


EntryShown = TypeAliasType(
    "EntryShown",
    Annotated[
        MessageEntry | CompactionEntry | RestoreEntry | PinEntry | UnpinEntry | ContextChangeEntry,
        Field(discriminator="kind"),
    ],
)


def entry_shown(entry: Entry) -> EntryShown:
    body, beside = entry.body, _beside(entry)
    match body:
        case Message():
            return MessageEntry(**beside, role=body.role, body=body)
        case Compaction():
            return CompactionEntry(**beside, body=body)
        case Restore():
            return RestoreEntry(**beside, body=body)
        case Pin():
            return PinEntry(**beside, body=body)
        case Unpin():
            return UnpinEntry(**beside, body=body)
        case ContextChange():
            return ContextChangeEntry(**beside, body=body)
    assert_never(body)


def _beside(entry: Entry) -> dict[str, Any]:
    notes = entry.notes
    return {
        "seq": entry.seq,
        "branch": entry.branch,
        "author": entry.author,
        "at": entry.at,
        "tokens": entry.tokens,
        "estimated": entry.counter == ESTIMATE,
        "references": list(notes.references or ()),
        "usage": notes.usage,
        "unfinished": bool(notes.unfinished),
        "purged": entry.purged_at is not None,
    }


def problem_shown(error: QuireError) -> Problem:
    status = status_of(error)
    return Problem(title=status.phrase, status=status, detail=str(error), code=code_of(error))


UNEXPECTED = Problem(
    title=HTTPStatus.INTERNAL_SERVER_ERROR.phrase,
    status=500,
    detail="Something went wrong in Quire; its log has the details.",
    code="unexpected",
)
"""What is not Quire's own error is said without its details."""
