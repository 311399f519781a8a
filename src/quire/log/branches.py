"""Conversations and the rows of their branches: made, read, locked, forked."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError

from quire.errors import BranchNotFound, ConversationExists, ConversationNotFound, EntryNotFound
from quire.log import reading
from quire.log.driver import execute, fetch
from quire.log.fresh import now
from quire.log.records import MAIN, Branch, Conversation
from quire.log.schema import branches, conversations
from quire.model import ROOT, BranchState, Compaction, Coverage, fold

_CONVERSATION = select(
    conversations.c.conversation, conversations.c.title, conversations.c.created_at, conversations.c.used_at
).where(conversations.c.tenant == bindparam("tenant"))

_LISTED = _CONVERSATION.where(
    conversations.c.purged_at.is_(None) | (conversations.c.purged_at < conversations.c.used_at)
)

_BRANCHES = select(
    branches.c.conversation,
    branches.c.branch,
    branches.c.name,
    branches.c.created_at,
    branches.c.lineage,
    branches.c.head_seq,
    branches.c.head_digest,
    branches.c.head_path,
    branches.c.state,
    branches.c.used_at,
).where(
    branches.c.tenant == bindparam("tenant"),
    branches.c.conversation == bindparam("conversation"),
)
BRANCH = _BRANCHES.where(branches.c.branch == bindparam("branch"))
_BRANCH_FOR_UPDATE = BRANCH.with_for_update()


def create_conversation(connection: Connection, tenant: str, conversation: Conversation) -> None:
    row = {
        "tenant": tenant,
        "conversation": conversation.id,
        "title": conversation.title,
        "created_at": conversation.created_at,
        "used_at": conversation.used_at,
    }
    try:
        connection.execute(insert(conversations), row)
    except IntegrityError as error:
        raise ConversationExists(f"There is a conversation {conversation.id!r} already; choose another id.") from error
    main = Branch(
        conversation.id, MAIN, "main", conversation.created_at, (), 0, ROOT, ROOT, BranchState(), conversation.used_at
    )
    insert_branch(connection, tenant, main)


def insert_branch(connection: Connection, tenant: str, branch: Branch) -> None:
    connection.execute(insert(branches), branch_row(tenant, branch))


def branch_row(tenant: str, branch: Branch) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "conversation": branch.conversation,
        "branch": branch.number,
        "name": branch.name,
        "created_at": branch.created_at,
        "lineage": json.dumps(branch.lineage),
        "head_seq": branch.head_seq,
        "head_digest": branch.head_digest,
        "head_path": branch.head_path,
        "state": branch.state.canonical(),
        "used_at": branch.used_at,
    }


def get_conversation(connection: Connection, tenant: str, conversation: str) -> Conversation:
    wanted = _CONVERSATION.where(conversations.c.conversation == bindparam("conversation"))
    row = connection.execute(wanted, {"tenant": tenant, "conversation": conversation}).first()
    if row is None:
        raise ConversationNotFound(f"There is no conversation {conversation!r} for this tenant.")
    return Conversation._make(row)


def list_conversations(
    connection: Connection, tenant: str, *, limit: int, before: Conversation | None
) -> list[Conversation]:
    """Those used last first; `before` is the last one of the page before. What was purged whole is not listed."""
    wanted = _LISTED.order_by(conversations.c.used_at.desc(), conversations.c.conversation.desc())
    known: dict[str, Any] = {"tenant": tenant}
    if before is not None:
        wanted = wanted.where(
            (conversations.c.used_at < before.used_at)
            | ((conversations.c.used_at == before.used_at) & (conversations.c.conversation < before.id))
        )
    return [Conversation._make(row) for row in connection.execute(wanted.limit(limit), known)]


def rename_conversation(connection: Connection, tenant: str, conversation: str, title: str) -> None:
    get_conversation(connection, tenant, conversation)
    connection.execute(
        update(conversations)
        .where(conversations.c.tenant == tenant, conversations.c.conversation == conversation)
        .values(title=title)
    )


def empty_conversation(connection: Connection, tenant: str, conversation: str) -> None:
    """Takes the title of a conversation that was purged whole, and takes it off the list until it is used again."""
    connection.execute(
        update(conversations)
        .where(conversations.c.tenant == tenant, conversations.c.conversation == conversation)
        .values(title="", purged_at=now())
    )
    # Whatever is added next notes that the conversation is in use again, however soon.
    connection.execute(
        update(branches).where(branches.c.tenant == tenant, branches.c.conversation == conversation).values(used_at=0)
    )


def get_branch(connection: Connection, tenant: str, conversation: str, branch: int, *, lock: bool = False) -> Branch:
    """The branch's row. With `lock`, no one else appends to it before this transaction ends."""
    statement = _BRANCH_FOR_UPDATE if lock else BRANCH
    known = {"tenant": tenant, "conversation": conversation, "branch": branch}
    for row in fetch(connection, statement, known):
        return read_row(row)
    get_conversation(connection, tenant, conversation)
    raise BranchNotFound(f"Conversation {conversation!r} has no branch {branch}.")


def list_branches(connection: Connection, tenant: str, conversation: str, *, lock: bool = False) -> list[Branch]:
    """All branches in their order. With `lock`, nothing is appended to any before this transaction ends."""
    get_conversation(connection, tenant, conversation)
    known = {"tenant": tenant, "conversation": conversation}
    wanted = _BRANCHES.order_by(branches.c.branch)
    return [read_row(row) for row in connection.execute(wanted.with_for_update() if lock else wanted, known)]


def read_row(row: Sequence[Any]) -> Branch:
    lineage = tuple((branch, upto) for branch, upto in json.loads(row[4])) if row[4] != "[]" else ()
    return Branch(row[0], row[1], row[2], row[3], lineage, row[5], row[6], row[7], BranchState.parse(row[8]), row[9])


def move_head(connection: Connection, tenant: str, branch: Branch) -> None:
    """Files where the branch has come to, and, once in a while, that its conversation is in use."""
    at, used_at = now(), branch.used_at
    if at - used_at > NOTED_EVERY:
        used_at = at
        _note_use(connection, tenant, branch.conversation, at)
    execute(
        connection,
        MOVE_HEAD,
        {
            "of_tenant": tenant,
            "of_conversation": branch.conversation,
            "of_branch": branch.number,
            "head_seq": branch.head_seq,
            "head_digest": branch.head_digest,
            "head_path": branch.head_path,
            "state": branch.state.canonical(),
            "used_at": used_at,
        },
    )


def _note_use(connection: Connection, tenant: str, conversation: str, at: int) -> None:
    execute(connection, _NOTE_USE, {"of_tenant": tenant, "of_conversation": conversation, "used_at": at})


NOTED_EVERY = 1_000_000
"""A conversation's place in the order of use stands in an index: of what is added within a second, one moves it."""
_NOTE_USE = (
    update(conversations)
    .where(
        conversations.c.tenant == bindparam("of_tenant"), conversations.c.conversation == bindparam("of_conversation")
    )
    .values(used_at=bindparam("used_at"))
)


MOVE_HEAD = (
    update(branches)
    .where(
        branches.c.tenant == bindparam("of_tenant"),
        branches.c.conversation == bindparam("of_conversation"),
        branches.c.branch == bindparam("of_branch"),
    )
    .values({name: bindparam(name) for name in ("head_seq", "head_digest", "head_path", "state", "used_at")})
)


def fork(connection: Connection, tenant: str, conversation: str, *, branch: int, at: int, name: str | None) -> Branch:
    """A new branch that shares everything up to and with entry `at` (0: nothing) and goes on from there."""
    # The main branch's row is what forks of one conversation wait for, so that each takes a number of its own.
    get_branch(connection, tenant, conversation, MAIN, lock=True)
    origin = get_branch(connection, tenant, conversation, branch)
    number = 1 + max(known.number for known in list_branches(connection, tenant, conversation))
    branched = forked(
        connection, tenant, origin, at=at, number=number, name=name or f"branch {number}", created_at=now()
    )
    insert_branch(connection, tenant, branched)
    _note_use(connection, tenant, conversation, branched.used_at)
    return branched


def forked(
    connection: Connection, tenant: str, origin: Branch, *, at: int, number: int, name: str, created_at: int
) -> Branch:
    """The row of a branch that leaves `origin` after entry `at`, before it has entries of its own."""
    if not 0 <= at <= origin.head_seq:
        raise EntryNotFound(
            f"Branch {origin.number} runs from entry 1 to {origin.head_seq}; it cannot be forked at {at}."
        )
    digest, path = ROOT, ROOT
    if at:
        last_shared = reading.get_entry(connection, tenant, origin, at)
        digest, path = last_shared.digest, last_shared.path
    return Branch(
        conversation=origin.conversation,
        number=number,
        name=name,
        created_at=created_at,
        lineage=_lineage(origin, at),
        head_seq=at,
        head_digest=digest,
        head_path=path,
        state=state_at(connection, tenant, origin, at),
        used_at=created_at,
    )


def _lineage(origin: Branch, at: int) -> tuple[tuple[int, int], ...]:
    inherited = tuple((branch, upto) for branch, upto in origin.lineage if upto < at)
    holder = origin.holder(at) if at else origin.number
    return (*inherited, (holder if holder is not None else origin.number, at))


def state_at(connection: Connection, tenant: str, branch: Branch, seq: int) -> BranchState:
    """What the branch's entries up to `seq` amount to."""
    return branch.state if seq == branch.head_seq else folded_state(connection, tenant, branch, seq)


def folded_state(connection: Connection, tenant: str, branch: Branch, seq: int) -> BranchState:
    """The same, folded anew from the entries that change it."""
    control = reading.control_entries(connection, tenant, branch, last=seq)
    known: dict[int, Coverage] = {}
    state = BranchState()
    for entry in control:
        body = entry.body
        if isinstance(body, Compaction):
            known[entry.seq] = Coverage.of(entry.seq, body)
        state = fold(state, entry.seq, body, coverage_at=known.__getitem__)
    return state
