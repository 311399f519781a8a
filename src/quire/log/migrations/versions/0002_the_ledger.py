"""The ledger: a manifest for every answered request, and how each model's reports compare with our counts."""

from alembic import op

from quire.log.migrations.tenancy import partitions_of, row_security

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    key, big = ('TEXT COLLATE "C"', "BIGINT") if postgres else ("TEXT", "INTEGER")
    split = "PARTITION BY HASH (conversation)" if postgres else ""
    op.execute(f"""
        CREATE TABLE quire_manifests (
            tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, seq {big} NOT NULL,
            manifest TEXT NOT NULL,
            PRIMARY KEY (tenant, conversation, branch, seq)
        ) {split}""")
    op.execute(f"""
        CREATE TABLE quire_calibrations (
            tenant {key} NOT NULL, model {key} NOT NULL, calibration TEXT NOT NULL,
            PRIMARY KEY (tenant, model)
        )""")
    if postgres:
        names, statements = partitions_of("manifests")
        for statement in [*statements, *row_security("manifests", "calibrations", *names)]:
            op.execute(statement)
