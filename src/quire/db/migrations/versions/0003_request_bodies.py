"""Bodies of requests as the gateway sent them."""

from alembic import op

from quire.db.migrations.tenancy import build_partitions, build_row_security

revision = "0003"
down_revision = "0002"

TABLE = "request_bodies"


def upgrade() -> None:
    is_postgres = op.get_bind().dialect.name == "postgresql"
    key, big, bytes_ = ('TEXT COLLATE "C"', "BIGINT", "BYTEA") if is_postgres else ("TEXT", "INTEGER", "BLOB")
    statement = f"""
        CREATE TABLE quire_{TABLE} (
            tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, seq {big} NOT NULL,
            base_branch INTEGER, base_seq {big}, size {big} NOT NULL, delta {bytes_} NOT NULL,
            PRIMARY KEY (tenant, conversation, branch, seq)
        )"""
    if not is_postgres:
        op.execute(statement)
        return
    partitions, partition_statements = build_partitions(TABLE)
    for each in (
        f"{statement} PARTITION BY HASH (conversation)",
        # Compressed already.
        f"ALTER TABLE quire_{TABLE} ALTER COLUMN delta SET STORAGE EXTERNAL",
        *partition_statements,
        *build_row_security(TABLE, *partitions),
    ):
        op.execute(each)
