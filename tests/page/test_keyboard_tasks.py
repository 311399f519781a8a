"""Whole tasks with the keyboard alone: each test counts its keys."""

import re
from collections.abc import Callable

import pytest
from page_server import PageServer
from playwright.sync_api import Page, expect
from test_daily_use import create_conversation

from quire.model import Message

pytestmark = pytest.mark.nightly


class CountingKeyboard:
    """Presses keys and counts them; a chord such as Alt+1 is one key."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.count = 0

    def press(self, *keys: str) -> None:
        for key in keys:
            self._page.keyboard.press(key)
            self.count += 1


@pytest.fixture
def keyboard(page: Page) -> CountingKeyboard:
    return CountingKeyboard(page)


@pytest.fixture
def open_demo(page: Page, page_server: PageServer, demo_conversation: str) -> Callable[[], None]:
    def open_conversation() -> None:
        page.goto(page_server.url(demo_conversation))
        expect(page.get_by_role("article").last).to_be_visible()
        expect(page.get_by_role("article", name="Compaction 2")).to_be_visible()

    return open_conversation


def test_the_message_field_is_two_keys_away_and_enter_sends(
    page: Page, keyboard: CountingKeyboard, open_demo: Callable[[], None]
) -> None:
    open_demo()
    keyboard.press("Tab", "Enter")
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    assert keyboard.count <= 3
    page.keyboard.type("Which gate first?")
    keyboard.press("Enter")
    expect(page.get_by_role("article").last).to_contain_text("You asked: Which gate first?")
    assert keyboard.count == 3


def test_what_the_model_saw_opens_with_three_keys(
    page: Page, keyboard: CountingKeyboard, open_demo: Callable[[], None]
) -> None:
    open_demo()
    keyboard.press("Alt+ArrowUp", "Alt+ArrowUp")  # The newest entry of the demo is a compaction.
    expect(page.locator("article.assistant").last).to_be_focused()
    keyboard.press("Enter")
    expect(page.get_by_role("complementary", name="Context").get_by_role("region", name="Messages")).to_be_visible()
    expect(page).to_have_url(re.compile(r"reply=\d+"))
    assert keyboard.count == 3
    assert page.evaluate("document.activeElement.closest('aside') !== null"), "the focus is not in the panel"
    page.keyboard.press("Escape")
    expect(page.locator("article.assistant").last).to_be_focused()


def test_two_turns_are_compared_with_two_more_keys(
    page: Page, keyboard: CountingKeyboard, open_demo: Callable[[], None]
) -> None:
    open_demo()
    keyboard.press("Alt+ArrowUp", "Alt+ArrowUp", "Enter")
    choice = page.get_by_role("combobox", name="with the request of")
    expect(choice).to_be_visible()
    keyboard.press("Alt+Digit5")
    expect(choice).to_be_focused()
    keyboard.press("ArrowDown")
    expect(page.get_by_role("list", name="What changed").get_by_role("listitem").first).to_be_visible()
    assert keyboard.count == 5


def test_a_compaction_is_undone_with_two_keys(
    page: Page, keyboard: CountingKeyboard, open_demo: Callable[[], None]
) -> None:
    open_demo()
    marker = page.get_by_role("article", name="Compaction 2")
    keyboard.press("Alt+Shift+ArrowUp")
    expect(marker).to_be_focused()
    keyboard.press("Control+z")
    expect(marker).to_contain_text(re.compile("undone", re.IGNORECASE))
    assert keyboard.count == 2


def test_an_old_conversation_is_found_by_a_word_of_its_middle(
    page: Page, page_server: PageServer, keyboard: CountingKeyboard, demo_conversation: str
) -> None:
    middle = [Message.user(f"Row {number} of the tide table.") for number in range(60)]
    middle[30] = Message.user("The bronze zzquadrant lies in the lodge.")
    old = create_conversation(page_server, *middle)
    page.goto(page_server.url(demo_conversation))
    expect(page.get_by_role("article").last).to_be_visible()
    keyboard.press("Control+k")
    expect(page.get_by_role("combobox", name="Search and commands")).to_be_focused()
    page.keyboard.type("zzquadrant")
    hit = page.get_by_role("dialog").get_by_role("option").first
    expect(hit).to_contain_text("zzquadrant", timeout=30_000)
    keyboard.press("ArrowDown")
    expect(hit).to_have_attribute("aria-selected", "true")
    keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"{old}.*at=\d+"))
    expect(page.get_by_role("article").filter(has_text="zzquadrant")).to_be_in_viewport()
    assert keyboard.count == 3


def test_the_list_of_shortcuts_opens_with_one_key(
    page: Page, keyboard: CountingKeyboard, open_demo: Callable[[], None]
) -> None:
    open_demo()
    keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(dialog).to_contain_text("Undo the compaction")
    keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert keyboard.count == 2
