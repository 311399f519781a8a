"""Archives of whole tenants: every row arrives, in the other kind of database too, and nothing else is imported."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection, select

from infra.builders import export_lines
from infra.database_dump import contains_text, dump_database
from infra.sizes import IS_FULL_SIZE
from quire.db import schema
from quire.db.database_url import is_postgres
from quire.db.store_part import read
from quire.engine import Engine, EngineConfig
from quire.engine.message_index import index_messages
from quire.errors import ImportFailed, StoreError
from quire.model import FilePart, Message
from quire.settings import Settings
from quire.store import SqlStore
from quire.store.tenant_archive import list_archived_tables

QUESTION = "Which port does the relay listen on?"


@pytest.fixture
async def laptop(tmp_path: Path) -> AsyncIterator[SqlStore]:
    async with SqlStore.open(f"sqlite:///{tmp_path}/laptop.db") as store:
        yield store


async def fill(store: SqlStore, messages: int) -> None:
    for name in ("harbour", "tides"):
        await store.create_conversation(name)
        texts = [f"{QUESTION} Message {number} of {name}." for number in range(messages)]
        await store.append(name, *(Message.user(text) for text in texts))
    await store.fork("harbour", at=1, name="other")
    chart = FilePart(blob=await store.put_blob(b"\x00\xff chart", media_type="image/png"))
    await store.append("tides", Message(role="user", parts=(chart,)))
    await store.keys.create("editor", ["read", "chat"])


async def read_rows(store: SqlStore) -> dict[str, list[str]]:
    """All archived rows without their tenant."""

    def read_tables(connection: Connection, tenant: str) -> dict[str, list[str]]:
        return {
            table.name: sorted(
                repr(row[1:]) for row in connection.execute(select(table).where(table.c.tenant == tenant))
            )
            for table in list_archived_tables()
        }

    return await store.run(read, read_tables)


@pytest.mark.every_database
async def test_a_tenant_moves_to_the_other_database_and_back(store: SqlStore, laptop: SqlStore):
    await fill(laptop, 50_000 if IS_FULL_SIZE else 1_200)
    lines: list[str] = []
    archive = await laptop.export_tenant(lines.append)
    assert (archive.tenant, archive.conversations) == ("default", 2)
    team = store.for_tenant("observatory")
    assert (await team.import_tenant(lines)).rows == archive.rows
    assert await read_rows(team) == await read_rows(laptop)
    assert await team.verify_tenant() == []
    assert await team.verify_conversation("harbour") == []
    again: list[str] = []
    await team.export_tenant(again.append)
    assert again[1:-1] == lines[1:-1]


@pytest.mark.every_database
async def test_a_tenant_with_conversations_in_object_storage_moves_there_and_back(database_url: str, tmp_path: Path):
    """Half of the conversations are archived in each database. Exports and rows are the same in all of them."""
    names = [f"c{number}" for number in range(100 if IS_FULL_SIZE else 4)]

    async def archive_half(store: SqlStore, half: int) -> list[str]:
        while await store.usage.count():
            pass
        await index_messages(Engine(store, EngineConfig.create(Settings())))
        for name in names[half::2]:
            assert await store.offloading.offload(name) is not None
        lines: list[str] = []
        await store.export_tenant(lines.append)
        assert len(await store.offloading.get_storage().list(store.tenant)) == len(names) // 2
        return lines

    async with SqlStore.open(f"sqlite:///{tmp_path}/laptop.db", object_storage=f"file://{tmp_path}/a") as laptop:
        for name in names:
            await laptop.create_conversation(name)
            texts = [f"{QUESTION} Message {number} of {name}." for number in range(1_000 if IS_FULL_SIZE else 50)]
            await laptop.append(name, *(Message.user(text) for text in texts))
        exports = [await export_lines(laptop, name) for name in names]
        rows = await read_rows(laptop)
        lines = await archive_half(laptop, 0)
    async with SqlStore.open(database_url, tenant="observatory", object_storage=f"file://{tmp_path}/b") as team:
        await team.import_tenant(lines)
        again = await archive_half(team, 1)
        assert [await export_lines(team, name) for name in names] == exports
    async with SqlStore.open(f"sqlite:///{tmp_path}/back.db") as back:
        await back.import_tenant(again)
        assert [await export_lines(back, name) for name in names] == exports
        assert await back.verify_tenant() == []
        for name in names:
            assert await back.verify_conversation(name) == []
        found = await read_rows(back)
        for table in (schema.entries, schema.branches, schema.paths, schema.manifests, schema.conversations):
            assert found[table.name] == rows[table.name]


async def test_the_archive_of_a_tenant_has_no_row_of_another(store: SqlStore):
    await store.for_tenant("other").create_conversation("secret-name")
    await fill(store, 2)
    lines: list[str] = []
    await store.export_tenant(lines.append)
    assert not any("secret-name" in line for line in lines)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: lines[:-1], "incomplete"),
        (lambda lines: [line.replace("Message 1 ", "Message 7 ") for line in lines], "was changed"),
        (lambda lines: [lines[0], *lines[2:]], "was changed"),
        (lambda lines: [lines[0].replace('"schema":"', '"schema":"9'), *lines[1:]], "Export it again"),
        (lambda lines: ["[]\n", *lines], "no archive"),
        (lambda lines: [lines[0], '{"table":"sqlite_master","columns":[],"rows":[[]]}\n'], "no archive"),
    ],
)
async def test_a_changed_archive_is_refused_and_nothing_stays(
    store: SqlStore, laptop: SqlStore, change: Callable[[list[str]], list[str]], reason: str
):
    await fill(laptop, 3)
    lines: list[str] = []
    await laptop.export_tenant(lines.append)
    team = store.for_tenant("observatory")
    with pytest.raises(ImportFailed, match=reason):
        await team.import_tenant(change(lines))
    assert await team.list_conversations() == []


async def test_a_tenant_with_conversations_is_not_overwritten(store: SqlStore):
    await fill(store, 2)
    lines: list[str] = []
    await store.export_tenant(lines.append)
    with pytest.raises(ImportFailed, match="another tenant"):
        await store.import_tenant(lines)
    assert json.loads(lines[0])["tenant"] == store.tenant


@pytest.mark.every_database
async def test_a_purged_tenant_leaves_no_row_and_others_stay(store: SqlStore, admin_url: str):
    leaving, staying = store.for_tenant("leaving"), store.for_tenant("staying")
    for each in (leaving, staying):
        await fill(each, 3)
        await each.audit.append("sign_in", actor="ann", target={}, address="10.0.0.1")
    before = await read_rows(staying)
    if is_postgres(admin_url):
        with pytest.raises(StoreError, match="permission denied"):
            await leaving.purge_tenant()
        assert await leaving.verify_tenant() == []
    async with SqlStore.open(admin_url, tenant="leaving") as owner:
        assert (await owner.purge_tenant()).conversations == 2
    assert not contains_text(dump_database(admin_url), "leaving")
    assert await read_rows(staying) == before
    assert await staying.verify_tenant() == []
