"""People who sign in, their sessions, what they share, and the audit trail."""

from alembic import op

from quire.db.migrations.tenancy import build_row_security

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    is_postgres = op.get_bind().dialect.name == "postgresql"
    key, big, data = ('TEXT COLLATE "C"', "BIGINT", "BYTEA") if is_postgres else ("TEXT", "INTEGER", "BLOB")
    op.execute(
        f"CREATE TABLE quire_users (tenant {key} NOT NULL, id {key} NOT NULL, subject {key} NOT NULL, "
        f"name TEXT NOT NULL, email TEXT NOT NULL, roles TEXT NOT NULL, created_at {big} NOT NULL, "
        f"confirmed_at {big} NOT NULL, disabled_at {big}, row_digest {data} NOT NULL, "
        "PRIMARY KEY (tenant, id), UNIQUE (tenant, subject))"
    )
    op.execute(
        f"CREATE TABLE quire_sessions (tenant {key} NOT NULL, digest {data} NOT NULL, user_id {key} NOT NULL, "
        f"created_at {big} NOT NULL, expires_at {big} NOT NULL, refresh_at {big} NOT NULL, tokens TEXT NOT NULL, "
        "PRIMARY KEY (tenant, digest))"
    )
    op.execute(
        f"CREATE TABLE quire_shares (tenant {key} NOT NULL, owner {key} NOT NULL, conversation {key} NOT NULL, "
        f"reader {key} NOT NULL, created_at {big} NOT NULL, PRIMARY KEY (tenant, owner, conversation, reader))"
    )
    op.execute(
        f"CREATE TABLE quire_audit (tenant {key} NOT NULL, seq {big} NOT NULL, at {big} NOT NULL, "
        f"actor TEXT NOT NULL, action TEXT NOT NULL, target TEXT NOT NULL, allowed INTEGER NOT NULL, "
        f"address TEXT NOT NULL, digest {data} NOT NULL, PRIMARY KEY (tenant, seq))"
    )
    op.execute(
        f"CREATE TABLE quire_audit_heads (tenant {key} NOT NULL, seq {big} NOT NULL, digest {data} NOT NULL, "
        "PRIMARY KEY (tenant))"
    )
    if is_postgres:
        for statement in build_row_security("users", "sessions", "shares", "audit", "audit_heads"):
            op.execute(statement)
