"""Without the directory of cells. No command moved a tenant, so its tables are empty."""

from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.execute("DROP TABLE quire_tenant_cells")
    op.execute("DROP TABLE quire_cell_tenants")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION quire_enter_cell")
