"""Several databases of one cluster as cells, and tenants placed in them by hand."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import psycopg

from infra.postgres import PostgresServer
from quire.settings.schema import HOME_CELL, Cell


class Cells(NamedTuple):
    """URLs of cells by name, for the application and for the owner of the tables."""

    urls: dict[str, str]
    owner_urls: dict[str, str]

    @property
    def home(self) -> str:
        return self.urls[HOME_CELL]

    @property
    def others(self) -> dict[str, Cell]:
        return {name: Cell(database_url=url) for name, url in self.urls.items() if name != HOME_CELL}

    def place(self, tenant: str, cell: str) -> None:
        """Puts a new tenant into a cell."""
        with psycopg.connect(self.owner_urls[HOME_CELL]) as connection:
            connection.execute(
                "INSERT INTO quire_tenant_cells (team, cell, epoch, state) VALUES (%s, %s, 1, 'live')", [tenant, cell]
            )
            connection.execute(
                "INSERT INTO quire_cell_tenants (team, epoch, state, moved_to) VALUES (%s, 1, 'moved', %s)",
                [tenant, cell],
            )
        with psycopg.connect(self.owner_urls[cell]) as connection:
            connection.execute("INSERT INTO quire_cell_tenants (team, epoch, state) VALUES (%s, 1, 'live')", [tenant])

    def fetch(self, cell: str, query: str, *params: object) -> list[tuple[object, ...]]:
        with psycopg.connect(self.owner_urls[cell]) as connection:
            return connection.execute(query, params).fetchall()


@contextmanager
def make_cells(server: PostgresServer, *names: str, template: str, role: str) -> Iterator[Cells]:
    """New, migrated databases of one cluster."""
    with ExitStack() as stack:
        urls, owner_urls = dict[str, str](), dict[str, str]()
        for name in (HOME_CELL, *names):
            database = f"cell_{uuid.uuid4().hex}"
            server.create_database(database, template=template)
            stack.callback(server.drop_database, database)
            urls[name] = server.url(database, user=role)
            owner_urls[name] = server.url(database)
        yield Cells(urls, owner_urls)
