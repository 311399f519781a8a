"""SQLite databases that someone made to keep a reader busy: expressions in columns and views, and pages in a cycle."""

import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

SESSIONS = """
CREATE TABLE session (id TEXT, title TEXT{column}, time_created INTEGER, time_updated INTEGER);
CREATE TABLE message (id TEXT, session_id TEXT, time_created INTEGER, data TEXT);
CREATE TABLE part (id TEXT, message_id TEXT, data TEXT);
INSERT INTO session (id, time_created) VALUES ('s', 1767323045000);
INSERT INTO message VALUES ('m', 's', 1767323045000, '{{"role": "user", "time": {{"created": 1767323045000}}}}');
INSERT INTO part VALUES ('p', 'm', '{{"type": "text", "text": "The gannet dives."}}');
"""
"""The tables of opencode with one session."""
ENDLESS = "instr(hex(zeroblob(10000000)), hex(zeroblob(5000000)) || 'x')"
"""One step of SQLite's virtual machine that takes longer than anyone waits, and that no handler interrupts."""
LEVELS, CHILDREN = 15, 100


def write_database(path: Path, kind: str) -> Path:
    """Writes a database of one of `KINDS` for the source `opencode`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        if kind == "pages in a cycle":
            connection.executescript(SESSIONS.format(column=""))
            connection.executemany("INSERT INTO session (id) VALUES (?)", ((str(each),) for each in range(1_000)))
        elif kind.endswith("column"):
            storage = "STORED" if kind.startswith("stored") else "VIRTUAL"
            connection.executescript(SESSIONS.format(column=f" GENERATED ALWAYS AS (0) {storage}"))
            # Put into the schema afterwards: SQLite would compute it for the rows that it writes.
            connection.executescript(
                "PRAGMA writable_schema = ON; UPDATE sqlite_master SET "
                f"sql = replace(sql, 'AS (0)', 'AS ({ENDLESS.replace(chr(39), chr(39) * 2)})');"
            )
        elif kind == "view":
            connection.executescript(SESSIONS.format(column=""))
            connection.executescript(
                f"ALTER TABLE session RENAME TO hidden; CREATE VIEW session AS SELECT *, {ENDLESS} AS more FROM hidden;"
            )
        else:
            connection.executescript(SESSIONS.format(column=""))
            connection.executescript(
                f"CREATE TRIGGER on_change BEFORE UPDATE ON session BEGIN SELECT {ENDLESS}; END;"
                f"CREATE INDEX computed ON session ({ENDLESS.replace('hex(', 'hex(title || ', 1)}) WHERE title > 'x';"
            )
        connection.commit()
        [root] = connection.execute("SELECT max(rootpage) FROM sqlite_master WHERE name = 'session'").fetchone()
    if kind == "pages in a cycle":
        _repeat_pages(path, root)
    return path


KINDS = ("virtual column", "stored column", "view", "trigger", "pages in a cycle")


def _repeat_pages(path: Path, root: int) -> None:
    """Replaces the root of a table by `LEVELS` of inner pages, each of which is a hundred times a child of the one
    above it, so that the file has more rows than there are atoms."""
    data = bytearray(path.read_bytes())
    page_size = int.from_bytes(data[16:18], "big")

    def at(page: int) -> int:
        return (page - 1) * page_size

    leaf = int.from_bytes(data[at(root) + 8 : at(root) + 12], "big")
    first_new = len(data) // page_size + 1
    pages = [root, *range(first_new, first_new + LEVELS), leaf]
    for page, child in pairwise(pages):
        cell = child.to_bytes(4, "big") + b"\x01"
        content = bytearray(page_size)
        pointers = b"".join((page_size - (number + 1) * len(cell)).to_bytes(2, "big") for number in range(CHILDREN))
        start = page_size - CHILDREN * len(cell)
        header = b"\x05\0\0" + CHILDREN.to_bytes(2, "big") + start.to_bytes(2, "big") + b"\0" + child.to_bytes(4, "big")
        content[: len(header)] = header
        content[len(header) : len(header) + len(pointers)] = pointers
        content[start:] = cell * CHILDREN
        if at(page) >= len(data):
            data += bytes(at(page) + page_size - len(data))
        data[at(page) : at(page) + page_size] = content
    data[28:32] = (len(data) // page_size).to_bytes(4, "big")
    path.write_bytes(data)
