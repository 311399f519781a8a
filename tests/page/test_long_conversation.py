"""A conversation too long to render at once: every position is reachable, and the reading position stays stable."""

import pytest
from page_server import PageServer
from playwright.sync_api import Page, expect

from quire.model import Draft, Message, TokenCount
from quire.store import DEFAULT_TENANT

pytestmark = pytest.mark.nightly

MESSAGE_COUNT = 5_000
VISIBLE_ENTRIES_JS = """() => {
    const box = document.querySelector('.scroll').getBoundingClientRect();
    const all = [...document.querySelectorAll('article[data-seq]')];
    const one = all.find((each) => each.getBoundingClientRect().bottom > box.top + 1);
    const top = one?.getBoundingClientRect().top;
    return one && top < box.bottom ? [Number(one.dataset.seq), top - box.top] : null;
}"""


@pytest.fixture(scope="module")
def long_conversation(page_server: PageServer) -> str:
    """ID of a conversation with messages of very different lengths."""

    async def create() -> str:
        store = page_server.server_state.engine_for(DEFAULT_TENANT).store
        conversation = (await store.create_conversation(title="Long")).id
        texts = [f"Message {number}. " + "More of it. " * (number * 7 % 90) for number in range(1, MESSAGE_COUNT + 1)]
        drafts = [Draft(body=Message.user(text), tokens=TokenCount(9, "estimate")) for text in texts]
        await store.append(conversation, *drafts)
        return conversation

    return page_server.run(create())


def drag_scrollbar(page: Page, fraction: float) -> int:
    """Drags the scroll bar to a fraction; returns the number of the first visible entry."""
    page.evaluate(
        "part => { const box = document.querySelector('.scroll'); box.scrollTop = part * box.scrollHeight; }", fraction
    )
    page.wait_for_timeout(150)
    page.wait_for_function(VISIBLE_ENTRIES_JS)
    return page.evaluate(VISIBLE_ENTRIES_JS)[0]


def test_the_scroll_bar_leads_where_it_says(page: Page, page_server: PageServer, long_conversation: str) -> None:
    page.goto(page_server.url(long_conversation))
    expect(page.locator(f"article[data-seq='{MESSAGE_COUNT}']")).to_be_in_viewport()
    for part in (0.3, 0.7, 0.5, 0.1, 0.9, 0.2, 0.6):
        assert abs(drag_scrollbar(page, part) / MESSAGE_COUNT - part) < 0.05, part


def test_few_messages_are_drawn_at_once_wherever_one_is(
    page: Page, page_server: PageServer, long_conversation: str
) -> None:
    page.goto(page_server.url(long_conversation))
    expect(page.get_by_role("article").last).to_be_visible()
    for part in (0.4, 0.8, 0.05, 0.6):
        drag_scrollbar(page, part)
        assert page.locator("article").count() <= 240


def test_what_one_reads_stays_where_it_is_while_the_rest_is_loaded(
    page: Page, page_server: PageServer, long_conversation: str
) -> None:
    page.goto(page_server.url(long_conversation, at=2_500))
    expect(page.locator("article[data-seq='2500']")).to_be_focused()
    page.wait_for_timeout(400)
    number, offset = page.evaluate(VISIBLE_ENTRIES_JS)
    page.wait_for_timeout(600)
    assert page.evaluate(VISIBLE_ENTRIES_JS)[0] == number
    assert abs(page.evaluate(VISIBLE_ENTRIES_JS)[1] - offset) < 2
    # Scroll up into entries never rendered before: the numbers must decrease without a jump.
    page.mouse.move(680, 430)
    last = number
    for _ in range(60):
        page.mouse.wheel(0, -300)
        page.wait_for_timeout(30)
        seen = page.evaluate(VISIBLE_ENTRIES_JS)
        assert seen is None or last - 25 <= seen[0] <= last, (seen, last)
        last = seen[0] if seen else last
    assert last < number - 20


def test_the_first_and_the_newest_message_are_one_key_away(
    page: Page, page_server: PageServer, long_conversation: str
) -> None:
    page.goto(page_server.url(long_conversation))
    page.get_by_role("group", name="Transcript").focus()
    page.keyboard.press("Home")
    expect(page.locator("article[data-seq='1']")).to_be_in_viewport()
    page.keyboard.press("End")
    expect(page.locator(f"article[data-seq='{MESSAGE_COUNT}']")).to_be_in_viewport()
    page.keyboard.press("Home")
    expect(page.locator("article[data-seq='1']")).to_be_in_viewport()
    page.get_by_role("button", name="Newest").click()
    expect(page.locator(f"article[data-seq='{MESSAGE_COUNT}']")).to_be_in_viewport()


def test_who_reads_further_up_is_not_pulled_down_by_what_comes(
    page: Page, page_server: PageServer, long_conversation: str
) -> None:
    page.goto(page_server.url(long_conversation, at=1_000))
    expect(page.locator("article[data-seq='1000']")).to_be_focused()
    page.mouse.move(680, 430)
    page.mouse.wheel(0, 50)
    page.wait_for_timeout(300)
    before = page.evaluate(VISIBLE_ENTRIES_JS)
    page_server.run(
        page_server.server_state.engine_for(DEFAULT_TENANT).store.append(
            long_conversation, Message.user("New at the end.")
        )
    )
    page.wait_for_timeout(1_200)
    after = page.evaluate(VISIBLE_ENTRIES_JS)
    assert after[0] == before[0]
    assert abs(after[1] - before[1]) < 2
    page.get_by_role("button", name="Newest").click()
    expect(page.get_by_role("article").last).to_contain_text("New at the end.")
