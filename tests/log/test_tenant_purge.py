"""A purge of a whole tenant."""

import pytest
from sqlalchemy import Connection, select

from infra.database_dump import contains_text, dump_database
from quire.db.database_url import is_postgres
from quire.db.schema import metadata
from quire.db.store_part import read
from quire.errors import StoreError
from quire.model import FilePart, Message
from quire.store import SqlStore
from quire.team.store import TeamStore


async def fill(store: SqlStore, messages: int) -> None:
    for name in ("harbour", "tides"):
        await store.create_conversation(name)
        texts = [f"Message {number} of {name}." for number in range(messages)]
        await store.append(name, *(Message.user(text) for text in texts))
    await store.fork("harbour", at=1, name="other")
    chart = FilePart(blob=await store.put_blob(b"\x00\xff chart", media_type="image/png"))
    await store.append("tides", Message(role="user", parts=(chart,)))
    await store.keys.create("editor", ["read", "chat"])


async def read_rows(store: SqlStore) -> dict[str, list[str]]:
    """All rows without their tenant."""

    def read_tables(connection: Connection, tenant: str) -> dict[str, list[str]]:
        return {
            table.name: sorted(
                repr(row[1:]) for row in connection.execute(select(table).where(table.c.tenant == tenant))
            )
            for table in metadata.sorted_tables
            if "tenant" in table.c
        }

    return await store.run(read, read_tables)


@pytest.mark.every_database
async def test_a_purged_tenant_leaves_no_row_and_others_stay(store: SqlStore, admin_url: str):
    leaving, staying = store.for_tenant("leaving"), store.for_tenant("staying")
    for each in (leaving, staying):
        await fill(each, 3)
        await TeamStore(each).audit.append("sign_in", actor="ann", target={}, address="10.0.0.1")
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
