"""Exchanges take the place of request bodies: every request that passed, and what came back.

A body that was stored with its reply becomes an exchange that was answered. Its id is made of the reply's place.
"""

from alembic import op

from quire.db.migrations.tenancy import build_partitions, build_row_security

revision = "0017"
down_revision = "0016"

COPY = """
INSERT INTO quire_exchanges (
    tenant, conversation, exchange, base, road, reason, model, branch, after_seq, seq, started_at, completed_at,
    outcome, size, request, response
)
SELECT
    tenant, conversation, CASE WHEN seq = 0 THEN '' ELSE CAST(branch AS TEXT) || '.' || CAST(seq AS TEXT) END,
    CAST(base_branch AS TEXT) || '.' || CAST(base_seq AS TEXT), 'managed', '', '', branch,
    CASE WHEN seq = 0 THEN 0 ELSE seq - 1 END, CASE WHEN seq = 0 THEN NULL ELSE seq END, 0, 0,
    'answered', size, delta, {empty}
FROM quire_request_bodies
"""
OWN = "tenant = current_setting('quire.tenant') AND conversation = offloaded"


def upgrade() -> None:
    is_postgres = op.get_bind().dialect.name == "postgresql"
    key, big, data = ('TEXT COLLATE "C"', "BIGINT", "BYTEA") if is_postgres else ("TEXT", "INTEGER", "BLOB")
    create = (
        f"CREATE TABLE quire_exchanges (tenant {key} NOT NULL, conversation {key} NOT NULL, exchange {key} NOT NULL, "
        f"base {key}, road {key} NOT NULL, reason TEXT NOT NULL, model TEXT NOT NULL, branch INTEGER NOT NULL, "
        f"after_seq {big} NOT NULL, seq {big}, started_at {big} NOT NULL, first_byte_at {big}, completed_at {big}, "
        f"outcome {key}, status INTEGER, error TEXT, size {big} NOT NULL, request {data} NOT NULL, "
        f"response {data} NOT NULL, row_digest {data}, PRIMARY KEY (tenant, conversation, exchange))"
    )
    statements = [create]
    if is_postgres:
        partitions, partition_statements = build_partitions("exchanges")
        statements = [
            f"{create} PARTITION BY HASH (conversation)",
            *(
                f"ALTER TABLE quire_exchanges ALTER COLUMN {each} SET STORAGE EXTERNAL"
                for each in ("request", "response")
            ),
            *partition_statements,
            # Otherwise it hides the rows of all tenants, also from the owner.
            "ALTER TABLE quire_request_bodies DISABLE ROW LEVEL SECURITY",
            COPY.format(empty="''::bytea"),
            *build_row_security("exchanges", *partitions),
        ]
    else:
        statements.append(COPY.format(empty="x''"))
    statements += [
        "DROP TABLE quire_request_bodies",
        "CREATE INDEX quire_exchanges_by_reply ON quire_exchanges (tenant, conversation, seq) WHERE seq IS NOT NULL",
        "CREATE INDEX quire_exchanges_unanswered ON quire_exchanges (tenant, started_at) "
        "WHERE (outcome IS NULL OR outcome <> 'answered')",
    ]
    if is_postgres:
        schema = op.get_bind().exec_driver_sql("SELECT current_schema()").scalar_one().replace('"', '""')
        statements.append(
            f"""
            CREATE OR REPLACE FUNCTION quire_delete_offloaded(offloaded text, unneeded_paths bytea[])
            RETURNS void
            LANGUAGE plpgsql SECURITY DEFINER SET search_path = "{schema}", pg_temp
            AS $$
            BEGIN
                IF NOT EXISTS (SELECT 1 FROM quire_archives WHERE {OWN} AND object IS NOT NULL) THEN
                    RETURN;
                END IF;
                DELETE FROM quire_paths WHERE path = ANY (unneeded_paths) AND {OWN};
                DELETE FROM quire_entries WHERE {OWN};
                DELETE FROM quire_manifests WHERE {OWN};
                DELETE FROM quire_exchanges WHERE {OWN};
            END
            $$"""  # noqa: S608 (the inserted texts are the schema's quoted name and constants)
        )
    for statement in statements:
        op.execute(statement)
