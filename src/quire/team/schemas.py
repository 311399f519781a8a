"""The JSON of the audit trail and of a sign-in, for the API and for `--json`."""

import json

from pydantic import Field

from quire.schemas import JsonModel
from quire.team.audit import AuditEntry


class AuditEntrySchema(JsonModel):
    seq: int
    at: int = Field(description="In microseconds since 1970.")
    actor: str = Field(description="Id of the person or API key, or subject of the workload.")
    action: str
    target: dict[str, str] = Field(description="The route, and the ids of what the action is about.")
    allowed: bool
    address: str = Field(description="IP address of the client.")
    digest: str = Field(description="SHA-256 over this entry and the digest before it.")

    @classmethod
    def from_record(cls, entry: AuditEntry) -> "AuditEntrySchema":
        return cls(
            seq=entry.seq,
            at=entry.at,
            actor=entry.actor,
            action=entry.action,
            target=json.loads(entry.target),
            allowed=entry.allowed,
            address=entry.address,
            digest=entry.digest.hex(),
        )


class AuditExportSchema(JsonModel):
    tenant: str
    entries: list[AuditEntrySchema] = Field(description="Oldest first.")


class LoginSchema(JsonModel):
    """What `quire login` gets from a server."""

    key: str = Field(description="API key of the person; it cannot be read again.")
    tenant: str
    name: str
    email: str
