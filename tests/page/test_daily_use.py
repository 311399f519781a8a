"""The page in daily use: retry, regenerate, drafts, words as written, code, settings, keys, a lost network."""

import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import pytest
from cutting_proxy import CuttingProxy, run_cutting_proxy
from page_server import PageServer
from playwright.sync_api import Locator, Page, expect
from test_chat_page import send_message, type_message

from quire.engine import Conversation
from quire.errors import ModelUnavailable
from quire.llm import ModelChunk, Prompt
from quire.model import Message
from quire.store import DEFAULT_TENANT

pytestmark = pytest.mark.nightly

FAILURE = "The model's server is away; try again later."
NETWORK_CUTS = 20


async def fail(prompt: Prompt) -> AsyncGenerator[ModelChunk, None]:
    raise ModelUnavailable(FAILURE)
    yield


def create_conversation(page_server: PageServer, *messages: Message) -> str:
    async def create() -> str:
        engine = page_server.server_state.engine_for(DEFAULT_TENANT)
        conversation: Conversation = await engine.conversation()
        await conversation.append(*messages)
        return conversation.id

    return page_server.run(create())


def newest_article(page: Page) -> Locator:
    return page.get_by_role("article").last


def test_a_failed_turn_is_tried_again_also_after_a_reload(
    page: Page, page_server: PageServer, demo_conversation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.goto(page_server.url(demo_conversation))
    monkeypatch.setattr(page_server.model, "stream", fail)
    send_message(page, "Which gate first?")
    expect(page.get_by_role("alert")).to_contain_text(FAILURE, timeout=30_000)
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text(FAILURE)
    monkeypatch.undo()
    page.get_by_role("button", name="Try again").click()
    expect(newest_article(page)).to_contain_text("You asked: Which gate first?")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.reload()
    expect(newest_article(page)).to_contain_text("You asked: Which gate first?")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_what_is_typed_on_the_first_screen_goes_to_the_message_field(page: Page, page_server: PageServer) -> None:
    page.goto(page_server.url())
    expect(page.get_by_role("heading", name="See what the model sees")).to_be_visible()
    page.keyboard.type("Why is the sill wet?")
    expect(page.get_by_role("textbox", name="Message")).to_have_value("Why is the sill wet?")


def test_an_answer_is_regenerated_on_a_branch_of_its_own(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    page.goto(page_server.url(demo_conversation))
    send_message(page, "Which gate first?")
    expect(newest_article(page)).to_contain_text("You asked: Which gate first?")
    newest_article(page).hover()
    newest_article(page).get_by_role("button", name="Regenerate", exact=True).click()
    expect(page).to_have_url(re.compile("branch=1"))
    expect(newest_article(page)).to_contain_text("You asked: Which gate first?")
    expect(page.get_by_role("article").filter(has_text="You asked: Which gate first?")).to_have_count(1)


def test_a_persons_words_stay_as_written_and_long_ones_fold(page: Page, page_server: PageServer) -> None:
    poem = "First line\n  second, indented\n\n# no heading\n* no list"
    long = "\n".join(f"row {number}" for number in range(1, 101))
    conversation = create_conversation(page_server, Message.user(poem), Message.assistant("Yes."), Message.user(long))
    page.goto(page_server.url(conversation))
    assert page.locator("article.user .body").first.inner_text().strip() == poem
    last = newest_article(page)
    expect(last).to_contain_text("row 20")
    expect(last).not_to_contain_text("row 21")
    last.get_by_role("button", name="Show all 100 lines").click()
    expect(last).to_contain_text("row 100")


def test_code_is_copied_and_tables_scroll(page: Page, page_server: PageServer) -> None:
    columns = [f"column{number}" for number in range(14)]
    table = "\n".join(["|".join(columns), "|".join("-" for _ in columns), "|".join("unbreakable" for _ in columns)])
    code_block = "```python\nprint('a')\nprint('b')\n```"
    text = f"Run this:\n\n{code_block}\n\n{table}\n\n|left|right|\n|---|--:|\n|a|1|\n\n7. seven\n"
    conversation = create_conversation(page_server, Message.user("How?"), Message.assistant(text))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(page_server.url(conversation))
    page.get_by_role("button", name="Copy the code").click()
    expect(page.get_by_role("button", name="Copy the code")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "print('a')\nprint('b')\n"
    code, button = page.locator("pre code"), page.get_by_role("button", name="Copy the code")
    boxes = [each.evaluate("each => each.getClientRects()[0].toJSON()") for each in (button, code)]
    assert boxes[0]["bottom"] <= boxes[1]["top"], "the button covers code"
    cells = page.get_by_role("group", name="Table").last.locator("td")
    assert cells.evaluate_all("each => each.map(cell => getComputedStyle(cell).textAlign)") == ["left", "right"]
    expect(page.locator("ol")).to_have_attribute("start", "7")
    frame = page.get_by_role("group", name="Table").first
    sizes = frame.evaluate("each => [each.scrollWidth, each.clientWidth, each.querySelector('td').clientHeight]")
    assert sizes[0] > sizes[1]
    assert sizes[2] < 60, "a cell breaks inside a word"


def test_settings_save_only_what_the_fields_show(page: Page, page_server: PageServer, demo_conversation: str) -> None:
    page.goto(page_server.url(demo_conversation, panel="settings"))
    field = page.get_by_role("textbox", name="Compact at")
    stored = field.input_value()
    field.fill("0.6")
    save = page.get_by_role("button", name="Save")
    expect(save).to_be_enabled()
    field.fill("5")
    expect(save).to_be_disabled()
    expect(field).to_have_value("5")
    expect(page.get_by_text(re.compile(r"Enter a number from .* to "))).to_be_visible()
    page.get_by_role("button", name="Discard").click()
    expect(page.get_by_role("textbox", name="Compact at")).to_have_value(stored)
    expect(save).to_have_count(0)


def test_a_draft_survives_a_switch_and_a_reload(page: Page, page_server: PageServer, demo_conversation: str) -> None:
    other = create_conversation(page_server, Message.user("Another."))
    page.goto(page_server.url(demo_conversation))
    type_message(page, "half a thought")
    page.goto(page_server.url(other))
    expect(page.get_by_role("textbox", name="Message")).to_have_value("")
    page.goto(page_server.url(demo_conversation))
    expect(page.get_by_role("textbox", name="Message")).to_have_value("half a thought")
    page.reload()
    expect(page.get_by_role("textbox", name="Message")).to_have_value("half a thought")
    page.keyboard.press("Tab")
    send_message(page, "")
    expect(newest_article(page)).to_contain_text("You asked: half a thought")
    page.reload()
    expect(page.get_by_role("textbox", name="Message")).to_have_value("")


def test_panels_open_by_the_position_of_the_key(page: Page, page_server: PageServer, demo_conversation: str) -> None:
    page.goto(page_server.url(demo_conversation))
    expect(page.get_by_role("article").last).to_be_visible()
    # What a Mac sends for Option+4.
    page.evaluate(
        "dispatchEvent(new KeyboardEvent('keydown', {key: '¢', code: 'Digit4', altKey: true, bubbles: true}))"
    )
    expect(page.get_by_role("textbox", name="Compact at")).to_be_visible()


def test_notices_do_not_cover_the_message_field(page: Page, page_server: PageServer, demo_conversation: str) -> None:
    page.goto(page_server.url(demo_conversation))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    question = page.locator("article.user").last
    question.hover()
    question.get_by_role("button", name="Copy", exact=True).click()
    notice = page.locator(".notice").bounding_box()
    field = page.get_by_role("textbox", name="Message").bounding_box()
    assert notice is not None
    assert field is not None
    assert notice["y"] + notice["height"] < field["y"]


async def open_proxy(stack: AsyncExitStack, page_server: PageServer) -> CuttingProxy:
    return await stack.enter_async_context(run_cutting_proxy(page_server.port))


def test_no_word_is_lost_when_the_network_comes_and_goes(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    stack = AsyncExitStack()
    proxy = page_server.run(open_proxy(stack, page_server))
    address = page_server.url(demo_conversation).replace(f":{page_server.port}/", f":{proxy.port}/")
    page.goto(address)
    page_server.model.delay_seconds = 0.2
    try:
        send_message(page, "Tell me about the wheel")
        live = page.get_by_role("region", name="Reply in progress")
        expect(live).to_contain_text("You asked")
        longest = ""
        for _ in range(NETWORK_CUTS):
            page.wait_for_timeout(150)
            page_server.run(proxy.cut())
            # Read in one step: the reply may end, and its region vanish, at any time.
            seen = live.evaluate_all("regions => regions.map(region => region.innerText).join()")
            assert not seen or "You asked" in seen
            longest = max(longest, seen, key=len)
        assert len(longest) > len("You asked")
    finally:
        page_server.model.delay_seconds = 0.0
    expect(newest_article(page)).to_contain_text("Look at the context of this reply", timeout=30_000)
    expect(live).to_have_count(0, timeout=30_000)
    text = newest_article(page).inner_text()
    assert text.count("You asked") == 1
    assert text.count("the gate first") == 1
    assert proxy.cuts >= NETWORK_CUTS
    page_server.run(stack.aclose())


def test_sharing_is_offered_only_where_people_sign_in(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    page.goto(page_server.url(demo_conversation))
    expect(page.get_by_role("article").last).to_be_visible()
    expect(page.get_by_role("button", name="Share", exact=True)).to_have_count(0)


def test_tags_are_edited_in_the_list_and_filter_it_and_the_palette(page: Page, page_server: PageServer) -> None:
    tagged = create_conversation(page_server, Message.user("The sluice of the tagged mill"))
    create_conversation(page_server, Message.user("A chat without tags"))
    page.goto(page_server.url(tagged))
    listed = page.get_by_role("navigation", name="Conversations")
    listed.get_by_role("button", name="Actions of The sluice of the tagged mill").click()
    page.get_by_role("menuitem", name="Edit tags").click()
    field = listed.get_by_role("textbox", name="Tags")
    field.fill("Water, release")
    field.press("Enter")
    expect(listed.get_by_role("link", name="The sluice of the tagged mill")).to_contain_text("#water #release")

    page.reload()
    listed.get_by_role("combobox", name="Tag").select_option("water")
    expect(listed.get_by_role("link")).to_have_count(1)
    expect(listed.get_by_role("link")).to_contain_text("#water #release")

    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Search and commands").fill("#rel")
    results = page.get_by_role("listbox", name="Results")
    expect(results.get_by_role("option")).to_have_count(1)
    expect(results).to_contain_text("The sluice of the tagged mill")
    page.keyboard.press("Escape")

    listed.get_by_role("button", name="Actions of The sluice of the tagged mill").click()
    page.get_by_role("menuitem", name="Edit tags").click()
    field.fill("")
    field.press("Enter")
    expect(listed.get_by_role("link", name="A chat without tags").first).to_be_visible()
    expect(listed.get_by_role("combobox", name="Tag")).to_have_count(0)
