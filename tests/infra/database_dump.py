"""Everything that a backup of a database would contain: `pg_dump`, or the files of SQLite with the write-ahead log."""

import subprocess
from pathlib import Path

import psycopg
from sqlalchemy.engine import make_url

from infra.postgres import Version, find_binaries


def dump_database(admin_url: str) -> bytes:
    url = make_url(admin_url)
    if url.get_backend_name() == "sqlite":
        path = Path(str(url.database))
        return b"".join(file.read_bytes() for file in sorted(path.parent.glob(f"{path.name}*")))
    with psycopg.connect(admin_url) as connection:
        version: Version = 18 if connection.info.server_version >= 180_000 else 15
    binaries = find_binaries(version)
    assert binaries is not None
    return subprocess.run([binaries / "pg_dump", "--dbname", admin_url], capture_output=True, check=True).stdout


def contains_text(dump: bytes, text: str) -> bool:
    """Whether a dump has this text in any case, as text, as hexadecimal (bytea in `pg_dump`) or as UTF-16."""
    lower = dump.lower()
    forms = (text.encode(), text.encode().hex().encode(), text.encode("utf-16-le"))
    return any(form.lower() in lower for form in forms)
