"""What many users need: keys that let them in, requests found by their id, conversations in the order of their use.

And a way to find work that was left undone, whoever's it is: on PostgreSQL a function that lists which conversation of
which tenant was used when. It is the owner's, and while it runs, and only then, the owner sees the rows of all.
"""

from alembic import op

from quire.log.migrations.tenancy import row_security

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    key, big, digest = ('TEXT COLLATE "C"', "BIGINT", "BYTEA") if postgres else ("TEXT", "INTEGER", "BLOB")
    op.execute(f"ALTER TABLE quire_manifests ADD COLUMN request {key}")
    op.execute("CREATE INDEX quire_manifests_by_request ON quire_manifests (tenant, request) WHERE request IS NOT NULL")
    for table in ("conversations", "branches"):
        op.execute(f"ALTER TABLE quire_{table} ADD COLUMN used_at {big} NOT NULL DEFAULT 0")
    op.execute(f"ALTER TABLE quire_conversations ADD COLUMN purged_at {big}")
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
    op.execute("CREATE INDEX quire_conversations_by_age ON quire_conversations (used_at, tenant, conversation)")
    op.execute(f"CREATE TABLE quire_sweeps (name {key} NOT NULL PRIMARY KEY, upto {big} NOT NULL)")
    if postgres:
        for statement in row_security("keys"):
            op.execute(statement)
        op.execute(f"CREATE POLICY shown ON quire_keys FOR SELECT USING ({SHOWN_KEY})")
        for statement in _listing(schema=op.get_bind().exec_driver_sql("SELECT current_schema()").scalar_one()):
            op.execute(statement)


def _listing(*, schema: str) -> list[str]:
    quoted = '"' + schema.replace('"', '""') + '"'
    return [
        f"""
        CREATE POLICY swept ON quire_conversations FOR SELECT TO CURRENT_USER
        USING (current_setting('{SWEEP}', true) = 'on')""",
        # The setting is not in the function's head, where only a superuser could name one that no extension knows.
        f"""
        CREATE FUNCTION quire_used(since bigint, of_tenant text, of_conversation text, until bigint, most integer)
        RETURNS TABLE (tenant text, conversation text, used_at bigint)
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = {quoted}, pg_temp
        AS $$
        BEGIN
            PERFORM set_config('{SWEEP}', 'on', true);
            RETURN QUERY
                SELECT found.tenant, found.conversation, found.used_at FROM quire_conversations AS found
                WHERE found.used_at BETWEEN since AND until
                AND (found.used_at, found.tenant, found.conversation) > (since, of_tenant, of_conversation)
                ORDER BY found.used_at, found.tenant, found.conversation LIMIT most;
            PERFORM set_config('{SWEEP}', '', true);
        END
        $$""",  # noqa: S608 (what is inserted is the schema's quoted name and a constant)
        "REVOKE ALL ON FUNCTION quire_used FROM PUBLIC",
    ]


SWEEP = "quire.sweep"
"""Set inside the function alone; whoever else sets it gains nothing, unless it is the owner."""

SHOWN_KEY = "id = NULLIF(current_setting('quire.key', true), '')"
"""Whose tenant is not known yet sees the one key that it shows, and nothing else."""
