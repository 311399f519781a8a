"""Imports know the version of the reader that wrote them, a request is counted once, and a session has its origin.

Rows that exist were written by version 1 of their readers. Conversations are counted again during other work.
"""

from alembic import op

from quire.db.migrations.tenancy import build_row_security

revision = "0014"
down_revision = "0013"

OWN = "tenant = current_setting('quire.tenant') AND conversation = imported"


def upgrade() -> None:
    is_postgres = op.get_bind().dialect.name == "postgresql"
    key, big, data = ('TEXT COLLATE "C"', "BIGINT", "BYTEA") if is_postgres else ("TEXT", "INTEGER", "BLOB")
    op.execute("DROP INDEX quire_imports_item")
    for table in ("imports", "imported_files"):
        op.execute(f"ALTER TABLE quire_{table} ADD COLUMN reads INTEGER NOT NULL DEFAULT 1")
    op.execute(
        f"CREATE TABLE quire_counted_requests (tenant {key} NOT NULL, request {data} NOT NULL, "
        f"conversation {key} NOT NULL, branch INTEGER NOT NULL, seq {big} NOT NULL, is_counted INTEGER NOT NULL, "
        "is_recorded INTEGER NOT NULL, PRIMARY KEY (tenant, request, conversation, branch, seq))"
    )
    op.execute("CREATE INDEX quire_counted_requests_of ON quire_counted_requests (tenant, conversation)")
    op.execute(
        f"CREATE TABLE quire_continued_sessions (tenant {key} NOT NULL, imported {key} NOT NULL, "
        f"conversation {key} NOT NULL, branch INTEGER NOT NULL, seq {big} NOT NULL, written_at {big} NOT NULL, "
        "PRIMARY KEY (tenant, imported))"
    )
    op.execute("DROP INDEX quire_counted_branches_outdated")
    op.execute(
        "CREATE INDEX quire_counted_branches_outdated ON quire_counted_branches (tenant, conversation) WHERE rules < 3"
    )
    if not is_postgres:
        return
    schema = op.get_bind().exec_driver_sql("SELECT current_schema()").scalar_one().replace('"', '""')
    statements = [
        *build_row_security("counted_requests", "continued_sessions"),
        # The role of the application cannot delete entries, except of a conversation that was imported: the same
        # transaction writes it again, or it is the twin of one that the gateway recorded.
        f"""
        CREATE FUNCTION quire_delete_imported(imported text, is_twin boolean)
        RETURNS void
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = "{schema}", pg_temp
        AS $$
        BEGIN
            IF NOT EXISTS (SELECT 1 FROM quire_imports WHERE {OWN}) THEN
                RETURN;
            END IF;
            DELETE FROM quire_paths WHERE {OWN} AND path IN (SELECT path FROM quire_entries WHERE {OWN});
            DELETE FROM quire_entries WHERE {OWN};
            DELETE FROM quire_manifests WHERE {OWN};
            DELETE FROM quire_branches WHERE {OWN};
            DELETE FROM quire_imports WHERE {OWN};
            IF is_twin THEN
                DELETE FROM quire_conversations WHERE {OWN};
            END IF;
        END
        $$""",  # noqa: S608 (the inserted texts are the schema's quoted name and constants)
        "REVOKE ALL ON FUNCTION quire_delete_imported FROM PUBLIC",
    ]
    for statement in statements:
        op.execute(statement)
