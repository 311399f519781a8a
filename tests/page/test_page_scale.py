"""Many conversations and a turn of many calls: what is rendered, and the script time of it, stay as with ten.

benchmarks/page_scale.py measures frames and memory at full size.
"""

from pathlib import Path

import pytest
from page_server import PageServer, serve_page
from playwright.sync_api import CDPSession, Page, expect

from infra.long_turn import QUESTION, make_steps
from quire.model import Draft, Message, TokenCount
from quire.store import DEFAULT_TENANT, SqlStore

pytestmark = pytest.mark.nightly

LISTED_CONVERSATIONS = 600
"""More than two pages of the list after the first."""
STEP_COUNT = 200
MAX_ROWS = 100
SCRIPT_TIME_TOLERANCE = 3.0
"""Ratio of script times; wide, because the times are short."""
LIST_BOX = "document.querySelector('nav .rest')"


async def create_turn(store: SqlStore, step_count: int) -> str:
    conversation = (await store.create_conversation(title=f"{step_count} steps")).id
    steps = list(make_steps(step_count, result_tokens=(20, 200), huge_result_tokens=300))
    messages = [Message.user(QUESTION), *(each for step in steps for each in (step.reply, *step.results))]
    drafts = [Draft(body=each, tokens=TokenCount(9, "estimate")) for each in (*messages, Message.assistant("Done."))]
    await store.append(conversation, *drafts)
    return conversation


async def create_list(store: SqlStore) -> None:
    for number in range(LISTED_CONVERSATIONS):
        await store.create_conversation(title=f"Conversation {number:04}")


def count_nodes(page: Page) -> int:
    return page.evaluate("document.querySelectorAll('*').length")


def measure_script_seconds(devtools: CDPSession) -> float:
    """CPU seconds of script, style and layout since the page was opened."""
    metrics = {each["name"]: each["value"] for each in devtools.send("Performance.getMetrics")["metrics"]}
    return sum(metrics[name] for name in ("ScriptDuration", "LayoutDuration", "RecalcStyleDuration"))


def open_devtools(page: Page) -> CDPSession:
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    return devtools


def test_a_list_of_many_conversations_renders_only_rows_near_the_visible_ones(page: Page, tmp_path: Path) -> None:
    rows = page.locator("nav li")
    with serve_page(tmp_path) as server:
        server.run(create_list(server.server_state.store))
        page.goto(server.url())
        expect(rows.first).to_contain_text(f"{LISTED_CONVERSATIONS - 1:04}")
        assert rows.count() <= MAX_ROWS
        oldest = page.get_by_role("link", name="Conversation 0000")
        for _ in range(40):
            page.evaluate(f"{LIST_BOX}.scrollTop = {LIST_BOX}.scrollHeight")
            page.wait_for_timeout(100)
            if oldest.count():
                break
        expect(oldest).to_be_visible()
        expect(page.get_by_role("button", name="Show more")).to_have_count(0)
        assert rows.count() <= MAX_ROWS
        page.evaluate(f"{LIST_BOX}.scrollTop = 0")
        expect(rows.first).to_contain_text(f"{LISTED_CONVERSATIONS - 1:04}")
        assert rows.count() <= MAX_ROWS
        # The arrow keys reach rows that were not rendered, and the row with the focus stays.
        rows.first.get_by_role("link").focus()
        for _ in range(59):
            page.keyboard.press("ArrowDown")
        focused = page.locator("nav a:focus")
        expect(focused).to_contain_text(f"{LISTED_CONVERSATIONS - 60:04}")
        page.evaluate(f"{LIST_BOX}.scrollTop = {LIST_BOX}.scrollHeight")
        expect(oldest).to_be_visible()
        expect(focused).to_contain_text(f"{LISTED_CONVERSATIONS - 60:04}")
        # A title is found wherever it is in the list.
        page.keyboard.press("Control+k")
        page.keyboard.type("conversation 0000")
        expect(page.get_by_role("group", name="Conversations").get_by_role("option")).to_have_count(1)
        expect(page.get_by_role("dialog").get_by_role("option", name="Conversation 0000")).to_be_visible()


def test_a_turn_of_many_calls_opens_with_the_work_of_a_short_one(page: Page, page_server: PageServer) -> None:
    store = page_server.server_state.engine_for(DEFAULT_TENANT).store
    seconds: list[float] = []
    nodes: list[int] = []
    for step_count in (10, STEP_COUNT):
        conversation = page_server.run(create_turn(store, step_count))
        page.goto("about:blank")
        devtools = open_devtools(page)
        page.goto(page_server.url(conversation))
        expect(page.get_by_role("article").last).to_contain_text("Done.")
        seconds.append(measure_script_seconds(devtools))
        page.locator(".steps > button").last.click()
        expect(page.locator(".steps details.call").last).to_be_visible()
        nodes.append(count_nodes(page))
    assert seconds[1] <= seconds[0] * SCRIPT_TIME_TOLERANCE, seconds
    assert nodes[1] <= nodes[0] * 3, nodes


def test_a_call_renders_its_result_only_while_it_is_open(page: Page, page_server: PageServer) -> None:
    store = page_server.server_state.engine_for(DEFAULT_TENANT).store
    page.goto(page_server.url(page_server.run(create_turn(store, 5))))
    page.locator(".steps > button").click()
    call = page.locator(".steps details.call").first
    closed = call.locator("*").count()
    call.locator("summary").click()
    expect(call).to_contain_text("# call_0_0")
    call.locator("summary").click()
    expect(call).not_to_contain_text("# call_0_0")
    expect(call.locator("*")).to_have_count(closed)
