"""Checks of the database: folder, disk, connection, schema, keys and the index of messages."""

import asyncio
import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from quire.cli.config import mask_password
from quire.cli.doctor_checks.findings import Finding, report_note, report_ok, report_problem
from quire.cli.doctor_checks.setup import DoctorSetup
from quire.cli.output import pluralize
from quire.errors import QuireError

if TYPE_CHECKING:
    from quire.log import ApiKey, SqlStore

PROBE_BYTES = 65_536
"""Bytes that are written to check that a file can grow."""
LOW_SPACE_BYTES = 100_000_000
MAX_LISTED_KEYS = 1_000
_FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_data_folder(setup: DoctorSetup) -> list[Finding]:
    """Whether the folder of the SQLite file can be written, and has space."""
    path = _get_sqlite_path(setup.database_url)
    if path is None:
        return []
    folder = next((each for each in path.parents if each.exists()), path.parent)
    try:
        _write_probe(folder)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return [_explain_unwritable(folder, error)]
    if free < LOW_SPACE_BYTES:
        detail = f"{folder} has only {free // 1_000_000} MB free."
        return [report_problem("data folder", detail, "Free space on that disk, or set `database_url` to another one.")]
    return [report_ok("data folder", f"{folder} can be written, {free / 1e9:.1f} GB free")]


def _write_probe(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder, prefix=".quire-doctor-") as file:
        file.write(b"\0" * PROBE_BYTES)
        file.flush()
        os.fsync(file.fileno())


def _explain_unwritable(folder: Path, error: OSError) -> Finding:
    if error.errno in _FULL_DISK_ERRORS:
        detail = f"The disk of {folder} is full, or a limit on its files is reached: {error.strerror}."
        return report_problem(
            "data folder", detail, "Free space, raise the limit, or set `database_url` to another disk."
        )
    detail = f"{folder} cannot be written: {error.strerror}."
    return report_problem(
        "data folder",
        detail,
        f"Give yourself write access (`chmod u+rwx {folder}`), or set `database_url` to a file in another folder.",
    )


def check_database(setup: DoctorSetup) -> list[Finding]:
    """Connects, compares the schema, and reads the state of keys and index. Nothing is created or migrated."""
    url, path = setup.database_url, _get_sqlite_path(setup.database_url)
    shown = mask_password(url)
    try:
        if path is not None and not path.exists():
            return [report_ok("database", f"{shown} will be created on first use")]
        version, required = _read_schema_version(url)
        if version != required:
            return [_explain_schema(shown, version, required)]
        return [report_ok("database", f"{shown}, schema {version}"), *asyncio.run(_check_contents(url))]
    except (QuireError, OSError) as error:
        cause = " ".join(str(error).split()).replace(url, shown)
        remedy = (
            "Check that the file is a database of Quire and that you may read it; restore a backup if it is damaged."
            if path is not None
            else "Check that the server runs, and the host, role and password in `database_url`."
        )
        return [report_problem("database", f"{shown} cannot be opened: {cause}", remedy)]


def _read_schema_version(url: str) -> tuple[str | None, str]:
    from quire.log import migrate

    return migrate.get_version_at_url(url), migrate.SCHEMA_VERSION


def _explain_schema(database: str, version: str | None, required: str) -> Finding:
    detail = f"{database} has schema {version or 'none'}; this version of Quire needs {required}."
    if version is not None and version > required:
        return report_problem("database", detail, "Install the newer version of Quire that wrote it.")
    return report_problem("database", detail, "Make a backup, then run `quire db upgrade`.")


async def _check_contents(url: str) -> list[Finding]:
    from quire.log import SqlStore

    async with SqlStore.open(url) as store:
        return [await _check_index(store), _describe_keys(await store.list_keys(limit=MAX_LISTED_KEYS))]


async def _check_index(store: "SqlStore") -> Finding:
    if not await store.has_unindexed():
        return report_ok("search index", "every message is indexed")
    return report_note(
        "search index",
        "The newest messages are not indexed yet.",
        "The next search indexes them; on a server, check that `quire worker` runs.",
    )


def _describe_keys(keys: "list[ApiKey]") -> Finding:
    from quire.log.ids import now

    time = now()
    valid = [key for key in keys if key.is_valid_at(time)]
    if not keys:
        return report_ok("API keys", "none; only a server for several users needs them")
    scopes = sorted({scope for key in valid for scope in key.scopes})
    unusable = len(keys) - len(valid)
    detail = f"{pluralize(len(valid), 'valid key')} with the scopes {', '.join(scopes) or 'none'}, {unusable} unusable"
    if not valid:
        return report_note("API keys", f"{detail}.", "Create one with `quire key create NAME --scope chat`.")
    return report_ok("API keys", detail)


def _get_sqlite_path(url: str) -> Path | None:
    """The file of a SQLite URL; None for another database or one in memory."""
    if not url.startswith("sqlite:///") or ":memory:" in url:
        return None
    return Path(url.removeprefix("sqlite:///").partition("?")[0]).absolute()
