"""The picture of all requests on the page: its figures are the ledger's, and keyboard and clicks open a request."""

import re

import pytest
from page_server import PageServer
from playwright.sync_api import Page, expect
from test_chat_page import send_message

pytestmark = pytest.mark.nightly


def test_the_picture_names_opens_and_extends(page: Page, page_server: PageServer, demo_conversation: str) -> None:
    page.goto(page_server.url(demo_conversation))
    picture = page.get_by_role("region", name="Requests over time")
    toggle = picture.get_by_role("button", name="Requests over time")
    if toggle.get_attribute("aria-expanded") == "false":
        toggle.click()
    slider = picture.get_by_role("slider", name="Request")
    requests = int(slider.get_attribute("aria-valuemax") or 0)
    answer = page.request.get(
        f"http://127.0.0.1:{page_server.port}/api/conversations/{demo_conversation}/timeline"
    ).json()
    assert requests == len(answer["replies"])
    slider.focus()
    page.keyboard.press("End")
    last = f"answered by #{answer['replies'][-1]}; {answer['total_tokens'][-1]:,} of 4,000 tokens"
    expect(slider).to_have_attribute("aria-valuetext", re.compile(last))
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"reply={answer['replies'][-1]}"))

    picture.get_by_role("button", name="Messages").click()
    picture.get_by_text("The same as a table").click()
    totals = picture.get_by_role("row").locator("td:nth-child(4)").all_inner_texts()
    assert totals == [f"{tokens:,}" for tokens in answer["total_tokens"]]

    send_message(page, "One more?")
    expect(slider).to_have_attribute("aria-valuemax", str(requests + 1))
