"""A conversation too long to be drawn whole: every place in it is reached, and what one reads stays where it is."""

import pytest
from playwright.sync_api import Page, expect
from serving_page import Served

from quire.log import DEFAULT_TENANT
from quire.model import Draft, Message, TokenCount

MESSAGES = 5_000
SEEN = """() => {
    const box = document.querySelector('.scroll').getBoundingClientRect();
    const all = [...document.querySelectorAll('article[data-seq]')];
    const one = all.find((each) => each.getBoundingClientRect().bottom > box.top + 1);
    const top = one?.getBoundingClientRect().top;
    return one && top < box.bottom ? [Number(one.dataset.seq), top - box.top] : null;
}"""


@pytest.fixture(scope="module")
def long(served: Served) -> str:
    """Messages of very different lengths."""

    async def made() -> str:
        store = served.shared.engine(DEFAULT_TENANT).store
        conversation = (await store.create_conversation(title="Long")).id
        said = [f"Message {number}. " + "More of it. " * (number * 7 % 90) for number in range(1, MESSAGES + 1)]
        drafts = [Draft(body=Message.user(text), tokens=TokenCount(9, "estimate")) for text in said]
        await store.append(conversation, *drafts)
        return conversation

    return served.do(made())


def drag(page: Page, part: float) -> int:
    """Drags the scroll bar there; the number of the first entry in sight once it is."""
    page.evaluate(
        "part => { const box = document.querySelector('.scroll'); box.scrollTop = part * box.scrollHeight; }", part
    )
    page.wait_for_timeout(150)
    page.wait_for_function(SEEN)
    return page.evaluate(SEEN)[0]


def test_the_scroll_bar_leads_where_it_says(page: Page, served: Served, long: str) -> None:
    page.goto(served.address(long))
    expect(page.locator(f"article[data-seq='{MESSAGES}']")).to_be_in_viewport()
    for part in (0.3, 0.7, 0.5, 0.1, 0.9, 0.2, 0.6):
        assert abs(drag(page, part) / MESSAGES - part) < 0.05, part


def test_few_messages_are_drawn_at_once_wherever_one_is(page: Page, served: Served, long: str) -> None:
    page.goto(served.address(long))
    expect(page.get_by_role("article").last).to_be_visible()
    for part in (0.4, 0.8, 0.05, 0.6):
        drag(page, part)
        assert page.locator("article").count() <= 240


def test_what_one_reads_stays_where_it_is_while_the_rest_is_loaded(page: Page, served: Served, long: str) -> None:
    page.goto(served.address(long, at=2_500))
    expect(page.locator("article[data-seq='2500']")).to_be_focused()
    page.wait_for_timeout(400)
    number, offset = page.evaluate(SEEN)
    page.wait_for_timeout(600)
    assert page.evaluate(SEEN)[0] == number
    assert abs(page.evaluate(SEEN)[1] - offset) < 2
    # Upwards, into what has never been drawn: one number after the other, without a leap.
    page.mouse.move(680, 430)
    last = number
    for _ in range(60):
        page.mouse.wheel(0, -300)
        page.wait_for_timeout(30)
        seen = page.evaluate(SEEN)
        assert seen is None or last - 25 <= seen[0] <= last, (seen, last)
        last = seen[0] if seen else last
    assert last < number - 20


def test_the_first_and_the_newest_message_are_one_key_away(page: Page, served: Served, long: str) -> None:
    page.goto(served.address(long))
    page.get_by_role("group", name="Transcript").focus()
    page.keyboard.press("Home")
    expect(page.locator("article[data-seq='1']")).to_be_in_viewport()
    page.keyboard.press("End")
    expect(page.locator(f"article[data-seq='{MESSAGES}']")).to_be_in_viewport()
    page.keyboard.press("Home")
    expect(page.locator("article[data-seq='1']")).to_be_in_viewport()
    page.get_by_role("button", name="Newest").click()
    expect(page.locator(f"article[data-seq='{MESSAGES}']")).to_be_in_viewport()


def test_who_reads_further_up_is_not_pulled_down_by_what_comes(page: Page, served: Served, long: str) -> None:
    page.goto(served.address(long, at=1_000))
    expect(page.locator("article[data-seq='1000']")).to_be_focused()
    page.mouse.move(680, 430)
    page.mouse.wheel(0, 50)
    page.wait_for_timeout(300)
    before = page.evaluate(SEEN)
    served.do(served.shared.engine(DEFAULT_TENANT).store.append(long, Message.user("New at the end.")))
    page.wait_for_timeout(1_200)
    after = page.evaluate(SEEN)
    assert after[0] == before[0]
    assert abs(after[1] - before[1]) < 2
    page.get_by_role("button", name="Newest").click()
    expect(page.get_by_role("article").last).to_contain_text("New at the end.")
