"""The audit trail of a tenant: an append-only hash chain of who did what, when and from where.

An entry names people, conversations and routes, and never quotes a message: an auditor reads the trail without reading
conversations. Each digest covers its entry and the digest before, and the head is stored separately, so a changed,
removed, reordered or inserted entry is found. Someone who can write all tables could compute a new chain: note the head
that `verify` prints in another place from time to time, and compare.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from sqlalchemy import Connection, insert, select, text, update

from quire.db.column_types import verify_values
from quire.db.dialects import insert_or_ignore, sanitize_text
from quire.db.schema import audit, audit_exports, audit_heads
from quire.db.store_part import StorePart, read, read_bulk, write
from quire.model.ids import now

FIRST_DIGEST = bytes(32)
"""Predecessor of the first entry."""
MAX_TARGET_CHARS = 2_000
VERIFICATION_BATCH_SIZE = 1_000


class AuditEntry(NamedTuple):
    seq: int
    at: int
    """Microseconds since 1970."""
    actor: str
    """Id of the person, the API key or the workload; empty if unknown."""
    action: str
    target: str
    """JSON object: the route, and the ids of what the action is about."""
    allowed: bool
    address: str
    """IP address of the client."""
    digest: bytes


class AuditHead(NamedTuple):
    seq: int
    digest: bytes


class AuditFault(NamedTuple):
    seq: int
    reason: str


def append_audit(
    connection: Connection,
    tenant: str,
    action: str,
    *,
    actor: str,
    target: Mapping[str, str],
    allowed: bool = True,
    address: str = "",
) -> AuditEntry:
    """Appends an entry. Appends of a tenant wait for each other, so that the chain has one order."""
    start = {"tenant": tenant, "seq": 0, "digest": FIRST_DIGEST}
    connection.execute(insert_or_ignore(connection, audit_heads), start)
    in_tenant = audit_heads.c.tenant == tenant
    last = connection.execute(select(audit_heads).where(in_tenant).with_for_update()).mappings().one()
    values: dict[str, Any] = {
        "seq": last["seq"] + 1,
        "at": now(),
        "actor": sanitize_text(actor),
        "action": action,
        "target": sanitize_text(json.dumps(dict(sorted(target.items())), ensure_ascii=False))[:MAX_TARGET_CHARS],
        "allowed": int(allowed),
        "address": sanitize_text(address),
    }
    digest = _compute_digest(bytes(last["digest"]), values)
    connection.execute(insert(audit), {"tenant": tenant, **values, "digest": digest})
    connection.execute(update(audit_heads).where(in_tenant).values(seq=values["seq"], digest=digest))
    return _to_entry({**values, "digest": digest})


def _compute_digest(previous: bytes, values: Mapping[str, Any]) -> bytes:
    covered = [values[name] for name in ("seq", "at", "actor", "action", "target", "allowed", "address")]
    return sha256(previous + json.dumps(covered, ensure_ascii=False, separators=(",", ":")).encode()).digest()


def list_audit(connection: Connection, tenant: str, *, after: int = 0, limit: int = 1_000) -> list[AuditEntry]:
    """Entries after a number, oldest first."""
    query = select(audit).where(audit.c.tenant == tenant, audit.c.seq > after).order_by(audit.c.seq).limit(limit)
    return [_to_entry(row) for row in connection.execute(query).mappings()]


def _to_entry(row: Mapping[Any, Any]) -> AuditEntry:
    values: dict[str, Any] = {field: row[field] for field in AuditEntry._fields}
    return AuditEntry(**values)._replace(allowed=bool(row["allowed"]), digest=bytes(row["digest"]))


def get_audit_head(connection: Connection, tenant: str) -> AuditHead:
    """Number and digest of the last entry, or 0 if there is none."""
    query = select(audit_heads.c.seq, audit_heads.c.digest).where(audit_heads.c.tenant == tenant)
    row = connection.execute(query).first()
    return AuditHead(row.seq, bytes(row.digest)) if row is not None else AuditHead(0, FIRST_DIGEST)


@verify_values()
def verify_audit(connection: Connection, tenant: str) -> list[AuditFault]:
    """Computes the chain again. Returns the first entry at which it breaks, if there is one."""
    expected, digest = 0, FIRST_DIGEST
    while batch := list_audit(connection, tenant, after=expected, limit=VERIFICATION_BATCH_SIZE):
        for entry in batch:
            expected += 1
            if entry.seq != expected:
                return [AuditFault(expected, "the entry is missing")]
            digest = _compute_digest(digest, entry._asdict() | {"allowed": int(entry.allowed)})
            if entry.digest != digest:
                return [AuditFault(expected, "the entry, or one before it, was changed")]
    head = get_audit_head(connection, tenant)
    if head.seq > expected:
        return [AuditFault(expected + 1, f"the entries up to {head.seq} are missing")]
    if head != (expected, digest):
        return [AuditFault(expected, "the entry is not the recorded head of the trail")]
    return []


def claim_audit_export(connection: Connection, tenant: str, *, claim: str, seconds: float) -> int | None:
    """Claims the sending of the entries after the returned number, for this time, or None if another process has it."""
    start = {"tenant": tenant, "seq": 0, "claim": "", "claimed_until": 0}
    connection.execute(insert_or_ignore(connection, audit_exports), start)
    free = (audit_exports.c.tenant == tenant, audit_exports.c.claimed_until <= now())
    values = {"claim": claim, "claimed_until": now() + round(seconds * 1_000_000)}
    if connection.execute(update(audit_exports).where(*free).values(values)).rowcount == 0:
        return None
    return connection.execute(select(audit_exports.c.seq).where(audit_exports.c.tenant == tenant)).scalar_one()


def record_audit_export(connection: Connection, tenant: str, *, claim: str, seq: int | None) -> bool:
    """Records that entries up to a number were sent, or with None that none were, and ends the claim. False if another
    process has taken it over."""
    held = (audit_exports.c.tenant == tenant, audit_exports.c.claim == claim)
    values = {"claim": "", "claimed_until": 0, **({"seq": seq} if seq is not None else {})}
    return connection.execute(update(audit_exports).where(*held).values(values)).rowcount == 1


_UNEXPORTED_POSTGRES = text("SELECT tenant FROM quire_list_unexported_audits()")
_UNEXPORTED_SQLITE = text("""
    SELECT heads.tenant FROM quire_audit_heads AS heads LEFT JOIN quire_audit_exports AS exports USING (tenant)
    WHERE heads.seq > COALESCE(exports.seq, 0)
""")


def list_unexported_audits(connection: Connection, _tenant: str) -> list[str]:
    """Tenants whose audit trail has entries that were not sent to the receiver of logs."""
    statement = _UNEXPORTED_POSTGRES if connection.dialect.name == "postgresql" else _UNEXPORTED_SQLITE
    return sorted(connection.execute(statement).scalars())


class AuditTrail(StorePart):
    """The audit trail of the tenant."""

    append = write(append_audit)
    list = read(list_audit)
    get_head = read(get_audit_head)
    verify = read_bulk(verify_audit)
    claim_export = write(claim_audit_export)
    record_export = write(record_audit_export)
    list_unexported = read(list_unexported_audits)
