"""Spending: what the model calls of a conversation have cost, so that a cap can stop the next one."""

from alembic import op

from quire.log.migrations.tenancy import row_security

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    key = 'TEXT COLLATE "C"' if postgres else "TEXT"
    op.execute(f"""
        CREATE TABLE quire_spending (
            tenant {key} NOT NULL, conversation {key} NOT NULL, dollars DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (tenant, conversation)
        )""")
    if postgres:
        for statement in row_security("spending"):
            op.execute(statement)
