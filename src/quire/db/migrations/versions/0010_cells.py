"""Cells: which PostgreSQL cluster a tenant lives in. Without the setting `cells` these tables stay empty."""

from alembic import op

revision = "0010"
down_revision = "0009"

WRITERS_LOCK_CLASS = 0x71756972
"""First key of the advisory locks that writers of a tenant share, and that a move takes alone to end their writes."""


def upgrade() -> None:
    is_postgres = op.get_bind().dialect.name == "postgresql"
    key, big = ('TEXT COLLATE "C"', "BIGINT") if is_postgres else ("TEXT", "INTEGER")
    op.execute(
        f"CREATE TABLE quire_tenant_cells (team {key} NOT NULL PRIMARY KEY, cell TEXT NOT NULL, epoch {big} NOT NULL, "
        f"state TEXT NOT NULL, peer TEXT, move TEXT, started_at {big})"
    )
    op.execute(
        f"CREATE TABLE quire_cell_tenants (team {key} NOT NULL PRIMARY KEY, epoch {big} NOT NULL, state TEXT NOT NULL, "
        f"moved_to TEXT, frozen_until {big}, move TEXT)"
    )
    if not is_postgres:
        return
    schema = op.get_bind().exec_driver_sql("SELECT current_schema()").scalar_one().replace('"', '""')
    # Volatile, so that its query sees what committed while it waited for the lock.
    op.execute(
        f"""
        CREATE FUNCTION quire_enter_cell(entering text, known_epoch bigint, writes boolean)
        RETURNS void
        LANGUAGE plpgsql SET search_path = "{schema}", pg_temp
        AS $$
        DECLARE
            found_epoch bigint;
            found_state text;
            ends_at bigint;
        BEGIN
            IF writes THEN
                PERFORM pg_advisory_xact_lock_shared({WRITERS_LOCK_CLASS}, hashtext(entering));
            END IF;
            SELECT c.epoch, c.state, c.frozen_until INTO found_epoch, found_state, ends_at
            FROM quire_cell_tenants AS c WHERE c.team = entering;
            IF COALESCE(found_epoch, 0) <> known_epoch OR found_state IN ('arriving', 'moved') THEN
                RAISE EXCEPTION 'the tenant is not in this cell' USING ERRCODE = 'QC001';
            END IF;
            IF writes AND found_state = 'frozen' AND ends_at > extract(epoch FROM clock_timestamp()) * 1000000 THEN
                RAISE EXCEPTION 'the tenant is being moved' USING ERRCODE = 'QC002';
            END IF;
        END
        $$"""  # noqa: S608 (the inserted texts are the schema's quoted name and a constant)
    )
    op.execute("REVOKE ALL ON FUNCTION quire_enter_cell FROM PUBLIC")
