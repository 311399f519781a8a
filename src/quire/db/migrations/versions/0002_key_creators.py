"""API keys name the key that created them, so that a revocation includes them."""

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    key = 'TEXT COLLATE "C"' if op.get_bind().dialect.name == "postgresql" else "TEXT"
    op.execute(f"ALTER TABLE quire_api_keys ADD COLUMN created_by {key}")
