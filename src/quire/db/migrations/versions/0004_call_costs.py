"""The usage roll-up has calls without a known price, imported costs, and the version of the rules of each branch.

Rows that exist were counted by version 1. The counting job counts their conversations again, during other work. The
index of imported items finds replies that the file of another session repeats.
"""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    for table in ("usage_contributions", "usage_totals"):
        for column in ("unpriced_requests", "unpriced_tokens", "imported_nanos"):
            op.execute(f"ALTER TABLE quire_{table} ADD COLUMN {column} BIGINT NOT NULL DEFAULT 0")
    op.execute("CREATE INDEX quire_imports_item ON quire_imports (tenant, item)")
    op.execute("ALTER TABLE quire_usage_turns ADD COLUMN unpriced_requests BIGINT NOT NULL DEFAULT 0")
    op.execute("ALTER TABLE quire_counted_branches ADD COLUMN rules INTEGER NOT NULL DEFAULT 1")
    op.execute(
        "CREATE INDEX quire_counted_branches_outdated ON quire_counted_branches (tenant, conversation) WHERE rules < 2"
    )
