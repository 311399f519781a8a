"""Files that were imported to their end, and what their readers noticed in each conversation."""

from alembic import op

from quire.db.migrations.tenancy import build_row_security

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    is_postgres = op.get_bind().dialect.name == "postgresql"
    key, big, data = ('TEXT COLLATE "C"', "BIGINT", "BYTEA") if is_postgres else ("TEXT", "INTEGER", "BLOB")
    op.execute(
        f"CREATE TABLE quire_imported_files (tenant {key} NOT NULL, file {data} NOT NULL, size {big} NOT NULL, "
        f"modified_ns {big} NOT NULL, PRIMARY KEY (tenant, file))"
    )
    op.execute(
        f"CREATE TABLE quire_observations (tenant {key} NOT NULL, conversation {key} NOT NULL, "
        "observations TEXT NOT NULL, PRIMARY KEY (tenant, conversation))"
    )
    if is_postgres:
        for statement in build_row_security("imported_files", "observations"):
            op.execute(statement)
