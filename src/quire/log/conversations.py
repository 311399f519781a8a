"""Conversations and branches: create, list, rename, tag, lock, fork."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from threading import Lock
from typing import Any, Concatenate

from cachetools import LRUCache
from sqlalchemy import Connection, Select, bindparam, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from quire.db.column_types import is_encrypting
from quire.db.dialects import insert_rows, sanitize_text, upsert
from quire.db.notifications import mark_changed
from quire.db.schema import branches, continued_sessions, conversations, uncounted_branches, unindexed_branches
from quire.db.store_part import P, T
from quire.errors import BranchNotFound, ConversationExists, ConversationNotFound, EntryNotFound, InvalidRequest
from quire.log import reads
from quire.log.row_digests import ROW_DIGEST, covered_columns, with_row_digest
from quire.log.tenant_masker import mask_text
from quire.log.types import MAIN_BRANCH, Branch, ConversationOrigin, ConversationRecord, OriginCount
from quire.model import CHAIN_ROOT, ActiveCompaction, BranchState, Compaction, apply_entry
from quire.model.ids import new_id, now
from quire.rows.conversations import CONTINUED_KEY, OWN_KEYS, TAGS_KEY, parse_tags
from quire.rows.digests import check_row

TOUCH_INTERVAL_MICROS = 1_000_000
"""Minimum time between updates of a conversation's `updated_at`, since each rewrites an index entry."""

MAX_TAGS = 20
"""Maximum tags of a conversation."""
MAX_TAG_CHARS = 40
MAX_TAGGED_CONVERSATIONS = 5_000
"""Conversations whose tags are collected for a list of all tags, the most recently used first."""
_LIKE_TAGS = f'"{TAGS_KEY}": "'.replace("_", "/_")
"""Start of the tags in the JSON of the metadata, as a pattern: a quotation mark within a value would be escaped."""

_ORIGIN_COLUMNS = tuple(ConversationOrigin.model_fields)

_CONVERSATIONS = select(
    conversations.c.conversation,
    conversations.c.title,
    conversations.c.created_at,
    conversations.c.updated_at,
    conversations.c.metadata,
    *(conversations.c[name] for name in _ORIGIN_COLUMNS),
).where(conversations.c.tenant == bindparam("tenant"))

_CONVERSATION = _CONVERSATIONS.where(conversations.c.conversation == bindparam("conversation"))
_NOT_PURGED = _CONVERSATIONS.where(
    conversations.c.purged_at.is_(None) | (conversations.c.purged_at < conversations.c.updated_at)
)

MAX_CACHED_BRANCHES = 256
"""Parsed rows of branches in the LRU cache: a turn reads the same one to recognise, to prepare and to record."""
BRANCH_FIELDS = tuple(column.name for column in covered_columns(branches))
"""Columns of a branch, in the order of the fields of `Branch`."""

BranchQuery = Select[*tuple[Any, ...]]

_BRANCHES: BranchQuery = select(*(branches.c[name] for name in BRANCH_FIELDS), branches.c.row_digest).where(
    branches.c.tenant == bindparam("tenant"),
    branches.c.conversation == bindparam("conversation"),
)
BRANCH: BranchQuery = _BRANCHES.where(branches.c.branch == bindparam("branch"))
_BRANCH_FOR_UPDATE = BRANCH.with_for_update()
ALL_BRANCHES = _BRANCHES.order_by(branches.c.branch)
ALL_BRANCHES_FOR_UPDATE = ALL_BRANCHES.with_for_update()


def create_conversation(
    connection: Connection,
    tenant: str,
    id: str | None = None,
    *,
    title: str = "",
    origin: ConversationOrigin | None = None,
) -> ConversationRecord:
    at = now()
    conversation = ConversationRecord(id or new_id(), mask_text(connection, title), at, at, origin)
    insert_conversation(connection, tenant, conversation)
    return conversation


def get_or_create_conversation(connection: Connection, tenant: str, id: str) -> ConversationRecord:
    """The conversation of this ID, which is created if it does not exist. Concurrent callers get the same one."""
    at = now()
    conversation = ConversationRecord(id, "", at, at)
    row = to_conversation_row(tenant, conversation)
    # On PostgreSQL this waits for a concurrent transaction that is inserting it.
    if not insert_rows(connection, conversations, [row], ignore_existing=True):
        return get_conversation(connection, tenant, id)
    insert_branch(connection, tenant, build_main_branch(conversation))
    return conversation


def create_if_missing(connection: Connection, tenant: str, conversation: ConversationRecord) -> None:
    """Creates the conversation with its main branch, unless it exists."""
    record_row = to_conversation_row(tenant, conversation)
    if insert_rows(connection, conversations, [record_row], ignore_existing=True):
        branch_row = to_branch_row(tenant, build_main_branch(conversation))
        insert_rows(connection, branches, [branch_row], ignore_existing=True)


def insert_conversation(connection: Connection, tenant: str, conversation: ConversationRecord) -> None:
    """Creates the conversation with its main branch."""
    try:
        connection.execute(insert(conversations), to_conversation_row(tenant, conversation))
    except IntegrityError as error:
        raise ConversationExists(f"A conversation {conversation.id!r} exists already; choose another id.") from error
    insert_branch(connection, tenant, build_main_branch(conversation))


def build_main_branch(conversation: ConversationRecord) -> Branch:
    """The main branch of a new conversation, without entries."""
    return Branch(
        conversation.id,
        MAIN_BRANCH,
        "main",
        conversation.created_at,
        (),
        0,
        CHAIN_ROOT,
        CHAIN_ROOT,
        BranchState(),
        conversation.updated_at,
    )


def insert_branch(connection: Connection, tenant: str, branch: Branch) -> None:
    connection.execute(insert(branches), to_branch_row(tenant, branch))
    mark_changed(connection, tenant, branch.conversation)


def to_conversation_row(tenant: str, conversation: ConversationRecord) -> dict[str, Any]:
    """The row of a conversation that was not purged."""
    row = {
        "tenant": tenant,
        "conversation": conversation.id,
        "title": conversation.title,
        "created_at": conversation.created_at,
        "updated_at": conversation.updated_at,
        **(conversation.origin or ConversationOrigin()).model_dump(),
    }
    return with_row_digest(conversations, row)


def _to_conversation(row: Sequence[Any]) -> ConversationRecord:
    conversation, title, created_at, updated_at, metadata, *texts = row
    values = dict(zip(_ORIGIN_COLUMNS, texts, strict=True))
    origin = ConversationOrigin.model_construct(**values) if any(texts) else None
    is_continued = metadata is not None and CONTINUED_KEY in json.loads(metadata)
    return ConversationRecord(conversation, title, created_at, updated_at, origin, parse_tags(metadata), is_continued)


def to_branch_row(tenant: str, branch: Branch) -> dict[str, Any]:
    row = {
        "tenant": tenant,
        "conversation": branch.conversation,
        "branch": branch.number,
        "name": branch.name,
        "created_at": branch.created_at,
        "lineage": json.dumps(branch.lineage) if branch.lineage else "[]",
        "head_seq": branch.head_seq,
        "head_digest": branch.head_digest,
        "head_path": branch.head_path,
        "state": branch.state.canonical_json(),
        "updated_at": branch.updated_at,
    }
    return with_row_digest(branches, row)


def get_conversation(connection: Connection, tenant: str, conversation: str) -> ConversationRecord:
    for row in connection.execute(_CONVERSATION, {"tenant": tenant, "conversation": conversation}):
        return _to_conversation(row)
    raise ConversationNotFound(f"There is no conversation {conversation!r} for this tenant.")


def list_conversations(
    connection: Connection,
    tenant: str,
    *,
    limit: int = 50,
    before: ConversationRecord | None = None,
    origin: ConversationOrigin | None = None,
    main_only: bool = False,
    tag: str | None = None,
) -> list[ConversationRecord]:
    """Most recently updated first. Cursor pagination: `before` is the last one of the previous page.

    With `origin`, only conversations with the same values in the fields that it sets; with `main_only`, only those
    without a purpose; with `tag`, only those that have it. Conversations that were purged entirely are not listed.
    """
    query = _NOT_PURGED.order_by(conversations.c.updated_at.desc(), conversations.c.conversation.desc())
    query = query.where(*(conversations.c[name] == value for name, value in origin or () if value is not None))
    if main_only:
        query = query.where(conversations.c.purpose.is_(None))
    if tag is not None and is_encrypting():
        query = query.where(conversations.c.metadata.is_not(None))
    elif tag is not None:
        text = json.dumps(f",{tag.strip().lower()},", ensure_ascii=False)[1:-1]
        escaped = re.sub(r"[%_/]", r"/\g<0>", text)
        query = query.where(conversations.c.metadata.like(f"%{_LIKE_TAGS}%{escaped}%", escape="/"))
    if before is not None:
        query = query.where(
            (conversations.c.updated_at < before.updated_at)
            | ((conversations.c.updated_at == before.updated_at) & (conversations.c.conversation < before.id))
        )
    if tag is not None and is_encrypting():
        found = (_to_conversation(row) for row in connection.execute(query, {"tenant": tenant}))
        return list(islice((each for each in found if tag.strip().lower() in each.tags), limit))
    return [_to_conversation(row) for row in connection.execute(query.limit(limit), {"tenant": tenant})]


def list_origins(connection: Connection, tenant: str, *, limit: int = 200) -> list[OriginCount]:
    """Clients and projects with the number of their main conversations, the most recently used first."""
    latest = func.max(conversations.c.updated_at)
    query = (
        select(conversations.c.client, conversations.c.project, func.count(), latest)
        .where(
            conversations.c.tenant == tenant,
            conversations.c.client.is_not(None),
            conversations.c.purpose.is_(None),
            conversations.c.purged_at.is_(None) | (conversations.c.purged_at < conversations.c.updated_at),
        )
        .group_by(conversations.c.client, conversations.c.project)
        .order_by(latest.desc(), conversations.c.client, conversations.c.project)
        .limit(limit)
    )
    return [OriginCount(*row) for row in connection.execute(query)]


def list_tags(connection: Connection, tenant: str) -> list[str]:
    """Tags of all conversations, in alphabetical order."""
    has_tags = conversations.c.metadata.like(f"%{_LIKE_TAGS}%", escape="/")
    if is_encrypting():
        has_tags = conversations.c.metadata.is_not(None)
    query = (
        select(conversations.c.metadata)
        .where(conversations.c.tenant == tenant, has_tags)
        .order_by(conversations.c.updated_at.desc())
        .limit(MAX_TAGGED_CONVERSATIONS)
    )
    return sorted({tag for metadata in connection.execute(query).scalars() for tag in parse_tags(metadata)})


def list_conversation_ids(
    connection: Connection, tenant: str, *, project: str | None = None, client: str | None = None
) -> list[str]:
    """Ids of the conversations of a project, of a client, or of both."""
    columns = {"project": project, "client": client}
    query = select(conversations.c.conversation).where(conversations.c.tenant == tenant)
    query = query.where(*(conversations.c[name] == value for name, value in columns.items() if value is not None))
    return list(connection.execute(query).scalars())


def get_conversations(connection: Connection, tenant: str, ids: Collection[str]) -> dict[str, ConversationRecord]:
    """Conversations by id. Unknown ones are left out."""
    query = _CONVERSATIONS.where(conversations.c.conversation.in_(bindparam("ids", expanding=True)))
    rows = connection.execute(query, {"tenant": tenant, "ids": sorted(ids)}) if ids else ()
    return {record.id: record for record in map(_to_conversation, rows)}


def list_session(connection: Connection, tenant: str, session: str, *, limit: int = 50) -> list[ConversationRecord]:
    """The conversations of a client's session, most recently updated first; then the one that it continues, if Quire
    wrote the session."""
    origin = ConversationOrigin(session=session)
    if origin.session is None:
        return []
    own = list_conversations(connection, tenant, limit=limit, origin=origin)
    of_session = continued_sessions.c.imported.like(f"%-{digest_source_id(session)}")
    query = select(continued_sessions.c.conversation).where(continued_sessions.c.tenant == tenant, of_session)
    continued = set(connection.execute(query).scalars()) - {each.id for each in own}
    return [*own, *get_conversations(connection, tenant, continued).values()]


def digest_source_id(source_id: str) -> str:
    """The part of an imported conversation's id that follows the source, by which any source's is found."""
    return sha256(source_id.encode(errors="replace")).hexdigest()[:20]


def rename_conversation(connection: Connection, tenant: str, conversation: str, title: str) -> None:
    _update_conversation(connection, tenant, conversation, title=mask_text(connection, title))


def set_tags(connection: Connection, tenant: str, conversation: str, tags: Iterable[str]) -> tuple[str, ...]:
    """Replaces the tags. They are compared without case, so they are stored in lower case, each once."""
    unique = tuple(dict.fromkeys(filter(None, (" ".join(tag.split()).lower() for tag in tags))))
    for tag in unique:
        if "," in tag or len(tag) > MAX_TAG_CHARS:
            raise InvalidRequest(f"A tag has at most {MAX_TAG_CHARS} characters and no comma, unlike {tag!r}.")
    if len(unique) > MAX_TAGS:
        raise InvalidRequest(f"A conversation has at most {MAX_TAGS} tags, not {len(unique)}; remove some.")
    stored = _read_metadata(connection, tenant, conversation, for_update=True)
    _write_metadata(connection, tenant, conversation, json.loads(stored or "{}"), unique)
    return unique


def get_metadata(connection: Connection, tenant: str, conversation: str) -> dict[str, str]:
    """What a client has noted on its conversation, by name."""
    stored = _read_metadata(connection, tenant, conversation)
    return {name: value for name, value in json.loads(stored or "{}").items() if name not in OWN_KEYS}


def set_metadata(connection: Connection, tenant: str, conversation: str, metadata: Mapping[str, str]) -> None:
    """Replaces a client's notes. The tags stay, and who owns it."""
    stored = _read_metadata(connection, tenant, conversation, for_update=True)
    own = {name: value for name, value in json.loads(stored or "{}").items() if name == CONTINUED_KEY}
    _write_metadata(connection, tenant, conversation, {**metadata, **own}, parse_tags(stored))


def take_over(connection: Connection, tenant: str, conversation: str) -> None:
    """Records that an agent's conversation is continued in Quire, which owns it from now on."""
    stored = _read_metadata(connection, tenant, conversation, for_update=True)
    values = {**json.loads(stored or "{}"), CONTINUED_KEY: ""}
    _write_metadata(connection, tenant, conversation, values, parse_tags(stored))


def _read_metadata(connection: Connection, tenant: str, conversation: str, *, for_update: bool = False) -> str | None:
    key = (conversations.c.tenant == tenant, conversations.c.conversation == conversation)
    query = select(conversations.c.metadata).where(*key)
    row = connection.execute(query.with_for_update() if for_update else query).first()
    if row is None:
        raise ConversationNotFound(f"There is no conversation {conversation!r} for this tenant.")
    return row[0]


def _write_metadata(
    connection: Connection, tenant: str, conversation: str, metadata: Mapping[str, str], tags: Sequence[str]
) -> None:
    values = {name: value for name, value in metadata.items() if name != TAGS_KEY}
    if tags:
        values[TAGS_KEY] = f",{','.join(tags)},"
    masked = {mask_text(connection, name): mask_text(connection, value) for name, value in values.items()}
    text = sanitize_text(json.dumps(masked, ensure_ascii=False)) if masked else None
    _update_conversation(connection, tenant, conversation, metadata=text)


def _update_conversation(connection: Connection, tenant: str, conversation: str, **changed: object) -> None:
    key = (conversations.c.tenant == tenant, conversations.c.conversation == conversation)
    row = connection.execute(select(conversations).where(*key).with_for_update()).mappings().first()
    if row is None:
        raise ConversationNotFound(f"There is no conversation {conversation!r} for this tenant.")
    digest = with_row_digest(conversations, {**row, **changed})[ROW_DIGEST]
    connection.execute(update(conversations).where(*key).values(**changed, row_digest=digest))


def clear_conversation(connection: Connection, tenant: str, conversation: str) -> None:
    """Clears the texts in the rows of a conversation that was purged entirely.

    These are the title, the metadata, the project and the agents of its origin, the branch names and the names of
    session items. The ids of its session, client and purpose stay. Lists omit it until the next append.
    """
    cleared_texts = {"title": "", "metadata": None, "project": None, "agent": None, "parent_agent": None}
    _update_conversation(connection, tenant, conversation, **cleared_texts, purged_at=now())
    for branch in list_branches(connection, tenant, conversation):
        name = _default_branch_name(branch.number)
        # Without a time, the next append updates the conversation's `updated_at`, even within `TOUCH_INTERVAL_MICROS`.
        overwrite_branch(connection, tenant, branch._replace(name=name, updated_at=0))
    fold_session_items(connection, tenant, conversation)


def fold_session_items(connection: Connection, tenant: str, conversation: str) -> None:
    """Computes the states that name session items again, after the changes that named them were purged."""
    for branch in list_branches(connection, tenant, conversation):
        if branch.state.items or branch.state.removed_items:
            state = fold_state(connection, tenant, branch, branch.head_seq)
            overwrite_branch(connection, tenant, branch._replace(state=state))


def clear_texts(connection: Connection, tenant: str, conversation: str, columns: Iterable[str]) -> None:
    """Clears these of the texts `title`, `metadata`, `project`, `agent` and `parent_agent` of a conversation."""
    _update_conversation(
        connection, tenant, conversation, **{name: "" if name == "title" else None for name in columns}
    )


def reset_branch_name(connection: Connection, tenant: str, conversation: str, number: int) -> None:
    branch = lock_branch(connection, tenant, conversation, number)
    overwrite_branch(connection, tenant, branch._replace(name=_default_branch_name(number)))


def _default_branch_name(number: int) -> str:
    return "main" if number == MAIN_BRANCH else f"branch {number}"


def is_purged(connection: Connection, tenant: str, conversation: str) -> bool:
    """Whether the whole conversation was purged and has had no append, fork or title since."""
    query = _NOT_PURGED.where(conversations.c.conversation == bindparam("conversation"))
    row = connection.execute(query, {"tenant": tenant, "conversation": conversation}).first()
    return row is None and not get_conversation(connection, tenant, conversation).title


def get_branch(connection: Connection, tenant: str, conversation: str, number: int = MAIN_BRANCH) -> Branch:
    return _read_branch(connection, BRANCH, tenant, conversation, number)


def lock_branch(connection: Connection, tenant: str, conversation: str, number: int) -> Branch:
    """The branch, to which no other transaction can append before this one ends."""
    branch = _read_branch(connection, _BRANCH_FOR_UPDATE, tenant, conversation, number)
    branch.check_in_database()
    return branch


def _read_branch(connection: Connection, statement: BranchQuery, tenant: str, conversation: str, number: int) -> Branch:
    params = {"tenant": tenant, "conversation": conversation, "branch": number}
    for row in connection.execute(statement, params):
        return parse_branch_row(row)
    get_conversation(connection, tenant, conversation)
    raise BranchNotFound(f"Conversation {conversation!r} has no branch {number}.")


def list_branches(connection: Connection, tenant: str, conversation: str) -> list[Branch]:
    """All branches by number."""
    return _read_branches(connection, ALL_BRANCHES, tenant, conversation)


def lock_branches(
    connection: Connection, tenant: str, conversation: str, *, is_offloading: bool = False
) -> list[Branch]:
    """All branches by number, to which no other transaction can append before this one ends."""
    branches = _read_branches(connection, ALL_BRANCHES_FOR_UPDATE, tenant, conversation)
    if not is_offloading:
        for branch in branches:
            branch.check_in_database()
    return branches


def _read_branches(connection: Connection, statement: BranchQuery, tenant: str, conversation: str) -> list[Branch]:
    get_conversation(connection, tenant, conversation)
    rows = connection.execute(statement, {"tenant": tenant, "conversation": conversation}).all()
    return list(map(parse_branch_row, rows))


branches_by_row: LRUCache[tuple[Any, ...], Branch] = LRUCache(MAX_CACHED_BRANCHES)
"""Branches by their whole rows. A row that this process wrote is in it already, and is neither checked nor parsed."""
_branches_lock = Lock()


def parse_branch_row(row: tuple[Any, ...]) -> Branch:
    """The branch. Raises `IntegrityViolation` if its row was changed, because requests are built from its state."""
    with _branches_lock:
        branch = branches_by_row.get(row)
    if branch is None:
        check_row(row[:-1], row[-1], name=f"branch {row[1]} of {row[0]!r}")
        branch = to_branch(row)
        with _branches_lock:
            branches_by_row[row] = branch
    return branch


def to_branch(row: Sequence[Any]) -> Branch:
    lineage = tuple((branch, last_shared) for branch, last_shared in json.loads(row[4])) if row[4] != "[]" else ()
    return Branch(row[0], row[1], row[2], row[3], lineage, row[5], row[6], row[7], BranchState.parse(row[8]), row[9])


def move_head(connection: Connection, tenant: str, branch: Branch) -> None:
    """Writes the new head of the branch and, at most once per `TOUCH_INTERVAL_MICROS`, the time of the update.

    The branch is marked as unindexed and uncounted, so that neither the message index nor the usage roll-up misses an
    entry. The row is locked.
    """
    at, updated_at = now(), branch.updated_at
    if at - updated_at > TOUCH_INTERVAL_MICROS:
        updated_at = at
        touch_conversation(connection, tenant, branch.conversation, at)
    overwrite_branch(connection, tenant, branch._replace(updated_at=updated_at))
    row = {"tenant": tenant, "conversation": branch.conversation, "branch": branch.number, "last_seq": branch.head_seq}
    for outbox in (unindexed_branches, uncounted_branches):
        connection.execute(upsert(connection, outbox, replace=["last_seq"]), row)


def overwrite_branch(connection: Connection, tenant: str, branch: Branch) -> None:
    row = to_branch_row(tenant, branch)
    key = {f"of_{name}": row[name] for name in ("tenant", "conversation", "branch")}
    params = key | {name: row[name] for name in _MUTABLE_BRANCH_COLUMNS}
    connection.execute(OVERWRITE_BRANCH, params)
    with _branches_lock:
        branches_by_row[tuple(row[name] for name in (*BRANCH_FIELDS, ROW_DIGEST))] = branch
    mark_changed(connection, tenant, branch.conversation)


def touch_conversation(connection: Connection, tenant: str, conversation: str, at: int) -> None:
    """Sets `updated_at` to `at`, unless it is later: transactions may commit in another order than they began."""
    connection.execute(_TOUCH_CONVERSATION, {"of_tenant": tenant, "of_conversation": conversation, "updated_at": at})


_TOUCH_CONVERSATION = (
    update(conversations)
    .where(
        conversations.c.tenant == bindparam("of_tenant"),
        conversations.c.conversation == bindparam("of_conversation"),
        conversations.c.updated_at < bindparam("updated_at"),
    )
    .values(updated_at=bindparam("updated_at"))
)

_MUTABLE_BRANCH_COLUMNS = ("name", "head_seq", "head_digest", "head_path", "state", "updated_at", "row_digest")

OVERWRITE_BRANCH = (
    update(branches)
    .where(
        branches.c.tenant == bindparam("of_tenant"),
        branches.c.conversation == bindparam("of_conversation"),
        branches.c.branch == bindparam("of_branch"),
    )
    .values({name: bindparam(name) for name in _MUTABLE_BRANCH_COLUMNS})
)


def create_fork(
    connection: Connection,
    tenant: str,
    conversation: str,
    *,
    at: int,
    branch: int = MAIN_BRANCH,
    name: str | None = None,
) -> Branch:
    """Creates a branch that shares the entries up to and including `at` (0: none)."""
    # Forks of one conversation are serialized by the lock of the main branch, so that each gets its own number.
    lock_branch(connection, tenant, conversation, MAIN_BRANCH)
    origin = get_branch(connection, tenant, conversation, branch)
    number = 1 + max(each.number for each in list_branches(connection, tenant, conversation))
    own_name = mask_text(connection, name) if name else f"branch {number}"
    new_branch = build_fork(connection, tenant, origin, at=at, number=number, name=own_name, created_at=now())
    insert_branch(connection, tenant, new_branch)
    touch_conversation(connection, tenant, conversation, new_branch.updated_at)
    return new_branch


def build_fork(
    connection: Connection, tenant: str, origin: Branch, *, at: int, number: int, name: str, created_at: int
) -> Branch:
    """The row of a branch that forks from `origin` after entry `at`, without entries after it."""
    if not 0 <= at <= origin.head_seq:
        raise EntryNotFound(
            f"Branch {origin.number} has the entries 1 to {origin.head_seq}; it cannot be forked at {at}."
        )
    digest, path = CHAIN_ROOT, CHAIN_ROOT
    if at:
        last_shared = reads.get_entry(connection, tenant, origin, at)
        digest, path = last_shared.digest, last_shared.path
    inherited = [(branch, last) for branch, last in origin.lineage if last < at]
    owner = origin.find_owner(at) if at else None
    return Branch(
        conversation=origin.conversation,
        number=number,
        name=name,
        created_at=created_at,
        lineage=(*inherited, (origin.number if owner is None else owner, at)),
        head_seq=at,
        head_digest=digest,
        head_path=path,
        state=origin.state if at == origin.head_seq else fold_state(connection, tenant, origin, at),
        updated_at=created_at,
    )


def fold_state(connection: Connection, tenant: str, branch: Branch, seq: int) -> BranchState:
    """State of the branch after entry `seq`, computed from its control entries instead of the branch's row."""
    control_entries = reads.read_control_entries(connection, tenant, branch, last=seq)
    compactions: dict[int, ActiveCompaction] = {}
    state = BranchState()
    for entry in control_entries:
        body = entry.body
        if isinstance(body, Compaction):
            compactions[entry.seq] = ActiveCompaction.from_entry(entry.seq, body)
        state = apply_entry(state, entry.seq, body, compaction_at=compactions.__getitem__)
    return state


def with_branch(
    function: Callable[Concatenate[Connection, str, Branch, P], T],
) -> Callable[Concatenate[Connection, str, str, int, P], T]:
    """Turns a function of a `Branch` into one of its conversation and number, read in the same transaction."""

    def with_number(
        connection: Connection, tenant: str, conversation: str, branch: int, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        row = get_branch(connection, tenant, conversation, branch)
        row.check_in_database()
        return function(connection, tenant, row, *args, **kwargs)

    return with_number
