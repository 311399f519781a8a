"""How far audit trails were sent to a receiver of logs."""

from alembic import op

from quire.db.migrations.tenancy import build_row_security

revision = "0012"
down_revision = "0011"

SWEEP_SETTING = "quire.sweep"


def upgrade() -> None:
    is_postgres = op.get_bind().dialect.name == "postgresql"
    key, big = ('TEXT COLLATE "C"', "BIGINT") if is_postgres else ("TEXT", "INTEGER")
    op.execute(
        f"CREATE TABLE quire_audit_exports (tenant {key} NOT NULL, seq {big} NOT NULL, claim TEXT NOT NULL, "
        f"claimed_until {big} NOT NULL, PRIMARY KEY (tenant))"
    )
    if not is_postgres:
        return
    schema = op.get_bind().exec_driver_sql("SELECT current_schema()").scalar_one().replace('"', '""')
    statements = [
        *build_row_security("audit_exports"),
        *(
            f"CREATE POLICY sweep ON quire_{table} FOR SELECT TO CURRENT_USER "
            f"USING (current_setting('{SWEEP_SETTING}', true) = 'on')"
            for table in ("audit_heads", "audit_exports")
        ),
        # Runs as the owner, and only while it runs does the owner see the rows of all tenants.
        f"""
        CREATE FUNCTION quire_list_unexported_audits()
        RETURNS TABLE (tenant text)
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = "{schema}", pg_temp
        AS $$
        BEGIN
            PERFORM set_config('{SWEEP_SETTING}', 'on', true);
            RETURN QUERY
                SELECT h.tenant FROM quire_audit_heads AS h
                LEFT JOIN quire_audit_exports AS e ON e.tenant = h.tenant
                WHERE h.seq > COALESCE(e.seq, 0);
            PERFORM set_config('{SWEEP_SETTING}', '', true);
        END
        $$""",  # noqa: S608 (the inserted texts are the schema's quoted name and constants)
        "REVOKE ALL ON FUNCTION quire_list_unexported_audits FROM PUBLIC",
    ]
    for statement in statements:
        op.execute(statement)
