"""Database URLs: SQLAlchemy's, and in addition those of PostgreSQL with several hosts, as libpq spells them."""

from typing import Any
from urllib.parse import urlsplit

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from quire.errors import InvalidConfiguration

_DEFAULT_PORT = "5432"


def parse_database_url(url: str) -> URL:
    """Parses a URL. Several hosts (`postgresql://a:5432,b:5432/name`) become the query fields `host` and `port`."""
    try:
        location = urlsplit(url).netloc
        user, at, hosts = location.rpartition("@")
        if "," not in hosts:
            return make_url(url)
        scheme, _, rest = url.partition(f"://{location}")
        addresses = [_split_host(each) for each in hosts.split(",")]
        parsed = make_url(f"{scheme}://{user}{at}{rest}")
    except (ValueError, ArgumentError):
        # Without the parser's own error, which repeats the URL: it may contain a password.
        raise InvalidConfiguration(
            "The database URL is malformed; write sqlite:///path, or postgresql://user@host:5432/name, "
            "several hosts as host1:5432,host2:5432."
        ) from None
    names, ports = zip(*addresses, strict=True)
    return parsed.update_query_dict({"host": ",".join(names), "port": ",".join(ports)})


def _split_host(address: str) -> tuple[str, str]:
    """Splits host and port; an IPv6 address is in brackets."""
    parts = urlsplit(f"//{address}")
    return parts.hostname or "localhost", str(parts.port or _DEFAULT_PORT)


def is_postgres(url: str) -> bool:
    return parse_database_url(url).get_backend_name() == "postgresql"


def build_conninfo(url: str) -> str:
    """The URL as a connection string of libpq."""
    from psycopg.conninfo import make_conninfo
    from sqlalchemy.dialects.postgresql.psycopg import dialect

    postgres: Any = dialect()
    _, parameters = postgres.create_connect_args(parse_database_url(url))
    return make_conninfo("", **parameters)
