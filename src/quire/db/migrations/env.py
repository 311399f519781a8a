"""Entry point of Alembic: runs the migrations on the connection that `quire.db.migrate` passes."""

from alembic import context

from quire.db.migrate import VERSION_TABLE
from quire.db.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
