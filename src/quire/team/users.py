"""People who sign in: their roles, the sessions of their browsers, and the conversations that they share.

All rows belong to the tenant of the people. What a person writes is stored in a separate tenant (`make_space`), so
none of the queries on conversations has to filter by person.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, insert, select, update

from quire.db.dialects import sanitize_text
from quire.db.schema import sessions, shares, users
from quire.db.store_part import StorePart, read, read_inline, write
from quire.errors import SignInRefused, UserNotFound
from quire.log.row_digests import ROW_DIGEST, has_row_digest, with_row_digest
from quire.model.ids import new_id, now
from quire.model.people import USER_ROLES, UserRole

EVERYONE = "*"
"""Reader of a share: all people of the tenant."""
MAX_LISTED_USERS = 1_000
MAX_CLAIM_CHARS = 200
"""Maximum length of a name or email address, which come from the identity provider."""
MAX_SUBJECT_CHARS = 255
"""As OpenID Connect Core has it."""
CONFIRMATION_SECONDS = 30 * 86_400
"""Seconds that a person's API keys work after the identity provider last confirmed the person, by a sign-in or by the
refresh of a session. A person who has left cannot sign in, so the keys end."""


class User(NamedTuple):
    id: str
    subject: str
    name: str
    email: str
    roles: frozenset[UserRole]
    created_at: int
    confirmed_at: int
    disabled_at: int | None

    def may_use_keys_at(self, time: int) -> bool:
        is_confirmed = time < self.confirmed_at + CONFIRMATION_SECONDS * 1_000_000
        return self.disabled_at is None and is_confirmed and bool(self.roles)


class Session(NamedTuple):
    digest: bytes
    user: User
    expires_at: int
    refresh_at: int
    """Time after which the identity provider must confirm the person again."""
    tokens: str
    """Tokens of the identity provider, encrypted with the secret of the cookie."""


class Share(NamedTuple):
    owner: str
    conversation: str
    reader: str
    created_at: int


def confirm_user(
    connection: Connection, tenant: str, subject: str, *, name: str, email: str, roles: Collection[UserRole]
) -> User:
    """Stores what the identity provider says about a person, at the first sign-in and at each later one."""
    in_tenant, at = users.c.tenant == tenant, now()
    claims = {
        "name": sanitize_text(name)[:MAX_CLAIM_CHARS],
        "email": sanitize_text(email)[:MAX_CLAIM_CHARS],
        "roles": " ".join(role for role in USER_ROLES if role in roles),
        "confirmed_at": at,
    }
    query = select(users).where(in_tenant, users.c.subject == subject).with_for_update()
    found = connection.execute(query).mappings().first()
    if found is None:
        new = {"tenant": tenant, "id": new_id(), "subject": subject, "created_at": at, "disabled_at": None, **claims}
        connection.execute(insert(users), with_row_digest(users, new))
        return to_user(new)
    if found["disabled_at"] is not None:
        raise SignInRefused("An owner or operator of the tenant has disabled this account; ask them to enable it.")
    changed = with_row_digest(users, {**found, **claims})
    values = {each: changed[each] for each in (*claims, ROW_DIGEST)}
    connection.execute(update(users).where(in_tenant, users.c.id == found["id"]).values(values))
    return to_user(changed)


def find_user(connection: Connection, tenant: str, id: str) -> User | None:
    """The person with this id. None also if the row was changed outside Quire, such as its roles."""
    row = connection.execute(select(users).where(users.c.tenant == tenant, users.c.id == id)).mappings().first()
    return to_user(row) if row is not None and has_row_digest(users, row) else None


def find_user_by_email(connection: Connection, tenant: str, email: str) -> User | None:
    """The person with this email address, if it is one person's only."""
    rows = connection.execute(select(users).where(users.c.tenant == tenant, users.c.email == email)).mappings().all()
    return to_user(rows[0]) if len(rows) == 1 else None


def list_users(connection: Connection, tenant: str) -> list[User]:
    """The first `MAX_LISTED_USERS` people by the time of their first sign-in."""
    query = select(users).where(users.c.tenant == tenant).order_by(users.c.created_at, users.c.id)
    return [to_user(row) for row in connection.execute(query.limit(MAX_LISTED_USERS)).mappings()]


def set_disabled(connection: Connection, tenant: str, id: str, disabled: bool) -> User:  # noqa: FBT001 (the new value)
    """Disables a person, which ends all sessions and stops all keys, or lets the person sign in again."""
    this_user = (users.c.tenant == tenant, users.c.id == id)
    row = connection.execute(select(users).where(*this_user).with_for_update()).mappings().first()
    if row is None:
        raise UserNotFound
    changed = with_row_digest(users, {**row, "disabled_at": now() if disabled else None})
    values = {each: changed[each] for each in ("disabled_at", ROW_DIGEST)}
    connection.execute(update(users).where(*this_user).values(values))
    connection.execute(delete(sessions).where(sessions.c.tenant == tenant, sessions.c.user_id == id))
    return to_user(changed)


def to_user(row: Mapping[Any, Any]) -> User:
    """The person of a row of `users`."""
    values: dict[str, Any] = {field: row[field] for field in User._fields}
    named = row["roles"].split()
    return User(**values)._replace(roles=frozenset(role for role in USER_ROLES if role in named))


def create_session(
    connection: Connection, tenant: str, digest: bytes, user: str, *, expires_at: int, refresh_at: int, tokens: str
) -> None:
    """Stores a session, and deletes expired sessions of the tenant."""
    connection.execute(delete(sessions).where(sessions.c.tenant == tenant, sessions.c.expires_at <= now()))
    row = {"tenant": tenant, "digest": digest, "user_id": user, "created_at": now(), "expires_at": expires_at}
    connection.execute(insert(sessions), {**row, "refresh_at": refresh_at, "tokens": tokens})


def find_session(connection: Connection, tenant: str, digest: bytes) -> Session | None:
    """The session, if it has not ended and its person is not disabled."""
    query = select(sessions).where(sessions.c.tenant == tenant, sessions.c.digest == digest)
    row = connection.execute(query).mappings().first()
    if row is None or row["expires_at"] <= now():
        return None
    user = find_user(connection, tenant, row["user_id"])
    if user is None or user.disabled_at is not None or not user.roles:
        return None
    return Session(digest, user, row["expires_at"], row["refresh_at"], row["tokens"])


def claim_refresh(connection: Connection, tenant: str, session: Session, refresh_at: int) -> bool:
    """Whether the caller is the one to refresh this session: of several servers one, since a refresh token may be
    usable only once. It is due again at `refresh_at`."""
    this_session = (sessions.c.tenant == tenant, sessions.c.digest == session.digest)
    claim = update(sessions).where(*this_session, sessions.c.refresh_at == session.refresh_at)
    return connection.execute(claim.values(refresh_at=refresh_at)).rowcount == 1


def store_tokens(connection: Connection, tenant: str, digest: bytes, tokens: str) -> None:
    this_session = (sessions.c.tenant == tenant, sessions.c.digest == digest)
    connection.execute(update(sessions).where(*this_session).values(tokens=tokens))


def end_session(connection: Connection, tenant: str, digest: bytes) -> None:
    connection.execute(delete(sessions).where(sessions.c.tenant == tenant, sessions.c.digest == digest))


def set_readers(connection: Connection, tenant: str, owner: str, conversation: str, readers: Collection[str]) -> None:
    """Shares a conversation with these people and no others; `EVERYONE` is all people of the tenant."""
    this_conversation = (shares.c.tenant == tenant, shares.c.owner == owner, shares.c.conversation == conversation)
    connection.execute(delete(shares).where(*this_conversation))
    row = {"tenant": tenant, "owner": owner, "conversation": conversation, "created_at": now()}
    for reader in sorted(set(readers)):
        connection.execute(insert(shares), {**row, "reader": reader})


def list_readers(connection: Connection, tenant: str, owner: str, conversation: str) -> list[str]:
    query = select(shares.c.reader).where(
        shares.c.tenant == tenant, shares.c.owner == owner, shares.c.conversation == conversation
    )
    return list(connection.execute(query.order_by(shares.c.reader)).scalars())


def list_shared_with(connection: Connection, tenant: str, reader: str, *, limit: int = 500) -> list[Share]:
    """Conversations of other people that this person may read, the newest share first."""
    query = select(shares.c.owner, shares.c.conversation, shares.c.reader, shares.c.created_at).where(
        shares.c.tenant == tenant, shares.c.reader.in_([EVERYONE, reader]), shares.c.owner != reader
    )
    rows = connection.execute(query.order_by(shares.c.created_at.desc(), shares.c.conversation).limit(limit))
    return [Share(*row) for row in rows]


class Users(StorePart):
    """People of the tenant."""

    confirm = write(confirm_user)
    find = read_inline(find_user)
    find_by_email = read(find_user_by_email)
    list = read(list_users)
    set_disabled = write(set_disabled)


class Sessions(StorePart):
    """Sessions of browsers."""

    create = write(create_session)
    find = read_inline(find_session)
    claim_refresh = write(claim_refresh)
    store_tokens = write(store_tokens)
    end = write(end_session)


class Shares(StorePart):
    """Conversations that people share with others of the tenant."""

    set_readers = write(set_readers)
    list_readers = read_inline(list_readers)
    list_shared_with = read(list_shared_with)
