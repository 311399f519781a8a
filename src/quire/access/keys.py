"""API keys: create, list, revoke and verify.

The text of a key is `quire_<id>_<secret>`. The id is public. Only the digest of the secret is stored, so the text is
available only when the key is created. A slow hash would add no security, because the secret has 256 random bits.

The token buckets of keys in PostgreSQL hold the permits of all servers, so that all share one rate. Their time is the
database's, so that the clocks of servers do not matter. A crash of the database empties the table, and then every
bucket is full.
"""

import hmac
import json
import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any, Literal, NamedTuple, Protocol, cast, get_args

from sqlalchemy import Connection, bindparam, insert, select, text, tuple_, update

from quire.db.database import TransactionOptions
from quire.db.dialects import allow_key_lookup, sanitize_text
from quire.db.schema import api_keys, rate_limits
from quire.db.store_part import StorePart, read, write
from quire.errors import AccessDenied, InsufficientScope, InvalidKey, InvalidRequest, KeyNotFound
from quire.log.row_digests import ROW_DIGEST, has_row_digest, with_row_digest
from quire.model.ids import new_id, new_secret, now
from quire.model.policy import MAX_MODEL_NAME_CHARS

KeyScope = Literal["read", "write", "chat", "approve", "admin", "scim"]
"""Rights of a key: read, write, call models, approve tool calls, administer keys, purges and settings, or provision
people; none implies another."""

KEY_SCOPES: tuple[KeyScope, ...] = get_args(KeyScope)

_KEY_PATTERN = re.compile(r"quire_([0-9a-z]{26})_([0-9A-Za-z]{43})", re.ASCII)
_MAX_NAME_CHARS = 200
MAX_KEY_SPEND_USD = 1e9
"""Maximum spend cap of a key, in US dollars."""
MAX_MODEL_PATTERNS = 50
"""Maximum patterns in a key's list of allowed models. Each of them is matched with the name of every request."""
MAX_MODEL_PATTERN_CHARS = MAX_MODEL_NAME_CHARS
"""Maximum length of one of these patterns."""
# No secret has this digest; with it an unknown id takes the same time as a known one.
_DUMMY_DIGEST = bytes(32)


class ApiKey(NamedTuple):
    id: str
    tenant: str
    name: str
    scopes: frozenset[KeyScope]
    requests_per_minute: int | None
    """Rate limit of this key, or None if the limit of the settings applies."""
    max_spend: float | None
    """Maximum cost of all calls with this key in US dollars."""
    models: tuple[str, ...] | None
    """Patterns of the models that the key may call, as in `fnmatch`, or None for all models."""
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    created_by: str | None = None
    """Id of the key that created this one, or None for one that the operator created."""

    def is_valid_at(self, time: int) -> bool:
        """Whether the key is neither revoked nor expired at this time."""
        return self.revoked_at is None and (self.expires_at is None or time < self.expires_at)


_COLUMNS = (
    api_keys.c.id,
    api_keys.c.tenant,
    api_keys.c.name,
    api_keys.c.scopes,
    api_keys.c.requests_per_minute,
    api_keys.c.max_spend,
    api_keys.c.models,
    api_keys.c.created_at,
    api_keys.c.expires_at,
    api_keys.c.revoked_at,
    api_keys.c.created_by,
)
_TENANT_KEYS = select(*_COLUMNS).where(api_keys.c.tenant == bindparam("tenant"))
_BY_ID = select(api_keys).where(api_keys.c.id == bindparam("id"))


def contains_key(text: str) -> bool:
    """Whether a text contains something that has the form of a key."""
    return _KEY_PATTERN.search(text) is not None


def create_key(
    connection: Connection,
    tenant: str,
    name: str,
    scopes: Collection[str],
    *,
    expires_at: int | None = None,
    requests_per_minute: int | None = None,
    max_spend: float | None = None,
    models: Sequence[str] | None = None,
    created_by: str | None = None,
) -> tuple[ApiKey, str]:
    """Creates a key for this tenant; returns it with its text, which cannot be read again.

    `max_spend` is in US dollars; `models` are patterns of the models that the key may call. A key that another one
    creates has at most the rights of that one, and its limits where none are given.
    """
    unknown = sorted(set(scopes) - set(KEY_SCOPES))
    if unknown or not scopes:
        problem = f"There is no scope {unknown[0]!r}" if unknown else "An API key needs at least one scope"
        raise InvalidRequest(f"{problem}; choose from {', '.join(KEY_SCOPES)}.")
    key = ApiKey(
        id=new_id(),
        tenant=tenant,
        name=sanitize_text(name),
        scopes=frozenset(scope for scope in KEY_SCOPES if scope in scopes),
        requests_per_minute=requests_per_minute,
        max_spend=max_spend,
        models=tuple(models) if models is not None else None,
        created_at=now(),
        expires_at=expires_at,
        revoked_at=None,
        created_by=created_by,
    )
    _validate_key(key)
    if created_by is not None:
        # Locked, so that a revocation of the creator finds the new key, or comes first.
        query = select(*_COLUMNS).where(api_keys.c.tenant == tenant, api_keys.c.id == created_by).with_for_update()
        row = connection.execute(query).first()
        creator = _to_key(row) if row is not None else None
        if creator is None or not creator.is_valid_at(key.created_at):
            raise InvalidKey
        key = _limit_key(key, creator)
    secret = new_secret()
    row = key._asdict() | {
        "scopes": " ".join(scope for scope in KEY_SCOPES if scope in key.scopes),
        "models": json.dumps(key.models) if key.models is not None else None,
        "digest": _hash_secret(secret),
    }
    connection.execute(insert(api_keys), with_row_digest(api_keys, row))
    return key, f"quire_{key.id}_{secret}"


def _limit_key(key: ApiKey, creator: ApiKey) -> ApiKey:
    """The key with the limits of its creator where it has none. Raises `AccessDenied` if it would have more rights."""
    if excess := sorted(key.scopes - creator.scopes):
        raise InsufficientScope(
            f"The new key cannot have the scope {excess[0]!r}, which your own key lacks; use a key that has it."
        )
    if "chat" in key.scopes and creator.max_spend is not None:
        # Each key counts what it spends by itself.
        raise AccessDenied(
            "Your API key has a spend cap, so it cannot create a key with the scope 'chat'; use a key without a cap."
        )
    limited = key
    for name in ("expires_at", "requests_per_minute", "max_spend"):
        own, limit = getattr(key, name), getattr(creator, name)
        if limit is not None and own is None:
            limited = limited._replace(**{name: limit})
        elif limit is not None and own > limit:
            raise AccessDenied(f"The new key's `{name}` exceeds your own key's, {limit}. Give at most that.")
    if creator.models is not None:
        limited = limited._replace(models=key.models or creator.models)
        for model in key.models or ():
            is_name = not any(char in model for char in "*?[")
            if model not in creator.models and not (
                is_name and any(fnmatchcase(model, each) for each in creator.models)
            ):
                raise AccessDenied(
                    f"Your API key does not allow the model {model!r}; name models that it allows: "
                    f"{', '.join(creator.models)}."
                )
    return limited


class KeyPosition(Protocol):
    """Position in the list of keys: an `ApiKey`, or what a pagination cursor has of it."""

    @property
    def id(self) -> str: ...
    @property
    def created_at(self) -> int: ...


def list_keys(
    connection: Connection, tenant: str, *, limit: int = 100, before: KeyPosition | None = None
) -> list[ApiKey]:
    """Newest first, revoked and expired keys included. Cursor pagination: `before` ends the previous page."""
    query = _TENANT_KEYS.order_by(api_keys.c.created_at.desc(), api_keys.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(tuple_(api_keys.c.created_at, api_keys.c.id) < (before.created_at, before.id))
    return [_to_key(row) for row in connection.execute(query, {"tenant": tenant})]


def revoke_key(connection: Connection, tenant: str, id: str) -> ApiKey:
    """Revokes a key and all keys that were created with it, directly or not. They stay listed. A second call does not
    change the time of revocation."""
    in_tenant, revoked_at = api_keys.c.tenant == tenant, now()
    revoked: dict[str, Mapping[str, Any]] = {}
    found = api_keys.c.id == id
    while rows := connection.execute(select(api_keys).where(in_tenant, found).with_for_update()).mappings().all():
        for row in rows:
            revoked[row["id"]] = dict(row)
            if row["revoked_at"] is None:
                revoked[row["id"]] = changed = with_row_digest(api_keys, {**row, "revoked_at": revoked_at})
                values = {name: changed[name] for name in ("revoked_at", ROW_DIGEST)}
                connection.execute(update(api_keys).where(in_tenant, api_keys.c.id == row["id"]).values(values))
        parents = [row["id"] for row in rows]
        found = api_keys.c.created_by.in_(parents) & api_keys.c.id.not_in(list(revoked))
    if id not in revoked:
        raise KeyNotFound(f"Tenant {tenant!r} has no API key {id!r}; `quire key list` lists its keys.")
    return _to_key([revoked[id][column.name] for column in _COLUMNS])


def parse_key(text: str) -> tuple[str, str] | None:
    """Id and secret of a text with the format of a key."""
    match = _KEY_PATTERN.fullmatch(text)
    return (match[1], match[2]) if match is not None else None


def find_valid_key(connection: Connection, id: str, secret: str) -> ApiKey | None:
    """The key of any tenant with this id, if the secret matches and the key is valid now."""
    allow_key_lookup(connection, id)
    row = connection.execute(_BY_ID, {"id": id}).mappings().first()
    stored_digest = bytes(row["digest"]) if row is not None else _DUMMY_DIGEST
    # The comparison comes first, so that only a holder of the secret can learn whether the key is revoked or expired.
    if not hmac.compare_digest(stored_digest, _hash_secret(secret)) or row is None:
        return None
    key = _to_key([row[column.name] for column in _COLUMNS])
    # A changed row may belong to a key that was revoked.
    return key if key.is_valid_at(now()) and has_row_digest(api_keys, row) else None


def _hash_secret(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


def _validate_key(key: ApiKey) -> None:
    if not key.name.strip() or len(key.name) > _MAX_NAME_CHARS:
        raise InvalidRequest(
            f"The name of an API key must have 1 to {_MAX_NAME_CHARS} characters; give it another name."
        )
    if key.requests_per_minute is not None and not 0 < key.requests_per_minute < 2**31:
        raise InvalidRequest(
            "The rate limit of an API key must be at least 1 request per minute; to disable a key, revoke it."
        )
    if key.max_spend is not None and not 0 < key.max_spend <= MAX_KEY_SPEND_USD:
        raise InvalidRequest(
            f"The spend cap of an API key must be above 0 and at most {MAX_KEY_SPEND_USD:,.0f} US dollars."
        )
    if key.models is not None and not 0 < len(key.models) <= MAX_MODEL_PATTERNS:
        raise InvalidRequest(f"An API key names 1 to {MAX_MODEL_PATTERNS} models or patterns, or none for all models.")
    for pattern in key.models or ():
        if not 0 < len(pattern) <= MAX_MODEL_PATTERN_CHARS or sanitize_text(pattern) != pattern:
            raise InvalidRequest(
                f"The name or pattern of an allowed model has 1 to {MAX_MODEL_PATTERN_CHARS} characters, without NUL."
            )
    if key.expires_at is not None and not key.created_at < key.expires_at < 2**63:
        raise InvalidRequest("The expiry time of the API key is in the past; give a later time, or none.")


def _to_key(row: Sequence[Any]) -> ApiKey:
    key_id, tenant, name, scopes, requests_per_minute, max_spend, models, *times = row
    # Scopes of a later version are ignored.
    known_scopes = cast("list[KeyScope]", [word for word in scopes.split() if word in KEY_SCOPES])
    patterns = tuple(json.loads(models)) if models is not None else None
    return ApiKey(key_id, tenant, name, frozenset(known_scopes), requests_per_minute, max_spend, patterns, *times)


class Keys(StorePart):
    """API keys of the tenant."""

    create = write(create_key)
    list = read(list_keys)
    revoke = write(revoke_key)

    async def verify(self, presented: str) -> ApiKey | None:
        """The valid key of any tenant with this text, or None if there is none, or if it is revoked or expired."""
        id_and_secret = parse_key(presented)
        if id_and_secret is None:
            return None
        # Without a tenant the transaction sees only the presented key (row-level security).
        return await self.base.database.read(
            lambda connection: find_valid_key(connection, *id_and_secret), TransactionOptions("", inline=True)
        )


class PermitGrant(NamedTuple):
    """Permits that a server may use, and the tokens that stay in the bucket."""

    permits: int
    tokens: float


# The bucket refills up to `per_minute` tokens; whole tokens are granted, at most as many as requested. A request that
# finds none takes nothing.
_TAKE_PERMITS = text(f"""
    INSERT INTO {rate_limits.name} AS bucket (tenant, key_id, tokens, granted, updated_at)
    VALUES (:tenant, :key_id, :per_minute - LEAST(:permits, :per_minute), LEAST(:permits, :per_minute),
            EXTRACT(EPOCH FROM clock_timestamp()))
    ON CONFLICT (tenant, key_id) DO UPDATE SET (tokens, granted, updated_at) = (
        SELECT available - LEAST(:permits, floor(available)), LEAST(:permits, floor(available)), at
        FROM (
            SELECT LEAST(:per_minute, bucket.tokens + GREATEST(0, at - bucket.updated_at) * :per_minute / 60)
                   AS available, GREATEST(at, bucket.updated_at) AS at
            FROM (SELECT EXTRACT(EPOCH FROM clock_timestamp())::double precision AS at) AS clock
        ) AS refilled
    )
    RETURNING granted, tokens
""")  # noqa: S608 (our name)


def take_permits(connection: Connection, tenant: str, key_id: str, *, per_minute: int, permits: int) -> PermitGrant:
    """Takes up to this many permits from the bucket of an API key. PostgreSQL only: SQLite has one server."""
    params = {"tenant": tenant, "key_id": key_id, "per_minute": float(per_minute), "permits": float(permits)}
    granted, tokens = connection.execute(_TAKE_PERMITS, params).one()
    return PermitGrant(int(granted), tokens)


class RateLimits(StorePart):
    """Rate limits of API keys that all servers share."""

    take = write(take_permits)
