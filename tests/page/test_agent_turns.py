"""A long turn of an agent on the page: what became of each of its messages, and a history larger than the window."""

import re

import pytest
from accessibility_faults import run_axe
from page_faults import save_picture
from page_server import PageServer
from playwright.sync_api import Page, expect
from test_daily_use import create_conversation

from infra.long_turn import QUESTION, make_steps
from quire.model import Draft, Message, TextPart, TokenCount, ToolCallPart, ToolResultPart, Usage
from quire.store import DEFAULT_TENANT

pytestmark = pytest.mark.nightly

STEPS = 24


async def create_long_turn(page_server: PageServer) -> tuple[str, int]:
    """A turn that was compacted several times: its conversation, and the number of its answer."""
    conversation = await page_server.server_state.engine_for(DEFAULT_TENANT).conversation()
    question: str | None = QUESTION
    for step in make_steps(STEPS, result_tokens=(50, 700), huge_result_tokens=3_000):
        request = await conversation.prepare(question)
        await conversation.record(step.reply, request=request)
        await conversation.append(*step.results)
        question = None
    answer = await conversation.record("All modules are audited.", request=await conversation.prepare())
    return conversation.id, answer.seq


async def list_messages(page_server: PageServer, conversation: str, first: int, last: int) -> list[int]:
    """Numbers of the messages in a range; compactions of the turn are entries too."""
    opened = await page_server.server_state.engine_for(DEFAULT_TENANT).conversation(conversation)
    return [entry.seq for entry in await opened.messages() if first <= entry.seq <= last]


def test_the_context_of_a_long_turn_names_what_became_of_each_message(page: Page, page_server: PageServer) -> None:
    conversation, answer = page_server.run(create_long_turn(page_server))
    page.goto(page_server.url(conversation, panel="context", reply=answer))
    messages = page.get_by_role("complementary", name="Context").get_by_role("region", name="Messages")
    question = messages.get_by_role("listitem").filter(has_text=f"User: {QUESTION[:30]}")
    expect(question).to_have_count(1)
    run = messages.get_by_role("listitem").filter(has_text="Pointer only").first
    span = re.match(r"#(\d+) to #(\d+)", run.inner_text())
    assert span is not None
    numbers = page_server.run(list_messages(page_server, conversation, *map(int, span.groups())))
    run.get_by_text("Show each message").click()
    rows = run.get_by_role("listitem")
    expect(rows).to_have_text([re.compile(rf"#{number}\s+(Assistant|Tool): \S+") for number in numbers])
    expect(rows.filter(has_text="Assistant: ").first).to_contain_text("read_module(")
    run.scroll_into_view_if_needed()
    save_picture(page, "long-turn-context")


def create_turn_of_calls(page_server: PageServer, calls: int) -> str:
    """One question and many short calls with their usage, as an import has them."""
    store, tokens = page_server.server_state.store, TokenCount(9, "c")
    conversation = page_server.run(store.create_conversation(title=f"{calls} calls")).id
    drafts = [Draft(body=Message.user("Read everything."), tokens=tokens)]
    for number in range(calls):
        call = ToolCallPart(id=f"call-{number}", name="read_module", arguments=f'{{"name": "module{number}"}}')
        result = ToolResultPart(call_id=call.id, content=(TextPart(text="def run(): ..."),), is_error=number == 3)
        drafts += [
            Draft(
                body=Message(role="assistant", parts=(call,)),
                tokens=tokens,
                usage=Usage(input_tokens=900, output_tokens=9),
                cost_usd=0.01,
            ),
            Draft(body=Message(role="tool", parts=(result,)), tokens=tokens),
        ]
    page_server.run(store.append(conversation, *drafts))
    return conversation


def test_a_link_into_a_long_turn_fills_the_screen(page: Page, page_server: PageServer) -> None:
    conversation = create_turn_of_calls(page_server, 200)
    page.goto(page_server.url(conversation, at=202))
    expect(page.locator('[data-seq="202"]')).to_be_focused()
    # Every place of the transcript belongs to a message or to folded steps, above and below the target.
    unfilled = """() => {
        const box = document.querySelector('.scroll').getBoundingClientRect();
        const places = [];
        for (let y = box.top + 8; y < box.bottom - 8; y += 40) places.push(y);
        return places.filter((y) => !document.elementFromPoint(box.left + box.width / 2, y)?.closest('[data-page]'));
    }"""
    expect(page.locator(".blank")).to_have_count(0)
    page.wait_for_function(f"({unfilled})().length === 0", timeout=5_000)
    page.goto(page_server.url(conversation, at=1))
    first = page.locator(".steps > button").first
    expect(first).to_contain_text(re.compile(r"Turn of 200 steps.*\$2\.00.*1 failed"))
    expect(page.locator(".steps > button").nth(1)).to_contain_text(re.compile(r"Steps 2\d to 4\d"))
    assert run_axe(page) == []


def test_a_history_larger_than_the_window_is_no_share_of_it(page: Page, page_server: PageServer) -> None:
    text = "The sluice of the mill pond opens at half tide. " * 40
    pairs = [message for _ in range(8) for message in (Message.user(text), Message.assistant(text))]
    page.goto(page_server.url(create_conversation(page_server, *pairs), panel="window"))
    sentence = re.compile(r"The history has [\d,]+ tokens, the window 4,000; the next request compacts it first")
    expect(page.locator("header .meter")).to_contain_text(sentence)
    expect(page.locator("header .meter")).not_to_contain_text("%")
    bar = page.locator("header").get_by_role("img", name=sentence)
    drawn = bar.evaluate("bar => [...bar.querySelectorAll('.part')].reduce((sum, part) => sum + part.offsetWidth, 0)")
    assert abs(drawn - bar.evaluate("bar => bar.clientWidth")) <= 2, "the bar is full"
    save_picture(page, "overfull")
