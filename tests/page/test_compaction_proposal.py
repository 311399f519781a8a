"""`compact_when = "ask"` on the page: a bar asks before a compaction, and nothing is compacted without consent."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from page_server import PageServer, serve_page
from playwright.sync_api import Page, expect

import demo
from quire.model import Message
from quire.store import DEFAULT_TENANT

pytestmark = pytest.mark.nightly


@pytest.fixture
def asking_server(tmp_path: Path) -> Iterator[PageServer]:
    settings = demo.make_settings(tmp_path).model_copy(
        update={"compact_when": "ask", "context_limit": 4_000, "context_background_threshold": None}
    )
    with serve_page(tmp_path, settings=settings) as server:
        yield server


async def fill_conversation(server: PageServer) -> str:
    engine = server.server_state.engine_for(DEFAULT_TENANT)
    conversation = await engine.conversation()
    for number in range(40):
        await conversation.append(f"Step {number}: " + "dig " * 60, Message.assistant("dug " * 60))
    return conversation.id


def test_a_bar_asks_before_a_compaction(page: Page, asking_server: PageServer) -> None:
    conversation = asking_server.run(fill_conversation(asking_server))
    store = asking_server.server_state.engine_for(DEFAULT_TENANT).store
    page.goto(asking_server.url(conversation))
    bar = page.get_by_role("region", name="Compaction")
    expect(bar).to_contain_text("Compact the history?")
    bar.get_by_role("button", name="Not now").click()
    expect(bar).to_have_count(0)
    page.reload()
    expect(bar).to_contain_text("requests omit the oldest messages")
    assert asking_server.run(store.read_range(conversation, kinds=["compaction"])) == []
    bar.get_by_role("button", name="Compact").click()
    expect(page.get_by_role("article", name="Compaction 1")).to_be_visible()
    expect(bar).to_have_count(0)
    assert len(asking_server.run(store.read_range(conversation, kinds=["compaction"]))) == 1
