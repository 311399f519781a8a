"""Schemas of the store's records: conversations, branches, faults of the hash chain, memories, API keys."""

from typing import Any

from pydantic import Field

from quire.log import (
    KEY_SCOPES,
    ApiKey,
    Branch,
    ConversationOrigin,
    ConversationRecord,
    IntegrityFault,
    KeyScope,
    Memory,
)
from quire.schemas import JsonModel


class ConversationSchema(JsonModel):
    id: str
    title: str = Field(description="Title given by the user; by default the first words of the first question.")
    created_at: int
    updated_at: int
    origin: ConversationOrigin | None = Field(
        description="Client, session and purpose of a conversation that an agent sent; null for any other."
    )

    @classmethod
    def from_record(cls, record: ConversationRecord) -> "ConversationSchema":
        return cls(**record._asdict())


class BranchSchema(JsonModel):
    number: int
    name: str
    created_at: int
    head: int = Field(description="Sequence number of the newest entry.")
    fork_seq: int = Field(description="Last entry shared with the parent branch; 0 if there is no parent.")
    parent: int | None

    @classmethod
    def from_record(cls, branch: Branch) -> "BranchSchema":
        return cls(
            number=branch.number,
            name=branch.name,
            created_at=branch.created_at,
            head=branch.head_seq,
            fork_seq=branch.fork_seq,
            parent=branch.lineage[-1][0] if branch.lineage else None,
        )


class IntegrityFaultSchema(JsonModel):
    """A row that is not as it was recorded; without numbers it is that of the branch or of the conversation."""

    branch: int | None
    seq: int | None
    problem: str

    @classmethod
    def from_record(cls, fault: IntegrityFault) -> "IntegrityFaultSchema":
        return cls(**fault._asdict())


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

    @classmethod
    def from_record(cls, memory: Memory) -> "MemorySchema":
        citation = memory.citation
        fields = memory._asdict() | {"citation": citation._asdict() if citation is not None else None}
        return cls.model_validate(fields)


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
        description="Names or patterns of the models that the key may call; null for all models."
    )
    created_at: int
    expires_at: int | None
    revoked_at: int | None

    @classmethod
    def from_record(cls, key: ApiKey, *, spent_usd: float) -> "KeySchema":
        return cls(**_key_fields(key), spent_usd=spent_usd)


class CreatedKeySchema(KeySchema):
    key: str = Field(description="The complete key. It is not stored, and no later response contains it.")

    @classmethod
    def from_secret(cls, key: ApiKey, secret: str) -> "CreatedKeySchema":
        return cls(**_key_fields(key), spent_usd=0.0, key=secret)


def _key_fields(key: ApiKey) -> dict[str, Any]:
    fields = key._asdict()
    del fields["tenant"]
    return fields | {"scopes": [scope for scope in KEY_SCOPES if scope in key.scopes]}
