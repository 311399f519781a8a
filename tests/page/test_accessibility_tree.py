"""The conversation as a screen reader reads it: the accessibility tree from top to bottom, without a picture."""

import re

import pytest
from page_server import PageServer
from playwright.sync_api import Page, expect
from test_daily_use import create_conversation

from quire.model import Message, ToolCallPart

pytestmark = pytest.mark.nightly

CALL_COUNT = 4
FAILED_CALL = 2


def create_turn_with_failure(page_server: PageServer) -> str:
    messages = [Message.user("Audit the modules.")]
    for number in range(CALL_COUNT):
        call = ToolCallPart(id=f"c{number}", name="read_module", arguments=f'{{"path": "m{number}.py"}}')
        text = "Locked by another audit." if number == FAILED_CALL else f"Source of module {number}."
        messages.append(Message(role="assistant", parts=(call,)))
        messages.append(Message.tool(call.id, text, is_error=number == FAILED_CALL))
    return create_conversation(page_server, *messages, Message.assistant("All but one are audited."))


def read_tree(page: Page) -> list[str]:
    """Lines of the conversation's accessibility tree: role, name and text."""
    return [line.strip() for line in page.get_by_role("main").aria_snapshot().splitlines()]


def find_line(tree: list[str], pattern: str) -> int:
    places = [index for index, line in enumerate(tree) if re.search(pattern, line)]
    assert places, f"{pattern!r} is not in:\n" + "\n".join(tree)
    return places[0]


def test_a_conversation_reads_from_its_title_to_the_message_field(page: Page, page_server: PageServer) -> None:
    page.goto(page_server.url(create_turn_with_failure(page_server)))
    expect(page.get_by_role("article").last).to_contain_text("All but one are audited.")
    tree = read_tree(page)
    order = [
        r'heading "Audit the modules\." \[level=1\]',
        r'group "Panels"',
        r'group "Transcript"',
        r'feed "Messages"',
        r'article "You #\d+',
        r"text: Audit the modules\.",
        r'article "Steps of the turn"',
        r'button "4 calls in 4 steps, 1 failed',
        r"read_module m2\.py failed",
        r'article "keeper #\d+',
        r"All but one are audited\.",
        r'form "Write a message"',
        r'textbox "Message"',
    ]
    places = [find_line(tree, pattern) for pattern in order]
    assert places == sorted(places), "\n".join(tree)
    calls = [line for line in tree if "read_module" in line]
    assert len(calls) == 1, "of folded steps only the failed call is read"


def test_each_call_of_an_open_turn_is_one_line_with_its_outcome(page: Page, page_server: PageServer) -> None:
    page.goto(page_server.url(create_turn_with_failure(page_server)))
    steps = page.get_by_role("article", name="Steps of the turn")
    steps.get_by_role("button").first.click()
    expect(steps.get_by_role("article")).to_have_count(CALL_COUNT)
    tree = read_tree(page)
    find_line(tree, r'button "4 calls in 4 steps, 1 failed.*\[expanded\]')
    calls = [re.sub(r"^- \w+: ", "", line) for line in tree if "read_module" in line]
    outcomes = ["failed" if number == FAILED_CALL else "done" for number in range(CALL_COUNT)]
    assert calls == [f"read_module m{number}.py {outcome}" for number, outcome in enumerate(outcomes)]
    assert not [line for line in tree if "Source of module" in line], "a closed call reads no result"
