"""The ledger: manifests of answered requests, and token calibrations."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Select, bindparam, select, update

from quire.db.dialects import insert_rows, sanitize_text
from quire.db.schema import archived_replies, calibrations, entries, manifests
from quire.db.store_part import EntriesOffloaded
from quire.errors import EntryNotFound, RequestNotFound, ResponseNotFound, StaleHead
from quire.log.blobs import record_blob_uses, select_stored
from quire.log.row_digests import ROW_DIGEST, covered_columns, with_row_digest
from quire.log.tenant_masker import get_masker
from quire.log.types import Branch, RecordedRequest
from quire.model import Entry, Manifest
from quire.rows.digests import check_row, compute_row_digest

MAX_RESPONSE_ID_CHARS = 500
"""Maximum length of a response id. A longer one of an upstream is not stored: an index entry of PostgreSQL has at
most 2,704 bytes."""


def insert_manifest(
    connection: Connection,
    tenant: str,
    reply: Entry,
    manifest: Manifest,
    *,
    request_id: str | None = None,
    response_id: str | None = None,
) -> bool:
    """Stores a manifest. Returns False if a retry finds it stored.

    Raises `StaleHead` if the manifest of another request is stored under this reply.
    """
    if response_id is not None and (
        len(response_id) > MAX_RESPONSE_ID_CHARS or sanitize_text(response_id) != response_id
    ):
        # Too long for the index, or with characters that a text column cannot store.
        response_id = None
    manifest = _mask_names(connection, manifest)
    key, text = to_key(tenant, reply), manifest.canonical_json()
    row = {**key, "manifest": text, "request_id": request_id, "response_id": response_id}
    inserted = insert_rows(connection, manifests, [with_row_digest(manifests, row)], ignore_existing=True)
    if not inserted and request_id is not None:
        query = select(manifests.c.seq).where(manifests.c.tenant == tenant, manifests.c.request_id == request_id)
        if connection.execute(query).first() is None:
            raise StaleHead(
                f"Another request got the same reply #{reply.seq}; fork before it and record this request there."
            )
    record_blob_uses(connection, tenant, reply, manifest.blob_digests)
    return inserted != 0


def import_manifest(connection: Connection, tenant: str, reply: Entry, manifest: Manifest) -> None:
    """Stores the manifest of an exported conversation. Blobs that were purged before the export are not referenced."""
    manifest = _mask_names(connection, manifest)
    key = to_key(tenant, reply)
    row = {**key, "manifest": manifest.canonical_json(), "request_id": None, "response_id": None}
    insert_rows(connection, manifests, [with_row_digest(manifests, row)])
    record_blob_uses(connection, tenant, reply, select_stored(connection, tenant, manifest.blob_digests))


def _mask_names(connection: Connection, manifest: Manifest) -> Manifest:
    """The manifest with masked names of items and of dropped fields. It has no other text of a request."""
    masker = get_masker(connection)
    if masker is None:
        return manifest
    decisions = [
        each if each.name is None else each.model_copy(update={"name": masker.mask_name(each.name)})
        for each in manifest.decisions
    ]
    forwarded = manifest.forwarded
    if forwarded is not None and forwarded.dropped:
        forwarded = forwarded.model_copy(update={"dropped": tuple(map(masker.mask_name, forwarded.dropped))})
    return manifest.model_copy(update={"decisions": tuple(decisions), "forwarded": forwarded})


def to_key(tenant: str, entry: Entry) -> dict[str, object]:
    return {"tenant": tenant, "conversation": entry.conversation, "branch": entry.branch, "seq": entry.seq}


def get_request(connection: Connection, tenant: str, request_id: str) -> RecordedRequest:
    """The answered request with this id and the location of its reply."""
    query = select(manifests.c.conversation, manifests.c.branch, manifests.c.seq, manifests.c.manifest).where(
        manifests.c.tenant == tenant, manifests.c.request_id == request_id
    )
    row = connection.execute(query).first()
    if row is None:
        raise RequestNotFound(
            f"No request {request_id!r} is recorded for this tenant. One of a conversation in object storage is found "
            "once that was opened."
        )
    return RecordedRequest(row.conversation, row.branch, row.seq, Manifest.parse(row.manifest))


def find_response(connection: Connection, tenant: str, response_id: str) -> RecordedRequest:
    """The request whose reply has this id, the newest if an upstream repeated the id.

    Raises `IntegrityViolation` if the row was changed, because a client continues from what the id refers to.
    """
    is_reply = (
        (entries.c.tenant == manifests.c.tenant)
        & (entries.c.conversation == manifests.c.conversation)
        & (entries.c.branch == manifests.c.branch)
        & (entries.c.seq == manifests.c.seq)
    )
    query = _select_response(tenant, response_id).join(entries, is_reply)
    row = connection.execute(query.order_by(entries.c.at.desc(), entries.c.seq.desc()).limit(1)).mappings().first()
    if row is None:
        _check_offloaded_response(connection, tenant, response_id)
        raise ResponseNotFound(response_id)
    _check_manifest_row(row)
    return RecordedRequest(row["conversation"], row["branch"], row["seq"], Manifest.parse(row["manifest"]))


def forget_response(connection: Connection, tenant: str, response_id: str) -> bool:
    """Removes this response id from every reply that has it. The replies stay. Returns whether there was one."""
    rows = connection.execute(_select_response(tenant, response_id).with_for_update()).mappings().all()
    if not rows:
        _check_offloaded_response(connection, tenant, response_id)
    for row in rows:
        # A new digest would hide that the row was changed.
        _check_manifest_row(row)
        key = {f"of_{column.name}": row[column.name] for column in manifests.primary_key}
        digest = with_row_digest(manifests, {**row, "response_id": None})[ROW_DIGEST]
        connection.execute(_FORGET_RESPONSE, {**key, ROW_DIGEST: digest})
    return bool(rows)


def _check_offloaded_response(connection: Connection, tenant: str, response_id: str) -> None:
    """Raises `EntriesOffloaded` if the reply with this id is in object storage: the store restores it."""
    is_reply = (archived_replies.c.tenant == tenant, archived_replies.c.response_id == sanitize_text(response_id))
    conversation = connection.execute(select(archived_replies.c.conversation).where(*is_reply).limit(1)).scalar()
    if conversation is not None:
        raise EntriesOffloaded(conversation)


def _check_manifest_row(row: Mapping[Any, Any]) -> None:
    values = [row[column.name] for column in covered_columns(manifests)]
    check_row(values, row[ROW_DIGEST], name=f"the request of reply #{row['seq']} in {row['conversation']!r}")


def _select_response(tenant: str, response_id: str) -> Select[Any]:
    is_response = manifests.c.response_id == sanitize_text(response_id)
    return select(manifests).where(manifests.c.tenant == tenant, is_response)


_FORGET_RESPONSE = (
    update(manifests)
    .where(*(column == bindparam(f"of_{column.name}") for column in manifests.primary_key))
    .values(response_id=None, row_digest=bindparam(ROW_DIGEST))
)


def get_manifest(connection: Connection, tenant: str, branch: Branch, seq: int) -> Manifest:
    """The manifest of the request that entry `seq` answered."""
    query = select(manifests.c.manifest).where(
        manifests.c.tenant == tenant,
        manifests.c.conversation == branch.conversation,
        manifests.c.branch == branch.find_owner(seq),
        manifests.c.seq == seq,
    )
    manifest = connection.execute(query).scalar()
    if manifest is None:
        raise EntryNotFound(f"No request is recorded under #{seq}; give the number of its reply.")
    return Manifest.parse(manifest)


def list_manifests(
    connection: Connection, tenant: str, branch: Branch, *, limit: int | None = None, last: int | None = None
) -> list[tuple[int, Manifest]]:
    """The newest `limit` manifests of the branch with the numbers of their replies, oldest first."""
    rows: list[tuple[int, str]] = []
    for own_range in branch.split_ranges(1, last):
        query = (
            select(manifests.c.seq, manifests.c.manifest)
            .where(
                manifests.c.tenant == tenant,
                manifests.c.conversation == branch.conversation,
                manifests.c.branch == own_range.branch,
                manifests.c.seq.between(own_range.first, own_range.last),
            )
            .order_by(manifests.c.seq.desc())
        )
        if limit is not None:
            query = query.limit(limit - len(rows))
        rows.extend((row.seq, row.manifest) for row in connection.execute(query))
        if limit is not None and len(rows) >= limit:
            break
    return [(seq, Manifest.parse(manifest)) for seq, manifest in reversed(rows)]


def list_manifest_texts(
    connection: Connection, tenant: str, branch: Branch, *, first: int, last: int
) -> list[tuple[int, str]]:
    """The manifests of the replies `first` to `last` of the branch, as stored JSON, oldest first."""
    rows: list[tuple[int, str]] = []
    for own_range in reversed(list(branch.split_ranges(first, last))):
        query = (
            select(manifests.c.seq, manifests.c.manifest)
            .where(
                manifests.c.tenant == tenant,
                manifests.c.conversation == branch.conversation,
                manifests.c.branch == own_range.branch,
                manifests.c.seq.between(own_range.first, own_range.last),
            )
            .order_by(manifests.c.seq)
        )
        rows.extend((row.seq, row.manifest) for row in connection.execute(query))
    return rows


def list_own_manifests(connection: Connection, tenant: str, branch: Branch) -> list[tuple[int, str]]:
    """The manifests under the branch's own entries, as stored JSON."""
    query = (
        select(manifests.c.seq, manifests.c.manifest)
        .where(
            manifests.c.tenant == tenant,
            manifests.c.conversation == branch.conversation,
            manifests.c.branch == branch.number,
        )
        .order_by(manifests.c.seq)
    )
    return [(row.seq, row.manifest) for row in connection.execute(query)]


def list_manifest_rows(
    connection: Connection, tenant: str, conversation: str, *, lock: bool = False
) -> list[Mapping[Any, Any]]:
    """The rows of all manifests of a conversation, by branch and number of the reply.

    With `lock`, no other transaction can change them before this one ends.
    """
    query = (
        select(manifests)
        .where(manifests.c.tenant == tenant, manifests.c.conversation == conversation)
        .order_by(manifests.c.branch, manifests.c.seq)
    )
    return list(connection.execute(query.with_for_update() if lock else query).mappings())


def get_calibration(connection: Connection, tenant: str, model: str) -> str | None:
    """The calibration of a model. None also if its row was changed: the next replies calibrate the model again."""
    query = select(calibrations.c.calibration, calibrations.c.row_digest).where(
        calibrations.c.tenant == tenant, calibrations.c.model == model
    )
    row = connection.execute(query).first()
    if row is None or compute_row_digest([model, row.calibration]) != row.row_digest:
        return None
    return row.calibration
