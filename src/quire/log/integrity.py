"""Verifies the hash chains of a conversation and reports every entry that differs from what was written."""

from collections.abc import Iterator

from sqlalchemy import Connection, select

from quire.log import conversations, reads
from quire.log.schema import paths
from quire.log.types import Branch, IntegrityFault
from quire.model import CHAIN_ROOT, Entry, Message, chain_digest, next_path

_BATCH_SIZE = 2_000


def verify_conversation(connection: Connection, tenant: str, conversation: str) -> list[IntegrityFault]:
    """The faults of all branches; an empty list means that every byte is as it was recorded."""
    branches = conversations.list_branches(connection, tenant, conversation)
    return [fault for branch in branches for fault in _verify_branch(connection, tenant, branch)]


def _verify_branch(connection: Connection, tenant: str, branch: Branch) -> list[IntegrityFault]:
    faults = list(_verify_entries(connection, tenant, branch))
    if not faults and branch.state != conversations.fold_state(connection, tenant, branch, branch.head_seq):
        faults.append(IntegrityFault(branch.number, branch.head_seq, "does not lead to the stored state of the branch"))
    return faults


def _verify_entries(connection: Connection, tenant: str, branch: Branch) -> Iterator[IntegrityFault]:
    """Compares each entry with the stored and the computed digest of the previous one, so that only a broken entry is
    reported and not its successors."""
    seq = branch.fork_seq
    digests, end_paths = _read_start(connection, tenant, branch)
    while page := reads.read_range(connection, tenant, branch, first=seq + 1, limit=_BATCH_SIZE):
        seq_by_path = _read_paths(connection, tenant, page)
        for entry in page:
            for missing in range(seq + 1, entry.seq):
                yield IntegrityFault(branch.number, missing, "is missing")
            seq = entry.seq
            computed, computed_paths = _compute_chain(entry, digests, end_paths)
            fault = _find_fault(entry, computed, computed_paths, seq_by_path)
            if fault is not None:
                yield IntegrityFault(branch.number, seq, fault)
            digests, end_paths = {entry.digest, *computed}, {entry.path, *computed_paths}
    for missing in range(seq + 1, branch.head_seq + 1):
        yield IntegrityFault(branch.number, missing, "is missing")
    if branch.head_digest not in digests or branch.head_path not in end_paths:
        yield IntegrityFault(branch.number, branch.head_seq, "does not match the head of the branch")


def _compute_chain(entry: Entry, digests: set[bytes], end_paths: set[bytes]) -> tuple[set[bytes], set[bytes]]:
    """The digests and paths that this entry gives after these. Those of removed content can only be accepted."""
    is_message = entry.kind == "message"
    if entry.purged_at is not None:
        return {entry.digest}, {entry.path} if is_message else end_paths
    computed = {chain_digest(digest, metadata=entry.digest_metadata(), body=entry.raw) for digest in digests}
    return computed, {next_path(path, entry.raw) for path in end_paths} if is_message else end_paths


def _find_fault(
    entry: Entry, computed: set[bytes], computed_paths: set[bytes], seq_by_path: dict[bytes, int]
) -> str | None:
    # No digest covers the row of a purged entry, so it must be exactly what a purge writes.
    if entry.purged_at is not None and not entry.has_purged_form:
        return "is marked as purged but has content"
    if entry.digest not in computed:
        return "does not have the digest that was recorded"
    if entry.path not in computed_paths or entry.role != _parse_role(entry):
        return "does not have the path or role that its body gives"
    if entry.kind == "message" and seq_by_path.get(entry.path) != entry.seq:
        return "cannot be found by its path"
    return None


def _read_start(connection: Connection, tenant: str, branch: Branch) -> tuple[set[bytes], set[bytes]]:
    if not branch.fork_seq:
        return {CHAIN_ROOT}, {CHAIN_ROOT}
    last_shared = reads.get_entry(connection, tenant, branch, branch.fork_seq)
    return {last_shared.digest}, {last_shared.path}


def _read_paths(connection: Connection, tenant: str, page: list[Entry]) -> dict[bytes, int]:
    first = page[0]
    query = select(paths.c.path, paths.c.seq).where(
        paths.c.tenant == tenant,
        paths.c.path.in_([entry.path for entry in page if entry.kind == "message"]),
        paths.c.conversation == first.conversation,
        paths.c.branch == first.branch,
    )
    return {row.path: row.seq for row in connection.execute(query)}


def _parse_role(entry: Entry) -> str | None:
    return Message.parse(entry.raw).role if entry.kind == "message" else None
