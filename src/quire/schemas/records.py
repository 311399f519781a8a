"""Schemas of the store's records: conversations, branches, faults, secrets, memories, API keys."""

from typing import TYPE_CHECKING, Any

from pydantic import Field

from quire.access.keys import KEY_SCOPES, ApiKey, KeyScope
from quire.log import (
    ConversationOrigin,
)
from quire.schemas import JsonModel

if TYPE_CHECKING:
    pass


class ConversationSchema(JsonModel):
    id: str
    title: str = Field(description="Title given by the user; by default the first words of the first question.")
    created_at: int
    updated_at: int
    origin: ConversationOrigin | None = Field(
        description="Client, session and purpose of a conversation that an agent sent; null for any other."
    )
    tags: tuple[str, ...]
    owner: str | None = Field(
        description="Agent that holds its context; null once it is continued in Quire. Quire compacts only "
        "what no agent owns."
    )


class BranchSchema(JsonModel):
    number: int
    name: str
    created_at: int
    head: int = Field(validation_alias="head_seq", description="Sequence number of the newest entry.")
    fork_seq: int = Field(description="Last entry shared with the parent branch; 0 if there is no parent.")
    parent: int | None


class IntegrityFaultSchema(JsonModel):
    """A row that is not as it was recorded. Without numbers, it is the row of the branch or of the conversation."""

    branch: int | None
    seq: int | None
    problem: str


class TenantSchema(JsonModel):
    name: str
    conversations: int
    updated_at: int


class TenantListSchema(JsonModel):
    tenants: list[TenantSchema]


class PurgedTenantSchema(JsonModel):
    tenant: str
    conversations: int
    rows: int
    objects: int


class RewrappedKeysSchema(JsonModel):
    tenants: list[str]


class ExportedFileSchema(JsonModel):
    conversation: str
    path: str
    lines: int | None = Field(description="Lines of an export that can be imported; null for a transcript.")
    masked_secrets: int = Field(description="Secrets that were masked; 0 in an export that can be imported.")


class ResumedSessionSchema(JsonModel):
    """A session of an agent that was written from the log."""

    conversation: str
    branch: int
    last: int = Field(description="Sequence number of the last entry that the session continues from.")
    program: str
    session: str = Field(description="Id of the session in the agent.")
    path: str
    folder: str = Field(description="Folder that the agent must run in.")
    command: str = Field(description="Shell command with which the agent continues.")
    messages: int
    changes: dict[str, int] = Field(description="What was left out or written in another form, and how often.")


class CitationSchema(JsonModel):
    conversation: str
    branch: int
    seq: int


class MemorySchema(JsonModel):
    id: str
    namespace: str
    text: str
    citation: CitationSchema | None = Field(description="Message that the memory was extracted from.")
    source: str | None
    created_at: int
    retired_at: int | None
    replaced_by: str | None


class FoundMemorySchema(MemorySchema):
    score: float


class KeySchema(JsonModel):
    id: str
    name: str
    scopes: list[KeyScope]
    requests_per_minute: int | None = Field(description="Rate limit; null for the default of the settings.")
    max_spend: float | None = Field(
        description="Maximum cost of all calls with the key in US dollars; null for no cap."
    )
    spent_usd: float = Field(description="Cost of all calls with the key so far, in US dollars.")
    models: list[str] | None = Field(
        description="Names or patterns of the models that the key may call. null for all models."
    )
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    created_by: str | None = Field(description="ID of the key that created this one; it is revoked with that key.")

    @classmethod
    def from_record(cls, key: ApiKey, *, spent_usd: float) -> "KeySchema":
        return cls(**_key_fields(key), spent_usd=spent_usd)


class CreatedKeySchema(KeySchema):
    key: str = Field(description="The complete key. It is not stored, and no later response contains it.")

    @classmethod
    def from_secret(cls, key: ApiKey, secret: str) -> "CreatedKeySchema":
        return cls(**_key_fields(key), spent_usd=0.0, key=secret)


class SpendingSchema(JsonModel):
    spent_usd: float = Field(description="Cost of all calls of the tenant so far, in US dollars.")
    max_spend: float | None = Field(description="Maximum cost of the tenant in US dollars; null for no cap.")


class KeyListSchema(SpendingSchema):
    tenant: str
    keys: list[KeySchema]


def _key_fields(key: ApiKey) -> dict[str, Any]:
    fields = key._asdict()
    del fields["tenant"]
    return fields | {"scopes": [scope for scope in KEY_SCOPES if scope in key.scopes]}
