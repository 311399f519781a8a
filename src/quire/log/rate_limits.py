"""Token buckets of API keys in PostgreSQL, from which every server takes permits, so that all share one rate.

Time is the database's, so that the clocks of servers do not matter. A crash of the database empties the table, and then
every bucket is full.
"""

from typing import NamedTuple

from sqlalchemy import Connection, text

from quire.log.schema import rate_limits
from quire.log.store_base import SqlStoreBase


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


class SqlRateLimits(SqlStoreBase):
    """The methods of the store for rate limits."""

    async def take_permits(self, key_id: str, *, per_minute: int, permits: int) -> PermitGrant:
        """Takes up to this many permits from the bucket of an API key. PostgreSQL only: SQLite has one server."""
        return await self._write(_take_permits, key_id, per_minute, permits)


def _take_permits(connection: Connection, tenant: str, key_id: str, per_minute: int, permits: int) -> PermitGrant:
    params = {"tenant": tenant, "key_id": key_id, "per_minute": float(per_minute), "permits": float(permits)}
    granted, tokens = connection.execute(_TAKE_PERMITS, params).one()
    return PermitGrant(int(granted), tokens)
