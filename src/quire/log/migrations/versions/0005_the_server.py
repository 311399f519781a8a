"""What many users need: keys that let them in, requests found by their id, conversations in the order of their use."""

from alembic import op

from quire.log.migrations.tenancy import OWN_ROWS, row_security

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    key, big, digest = ('TEXT COLLATE "C"', "BIGINT", "BYTEA") if postgres else ("TEXT", "INTEGER", "BLOB")
    op.execute(f"ALTER TABLE quire_manifests ADD COLUMN request {key}")
    op.execute("CREATE INDEX quire_manifests_by_request ON quire_manifests (tenant, request) WHERE request IS NOT NULL")
    for table in ("conversations", "branches"):
        op.execute(f"ALTER TABLE quire_{table} ADD COLUMN used_at {big} NOT NULL DEFAULT 0")
    if postgres:
        # Even the owner sees only a tenant's rows, and what is migrated is every tenant's.
        op.execute("ALTER TABLE quire_conversations NO FORCE ROW LEVEL SECURITY")
    op.execute("UPDATE quire_conversations SET used_at = created_at")
    if postgres:
        op.execute("ALTER TABLE quire_conversations FORCE ROW LEVEL SECURITY")
    op.execute("DROP INDEX quire_conversations_by_time")
    op.execute("CREATE INDEX quire_conversations_by_use ON quire_conversations (tenant, used_at, conversation)")
    op.execute(f"""
        CREATE TABLE quire_keys (
            tenant {key} NOT NULL, id {key} NOT NULL, name TEXT NOT NULL, digest {digest} NOT NULL,
            scopes TEXT NOT NULL, requests_per_minute INTEGER,
            created_at {big} NOT NULL, expires_at {big}, revoked_at {big},
            PRIMARY KEY (tenant, id)
        )""")
    op.execute("CREATE UNIQUE INDEX quire_keys_by_id ON quire_keys (id)")
    if postgres:
        for statement in row_security("keys", rows=f"({OWN_ROWS} OR {SHOWN_KEY})"):
            op.execute(statement)


SHOWN_KEY = "id = NULLIF(current_setting('quire.key', true), '')"
"""Whose tenant is not known yet sees the one key that it shows, and nothing else."""
