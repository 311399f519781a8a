"""Copies of a tenant's rows, made by PostgreSQL: conversations under other ids, or whole tenants under other names.

Copies have all digests that reads check. The chain of a copied conversation is not computed again, so `verify` would
object to it. Indexes are copied by shifting their numbers, which gives the rows that indexing would have written.
"""

from typing import Any, LiteralString

import psycopg
from psycopg import sql

from quire.search.postings import ENTRIES_PER_SEGMENT, NUMBERS_PER_BLOCK

SEGMENTS_PER_BLOCK = NUMBERS_PER_BLOCK // ENTRIES_PER_SEGMENT
"""A tenant that is copied has a multiple of this many segments, so that no block has numbers of two copies."""
GROWN_FILL = 70
"""Percent of the pages of a B-tree that are used after inserts in random order."""
COPY_GAP_MICROS = 86_400_000_000
"""Each copy was updated a day after the one before."""

_CONVERSATION_TABLES = ("conversations", "branches", "entries", "paths", "manifests", "exchanges", "costs")
_TENANT_TABLES = (*_CONVERSATION_TABLES, "blobs", "blob_uses", "message_segments", "terms", "search_scopes")

_ID: LiteralString = "'c' || lpad(copy::text, 3, '0') || '-' || conversation"
_PATH: LiteralString = "sha256({} || convert_to(copy::text, 'UTF8'))"
_NEW_VALUES: dict[str, LiteralString] = {
    "conversation": _ID,
    "path": _PATH.format("path"),
    "head_path": _PATH.format("head_path"),
}
_UPDATED_AT: LiteralString = f"updated_at + copy * {COPY_GAP_MICROS}"


def _json_array(*values: LiteralString) -> LiteralString:
    """The digest of a row, as `quire.log.row_digests` computes it; `values` are JSON."""
    joined: LiteralString = " || ',' || ".join(values)
    return "sha256(convert_to('[' || " + joined + " || ']', 'UTF8'))"


def _text(expression: LiteralString) -> LiteralString:
    return "coalesce(to_json(" + expression + ")::text, 'null')"


def _hex(expression: LiteralString) -> LiteralString:
    return "'\"' || encode(" + expression + ", 'hex') || '\"'"


_CONVERSATION_DIGEST = _json_array(
    _text(_ID), _text("title"), "created_at::text", "coalesce(purged_at::text, 'null')",
    *(_text(each) for each in ("client", "session", "project", "agent", "parent_agent", "purpose")),
)  # fmt: skip
_BRANCH_DIGEST = _json_array(
    _text(_ID), "branch::text", _text("name"), "created_at::text", _text("lineage"), "head_seq::text",
    _hex("head_digest"), _hex(_PATH.format("head_path")), _text("state"), "(" + _UPDATED_AT + ")::text",
)  # fmt: skip
_NEW_VALUES_BY_TABLE: dict[str, dict[str, LiteralString]] = {
    "conversations": {"updated_at": _UPDATED_AT, "row_digest": _CONVERSATION_DIGEST},
    "branches": {"updated_at": _UPDATED_AT, "row_digest": _BRANCH_DIGEST},
}


def copy_conversations(url: str, tenant: str, *, copies: int) -> None:
    """Adds copies of every conversation of the tenant, with their index.

    The primary keys of the large tables are dropped meanwhile: building them at the end takes a tenth of the time.
    Those whose keys come in random order are built as full as they would have become.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET work_mem = '256MB'")
        connection.execute("SET maintenance_work_mem = '1GB'")
        primary_keys = connection.execute(
            "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE contype = 'p' AND conrelid::regclass::text = ANY(%s)",
            ([f"quire_{each}" for each in ("entries", "paths", "terms", "message_segments")],),
        ).fetchall()
        for table, name, _ in primary_keys:
            connection.execute(sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(*map(sql.Identifier, (table, name))))
        for table in _CONVERSATION_TABLES:
            _insert_copies(connection, table, tenant=tenant, copies=copies)
        _copy_index(connection, tenant, copies)
        for table, name, definition in primary_keys:
            is_random = table in ("quire_paths", "quire_terms")
            fill = sql.SQL("WITH (fillfactor = {})").format(GROWN_FILL) if is_random else sql.SQL("")
            connection.execute(
                sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {} {}").format(
                    sql.Identifier(table), sql.Identifier(name), sql.SQL(definition), fill
                )
            )
        connection.execute("VACUUM ANALYZE")


def _insert_copies(connection: "psycopg.Connection[Any]", table: str, *, tenant: str, copies: int) -> None:
    columns = _list_columns(connection, table)
    values = {**_NEW_VALUES, **_NEW_VALUES_BY_TABLE.get(table, {})}
    connection.execute(
        sql.SQL(
            "INSERT INTO {table} ({columns}) SELECT {values} FROM generate_series(1, {copies}) AS copy, {table} "
            "WHERE tenant = {tenant}"
        ).format(
            table=sql.Identifier(f"quire_{table}"),
            columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
            values=sql.SQL(", ").join(
                sql.SQL(values[each]) if each in values else sql.Identifier(each) for each in columns
            ),
            copies=copies,
            tenant=tenant,
        )
    )


def _copy_index(connection: "psycopg.Connection[Any]", tenant: str, copies: int) -> None:
    """Copies segments and postings; the counters of their scope grow as if they had been indexed."""
    values: dict[str, Any] = {"tenant": tenant, "scope": f"messages:{tenant}", "copies": copies}
    row = connection.execute(
        "SELECT count(*), max(revision) FROM quire_message_segments WHERE tenant = %(tenant)s", values
    ).fetchone()
    segments, revisions = row or (0, 0)
    if segments % SEGMENTS_PER_BLOCK:
        raise ValueError(f"{segments} segments are no multiple of {SEGMENTS_PER_BLOCK}")
    values |= {"segments": segments, "revisions": revisions, "blocks": segments // SEGMENTS_PER_BLOCK}
    connection.execute(
        """INSERT INTO quire_message_segments (tenant, conversation, branch, segment, number, revision, last_seq,
               erasures, format, embedder, columns, terms)
           SELECT tenant, 'c' || lpad(copy::text, 3, '0') || '-' || conversation, branch, segment,
               number + copy * %(segments)s, revision + copy * %(revisions)s, last_seq, erasures, format, embedder,
               columns, terms
           FROM generate_series(1, %(copies)s) AS copy, quire_message_segments WHERE tenant = %(tenant)s""",
        values,
    )
    connection.execute(
        """INSERT INTO quire_terms (tenant, scope, term, block, postings)
           SELECT tenant, scope, term, block + copy * %(blocks)s, postings
           FROM generate_series(1, %(copies)s) AS copy, quire_terms
           WHERE tenant = %(tenant)s AND scope = %(scope)s""",
        values,
    )
    connection.execute(
        """UPDATE quire_search_scopes SET next_number = next_number * (%(copies)s + 1),
               revision = revision * (%(copies)s + 1), passage_count = passage_count * (%(copies)s + 1)
           WHERE tenant = %(tenant)s AND scope = %(scope)s""",
        values,
    )


def copy_tenants(url: str, tenant: str, *, first: int, last: int) -> None:
    """Adds tenants with the rows of this one, named after it and a number."""
    with psycopg.connect(url, autocommit=True) as connection:
        for table in _TENANT_TABLES:
            columns = _list_columns(connection, table)
            new = {
                "tenant": sql.SQL("tenant || '-' || copy"),
                "scope": sql.SQL("CASE scope WHEN 'messages:' || tenant THEN scope || '-' || copy ELSE scope END"),
            }
            connection.execute(
                sql.SQL(
                    "INSERT INTO {table} ({columns}) SELECT {values} FROM generate_series({first}, {last}) AS copy, "
                    "{table} WHERE tenant = {tenant}"
                ).format(
                    table=sql.Identifier(f"quire_{table}"),
                    columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
                    values=sql.SQL(", ").join(new.get(each, sql.Identifier(each)) for each in columns),
                    first=first,
                    last=last,
                    tenant=tenant,
                )
            )
        connection.execute("VACUUM ANALYZE")


def _list_columns(connection: "psycopg.Connection[Any]", table: str) -> list[str]:
    return [
        name
        for (name,) in connection.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = %s ORDER BY ordinal_position",
            [f"quire_{table}"],
        )
    ]
