"""Requests of background responses until they are answered, and the metadata of conversations."""

from alembic import op

from quire.db.migrations.tenancy import build_row_security

revision = "0007"
down_revision = "0006"

TABLE = "background_responses"
SWEEP_SETTING = "quire.sweep"


def upgrade() -> None:
    is_postgres = op.get_bind().dialect.name == "postgresql"
    key, big = ('TEXT COLLATE "C"', "BIGINT") if is_postgres else ("TEXT", "INTEGER")
    op.execute(
        f"CREATE TABLE quire_{TABLE} (tenant {key} NOT NULL, response {key} NOT NULL, conversation {key} NOT NULL, "
        f"created_at {big} NOT NULL, request TEXT NOT NULL, outcome TEXT, PRIMARY KEY (tenant, response))"
    )
    op.execute("ALTER TABLE quire_conversations ADD COLUMN metadata TEXT")
    if not is_postgres:
        return
    schema = op.get_bind().exec_driver_sql("SELECT current_schema()").scalar_one().replace('"', '""')
    statements = [
        *build_row_security(TABLE),
        f"CREATE POLICY sweep ON quire_{TABLE} FOR SELECT TO CURRENT_USER "
        f"USING (current_setting('{SWEEP_SETTING}', true) = 'on')",
        # Runs as the owner, and only while it runs does the owner see the rows of all tenants.
        f"""
        CREATE FUNCTION quire_list_unanswered_responses(max_rows integer)
        RETURNS TABLE (tenant text, response text)
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = "{schema}", pg_temp
        AS $$
        BEGIN
            PERFORM set_config('{SWEEP_SETTING}', 'on', true);
            RETURN QUERY
                SELECT r.tenant, r.response FROM quire_{TABLE} AS r
                WHERE r.outcome IS NULL ORDER BY r.created_at LIMIT max_rows;
            PERFORM set_config('{SWEEP_SETTING}', '', true);
        END
        $$""",  # noqa: S608 (the inserted texts are the schema's quoted name and constants)
        "REVOKE ALL ON FUNCTION quire_list_unanswered_responses FROM PUBLIC",
    ]
    for statement in statements:
        op.execute(statement)
