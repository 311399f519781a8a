"""Keys that let programs in: made, listed, revoked, and recognised when one is shown.

A key's text is `quire_<id>_<secret>`. The id is public; of the secret only its digest is stored, so that the text can
be given once, when the key is made, and never again. A slow hash would add nothing: the secret is 256 bits of chance.
"""

import hmac
import re
from collections.abc import Collection, Sequence
from hashlib import sha256
from typing import Any, Literal, NamedTuple, cast, get_args

from sqlalchemy import Connection, bindparam, insert, select, tuple_, update

from quire.errors import InvalidRequest, KeyNotFound
from quire.log.dialects import show_key
from quire.log.fresh import new_id, new_secret, now
from quire.log.schema import keys
from quire.log.steps import SqlSteps
from quire.log.words import storable

Scope = Literal["read", "write", "chat", "admin"]
"""What a key lets its holder do: look, change, ask models, or look after keys, purges and settings; none implies
another."""

SCOPES: tuple[Scope, ...] = get_args(Scope)

_TEXT = re.compile(r"quire_([0-9a-z]{26})_([0-9A-Za-z]{43})", re.ASCII)
_LONGEST_NAME = 200
# No secret has this digest; it keeps unknown ids on the same path as known ones.
_NOBODYS = bytes(32)


class Key(NamedTuple):
    id: str
    tenant: str
    name: str
    scopes: frozenset[Scope]
    requests_per_minute: int | None
    """The most that it may ask of the server; None for what the settings say."""
    created_at: int
    expires_at: int | None
    revoked_at: int | None

    def opens_at(self, time: int) -> bool:
        """Whether it is neither revoked nor, at this time, expired."""
        return self.revoked_at is None and (self.expires_at is None or time < self.expires_at)


_COLUMNS = (
    keys.c.id,
    keys.c.tenant,
    keys.c.name,
    keys.c.scopes,
    keys.c.requests_per_minute,
    keys.c.created_at,
    keys.c.expires_at,
    keys.c.revoked_at,
)
_OWN = select(*_COLUMNS).where(keys.c.tenant == bindparam("tenant"))
_SHOWN = select(keys.c.digest, *_COLUMNS).where(keys.c.id == bindparam("id"))


def create_key(
    connection: Connection,
    tenant: str,
    name: str,
    scopes: Collection[str],
    *,
    expires_at: int | None,
    requests_per_minute: int | None,
) -> tuple[Key, str]:
    """The key and its text, which is nowhere to be found afterwards."""
    made = Key(new_id(), tenant, storable(name), _checked(scopes), requests_per_minute, now(), expires_at, None)
    _check(made)
    secret = new_secret()
    row = made._asdict() | {"scopes": _written(made.scopes), "digest": _digest(secret)}
    connection.execute(insert(keys), row)
    return made, f"quire_{made.id}_{secret}"


def list_keys(connection: Connection, tenant: str, *, limit: int, before: Key | None) -> list[Key]:
    """The newest first, those that no longer open included; `before` is the last one of the page before."""
    wanted = _OWN.order_by(keys.c.created_at.desc(), keys.c.id.desc()).limit(limit)
    if before is not None:
        wanted = wanted.where(tuple_(keys.c.created_at, keys.c.id) < (before.created_at, before.id))
    return [_key(row) for row in connection.execute(wanted, {"tenant": tenant})]


def revoke_key(connection: Connection, tenant: str, id: str) -> Key:
    """The key as it stands then; one that was revoked before keeps its time."""
    own = (keys.c.tenant == tenant, keys.c.id == id)
    connection.execute(update(keys).where(*own, keys.c.revoked_at.is_(None)).values(revoked_at=now()))
    row = connection.execute(_OWN.where(keys.c.id == id), {"tenant": tenant}).first()
    if row is None:
        raise KeyNotFound(f"Tenant {tenant!r} has no key {id!r}; `quire key list` shows which it has.")
    return _key(row)


def parse(text: str) -> tuple[str, str] | None:
    """Id and secret of a text that has the form of a key."""
    found = _TEXT.fullmatch(text)
    return (found[1], found[2]) if found is not None else None


def find_shown(connection: Connection, id: str, secret: str) -> Key | None:
    """The key with this id, whoever's it is, if the secret is its own and it opens now."""
    show_key(connection, id)
    row = connection.execute(_SHOWN, {"id": id}).first()
    stored = bytes(row[0]) if row is not None else _NOBODYS
    # Compared before anything else is looked at, so that only who has the secret learns what became of the key.
    if not hmac.compare_digest(stored, _digest(secret)) or row is None:
        return None
    found = _key(row[1:])
    return found if found.opens_at(now()) else None


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


def _checked(scopes: Collection[str]) -> frozenset[Scope]:
    unknown = sorted(set(scopes) - set(SCOPES))
    if unknown or not scopes:
        what = f"There is no scope {unknown[0]!r}" if unknown else "A key without a scope opens nothing"
        raise InvalidRequest(f"{what}; choose from {', '.join(SCOPES)}.")
    return frozenset(scope for scope in SCOPES if scope in scopes)


def _check(made: Key) -> None:
    if not made.name.strip() or len(made.name) > _LONGEST_NAME:
        raise InvalidRequest(f"A key needs a name of 1 to {_LONGEST_NAME} characters, by which to know it again.")
    if made.requests_per_minute is not None and not 0 < made.requests_per_minute < 2**31:
        raise InvalidRequest("A key may ask at least once a minute; to let nobody in with it, revoke it.")
    if made.expires_at is not None and not made.created_at < made.expires_at < 2**63:
        raise InvalidRequest("The key would have expired already; give a time to come, or none.")


def _written(scopes: frozenset[Scope]) -> str:
    return " ".join(scope for scope in SCOPES if scope in scopes)


def _key(row: Sequence[Any]) -> Key:
    public, tenant, name, scopes, *rest = row
    # A scope that a later version knows gives nothing here.
    known = cast("list[Scope]", [word for word in scopes.split() if word in SCOPES])
    return Key(public, tenant, name, frozenset(known), *rest)


class SqlKeys(SqlSteps):
    """The part of the store that a server needs to know who asks."""

    async def create_key(
        self,
        name: str,
        scopes: Collection[str],
        *,
        expires_at: int | None = None,
        requests_per_minute: int | None = None,
    ) -> tuple[Key, str]:
        """A key for this tenant, and its text, which is given this once."""
        return await self._write(
            create_key, name, scopes, expires_at=expires_at, requests_per_minute=requests_per_minute
        )

    async def keys(self, *, limit: int = 100, before: Key | None = None) -> list[Key]:
        """This tenant's keys, the newest first; `before` is the last one of the page before."""
        return await self._read(list_keys, limit=limit, before=before)

    async def revoke_key(self, id: str) -> Key:
        """From now on nobody is let in with it; it stays on record."""
        return await self._write(revoke_key, id)

    async def key_shown(self, text: str) -> Key | None:
        """The key, of whichever tenant, that this is the text of; None where it is none, or no longer opens."""
        shown = parse(text)
        if shown is None:
            return None
        # No tenant: the transaction sees the key that is shown, and not a row besides.
        return await self._database.read(lambda connection: find_shown(connection, *shown), tenant="", brief=True)
