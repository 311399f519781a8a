"""The log: conversations, branches, entries, paths and blobs.

PostgreSQL: entries are split by conversation and paths by path, sixteen ways each; row-level security keeps
tenants apart for every role that is not a superuser, the tables' owner included.
"""

from alembic import op

from quire.log.migrations.tenancy import partitions_of, row_security

revision = "0001"
down_revision = None

TABLES = ("conversations", "branches", "entries", "paths", "blobs", "blob_uses")


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    for statement in _postgres() if postgres else _tables(key="TEXT", big="INTEGER", bytes_="BLOB"):
        op.execute(statement)


def _tables(*, key: str, big: str, bytes_: str) -> list[str]:
    clustered = "" if big == "BIGINT" else "WITHOUT ROWID"
    return [
        f"""
        CREATE TABLE quire_conversations (
            tenant {key} NOT NULL, conversation {key} NOT NULL,
            title TEXT NOT NULL, created_at {big} NOT NULL,
            PRIMARY KEY (tenant, conversation)
        )""",
        "CREATE INDEX quire_conversations_by_time ON quire_conversations (tenant, created_at, conversation)",
        f"""
        CREATE TABLE quire_branches (
            tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL,
            name TEXT NOT NULL, created_at {big} NOT NULL, lineage TEXT NOT NULL,
            head_seq {big} NOT NULL, head_digest {bytes_} NOT NULL, head_path {bytes_} NOT NULL, state TEXT NOT NULL,
            PRIMARY KEY (tenant, conversation, branch)
        )""",
        f"""
        CREATE TABLE quire_entries (
            tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, seq {big} NOT NULL,
            kind TEXT NOT NULL, role TEXT, author TEXT NOT NULL, at {big} NOT NULL,
            digest {bytes_} NOT NULL, path {bytes_} NOT NULL, tokens INTEGER, counter TEXT,
            body TEXT NOT NULL, notes TEXT, purged_at {big},
            PRIMARY KEY (tenant, conversation, branch, seq)
        )""",
        """
        CREATE INDEX quire_entries_control ON quire_entries (tenant, conversation, branch, seq)
        WHERE kind <> 'message'""",
        f"""
        CREATE TABLE quire_paths (
            tenant {key} NOT NULL, path {bytes_} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL,
            seq {big} NOT NULL,
            PRIMARY KEY (tenant, path, conversation, branch)
        ) {clustered}""",
        f"""
        CREATE TABLE quire_blobs (
            tenant {key} NOT NULL, digest {bytes_} NOT NULL, media_type TEXT NOT NULL, data {bytes_} NOT NULL,
            PRIMARY KEY (tenant, digest)
        )""",
        f"""
        CREATE TABLE quire_blob_uses (
            tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, seq {big} NOT NULL,
            digest {bytes_} NOT NULL,
            PRIMARY KEY (tenant, conversation, branch, seq, digest),
            FOREIGN KEY (tenant, digest) REFERENCES quire_blobs (tenant, digest)
        ) {clustered}""",
        "CREATE INDEX quire_blob_uses_by_digest ON quire_blob_uses (tenant, digest)",
    ]


def _postgres() -> list[str]:
    statements = [
        _partitioned(statement) for statement in _tables(key='TEXT COLLATE "C"', big="BIGINT", bytes_="BYTEA")
    ]
    names: list[str] = []
    for table in ("entries", "paths"):
        partitions, making = partitions_of(table)
        names += partitions
        statements += making
    # Appends rewrite the branch's row and touch none of its indexed columns: room on the page keeps that in place.
    statements.append("ALTER TABLE quire_branches SET (fillfactor = 50)")
    return statements + row_security(*TABLES, *names)


def _partitioned(statement: str) -> str:
    if "CREATE TABLE quire_entries" in statement:
        return statement + " PARTITION BY HASH (conversation)"
    if "CREATE TABLE quire_paths" in statement:
        return statement + " PARTITION BY HASH (path)"
    return statement
