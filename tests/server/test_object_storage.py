"""While the object storage is away, live conversations go on, and what is stored there answers 503."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gateway_fixtures import GatewayHarness, assistant_message, run_gateway, user_message

from fake_upstream import respond_with_text, run_fake_upstream
from quire.engine.message_index import index_messages
from quire.store import SqlStore

pytestmark = pytest.mark.every_database

OLD = [user_message("When is the spring tide?"), assistant_message("At noon.")]
LIVE = [user_message("Which port?"), assistant_message("At noon.")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
async def gateway(database_url: str, folder: Path) -> AsyncIterator[GatewayHarness]:
    async with (
        SqlStore.open(database_url, object_storage=f"file://{folder}") as store,
        run_fake_upstream(respond_with_text("At noon.")) as upstream,
        run_gateway(store, upstream.url) as harness,
    ):
        yield harness


async def test_a_minute_without_object_storage(gateway: GatewayHarness, folder: Path):
    old = (await gateway.ask(OLD[0])).headers["x-quire-conversation"]
    live = (await gateway.ask(LIVE[0])).headers["x-quire-conversation"]
    await gateway.server_state.wait_for_background()
    store = gateway.store
    while await store.usage.count():
        pass
    await index_messages(gateway.server_state.engine_for(store.tenant))
    assert await store.offloading.offload(old) is not None

    hidden = folder.with_name("away")
    folder.rename(hidden)
    folder.write_bytes(b"")
    assert (await gateway.ask(*LIVE, user_message("And then?"))).headers["x-quire-conversation"] == live
    listed = (await gateway.http.get("/api/conversations")).json()["items"]
    assert {each["id"]: each["title"] for each in listed}[old] == "When is the spring tide?"
    opened = await gateway.http.get(f"/api/conversations/{old}/entries")
    assert (opened.status_code, opened.json()["code"]) == (503, "object_storage_unavailable")
    assert int(opened.headers["retry-after"]) > 0
    continued = await gateway.ask(*OLD, user_message("And tomorrow?"))
    assert continued.status_code == 503

    folder.unlink()
    hidden.rename(folder)
    continued = await gateway.ask(*OLD, user_message("And tomorrow?"))
    assert continued.headers["x-quire-conversation"] == old
    assert len(await gateway.load_messages(old)) == 4
    assert await store.verify_conversation(old) == []
