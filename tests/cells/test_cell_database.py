"""Tenants in several cells: each transaction runs in its tenant's cell, and a cell refuses an outdated epoch."""

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from infra.builders import make_turn
from infra.cells import Cells
from quire.db.cells import FREEZE_WAIT_SECONDS
from quire.db.database import TenantFilter
from quire.errors import ConversationNotFound, InvalidConfiguration, TenantMoving
from quire.model import Message
from quire.model.ids import new_id
from quire.model.people import make_space
from quire.settings.schema import HOME_CELL
from quire.store import SqlStore

pytestmark = pytest.mark.every_postgres


@pytest.fixture
async def store(cells: Cells) -> AsyncIterator[SqlStore]:
    for tenant, cell in (("harbour", "b"), ("tides", "c")):
        cells.place(tenant, cell)
    async with SqlStore.open(cells.home, cells=cells.others) as store:
        yield store


async def fill(store: SqlStore) -> None:
    await store.create_conversation("talk")
    await store.append("talk", Message.user("When is high tide?"))


def count_conversations(cells: Cells, tenant: str) -> dict[str, object]:
    query = "SELECT count(*) FROM quire_conversations WHERE tenant = %s"
    return {name: cells.fetch(name, query, tenant)[0][0] for name in cells.urls}


async def test_each_tenant_has_its_rows_in_its_cell_alone(store: SqlStore, cells: Cells):
    person = make_space("tides", new_id())
    for tenant, cell in (("default", HOME_CELL), ("harbour", "b"), ("tides", "c"), (person, "c")):
        own = store.for_tenant(tenant)
        await fill(own)
        assert count_conversations(cells, tenant) == {name: int(name == cell) for name in cells.urls}
        assert await own.find_cell(tenant) == cell
        assert (await own.get_branch("talk")).head_seq == 1
        assert await own.verify_conversation("talk") == []


async def test_a_key_of_any_cell_is_found_and_another_is_not(store: SqlStore):
    keys = {tenant: await store.for_tenant(tenant).keys.create("k", ["read"]) for tenant in ("default", "tides")}
    for tenant, (key, text) in keys.items():
        assert (await store.keys.verify(text)) == key
        assert key.tenant == tenant
        wrong = text[:-1] + ("x" if text[-1] != "x" else "y")
        assert await store.keys.verify(wrong) is None
        await store.for_tenant(tenant).keys.revoke(key.id)
        assert await store.keys.verify(text) is None
    unknown = text.replace(key.id, new_id())
    assert await store.keys.verify(unknown) is None


async def test_a_key_that_its_old_cell_still_has_is_valid_only_where_the_tenant_lives(store: SqlStore, cells: Cells):
    own = store.for_tenant("harbour")
    key, text = await own.keys.create("k", ["read"])
    row = cells.fetch("b", "SELECT to_jsonb(k)::text FROM quire_api_keys AS k WHERE id = %s", key.id)[0][0]
    with psycopg.connect(cells.owner_urls[HOME_CELL]) as connection:
        connection.execute(
            "INSERT INTO quire_api_keys SELECT * FROM jsonb_populate_record(NULL::quire_api_keys, %s::jsonb)", [row]
        )
    await own.keys.revoke(key.id)
    assert await store.keys.verify(text) is None


async def test_a_process_that_knows_an_old_cell_looks_again(store: SqlStore, cells: Cells):
    own = store.for_tenant("new")
    await fill(own)
    cells.place("new", "b")
    with pytest.raises(ConversationNotFound):
        await own.get_branch("talk")
    await own.create_conversation("there")
    assert count_conversations(cells, "new") == {HOME_CELL: 1, "b": 1, "c": 0}
    # A fetch in one message is refused as well.
    with psycopg.connect(cells.owner_urls[HOME_CELL]) as connection:
        connection.execute("UPDATE quire_tenant_cells SET cell = 'c', epoch = 2 WHERE team = 'new'")
    with psycopg.connect(cells.owner_urls["b"]) as connection:
        connection.execute("UPDATE quire_cell_tenants SET state = 'moved', epoch = 2 WHERE team = 'new'")
    with psycopg.connect(cells.owner_urls["c"]) as connection:
        connection.execute("INSERT INTO quire_cell_tenants (team, epoch, state) VALUES ('new', 2, 'live')")
    with pytest.raises(ConversationNotFound):
        await own.get_branch("there")


async def test_the_row_of_the_left_cell_is_followed_where_the_directory_is_behind(store: SqlStore, cells: Cells):
    own = store.for_tenant("new")
    await fill(own)
    cells.place("new", "b")
    with psycopg.connect(cells.owner_urls[HOME_CELL]) as connection:
        connection.execute("DELETE FROM quire_tenant_cells")
    await own.create_conversation("there")
    assert count_conversations(cells, "new")["b"] == 1


async def test_a_frozen_tenant_is_read_and_its_writes_wait(store: SqlStore, cells: Cells):
    own = store.for_tenant("harbour")
    await fill(own)
    freeze = (
        "UPDATE quire_cell_tenants SET state = 'frozen', "
        "frozen_until = extract(epoch FROM clock_timestamp()) * 1000000 + %s WHERE team = 'harbour'"
    )
    with psycopg.connect(cells.owner_urls["b"]) as connection:
        connection.execute(freeze, [60_000_000])
    assert (await own.get_branch("talk")).head_seq == 1
    started = asyncio.get_running_loop().time()
    with pytest.raises(TenantMoving):
        await own.append("talk", Message.user("And now?"))
    assert asyncio.get_running_loop().time() - started >= FREEZE_WAIT_SECONDS
    with psycopg.connect(cells.owner_urls["b"]) as connection:
        connection.execute(freeze, [500_000])
    # A freeze whose mover has died ends by itself.
    await own.append("talk", Message.user("And now?"))
    assert (await own.get_branch("talk")).head_seq == 2


async def test_a_running_write_is_waited_for_before_a_freeze(store: SqlStore, cells: Cells):
    with psycopg.connect(cells.urls["b"]) as writer, psycopg.connect(cells.owner_urls["b"]) as mover:
        writer.execute("SELECT quire_enter_cell('harbour', 1, true)")
        mover.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            mover.execute("SELECT pg_advisory_xact_lock(1903520114, hashtext('harbour'))")


async def test_a_cell_that_the_settings_do_not_name_is_reported(cells: Cells):
    cells.place("tides", "c")
    others = {name: cell for name, cell in cells.others.items() if name != "c"}
    async with SqlStore.open(cells.home, cells=others) as store:
        with pytest.raises(InvalidConfiguration, match="the cell 'c'"):
            await store.for_tenant("tides").list_conversations()


async def test_what_concerns_all_tenants_is_read_in_every_cell(store: SqlStore):
    for tenant in ("default", "harbour", "tides"):
        await fill(store.for_tenant(tenant))
    found = {
        part.cell: [each.tenant for each in await part.list_updated_conversations(since=0, until=2**62)]
        for part in store.all_tenants.list_parts()
    }
    assert found == {HOME_CELL: ["default"], "b": ["harbour"], "c": ["tides"]}
    heads = await store.all_tenants.list_branch_heads([("harbour", "talk"), ("tides", "talk")])
    assert heads == {("harbour", "talk"): {0: 1}, ("tides", "talk"): {0: 1}}
    await store.check()


async def test_a_lost_connection_concerns_the_tenants_of_its_cell(store: SqlStore, cells: Cells):
    tenants = ("default", "harbour", "tides")
    for tenant in tenants:
        await fill(store.for_tenant(tenant))
    losses: list[TenantFilter] = []
    store.on_connection_loss(losses.append)
    cells.fetch(
        "b",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'quire_app' "
        "AND datname = current_database()",
    )
    for tenant in tenants:
        assert (await store.for_tenant(tenant).get_branch("talk")).head_seq == 1
    assert losses
    assert all([each(tenant) for tenant in tenants] == [False, True, False] for each in losses)


async def test_a_turn_is_recorded_in_its_cell_and_after_a_move_in_the_next(store: SqlStore, cells: Cells):
    own = store.for_tenant("new")
    await fill(own)
    turn = make_turn(Message.user("And now?"), Message.assistant("At nine."))
    await own.record_reply("talk", turn)
    cells.place("new", "b")
    with pytest.raises(ConversationNotFound):
        await own.record_reply("talk", turn)
    await fill(own)
    await own.record_reply("talk", turn)
    counts = {
        name: cells.fetch(name, "SELECT count(*) FROM quire_manifests WHERE tenant = 'new'")[0][0]
        for name in cells.urls
    }
    assert counts == {HOME_CELL: 1, "b": 1, "c": 0}
