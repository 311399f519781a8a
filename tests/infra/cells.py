"""Several databases of one cluster as cells, and tenants placed in them by hand."""

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import psycopg

from infra.postgres import PostgresServer
from quire.model.people import split_space
from quire.settings.schema import HOME_CELL, Cell
from quire.store.tenant_move import TABLES


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
        """Puts a new tenant into a cell, as a finished move does."""
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

    def add_user(self, cell: str, space: str) -> None:
        """Adds the person of a space to the tenant, if the cell is its home."""
        if cell != HOME_CELL:
            return
        tenant, user = split_space(space)
        with psycopg.connect(self.owner_urls[cell]) as connection:
            connection.execute(
                "INSERT INTO quire_users VALUES (%s, %s, 'sub', 'Ann', 'ann@example.org', 'member', 1, 1, NULL, '')",
                [tenant, user],
            )

    def give_to_plain_owner(self) -> dict[str, str]:
        """Makes a role that is no superuser own everything; returns its URLs."""
        urls: dict[str, str] = {}
        for name, url in self.owner_urls.items():
            role = f"owner_{uuid.uuid4().hex[:12]}"
            with psycopg.connect(url) as connection:
                connection.execute(f"CREATE ROLE {role} LOGIN")
                for (table,) in connection.execute(
                    "SELECT oid::regclass FROM pg_class WHERE relname LIKE 'quire%' AND relkind IN ('r', 'p')"
                ).fetchall():
                    connection.execute(f"ALTER TABLE {table} OWNER TO {role}")
            urls[name] = url.replace("postgres@", f"{role}@")
        return urls

    def start_mover(self, tenant: str, target: str) -> "subprocess.Popen[bytes]":
        """Starts a process that moves a tenant, and prints its steps."""
        program = (
            "import json, sys; from quire.store.tenant_move import TenantMover\n"
            "show = lambda step: print(step, flush=True)\n"
            "with TenantMover(json.loads(sys.argv[1]), sys.argv[2], report=show) as mover: mover.start(sys.argv[3])"
        )
        return subprocess.Popen(
            [sys.executable, "-c", program, json.dumps(self.owner_urls), tenant, target], stdout=subprocess.PIPE
        )

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


def read_tenant_rows(url: str, tenant: str) -> dict[str, list[str]]:
    """All rows of a tenant as text, by table."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT set_config('quire.tenant', %s, false)", [tenant])
        return {
            table: sorted(
                row for (row,) in connection.execute(f"SELECT t::text FROM {table} AS t WHERE tenant = %s", [tenant])
            )
            for table in (each.name for each in TABLES)
        }
