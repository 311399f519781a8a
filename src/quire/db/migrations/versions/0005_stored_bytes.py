"""Stored bytes of tenants with a quota, and those that calls in progress have reserved."""

from alembic import op

from quire.db.migrations.tenancy import build_row_security

revision = "0005"
down_revision = "0004"

TABLE = "stored_bytes"


def upgrade() -> None:
    is_postgres = op.get_bind().dialect.name == "postgresql"
    key, big = ('TEXT COLLATE "C"', "BIGINT") if is_postgres else ("TEXT", "INTEGER")
    op.execute(f"CREATE TABLE quire_{TABLE} (tenant {key} NOT NULL, bytes {big} NOT NULL, PRIMARY KEY (tenant))")
    op.execute(f"ALTER TABLE quire_spend_reservations ADD COLUMN stored_bytes {big} NOT NULL DEFAULT 0")
    if is_postgres:
        for statement in build_row_security(TABLE):
            op.execute(statement)
