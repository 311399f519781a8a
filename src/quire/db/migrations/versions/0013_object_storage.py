"""Blobs and conversations in object storage."""

from alembic import op

from quire.db.migrations.tenancy import build_row_security

revision = "0013"
down_revision = "0012"

SWEEP_SETTING = "quire.sweep"
OWN = "tenant = current_setting('quire.tenant') AND conversation = offloaded"


def upgrade() -> None:
    is_postgres = op.get_bind().dialect.name == "postgresql"
    key, big, data = ('TEXT COLLATE "C"', "BIGINT", "BYTEA") if is_postgres else ("TEXT", "INTEGER", "BLOB")
    op.execute("ALTER TABLE quire_blobs ADD COLUMN object TEXT")
    op.execute(f"ALTER TABLE quire_blobs ADD COLUMN size {big}")
    op.execute(
        f"CREATE TABLE quire_archives (tenant {key} NOT NULL, conversation {key} NOT NULL, object TEXT, "
        f"title TEXT NOT NULL, tokens {big} NOT NULL, bytes {big} NOT NULL, changed_at {big} NOT NULL, "
        f"row_digest {data} NOT NULL, PRIMARY KEY (tenant, conversation))"
    )
    op.execute("CREATE INDEX quire_archives_restored ON quire_archives (tenant, changed_at) WHERE object IS NULL")
    op.execute(
        f"CREATE TABLE quire_archived_replies (tenant {key} NOT NULL, response_id {key} NOT NULL, "
        f"conversation {key} NOT NULL, PRIMARY KEY (tenant, response_id, conversation))"
    )
    op.execute("CREATE INDEX quire_archived_replies_of ON quire_archived_replies (tenant, conversation)")
    op.execute(
        f"CREATE TABLE quire_pending_objects (tenant {key} NOT NULL, object {key} NOT NULL, since {big} NOT NULL, "
        "PRIMARY KEY (tenant, object))"
    )
    if not is_postgres:
        return
    schema = op.get_bind().exec_driver_sql("SELECT current_schema()").scalar_one().replace('"', '""')
    header = f"""LANGUAGE plpgsql SECURITY DEFINER SET search_path = "{schema}", pg_temp"""
    statements = [
        *build_row_security("archives", "archived_replies", "pending_objects"),
        *(
            f"CREATE POLICY sweep ON quire_{table} FOR SELECT TO CURRENT_USER "
            f"USING (current_setting('{SWEEP_SETTING}', true) = 'on')"
            for table in ("archives", "pending_objects")
        ),
        # Runs as the owner, and only while it runs does the owner see the rows of all tenants.
        f"""
        CREATE FUNCTION quire_list_object_work(pending_before bigint, restored_before bigint)
        RETURNS TABLE (tenant text)
        {header}
        AS $$
        BEGIN
            PERFORM set_config('{SWEEP_SETTING}', 'on', true);
            RETURN QUERY
                SELECT p.tenant FROM quire_pending_objects AS p WHERE p.since < pending_before
                UNION
                SELECT a.tenant FROM quire_archives AS a WHERE a.object IS NULL AND a.changed_at < restored_before;
            PERFORM set_config('{SWEEP_SETTING}', '', true);
        END
        $$""",  # noqa: S608 (the inserted texts are the schema's quoted name and constants)
        # The role of the application cannot delete entries, except of a conversation that is recorded as offloaded.
        f"""
        CREATE FUNCTION quire_delete_offloaded(offloaded text, unneeded_paths bytea[])
        RETURNS void
        {header}
        AS $$
        BEGIN
            IF NOT EXISTS (SELECT 1 FROM quire_archives WHERE {OWN} AND object IS NOT NULL) THEN
                RETURN;
            END IF;
            DELETE FROM quire_paths WHERE path = ANY (unneeded_paths) AND {OWN};
            DELETE FROM quire_entries WHERE {OWN};
            DELETE FROM quire_manifests WHERE {OWN};
            DELETE FROM quire_request_bodies WHERE {OWN};
        END
        $$""",  # noqa: S608 (the inserted texts are the schema's quoted name and constants)
        "REVOKE ALL ON FUNCTION quire_list_object_work, quire_delete_offloaded FROM PUBLIC",
    ]
    for statement in statements:
        op.execute(statement)
