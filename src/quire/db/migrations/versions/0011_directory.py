"""People and groups that a directory provisions by SCIM."""

from alembic import op

from quire.db.migrations.tenancy import build_row_security

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    is_postgres = op.get_bind().dialect.name == "postgresql"
    key, big, data = ('TEXT COLLATE "C"', "BIGINT", "BYTEA") if is_postgres else ("TEXT", "INTEGER", "BLOB")
    op.execute(
        f"CREATE TABLE quire_directory_users (tenant {key} NOT NULL, id {key} NOT NULL, user_name {key} NOT NULL, "
        f"resource TEXT NOT NULL, created_at {big} NOT NULL, changed_at {big} NOT NULL, row_digest {data} NOT NULL, "
        "PRIMARY KEY (tenant, id), UNIQUE (tenant, user_name))"
    )
    op.execute(
        f"CREATE TABLE quire_directory_groups (tenant {key} NOT NULL, id {key} NOT NULL, display_name {key} NOT NULL, "
        f"external_id {key}, created_at {big} NOT NULL, changed_at {big} NOT NULL, row_digest {data} NOT NULL, "
        "PRIMARY KEY (tenant, id))"
    )
    op.execute(
        f"CREATE TABLE quire_directory_members (tenant {key} NOT NULL, group_id {key} NOT NULL, "
        f"user_id {key} NOT NULL, row_digest {data} NOT NULL, PRIMARY KEY (tenant, group_id, user_id))"
    )
    op.execute("CREATE INDEX quire_directory_members_user ON quire_directory_members (tenant, user_id)")
    if is_postgres:
        for statement in build_row_security("directory_users", "directory_groups", "directory_members"):
            op.execute(statement)
