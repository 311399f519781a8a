"""Checks a conversation against its chains and names every entry that is not as it was written."""

from collections.abc import Iterator

from sqlalchemy import Connection, select

from quire.log import branches, reading
from quire.log.records import Branch, Fault
from quire.log.schema import paths
from quire.model import ROOT, Entry, Message, chain_digest, next_path

_PAGE = 2_000


def verify(connection: Connection, tenant: str, conversation: str) -> list[Fault]:
    """The faults of all branches; none means that every byte is as it was recorded."""
    known = branches.list_branches(connection, tenant, conversation)
    return [fault for branch in known for fault in _verify_branch(connection, tenant, branch)]


def _verify_branch(connection: Connection, tenant: str, branch: Branch) -> list[Fault]:
    faults = list(_verify_entries(connection, tenant, branch))
    if not faults and branch.state != branches.folded_state(connection, tenant, branch, branch.head_seq):
        faults.append(Fault(branch.number, branch.head_seq, "does not lead to the state that the branch keeps"))
    return faults


def _verify_entries(connection: Connection, tenant: str, branch: Branch) -> Iterator[Fault]:
    """After a broken entry the next is held against what is stored and what was computed: only the broken is named."""
    seq = branch.fork_seq
    digests, ends = _start(connection, tenant, branch)
    while page := reading.read_range(connection, tenant, branch, first=seq + 1, limit=_PAGE):
        findable = _findable(connection, tenant, page)
        for entry in page:
            for missing in range(seq + 1, entry.seq):
                yield Fault(branch.number, missing, "is missing")
            seq = entry.seq
            if entry.purged_at is not None:
                digests, ends = {entry.digest}, {entry.path}
                continue
            computed = {chain_digest(digest, beside=entry.beside(), body=entry.raw) for digest in digests}
            reached = {next_path(end, entry.raw) for end in ends} if entry.kind == "message" else ends
            if entry.digest not in computed:
                yield Fault(branch.number, seq, "does not have the digest that was recorded")
            elif entry.path not in reached or entry.role != _role(entry):
                yield Fault(branch.number, seq, "does not have the path or role that its body gives")
            elif entry.kind == "message" and findable.get(entry.path) != seq:
                yield Fault(branch.number, seq, "cannot be found by its path")
            digests, ends = {entry.digest, *computed}, {entry.path, *reached}
    for missing in range(seq + 1, branch.head_seq + 1):
        yield Fault(branch.number, missing, "is missing")
    if branch.head_digest not in digests or branch.head_path not in ends:
        yield Fault(branch.number, branch.head_seq, "is not what the branch's head says")


def _start(connection: Connection, tenant: str, branch: Branch) -> tuple[set[bytes], set[bytes]]:
    if not branch.fork_seq:
        return {ROOT}, {ROOT}
    last_shared = reading.get_entry(connection, tenant, branch, branch.fork_seq)
    return {last_shared.digest}, {last_shared.path}


def _findable(connection: Connection, tenant: str, page: list[Entry]) -> dict[bytes, int]:
    first = page[0]
    wanted = select(paths.c.path, paths.c.seq).where(
        paths.c.tenant == tenant,
        paths.c.path.in_([entry.path for entry in page if entry.kind == "message"]),
        paths.c.conversation == first.conversation,
        paths.c.branch == first.branch,
    )
    return {row.path: row.seq for row in connection.execute(wanted)}


def _role(entry: Entry) -> str | None:
    return Message.parse(entry.raw).role if entry.kind == "message" else None
