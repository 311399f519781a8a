"""Wrapped data keys of encrypted tenants."""

from alembic import op

from quire.db.migrations.tenancy import build_row_security

revision = "0009"
down_revision = "0008"

TABLE = "tenant_keys"
SWEEP_SETTING = "quire.sweep"


def upgrade() -> None:
    is_postgres = op.get_bind().dialect.name == "postgresql"
    key, big, data = ('TEXT COLLATE "C"', "BIGINT", "BYTEA") if is_postgres else ("TEXT", "INTEGER", "BLOB")
    op.execute(
        f"CREATE TABLE quire_{TABLE} (tenant {key} NOT NULL, key_id TEXT NOT NULL, wrapped {data} NOT NULL, "
        f"created_at {big} NOT NULL, PRIMARY KEY (tenant))"
    )
    if not is_postgres:
        return
    schema = op.get_bind().exec_driver_sql("SELECT current_schema()").scalar_one().replace('"', '""')
    statements = [
        *build_row_security(TABLE),
        f"CREATE POLICY sweep ON quire_{TABLE} FOR SELECT TO CURRENT_USER "
        f"USING (current_setting('{SWEEP_SETTING}', true) = 'on')",
        # Runs as the owner, and only while it runs does the owner see the rows of all tenants.
        f"""
        CREATE FUNCTION quire_list_encrypted_tenants()
        RETURNS TABLE (tenant text)
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = "{schema}", pg_temp
        AS $$
        BEGIN
            PERFORM set_config('{SWEEP_SETTING}', 'on', true);
            RETURN QUERY SELECT k.tenant FROM quire_{TABLE} AS k;
            PERFORM set_config('{SWEEP_SETTING}', '', true);
        END
        $$""",  # noqa: S608 (the inserted texts are the schema's quoted name and constants)
        "REVOKE ALL ON FUNCTION quire_list_encrypted_tenants FROM PUBLIC",
    ]
    for statement in statements:
        op.execute(statement)
