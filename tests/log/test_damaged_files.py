"""Damages of an SQLite file that the digests of rows do not see, and documents in the form of an earlier version."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from quire.model import Draft, ImagePart, Message, Policy, TokenCount
from quire.store import SqlStore


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    path = tmp_path / "quire.db"
    async with SqlStore.open(f"sqlite:///{path}") as store:
        await store.create_conversation("c")
        for number in range(50):
            await store.append("c", Draft(body=Message.user(f"Message {number}"), tokens=TokenCount(3, "test")))
        assert await store.verify_tenant() == []
    return path


def list_roots(path: Path, kind: str) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT name, rootpage FROM sqlite_master WHERE type = ? AND rootpage > 0"
        return dict(connection.execute(query, [kind]).fetchall())


async def test_an_index_that_differs_from_its_table_is_found(file: Path):
    with closing(sqlite3.connect(file)) as connection:
        page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
    roots = {name: root for name, root in list_roots(file, "index").items() if name.startswith("sqlite_autoindex")}
    content = bytearray(file.read_bytes())
    for root in roots.values():
        # The number of cells of the page: the index has no rows.
        start = (root - 1) * page_bytes
        content[start + 3 : start + 5] = b"\0\0"
    file.write_bytes(content)
    async with SqlStore.open(f"sqlite:///{file}") as store:
        faults = await store.verify_tenant()
    assert faults
    assert all("damaged" in each.problem for each in faults)


async def test_a_row_that_refers_to_none_is_found(file: Path):
    async with SqlStore.open(f"sqlite:///{file}") as store:
        digest = await store.put_blob(b"A picture.", media_type="image/png")
        await store.append("c", Message(role="user", parts=(ImagePart(blob=digest),)))
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("DELETE FROM quire_blobs")
    async with SqlStore.open(f"sqlite:///{file}") as store:
        faults = await store.verify_tenant()
    assert any("refers to one that does not exist" in each.problem for each in faults)


@pytest.mark.parametrize(
    ("provider", "wire_format"), [("openai", "chat"), ("anthropic", "messages"), ("openai_responses", "responses")]
)
def test_a_manifest_that_names_a_provider_is_read(provider: str, wire_format: str):
    stored = f'{{"model":"gpt-4o","provider":"{provider}","window":128000}}'
    assert Policy.parse(stored) == Policy(model="gpt-4o", wire_format=wire_format, window=128_000)  # pyright: ignore
