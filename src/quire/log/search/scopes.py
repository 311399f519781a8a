"""Search scopes: the row that a writer of a scope locks, with its counters and the format version of its index."""

from typing import NamedTuple

from sqlalchemy import Connection, select, update

from quire.log.dialects import insert_or_ignore
from quire.log.schema import search_scopes
from quire.search.format import FORMAT_VERSION


class SearchScope(NamedTuple):
    scope: str
    next_number: int
    passage_count: int
    revision: int
    format: int


_COLUMNS = tuple(search_scopes.c[name] for name in SearchScope._fields)


def get_scope(connection: Connection, tenant: str, scope: str) -> SearchScope | None:
    row = connection.execute(_select(tenant, scope)).first()
    return None if row is None else SearchScope._make(row)


def has_scope(connection: Connection, tenant: str, scope: str) -> bool:
    return get_scope(connection, tenant, scope) is not None


def lock_scope(connection: Connection, tenant: str, scope: str) -> SearchScope:
    """Locks the scope, which is created if needed, until the commit."""
    new_row = {"tenant": tenant, **SearchScope(scope, 0, 0, 0, FORMAT_VERSION)._asdict()}
    connection.execute(insert_or_ignore(connection, search_scopes), new_row)
    row = connection.execute(_select(tenant, scope).with_for_update()).first()
    # None if a purge has just deleted the whole scope.
    return SearchScope._make(row) if row is not None else lock_scope(connection, tenant, scope)


def update_scope(connection: Connection, tenant: str, scope: SearchScope) -> None:
    key = (search_scopes.c.tenant == tenant, search_scopes.c.scope == scope.scope)
    connection.execute(update(search_scopes).where(*key).values(**scope._asdict()))


def _select(tenant: str, scope: str):
    return select(*_COLUMNS).where(search_scopes.c.tenant == tenant, search_scopes.c.scope == scope)
