"""Two windows on one conversation whose network is cut during replies: no word is lost, and none comes twice."""

from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from cutting_proxy import CuttingProxy, run_cutting_proxy
from page_faults import save_picture
from page_server import PageServer
from playwright.sync_api import Locator, Page, expect
from test_chat_page import send_message

from quire.store import DEFAULT_TENANT

pytestmark = pytest.mark.nightly

NETWORK_CUTS = 20
CUT_INTERVAL_MS = 300
CHUNK_DELAY_SECONDS = 0.1
TIMEOUT_MS = 60_000
REPLY_START = "You asked"
REPLY_END = "Look at the context of this reply"


@pytest.fixture
def proxy(page_server: PageServer) -> Iterator[CuttingProxy]:
    stack = AsyncExitStack()
    yield page_server.run(stack.enter_async_context(run_cutting_proxy(page_server.port)))
    page_server.run(stack.aclose())


@pytest.fixture
def slow_model(page_server: PageServer, demo_conversation: str) -> Iterator[None]:
    """Slow from the end of the demo conversation on, whose own turns would take long."""
    del demo_conversation
    page_server.model.delay_seconds = CHUNK_DELAY_SECONDS
    yield
    page_server.model.delay_seconds = 0.0


def find_live_reply(window: Page) -> Locator:
    return window.get_by_role("region", name="Reply in progress")


def read_replies(window: Page) -> list[str]:
    """Texts of the replies to this test's questions, as displayed."""
    return window.locator("article.assistant .body").filter(has_text=REPLY_START).all_inner_texts()


def read_reply_in_progress(window: Page) -> str:
    """Read in one step: the reply may end, and its region vanish, at any time."""
    return find_live_reply(window).evaluate_all("regions => regions.map(region => region.innerText).join()")


@pytest.mark.usefixtures("slow_model")
def test_no_word_is_lost_or_repeated_in_two_windows_when_the_network_comes_and_goes(
    page: Page, page_server: PageServer, proxy: CuttingProxy, demo_conversation: str
) -> None:
    windows = (page, page.context.new_page())
    address = page_server.url(demo_conversation).replace(f":{page_server.port}/", f":{proxy.port}/")
    for window in windows:
        window.goto(address)
        expect(window.get_by_role("article").last).to_be_visible()
    turns = 0
    cuts = 0
    while cuts < NETWORK_CUTS:
        send_message(windows[turns % 2], f"Question {turns} about the wheel")
        turns += 1
        for window in windows:
            expect(find_live_reply(window)).to_contain_text(REPLY_START, timeout=TIMEOUT_MS)
        while cuts < NETWORK_CUTS and find_live_reply(page).count():
            page_server.run(proxy.cut())
            cuts += 1
            page.wait_for_timeout(CUT_INTERVAL_MS)
            for window in windows:
                seen = read_reply_in_progress(window)
                assert not seen or seen.count(REPLY_START) == 1
        for window in windows:
            expect(window.locator("article.assistant .body").filter(has_text=REPLY_END)).to_have_count(
                turns, timeout=TIMEOUT_MS
            )
            expect(find_live_reply(window)).to_have_count(0, timeout=TIMEOUT_MS)
    replies = [read_replies(window) for window in windows]
    assert replies[0] == replies[1]
    assert len(replies[0]) == turns
    for number, text in enumerate(replies[0]):
        assert [text.count(part) for part in (REPLY_START, "the gate first", "then the wheel", REPLY_END)] == [1] * 4
        assert f"Question {number} about the wheel" in text
    stored = page_server.run(list_stored_replies(page_server, demo_conversation))
    assert len(stored) == turns
    assert proxy.cuts >= NETWORK_CUTS


@pytest.mark.usefixtures("slow_model")
def test_the_words_that_came_stay_while_the_network_is_down(
    page: Page, page_server: PageServer, proxy: CuttingProxy, demo_conversation: str
) -> None:
    page.goto(page_server.url(demo_conversation).replace(f":{page_server.port}/", f":{proxy.port}/"))
    send_message(page, "A question about the wheel")
    live = find_live_reply(page)
    expect(live).to_contain_text(REPLY_START, timeout=TIMEOUT_MS)
    proxy.is_down = True
    page_server.run(proxy.cut())
    expect(live).to_contain_text("Connection lost; the reply continues on the server")
    expect(live).to_contain_text(REPLY_START)
    save_picture(page, "connection-lost")
    proxy.is_down = False
    expect(page.get_by_role("article").last).to_contain_text(REPLY_END, timeout=TIMEOUT_MS)
    expect(live).to_have_count(0)


async def list_stored_replies(page_server: PageServer, conversation_id: str) -> list[str]:
    conversation = await page_server.server_state.engine_for(DEFAULT_TENANT).conversation(conversation_id)
    return [text for entry in await conversation.messages() if REPLY_START in (text := entry.message.text)]
