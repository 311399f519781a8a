"""Verification: reports every row of a conversation, or of the tenant, that differs from what was recorded.

Entries have a hash chain and a digest of their content, blobs the digest of their bytes, other rows a row digest.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from hashlib import sha256
from math import isclose
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, select, tuple_

from quire.access.spending import shard_of
from quire.db.column_types import verify_values
from quire.db.raw_sql import get_driver
from quire.db.schema import (
    api_keys,
    blob_uses,
    blobs,
    branches,
    calibrations,
    costs,
    entries,
    exchanges,
    imports,
    manifests,
    memories,
    paths,
    spending,
    transcript_lines,
    transcripts,
)
from quire.db.schema import conversations as conversations_table
from quire.errors import ConversationNotFound, EntryNotFound, IntegrityViolation
from quire.log import conversations, ledger, reads
from quire.log.blobs import has_digest
from quire.log.exchanges import NO_CONVERSATION, PURGE_MARK, ExchangeReader, decode_request
from quire.log.row_digests import ROW_DIGEST, has_row_digest
from quire.log.types import Blob, Branch, IntegrityFault
from quire.model import CHAIN_ROOT, BranchState, Entry, Manifest, Message, chain_digest, next_path
from quire.model.secrets import MASK_MARK

_BATCH_SIZE = 2_000
MAX_DAMAGES = 20
"""Damages of a file that are listed."""

_COST_TOLERANCE = 1e-9
"""Difference that rounding explains, in dollars and as a share: the sums are added in another order."""

_CHANGED_ROW = "is not as it was recorded"


@verify_values()
def verify_tenant(connection: Connection, tenant: str) -> list[IntegrityFault]:
    """The faults of the file, and of the rows that belong to no conversation: memories, API keys, token calibrations,
    transcripts and costs."""
    if connection.dialect.name == "sqlite" and (damages := find_damages(get_driver(connection))):
        # What is read from a damaged file says nothing.
        return [IntegrityFault(None, None, f"the database file is damaged: {each}") for each in damages]
    tables: tuple[tuple[Table, str, str], ...] = (
        (memories, "memory", "memory"),
        (api_keys, "API key", "id"),
        (calibrations, "calibration", "model"),
        (transcripts, "transcript", "session"),
        (transcript_lines, "line of the transcript", "session"),
    )
    faults = [
        IntegrityFault(None, None, f"{label} {row[key]!r} {_CHANGED_ROW}")
        for table, label, key in tables
        for row in connection.execute(select(table).where(table.c.tenant == tenant).order_by(table.c[key])).mappings()
        if not has_row_digest(table, row)
    ]
    # Each cost is recorded twice: by conversation, and by API key and shard.
    totals: defaultdict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in connection.execute(select(costs).where(costs.c.tenant == tenant)):
        totals[row.key_id, shard_of(row.conversation)][0] += row.cost_usd
    for row in connection.execute(select(spending).where(spending.c.tenant == tenant)):
        totals[row.key_id, row.shard][1] += row.cost_usd
    for (key_id, shard), (by_conversation, by_key) in sorted(totals.items()):
        if not isclose(by_conversation, by_key, rel_tol=_COST_TOLERANCE, abs_tol=_COST_TOLERANCE):
            name = f"API key {key_id!r}" if key_id else "calls without an API key"
            faults.append(IntegrityFault(None, None, f"the costs of {name} in shard {shard} do not add up"))
    return [*faults, *_verify_exchanges(connection, tenant, NO_CONVERSATION)]


def find_damages(file: sqlite3.Connection) -> list[str]:
    """Damages of an SQLite file: pages, indexes that differ from their tables, references to rows that do not exist.

    The digests of rows see none of them: an index may hide a row that is as it was recorded. An interrupted check ends
    with the damage `interrupted`.
    """
    damages = list[str]()
    try:
        checked = file.execute(f"PRAGMA integrity_check({MAX_DAMAGES})")
        damages += (str(text) for (text,) in checked if text != "ok")
        for table, *_ in file.execute("PRAGMA foreign_key_check").fetchmany(MAX_DAMAGES):
            damages.append(f"a row of {table} refers to one that does not exist")
    except sqlite3.DatabaseError as error:
        damages.append(str(error))
    return list(dict.fromkeys(damages))[:MAX_DAMAGES]


ReadObject = Callable[[Connection, str], bytes]
"""Reads an object of the tenant from object storage."""


@verify_values()
def verify_conversation(
    connection: Connection, tenant: str, conversation: str, *, read_object: ReadObject | None = None
) -> list[IntegrityFault]:
    """The faults of all branches. An empty list means that every byte is as it was recorded.

    Without `read_object`, blobs in object storage are not read. Entries there are not verified here.
    """

    def read_rows(table: Table) -> Any:
        query = select(table).where(table.c.tenant == tenant, table.c.conversation == conversation)
        return connection.execute(query.order_by(*table.primary_key.columns)).mappings()

    branch_rows = read_rows(branches).all()
    row = read_rows(conversations_table).first()
    if row is None:
        raise ConversationNotFound(f"There is no conversation {conversation!r} for this tenant.")
    faults: list[IntegrityFault] = []
    if not has_row_digest(conversations_table, row):
        fault = f"the conversation's title, origin, time of creation or of purge {_CHANGED_ROW}"
        faults.append(IntegrityFault(None, None, fault))
    last_update = max(each["updated_at"] for each in branch_rows)
    # A purge of the whole conversation clears the times of its branches.
    is_cleared = row["purged_at"] is not None and not last_update
    if row["updated_at"] != last_update and not is_cleared:
        faults.append(
            IntegrityFault(None, None, "the conversation's time of update differs from the newest of its branches")
        )
    if any(BranchState.parse(each["state"]).offloaded for each in branch_rows if has_row_digest(branches, each)):
        used = select(blob_uses.c.digest).where(blob_uses.c.tenant == tenant, blob_uses.c.conversation == conversation)
        digests = set(connection.execute(used).scalars())
        damaged = _list_damaged_blobs(connection, tenant, digests, read_object)
        faults += [IntegrityFault(None, None, f"the blob {each.hex()} has other bytes") for each in sorted(damaged)]
        changed_rows = [each["branch"] for each in branch_rows if not has_row_digest(branches, each)]
        return faults + [IntegrityFault(each, None, f"the row of the branch {_CHANGED_ROW}") for each in changed_rows]
    for branch_row in branch_rows:
        faults += _verify_branch(connection, tenant, branch_row, read_object)
    heads = {branch_row["branch"]: branch_row["head_seq"] for branch_row in branch_rows}
    faults += _find_stray_rows(connection, tenant, conversation, heads)
    manifest_rows = ledger.list_manifest_rows(connection, tenant, conversation)
    changed = [(row["branch"], row["seq"]) for row in manifest_rows if not has_row_digest(manifests, row)]
    faults += [IntegrityFault(*each, f"has a manifest that {_CHANGED_ROW}") for each in changed]
    faults += _verify_exchanges(connection, tenant, conversation, manifest_rows, changed)
    faults += _verify_imports(connection, tenant, conversation)
    return faults


def _verify_exchanges(
    connection: Connection,
    tenant: str,
    conversation: str,
    manifest_rows: Iterable[Mapping[Any, Any]] = (),
    changed: Collection[tuple[int, int]] = (),
) -> Iterator[IntegrityFault]:
    """Compares exchanges with their digests, and the bodies of those that were answered with the digests in their
    manifests, except in those that were changed."""
    digests = {
        (row["branch"], row["seq"]): manifest.forwarded.stored_body_digest
        for row in manifest_rows
        if (row["branch"], row["seq"]) not in changed
        and (manifest := Manifest.parse(row["manifest"])).forwarded is not None
    }
    reader = ExchangeReader(connection, tenant, conversation)
    for key in [PURGE_MARK, *reader.list_keys()]:
        row = reader.get(key)
        if row is None:
            continue
        place = (row["branch"], row["seq"])
        if row[ROW_DIGEST] is not None and not has_row_digest(exchanges, row):
            yield IntegrityFault(row["branch"], row["seq"], f"the exchange {key!r} {_CHANGED_ROW}")
            continue
        if not row["size"] or place in changed:
            continue
        try:
            body = decode_request(reader.read(key) or b"")[1]
        except IntegrityViolation:
            body = None
        if body is None:
            yield IntegrityFault(row["branch"], row["seq"], f"the request of the exchange {key!r} {_CHANGED_ROW}")
        elif row["seq"] is not None and sha256(body).hexdigest() != digests.get(place):
            yield IntegrityFault(*place, f"answers a request whose stored body {_CHANGED_ROW}")


def _verify_branch(
    connection: Connection, tenant: str, row: Mapping[Any, Any], read_object: ReadObject | None
) -> list[IntegrityFault]:
    number: int = row["branch"]
    faults: list[IntegrityFault] = []
    if not has_row_digest(branches, row):
        faults.append(IntegrityFault(number, None, f"the row of the branch {_CHANGED_ROW}"))
    try:
        branch = conversations.to_branch([row[name] for name in conversations.BRANCH_FIELDS])
    except ValueError:
        return [*faults, IntegrityFault(number, None, "the lineage or the state of the branch cannot be read")]
    try:
        entry_faults = list(_verify_entries(connection, tenant, branch, read_object))
    except EntryNotFound:
        entry_faults = [IntegrityFault(number, branch.fork_seq, "is missing, though the branch begins after it")]
    if entry_faults:
        return faults + entry_faults
    try:
        folded = conversations.fold_state(connection, tenant, branch, branch.head_seq)
    except IntegrityViolation:
        # A shared entry was changed, which is a fault of the branch that owns it.
        return faults
    if folded != branch.state:
        faults.append(IntegrityFault(number, branch.head_seq, "does not lead to the stored state of the branch"))
    return faults


def _verify_entries(
    connection: Connection, tenant: str, branch: Branch, read_object: ReadObject | None
) -> Iterator[IntegrityFault]:
    """Compares each entry with the stored and the computed digest of the previous one, so that only a broken entry is
    reported and not its successors."""
    seq = branch.fork_seq
    digests, end_paths = {CHAIN_ROOT}, {CHAIN_ROOT}
    if seq:
        last_shared = reads.get_entry(connection, tenant, branch, seq)
        digests, end_paths = {last_shared.digest}, {last_shared.path}
    while page := reads.read_range(connection, tenant, branch, first=seq + 1, limit=_BATCH_SIZE):
        path_query = select(paths.c.path, paths.c.seq).where(
            paths.c.tenant == tenant,
            paths.c.path.in_([entry.path for entry in page if entry.kind == "message"]),
            paths.c.conversation == branch.conversation,
            paths.c.branch == branch.number,
        )
        seq_by_path: dict[bytes, int] = {row.path: row.seq for row in connection.execute(path_query)}
        damaged_blobs = _find_damaged_blobs(connection, tenant, page, read_object)
        for entry in page:
            for missing in range(seq + 1, entry.seq):
                yield IntegrityFault(branch.number, missing, "is missing")
            seq = entry.seq
            computed = {chain_digest(digest, entry.content_digest or b"") for digest in digests}
            if entry.kind != "message":
                computed_paths = end_paths
            elif entry.purged_at is not None:
                # The path cannot be computed from erased content, only accepted.
                computed_paths = {entry.path}
            else:
                computed_paths = {next_path(path, entry.raw) for path in end_paths}
            # No digest covers the row of a purged entry, so it must be exactly what a purge writes.
            if entry.purged_at is not None and not entry.has_purged_form:
                fault = "is marked as purged but has content"
            elif entry.digest not in computed or not entry.has_recorded_content:
                fault = "does not have the digest that was recorded"
            elif entry.path not in computed_paths or entry.role != (
                Message.parse(entry.raw).role if entry.kind == "message" else None
            ):
                fault = "does not have the path or role that its body gives"
            elif entry.kind == "message" and seq_by_path.get(entry.path) != seq:
                fault = "cannot be found by its path"
            else:
                fault = damaged_blobs.get(seq)
            if fault is not None:
                yield IntegrityFault(branch.number, seq, fault)
            digests, end_paths = {entry.digest, *computed}, {entry.path, *computed_paths}
    for missing in range(seq + 1, branch.head_seq + 1):
        yield IntegrityFault(branch.number, missing, "is missing")
    if branch.head_digest not in digests or branch.head_path not in end_paths:
        yield IntegrityFault(branch.number, branch.head_seq, "does not match the head of the branch")


def _find_damaged_blobs(
    connection: Connection, tenant: str, page: list[Entry], read_object: ReadObject | None
) -> dict[int, str]:
    """Faults, by number, of entries whose blobs are missing, have other bytes, or could be deleted as unused."""
    first, last = page[0], page[-1]
    uses = (
        blob_uses.c.tenant == tenant,
        blob_uses.c.conversation == first.conversation,
        blob_uses.c.branch == first.branch,
        blob_uses.c.seq.between(first.seq, last.seq),
    )
    recorded = {
        (seq, digest) for seq, digest in connection.execute(select(blob_uses.c.seq, blob_uses.c.digest).where(*uses))
    }
    damaged = _list_damaged_blobs(connection, tenant, {digest for _, digest in recorded}, read_object)
    faults: dict[int, str] = {seq: "uses a blob with other bytes" for seq, digest in recorded if digest in damaged}
    for entry in page:
        if entry.purged_at is None and entry.has_recorded_content:
            needed = {(entry.seq, bytes.fromhex(digest)) for digest in entry.blob_digests()}
            if not needed <= recorded:
                faults[entry.seq] = "uses a blob that is missing"
    return faults


def _list_damaged_blobs(
    connection: Connection, tenant: str, digests: Collection[bytes], read_object: ReadObject | None
) -> set[bytes]:
    """Those of these blobs that are missing or have other bytes."""
    damaged: set[bytes] = set()
    for digest in digests:
        query = select(blobs.c.media_type, blobs.c.data, blobs.c.object)
        row = connection.execute(query.where(blobs.c.tenant == tenant, blobs.c.digest == digest)).first()
        if row is not None and row.object is not None and read_object is None:
            continue
        try:
            data = b"" if row is None else row.data
            if row is not None and row.object is not None and read_object is not None:
                data = read_object(connection, row.object)
            if row is None or not has_digest(Blob(row.media_type, data), digest):
                damaged.add(digest)
        except IntegrityViolation:
            damaged.add(digest)
    return damaged


def _find_stray_rows(
    connection: Connection, tenant: str, conversation: str, heads: Mapping[int, int]
) -> Iterator[IntegrityFault]:
    """Faults of rows that belong to no entry of a branch: an append would collide with them, or a look-up find them."""

    def list_positions(table: Table, condition: ColumnElement[bool]) -> list[tuple[int, int]]:
        query = select(table.c.branch, table.c.seq).where(
            table.c.tenant == tenant, table.c.conversation == conversation, condition
        )
        rows = connection.execute(query.order_by(table.c.branch, table.c.seq))
        return [(branch, seq) for branch, seq in rows]

    is_stray = entries.c.branch.not_in(list(heads))
    for branch, head_seq in heads.items():
        is_stray = is_stray | ((entries.c.branch == branch) & (entries.c.seq > head_seq))
    for branch, seq in list_positions(entries, is_stray):
        yield IntegrityFault(branch, seq, "is after the head of the branch, or in no branch")
    entry_keys = select(entries.c.branch, entries.c.seq).where(
        entries.c.tenant == tenant, entries.c.conversation == conversation
    )
    for branch, seq in list_positions(paths, tuple_(paths.c.branch, paths.c.seq).not_in(entry_keys)):
        yield IntegrityFault(branch, seq, "has a path but no entry")
    replies = entry_keys.where(entries.c.role == "assistant")
    for branch, seq in list_positions(manifests, tuple_(manifests.c.branch, manifests.c.seq).not_in(replies)):
        yield IntegrityFault(branch, seq, "has a manifest but is no reply")


def _verify_imports(connection: Connection, tenant: str, conversation: str) -> Iterator[IntegrityFault]:
    """Faults of the ledger of imports: a row must name the entry that its item became."""
    query = (
        select(imports.c.branch, imports.c.seq, imports.c.digest, entries.c.kind, entries.c.body, entries.c.purged_at)
        .outerjoin(
            entries,
            (entries.c.tenant == imports.c.tenant)
            & (entries.c.conversation == imports.c.conversation)
            & (entries.c.branch == imports.c.branch)
            & (entries.c.seq == imports.c.seq),
        )
        .where(imports.c.tenant == tenant, imports.c.conversation == conversation)
        .execution_options(yield_per=_BATCH_SIZE)
    )
    for branch, seq, digest, kind, body, purged_at in connection.execute(query):
        # The ledger has the digest of a message before its secrets were masked.
        is_recorded = kind == "message" and purged_at is None and MASK_MARK not in body
        if kind is None or (is_recorded and sha256(body.encode()).digest() != digest):
            yield IntegrityFault(branch, seq, "is not the entry that the ledger of imports recorded")
