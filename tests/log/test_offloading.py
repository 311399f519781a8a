"""Object storage: nothing is lost, lists and search go on, a purge reaches it, live conversations do without it."""

import asyncio
import base64
import random
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Table, func, select, update
from writer_main import OBJECT_STORAGE_VARIABLE
from writer_processes import start_writers

from infra.builders import make_turn, with_exchange
from infra.database_dump import contains_text, dump_database
from infra.s3_server import run_s3_server
from infra.sizes import IS_FULL_SIZE
from quire.db import schema
from quire.db.database_url import is_postgres
from quire.db.store_part import read, write
from quire.db.tenant_keys import TenantKeys
from quire.engine import Engine
from quire.engine.config import EngineConfig
from quire.engine.message_index import index_messages
from quire.engine.search import search_messages
from quire.errors import (
    IntegrityViolation,
    InvalidConfiguration,
    ObjectStorageUnavailable,
    ResponseNotFound,
    StoreError,
)
from quire.log.blobs import release_objects
from quire.log.types import Blob
from quire.model import FilePart, Message, iter_paths
from quire.settings import Settings
from quire.store import SqlStore
from quire.store.archives import ARCHIVED_TABLES, UPLOAD_MICROS, unpack_lines
from quire.team.key_wrappers import LocalKeys

CANARY = "sk-canary-81b2f7d3a9"
KILLS = 40 if IS_FULL_SIZE else 3
MOVING_SECONDS = 60 if IS_FULL_SIZE else 2
CHART = b"\x00\xff chart" * 20_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
async def store(database_url: str, folder: Path) -> AsyncIterator[SqlStore]:
    async with SqlStore.open(database_url, object_storage=f"file://{folder}") as opened:
        yield opened


async def fill(store: SqlStore, name: str = "tides", *, text: str = "At which hour is the tide?") -> None:
    await store.create_conversation(name)
    body = f'{{"messages":[{{"role":"user","content":"{text}"}}]}}'.encode()
    rules = Blob("text/plain", b"Answer briefly.")
    turn = make_turn(Message.user(text), Message.assistant("It is"), blobs=(rules,), body=body)
    await store.record_reply(name, await with_exchange(store, name, turn, body))
    for number in range(4):
        await store.append(name, Message.assistant(f"Reply {number}."), Message.user(f"Question {number}."))
    await store.append(name, Message.assistant("The last one."))
    await store.fork(name, at=3, name="other")
    await store.append(name, Message.user("Elsewhere."), branch=1)
    await finish_background_work(store)


async def finish_background_work(store: SqlStore) -> None:
    while await store.usage.count():
        pass
    await index_messages(Engine(store, EngineConfig.create(Settings())))


async def export(store: SqlStore, name: str = "tides") -> list[str]:
    return [line async for line in store.export_conversation(name)]


async def count_archives(store: SqlStore) -> int:
    def count(connection: Connection, tenant: str) -> int:
        archives = schema.archives
        query = select(func.count(archives.c.object)).where(archives.c.tenant == tenant)
        return connection.execute(query).scalar_one()

    return await store.run(read, count)


async def count_rows(store: SqlStore, *tables: Table) -> int:
    def count(connection: Connection, tenant: str) -> int:
        return sum(
            connection.execute(select(func.count()).select_from(table).where(table.c.tenant == tenant)).scalar_one()
            for table in tables
        )

    return await store.run(read, count)


def list_objects(folder: Path) -> list[Path]:
    return [each for each in folder.rglob("*") if each.is_file()]


def is_in_objects(folder: Path, text: str) -> bool:
    contents = [each.read_bytes() for each in list_objects(folder)]
    lines = [line for each in contents if each.startswith(b"\xfd7zXZ") for line in unpack_lines(each)]
    return any(text in line for line in lines) or any(text.encode() in each for each in contents)


async def set_times(store: SqlStore, table: Table, **values: Any) -> None:
    def change(connection: Connection, tenant: str) -> None:
        connection.execute(update(table).where(table.c.tenant == tenant).values(**values))

    await store.run(write, change)


@pytest.mark.every_database
async def test_a_restored_conversation_is_the_same(store: SqlStore, folder: Path):
    await fill(store)
    before = await export(store)
    assert await store.offloading.offload("tides") is not None
    assert await count_rows(store, *ARCHIVED_TABLES, schema.pending_objects) == 0
    # Those of the first reply and of both heads.
    assert await count_rows(store, schema.paths) == 3
    assert len(list_objects(folder)) == 1
    assert await store.verify_conversation("tides") == []
    assert await store.offloading.offload("tides") is None
    assert await export(store) == before
    assert await store.verify_conversation("tides") == []
    assert list_objects(folder) == []
    assert await count_rows(store, schema.pending_objects) == 0


async def test_an_offloaded_conversation_is_listed_and_found(store: SqlStore, folder: Path):
    await fill(store)
    [record] = await store.list_conversations()
    [titled], tokens = await store.fill_titles(record), await store.sum_tokens(["tides"])
    await store.set_tags("tides", ["mill"])
    assert await store.offloading.offload("tides") is not None
    [listed] = await store.list_conversations(tag="mill")
    assert await store.fill_titles(listed) == [titled._replace(tags=("mill",))]
    assert await store.sum_tokens(["tides"]) == tokens
    engine = Engine(store, EngineConfig.create(Settings()))
    found = await search_messages(engine, "hour of the tide")
    assert "At which hour is the tide?" in [hit.entry.message.text for hit in found.messages]
    assert len(list_objects(folder)) == 1, "a search does not restore"
    shutil.rmtree(folder)
    folder.write_bytes(b"")
    assert (await search_messages(engine, "hour of the tide")).messages == []


async def test_a_client_that_continues_is_recognized(store: SqlStore):
    await fill(store)
    entries = await store.read_range("tides")
    continued = [*(entry.message for entry in entries), Message.user("And tomorrow?")]
    edited = [*(entry.message for entry in entries[:5]), Message.user("Something else")]
    for messages, length in ((continued, len(entries)), (edited, 5)):
        assert await store.offloading.offload("tides") is not None
        match = await store.match_history(list(iter_paths(each.canonical_json().encode() for each in messages)))
        assert match is not None
        assert (match.branch.conversation, match.length, match.seq) == ("tides", length, length)
        assert await store.verify_conversation("tides") == []


async def test_an_append_restores_first(store: SqlStore):
    await fill(store)
    before = await store.get_branch("tides")
    assert await store.offloading.offload("tides") is not None
    [entry] = await store.append("tides", Message.user("Later."))
    assert entry.seq == before.head_seq + 1
    assert await store.verify_conversation("tides") == []


async def test_a_response_id_finds_an_offloaded_reply(store: SqlStore):
    await store.create_conversation("tides")
    turn = make_turn(Message.user("Hello"), Message.assistant("Yes?"))
    await store.record_reply("tides", turn._replace(request_id="request-1", response_id="resp_1"))
    await finish_background_work(store)
    assert await store.offloading.offload("tides") is not None
    assert (await store.find_response("resp_1")).seq == 2
    assert await store.offloading.offload("tides") is not None
    assert await store.forget_response("resp_1")
    with pytest.raises(ResponseNotFound):
        await store.find_response("resp_1")


@pytest.mark.every_database
async def test_a_purge_reaches_archives_and_blobs(store: SqlStore, folder: Path, admin_url: str):
    chart = FilePart(blob=await store.put_blob(CHART + CANARY.encode(), media_type="image/png"))
    for name in ("tides", "harbour", "mill"):
        await fill(store, name, text=f"The key is {CANARY}." if name == "tides" else "No key.")
    await store.append("mill", Message(role="user", parts=(chart,)))
    await finish_background_work(store)
    assert await store.offloading.move_blobs("mill", min_bytes=1_000) == 1
    for name in ("tides", "harbour", "mill"):
        assert await store.offloading.offload(name) is not None
    assert is_in_objects(folder, CANARY)
    purged = await store.purge_value(CANARY)
    assert {conversation for conversation, _, _ in purged.entries} == {"tides", "mill"}
    assert purged.remaining == ()
    assert not is_in_objects(folder, CANARY)
    assert not contains_text(dump_database(admin_url), CANARY)
    assert len(list_objects(folder)) == 1, "harbour has no key, and stays"
    for name in ("tides", "harbour", "mill"):
        assert await store.verify_conversation(name) == []


async def test_a_purge_of_a_conversation_deletes_its_object(store: SqlStore, folder: Path, admin_url: str):
    await fill(store, text=f"The key is {CANARY}.")
    assert await store.offloading.offload("tides") is not None
    await store.purge("tides")
    assert list_objects(folder) == []
    assert not contains_text(dump_database(admin_url), CANARY)


async def test_large_blobs_move_and_are_read(store: SqlStore, folder: Path):
    await fill(store)
    digest = await store.put_blob(CHART, media_type="image/png")
    await store.append("tides", Message(role="user", parts=(FilePart(blob=digest),)))
    assert await store.offloading.move_blobs("tides", min_bytes=len(CHART) + 1) == 0
    assert await store.offloading.move_blobs("tides", min_bytes=len(CHART)) == 1
    [moved] = list_objects(folder)
    assert moved.read_bytes() == CHART
    assert (await store.get_blob(digest)).data == CHART
    assert await store.put_blob(CHART, media_type="image/png") == digest
    assert await store.verify_conversation("tides") == []
    before = await export(store)
    moved.write_bytes(CHART[1:])
    with pytest.raises(IntegrityViolation):
        await store.get_blob(digest)
    assert [fault.problem for fault in await store.verify_conversation("tides")] == ["uses a blob with other bytes"]
    moved.write_bytes(CHART)
    assert await export(store) == before


async def test_a_changed_archive_is_found(store: SqlStore, folder: Path):
    await fill(store)
    assert await store.offloading.offload("tides") is not None
    [archive] = list_objects(folder)
    archive.write_bytes(archive.read_bytes()[:-1])
    assert [fault.problem for fault in await store.verify_conversation("tides")] == [
        "the conversation's archive is missing or was changed"
    ]
    with pytest.raises(IntegrityViolation):
        await export(store)


async def test_a_changed_conversation_stays(store: SqlStore, admin_url: str):
    await fill(store)
    async with SqlStore.open(admin_url) as owner:
        await set_times(owner, schema.entries, at=1)
    with pytest.raises(IntegrityViolation, match="stays in the database"):
        await store.offloading.offload("tides")


async def test_live_conversations_go_on_without_the_object_storage(store: SqlStore, folder: Path):
    await fill(store)
    await fill(store, "live")
    before = await export(store)
    assert await store.offloading.offload("tides") is not None
    hidden = folder.with_name("away")
    folder.rename(hidden)
    folder.write_bytes(b"")
    digest = await store.put_blob(CHART, media_type="image/png")
    await store.append("live", Message(role="user", parts=(FilePart(blob=digest),)), Message.assistant("A chart."))
    await finish_background_work(store)
    assert (await store.get_blob(digest)).data == CHART
    assert len(await store.list_conversations()) == 2
    with pytest.raises(ObjectStorageUnavailable):
        await store.offloading.offload("live")
    with pytest.raises(ObjectStorageUnavailable):
        await store.read_range("tides")
    with pytest.raises(ObjectStorageUnavailable):
        await store.purge_value(CANARY)
    assert await store.verify_conversation("live") == []
    folder.unlink()
    hidden.rename(folder)
    assert await export(store) == before
    assert await count_rows(store, schema.pending_objects) == 1, "the upload that failed"
    await set_times(store, schema.pending_objects, since=UPLOAD_MICROS)
    assert await store.offloading.collect() == 1
    assert await count_rows(store, schema.pending_objects) == 0


STEPS = (
    "quire.objects.ObjectStorage.put",
    "quire.objects.ObjectStorage.get",
    "quire.store.archives._mark_offloaded",
    "quire.store.archives._delete_rows",
    "quire.store.archives._insert_rows",
    "quire.objects.ObjectStorage.delete",
    "quire.store.archives._end_removal",
)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.rpartition(".")[2].strip("_"))
async def test_a_process_that_ends_before_any_step_loses_nothing(
    store: SqlStore, folder: Path, monkeypatch: Any, step: str
):
    """Steps of moving a conversation and of its return."""
    await fill(store)
    before = await export(store)

    def crash(*_: object, **__: object) -> None:
        raise RuntimeError

    async def move_there_and_back() -> None:
        await store.offloading.offload("tides")
        await export(store)

    with monkeypatch.context() as patched:
        patched.setattr(step, crash)
        with pytest.raises(RuntimeError):
            await move_there_and_back()
    await set_times(store, schema.pending_objects, since=UPLOAD_MICROS)
    await store.offloading.collect()
    assert await count_rows(store, schema.pending_objects) == 0
    assert len(list_objects(folder)) == await count_archives(store)
    assert await store.verify_conversation("tides") == []
    assert await export(store) == before
    assert list_objects(folder) == []


@pytest.mark.every_database
@pytest.mark.slow
async def test_a_killed_process_loses_nothing(store: SqlStore, folder: Path, database_url: str, monkeypatch: Any):
    await fill(store)
    before = await export(store)
    monkeypatch.setenv(OBJECT_STORAGE_VARIABLE, f"file://{folder}")
    for _ in range(KILLS):
        with start_writers(database_url, [("move", "tides")]) as [mover]:
            assert mover.stdout.readline() == "there\n", mover.stderr.read()
            await asyncio.sleep(random.uniform(0, 0.7))
            mover.kill()
            mover.wait()
        assert await export(store) == before
        assert await store.verify_conversation("tides") == []
    await set_times(store, schema.pending_objects, since=UPLOAD_MICROS)
    await store.offloading.collect()
    assert list_objects(folder) == []


@pytest.mark.every_database
async def test_a_tenant_is_purged_with_its_objects(store: SqlStore, folder: Path, admin_url: str):
    leaving = store.for_tenant("a/person")
    await fill(leaving)
    digest = await leaving.put_blob(CHART, media_type="image/png")
    await leaving.append("tides", Message(role="user", parts=(FilePart(blob=digest),)))
    await finish_background_work(leaving)
    await fill(store, "staying")
    await leaving.offloading.move_blobs("tides", min_bytes=1_000)
    assert await leaving.offloading.offload("tides") is not None
    assert await store.offloading.offload("staying") is not None
    async with SqlStore.open(admin_url, tenant="a/person") as owner:
        with pytest.raises(InvalidConfiguration, match="object_storage_url"):
            await owner.purge_tenant()
    assert len(list_objects(folder)) == 3
    async with SqlStore.open(admin_url, tenant="a/person", object_storage=f"file://{folder}") as owner:
        assert (await owner.purge_tenant()).objects == 2
    assert len(list_objects(folder)) == 1


@pytest.mark.every_database
async def test_two_processes_restore_at_once(store: SqlStore, database_url: str, folder: Path):
    await fill(store)
    before = await export(store)
    async with SqlStore.open(database_url, object_storage=f"file://{folder}") as other:
        for _ in range(3):
            assert await store.offloading.offload("tides") is not None
            assert await asyncio.gather(export(store), export(other)) == [before, before]
    assert list_objects(folder) == []


@pytest.mark.every_database
async def test_messages_that_come_while_a_conversation_moves_are_stored(
    store: SqlStore, database_url: str, folder: Path
):
    await fill(store)
    await fill(store, "mill")
    stored, moves, is_done = dict.fromkeys(("tides", "mill"), len(await store.read_range("tides"))), 0, False

    async def write(name: str, own: SqlStore) -> None:
        while not is_done:
            await own.append(name, Message.user("And now?"), Message.assistant("High."))
            stored[name] += 2
            assert len(await own.read_range(name)) >= stored[name] - 2
            await asyncio.sleep(random.uniform(0, 0.4))

    async with SqlStore.open(database_url, object_storage=f"file://{folder}") as other:
        writers = [asyncio.create_task(write(*each)) for each in (("tides", other), ("mill", other), ("mill", store))]
        ends = time.monotonic() + MOVING_SECONDS
        while time.monotonic() < ends:
            await finish_background_work(store)
            moves += sum([await store.offloading.offload(name) is not None for name in stored])
        is_done = True
        await asyncio.gather(*writers)
    assert moves > 0
    for name, count in stored.items():
        assert len(await store.read_range(name)) == count
        assert await store.verify_conversation(name) == []
    await store.offloading.collect()
    assert list_objects(folder) == []


async def test_an_object_in_use_is_not_removed(store: SqlStore, folder: Path):
    await fill(store)
    digest = await store.put_blob(CHART, media_type="image/png")
    await store.append("tides", Message(role="user", parts=(FilePart(blob=digest),)))
    await finish_background_work(store)
    before = await export(store)
    assert await store.offloading.move_blobs("tides", min_bytes=1_000) == 1
    assert await store.offloading.offload("tides") is not None
    names = await store.offloading.get_storage().list(store.tenant)

    def release(connection: Connection, tenant: str) -> None:
        release_objects(connection, tenant, names)

    await store.run(write, release)
    assert await store.offloading.collect() == 2
    assert len(list_objects(folder)) == 2
    assert await export(store) == before


async def test_objects_of_an_encrypted_tenant_are_encrypted(database_url: str, folder: Path):
    keys = TenantKeys(LocalKeys(lambda: base64.b64encode(bytes(32)).decode(), source="The test"), lambda _: True)
    async with SqlStore.open(database_url, keys=keys, object_storage=f"file://{folder}") as store:
        await fill(store, text=f"The key is {CANARY}.")
        digest = await store.put_blob(CHART, media_type="image/png")
        await store.append("tides", Message(role="user", parts=(FilePart(blob=digest),)))
        await finish_background_work(store)
        before = await export(store)
        assert await store.offloading.move_blobs("tides", min_bytes=1_000) == 1
        assert await store.offloading.offload("tides") is not None
        contents = [each.read_bytes() for each in list_objects(folder)]
        assert len(contents) == 2
        for content in contents:
            assert CHART[:20] not in content
            with pytest.raises(ValueError, match="not an archive"):
                unpack_lines(content)
        assert await store.verify_conversation("tides") == []
        assert CANARY in "".join(before)
        assert await export(store) == before


@pytest.mark.every_postgres
async def test_the_application_cannot_delete_other_entries(store: SqlStore, database_url: str):
    assert is_postgres(database_url)
    await fill(store)

    def delete_rows(connection: Connection, tenant: str) -> None:
        connection.exec_driver_sql("SELECT quire_delete_offloaded('tides', '{}')")

    await store.run(write, delete_rows)
    assert await store.verify_conversation("tides") == []
    with pytest.raises(StoreError, match="permission denied"):
        await store.run(write, lambda connection, _: connection.exec_driver_sql("DELETE FROM quire_entries"))


async def test_a_conversation_goes_to_s3_and_back(database_url: str, monkeypatch: pytest.MonkeyPatch):
    with run_s3_server() as server:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        async with SqlStore.open(database_url, object_storage=server.url) as store:
            await fill(store)
            before = await export(store)
            assert await store.offloading.offload("tides") is not None
            assert await count_rows(store, *ARCHIVED_TABLES) == 0
            assert await store.verify_conversation("tides") == []
            assert await export(store) == before
            assert await store.offloading.delete_all() == 0
            assert await store.offloading.offload("tides") is not None
            server.stop()
            with pytest.raises(ObjectStorageUnavailable):
                await export(store)
            await store.create_conversation("live")
            await store.append("live", Message.user("Still here?"))
