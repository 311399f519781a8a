"""Entry point of Alembic: runs the migrations on the connection that `quire.log.migrate` passes."""

from alembic import context

from quire.log.migrate import VERSION_TABLE
from quire.log.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
