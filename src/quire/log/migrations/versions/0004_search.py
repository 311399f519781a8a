"""Search: passages with their words and vectors, shelves, memories, and the documents of a vault.

PostgreSQL: passages and terms are split by scope, shelves by conversation. Its own full text would not do: under
row-level security no condition may use an index unless its operator is leakproof, and none of GIN's is.
"""

from alembic import op

from quire.log.migrations.tenancy import partitions_of, row_security

revision = "0004"
down_revision = "0003"

SPLIT = {"passages": "scope", "terms": "scope", "shelves": "conversation"}
WHOLE = ("scopes", "memories", "documents")


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    for statement in _postgres() if postgres else _tables(key="TEXT", big="INTEGER", bytes_="BLOB").values():
        op.execute(statement)
    for statement in _INDEXES:
        op.execute(statement)


_INDEXES = (
    "CREATE UNIQUE INDEX quire_passages_by_number ON quire_passages (tenant, scope, number)",
    "CREATE INDEX quire_passages_by_embedder ON quire_passages (tenant, scope, embedder, number)",
    "CREATE INDEX quire_memories_by_agent ON quire_memories (tenant, agent, created_at, memory)",
    "CREATE INDEX quire_memories_by_message ON quire_memories (tenant, conversation, branch, seq)",
)


def _tables(*, key: str, big: str, bytes_: str) -> dict[str, str]:
    clustered = "" if big == "BIGINT" else "WITHOUT ROWID"
    return {
        "passages": f"""
        CREATE TABLE quire_passages (
            tenant {key} NOT NULL, scope {key} NOT NULL, key {key} NOT NULL, part INTEGER NOT NULL,
            number {big} NOT NULL, title TEXT NOT NULL, text TEXT NOT NULL, digest {bytes_} NOT NULL, at {big},
            embedder {key}, vector {bytes_},
            PRIMARY KEY (tenant, scope, key, part)
        )""",
        "terms": f"""
        CREATE TABLE quire_terms (
            tenant {key} NOT NULL, scope {key} NOT NULL, term {key} NOT NULL, block {big} NOT NULL,
            places {bytes_} NOT NULL,
            PRIMARY KEY (tenant, scope, term, block)
        ) {clustered}""",
        "scopes": f"""
        CREATE TABLE quire_scopes (
            tenant {key} NOT NULL, scope {key} NOT NULL, next {big} NOT NULL, passages {big} NOT NULL,
            PRIMARY KEY (tenant, scope)
        )""",
        "shelves": f"""
        CREATE TABLE quire_shelves (
            tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, shelf INTEGER NOT NULL,
            upto {big} NOT NULL, version TEXT NOT NULL, data {bytes_} NOT NULL,
            PRIMARY KEY (tenant, conversation, branch, shelf)
        )""",
        "memories": f"""
        CREATE TABLE quire_memories (
            tenant {key} NOT NULL, memory {key} NOT NULL, agent {key} NOT NULL, text TEXT NOT NULL,
            conversation {key}, branch INTEGER, seq {big}, source TEXT,
            created_at {big} NOT NULL, retired_at {big}, replaced_by {key},
            PRIMARY KEY (tenant, memory)
        )""",
        "documents": f"""
        CREATE TABLE quire_documents (
            tenant {key} NOT NULL, vault {key} NOT NULL, path {key} NOT NULL,
            digest {bytes_} NOT NULL, size {big} NOT NULL, modified {big} NOT NULL,
            title TEXT NOT NULL, summary TEXT NOT NULL, aliases TEXT NOT NULL, headings TEXT NOT NULL,
            PRIMARY KEY (tenant, vault, path)
        )""",
    }


def _postgres() -> list[str]:
    tables = _tables(key='TEXT COLLATE "C"', big="BIGINT", bytes_="BYTEA")
    statements = [tables[table] for table in WHOLE]
    names: list[str] = []
    for table, column in SPLIT.items():
        statements.append(f"{tables[table]} PARTITION BY HASH ({column})")
        statements += _uncompressed(table)
        partitions, making = partitions_of(table)
        names += partitions
        statements += making
    return statements + row_security(*WHOLE, *SPLIT, *names)


def _uncompressed(table: str) -> list[str]:
    """What is packed already is not worth the time that compressing it again would take."""
    columns = {"passages": "vector", "terms": "places", "shelves": "data"}
    return [f"ALTER TABLE quire_{table} ALTER COLUMN {columns[table]} SET STORAGE EXTERNAL"]
