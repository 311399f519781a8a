"""`quire tenant move`: every row arrives, while the tenant is written to, and from every point where it was killed."""

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from infra.builders import export_lines
from infra.cells import Cells, read_tenant_rows
from infra.sizes import IS_FULL_SIZE
from quire.engine import Engine, EngineConfig
from quire.engine.message_index import index_messages
from quire.errors import Conflict, InvalidConfiguration, InvalidRequest
from quire.model import FilePart, Message
from quire.model.ids import new_id
from quire.model.people import make_space
from quire.settings import Settings
from quire.settings.schema import HOME_CELL
from quire.store import SqlStore
from quire.store.tenant_move import FREEZE_SECONDS, TenantMover

pytestmark = pytest.mark.every_postgres

CONVERSATIONS, MESSAGES = (200, 100) if IS_FULL_SIZE else (12, 10)
KILLS = 20 if IS_FULL_SIZE else 4


@pytest.fixture
async def store(cells: Cells) -> AsyncIterator[SqlStore]:
    async with SqlStore.open(cells.home, cells=cells.others) as store:
        yield store


async def fill(store: SqlStore, conversations: int = CONVERSATIONS, messages: int = MESSAGES) -> None:
    for number in range(conversations):
        await store.create_conversation(f"c{number}")
        texts = (f"Message {index} of {number}: the tide turns at {random.random()}." for index in range(messages))
        await store.append(f"c{number}", *(Message.user(text) for text in texts))
    await store.fork("c0", at=1, name="other")
    chart = FilePart(blob=await store.put_blob(b"\x00\xff chart", media_type="image/png"))
    await store.append("c1", Message(role="user", parts=(chart,)))
    await store.keys.create("editor", ["read", "chat"])
    await store.audit.append("sign_in", actor="ann", target={}, address="10.0.0.1")


async def test_a_tenant_arrives_whole_and_leaves_nothing(store: SqlStore, cells: Cells):
    own, other = store.for_tenant("harbour"), store.for_tenant("staying")
    person = make_space("harbour", new_id())
    for each in (own, other, store.for_tenant(person)):
        await fill(each, 3, 4)
    for cell in cells.owner_urls:
        cells.add_user(cell, person)
    tenants = ("harbour", person)
    before = {tenant: read_tenant_rows(cells.owner_urls[HOME_CELL], tenant) for tenant in (*tenants, "staying")}
    with TenantMover(cells.owner_urls, "harbour") as mover:
        report = mover.start("b")
    assert (report.source, report.target, report.conversations) == (HOME_CELL, "b", 6)
    for tenant in tenants:
        assert read_tenant_rows(cells.owner_urls["b"], tenant) == before[tenant]
        assert not any(read_tenant_rows(cells.owner_urls[HOME_CELL], tenant).values())
        assert await store.for_tenant(tenant).verify_conversation("c0") == []
    assert read_tenant_rows(cells.owner_urls[HOME_CELL], "staying") == before["staying"]
    await own.append("c0", Message.user("And now?"))
    assert (await own.get_branch("c0")).head_seq == 5
    # And back, to a cell that has had it before.
    with TenantMover(cells.owner_urls, "harbour") as mover:
        mover.start(HOME_CELL, keep_source=True)
        mover.start("c")
        mover.start("b")
    assert (await own.get_branch("c0")).head_seq == 5
    assert await own.find_cell("harbour") == "b"
    assert await own.verify_tenant() == []


async def test_conversations_and_blobs_in_object_storage_move_with_their_tenant(cells: Cells, tmp_path: Path):
    objects = f"file://{tmp_path}/objects"
    async with SqlStore.open(cells.home, cells=cells.others, object_storage=objects) as store:
        own = store.for_tenant("harbour")
        await fill(own, 2, 4)
        while await own.usage.count():
            pass
        await index_messages(Engine(own, EngineConfig.create(Settings())))
        before = [await export_lines(own, name) for name in ("c0", "c1")]
        assert await own.offloading.move_blobs("c1", min_bytes=1) == 1
        assert await own.offloading.offload("c0") is not None
        with TenantMover(cells.owner_urls, "harbour") as mover:
            mover.start("b")
        assert len(await own.offloading.get_storage().list("harbour")) == 2
        assert await own.verify_conversation("c0") == []
        assert [await export_lines(own, name) for name in ("c0", "c1")] == before
        assert len(await own.offloading.get_storage().list("harbour")) == 1


async def test_the_owner_needs_no_right_to_bypass_row_level_security(store: SqlStore, cells: Cells):
    own = store.for_tenant("harbour")
    await fill(own, 2, 3)
    before = read_tenant_rows(cells.owner_urls[HOME_CELL], "harbour")
    with TenantMover(cells.give_to_plain_owner(), "harbour") as mover:
        mover.start("b")
    assert read_tenant_rows(cells.owner_urls["b"], "harbour") == before


async def test_nothing_is_lost_while_the_tenant_is_written_to(store: SqlStore, cells: Cells):
    own, acknowledged, longest = store.for_tenant("harbour"), dict[str, int](), 0.0
    await fill(own)
    is_done = asyncio.Event()

    async def write(conversation: str) -> None:
        nonlocal longest
        while not is_done.is_set():
            started = time.monotonic()
            entries = await own.append(conversation, Message.user(f"Written at {time.time()}"))
            longest = max(longest, time.monotonic() - started)
            acknowledged[conversation] = entries[-1].seq
            await asyncio.sleep(0.02)

    writers = [asyncio.create_task(write(f"c{number}")) for number in range(4)]
    with TenantMover(cells.owner_urls, "harbour") as mover:
        report = await asyncio.to_thread(mover.start, "b")
    await asyncio.sleep(0.3)
    is_done.set()
    await asyncio.gather(*writers)
    sys.stderr.write(f"\n{report}; longest write {longest:.2f} s; load {os.getloadavg()[0]:.0f}\n")
    assert all(each.done() and each.exception() is None for each in writers)
    if IS_FULL_SIZE:
        assert report.frozen_seconds < 2.0
        assert report.seconds < 15
    for conversation, head in acknowledged.items():
        assert (await own.get_branch(conversation)).head_seq == head
        assert await own.verify_conversation(conversation) == []
    assert await own.verify_tenant() == []
    assert cells.fetch(HOME_CELL, "SELECT count(*) FROM quire_entries WHERE tenant = 'harbour'") == [(0,)]


async def test_a_move_that_was_killed_is_resumed_or_undone(store: SqlStore, cells: Cells):
    own, seed = store.for_tenant("harbour"), random.randrange(10**6)
    await fill(own)
    rng, places = random.Random(seed), sorted(cells.urls)
    expected = read_tenant_rows(cells.owner_urls[HOME_CELL], "harbour")
    steps, outcomes = 20, list[str]()
    for number in range(KILLS):
        start = await own.find_cell("harbour")
        process = cells.start_mover("harbour", rng.choice([name for name in places if name != start]))
        output = process.stdout
        assert output is not None
        lines = [await asyncio.to_thread(output.readline) for _ in range(rng.randint(1, steps))]
        shown = [each.decode().strip() for each in lines if each]
        await asyncio.sleep(rng.choice([0.0, 0.05, 0.3]))
        process.kill()
        rest = await asyncio.to_thread(output.read)
        output.close()
        process.wait()
        outcomes.append(f"killed at {shown[-1]}" if process.returncode else "ended")
        if not process.returncode:
            steps = len(shown) + len(rest.splitlines())
        # Served in any state, as soon as a freeze has ended.
        async with asyncio.timeout(2 * FREEZE_SECONDS):
            while True:
                with suppress(Exception):
                    await own.rename_conversation("c0", f"title {number}")
                    break
        wants_undo = rng.random() < 0.5
        with TenantMover(cells.owner_urls, "harbour") as mover:
            if wants_undo:
                with suppress(InvalidRequest):
                    mover.undo()
                    outcomes[-1] += ", undone"
            with suppress(InvalidRequest):
                mover.resume()
                outcomes[-1] += ", resumed"
        # The read comes first: it finds out where the tenant is now.
        assert (await own.get_conversation("c0")).title == f"title {number}", (seed, outcomes)
        place = await own.find_cell("harbour")
        for name in places:
            rows = read_tenant_rows(cells.owner_urls[name], "harbour")
            if name == place:
                assert {table: len(each) for table, each in rows.items()} == {
                    table: len(each) for table, each in expected.items()
                }, (seed, outcomes)
                assert rows["quire_entries"] == expected["quire_entries"], (seed, outcomes)
            else:
                assert not any(rows.values()), (seed, name, outcomes)
    sys.stderr.write(f"\nseed {seed}: {outcomes}\n")
    assert await own.verify_tenant() == []


async def test_a_second_move_and_an_unknown_cell_are_refused(store: SqlStore, cells: Cells):
    await fill(store.for_tenant("harbour"), 2, 2)
    with TenantMover(cells.owner_urls, "harbour") as mover:
        with pytest.raises(InvalidRequest, match="no cell 'x'"):
            mover.start("x")
        with pytest.raises(InvalidRequest, match="No move"):
            mover.resume()
        with pytest.raises(InvalidRequest, match="already"):
            mover.start(HOME_CELL)
    with psycopg.connect(cells.owner_urls[HOME_CELL]) as connection:
        connection.execute(
            "INSERT INTO quire_tenant_cells (team, cell, epoch, state, peer) "
            "VALUES ('harbour', 'home', 0, 'moving', 'b')"
        )
    with TenantMover(cells.owner_urls, "harbour") as mover:
        with pytest.raises(Conflict, match="--resume"):
            mover.start("b")
        assert mover.undo() == HOME_CELL
        assert mover.start("b").conversations == 2
    with (
        TenantMover(cells.urls, "harbour") as mover,
        pytest.raises(InvalidRequest, match="owner's database URLs"),
    ):
        mover.start("c")


async def test_a_process_without_the_cells_opens_none_of_them(store: SqlStore, cells: Cells):
    await fill(store.for_tenant("harbour"), 2, 2)
    with TenantMover(cells.owner_urls, "harbour") as mover:
        mover.start("b")
    for name in (HOME_CELL, "b"):
        with pytest.raises(InvalidConfiguration, match="`cells`"):
            async with SqlStore.open(cells.urls[name]):
                pass


@pytest.mark.parametrize("moment", ["pass 2", "frozen", "copying quire_entries"])
async def test_a_mover_that_was_paused_cannot_go_on_after_an_undo(store: SqlStore, cells: Cells, moment: str):
    own = store.for_tenant("harbour")
    await fill(own, 2, 2)
    with TenantMover(cells.owner_urls, "harbour") as paused, TenantMover(cells.owner_urls, "harbour") as other:

        def undo_once(step: str) -> None:
            if step == moment:
                assert other.undo() == HOME_CELL

        paused._report = undo_once
        with pytest.raises(Conflict, match="Another process"):
            paused.start("b")
    assert await own.find_cell("harbour") == HOME_CELL
    await own.append("c0", Message.user("And now?"))
    assert await own.verify_tenant() == []


async def test_a_mover_that_was_paused_deletes_no_row_of_a_tenant_that_came_back(store: SqlStore, cells: Cells):
    own = store.for_tenant("harbour")
    await fill(own, 2, 2)
    with TenantMover(cells.owner_urls, "harbour") as paused, TenantMover(cells.owner_urls, "harbour") as other:

        def return_once(step: str) -> None:
            if step == "deleting":
                other.resume()
                other.start(HOME_CELL)

        paused._report = return_once
        with pytest.raises(Conflict, match="Another process"):
            paused.start("b")
    assert await own.find_cell("harbour") == HOME_CELL
    assert len(await own.list_conversation_ids()) == 2
    assert await own.verify_tenant() == []
