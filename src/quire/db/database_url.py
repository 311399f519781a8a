"""Database URLs, with several PostgreSQL hosts as libpq spells them, and the private files of a SQLite database."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from quire.errors import InvalidConfiguration

_DEFAULT_PORT = 5432


def parse_database_url(url: str) -> URL:
    """Parses a URL. Several hosts (`postgresql://a:5432,b:5432/name`) become the query fields `host` and `port`."""
    try:
        location = urlsplit(url).netloc
        user, at, hosts = location.rpartition("@")
        if "," not in hosts:
            return make_url(url)
        scheme, _, rest = url.partition(f"://{location}")
        # The host may be an IPv6 address in brackets.
        addresses = [urlsplit(f"//{each}") for each in hosts.split(",")]
        names = ",".join(each.hostname or "localhost" for each in addresses)
        ports = ",".join(str(each.port or _DEFAULT_PORT) for each in addresses)
        parsed = make_url(f"{scheme}://{user}{at}{rest}")
    except (ValueError, ArgumentError):
        # Without the parser's own error, which repeats the URL: it may contain a password.
        raise InvalidConfiguration(
            "The database URL is malformed; write sqlite:///path, or postgresql://user@host:5432/name, "
            "several hosts as host1:5432,host2:5432."
        ) from None
    return parsed.update_query_dict({"host": names, "port": ports})


def is_postgres(url: str) -> bool:
    return parse_database_url(url).get_backend_name() == "postgresql"


def build_conninfo(url: str) -> str:
    """The URL as a connection string of libpq."""
    from psycopg.conninfo import make_conninfo
    from sqlalchemy.dialects.postgresql.psycopg import dialect

    postgres: Any = dialect()
    _, parameters = postgres.create_connect_args(parse_database_url(url))
    return make_conninfo("", **parameters)


FILE_MODE = 0o600
FOLDER_MODE = 0o700


def create_private_files(url: URL) -> None:
    """Creates the folder and the empty file of a new SQLite database. Existing ones stay as they are.

    SQLite gives the write-ahead log and the shared-memory file the permissions of the database file. What cannot be
    created is reported by SQLite when it opens the file.
    """
    if url.database in (None, "", ":memory:") or str(url.database).startswith("file:"):
        return
    path = Path(str(url.database))
    with suppress(OSError):
        path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))
