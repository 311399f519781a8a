"""Without stored backtests, which hold numbers of a simulation alone. `quire backtest` computes them again."""

from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.execute("DROP TABLE quire_backtest_shards")
    op.execute("DROP TABLE quire_backtests")
