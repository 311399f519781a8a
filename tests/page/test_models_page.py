"""The model on the page: which one answers, whether it does, and how another one is chosen."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accessibility_faults import VIEWPORTS, run_axe
from page_server import PageServer, serve_page
from playwright.sync_api import Browser, Page, expect
from test_chat_page import send_message
from test_daily_use import create_conversation
from test_reading_and_transfer import FORMULAS

import demo
from infra.scripted_provider import run_scripted_provider
from quire.log import ConversationOrigin
from quire.model import Message
from quire.store import DEFAULT_TENANT

pytestmark = pytest.mark.nightly


@pytest.fixture
def models(page_server: PageServer, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the models that the server builds."""
    built: list[str] = []

    def build(name: str) -> Any:
        built.append(name)
        return page_server.model

    monkeypatch.setattr(page_server.server_state, "_model_factory", build)
    return built


def find_closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture
def unreachable_server(tmp_path: Path) -> Iterator[PageServer]:
    settings = demo.make_settings(tmp_path, base_url=f"http://127.0.0.1:{find_closed_port()}/v1")
    with serve_page(tmp_path, settings=settings) as server:
        yield server


def test_the_first_screen_names_the_model_and_what_keeps_it_from_answering(
    page: Page, unreachable_server: PageServer
) -> None:
    page.goto(unreachable_server.url())
    status = page.get_by_role("status", name="Model")
    expect(status).to_contain_text("gpt-4o cannot answer now", timeout=20_000)
    expect(status).to_contain_text(re.compile("connection refused; check base_url and that the server is running"))
    with run_scripted_provider() as provider:
        state = unreachable_server.server_state
        unreachable_server.run(state.change_settings({"base_url": f"{provider.url}/v1"}))
        status.get_by_role("button", name="Check again").click()
        expect(status).to_contain_text("does not list the model gpt-4o")
        status.get_by_role("button", name="Change model").click()
        dialog = page.get_by_role("dialog", name="Choose a model")
        dialog.get_by_role("button", name="scripted").click()
        expect(status).to_contain_text(f"scripted answers. {provider.url.removeprefix('http://')} is reachable.")


def test_without_a_model_the_first_screen_of_a_recorder_is_no_alarm(page: Page, unreachable_server: PageServer) -> None:
    origin = ConversationOrigin(client="claude-code", project="/home/ada/boat")
    store = unreachable_server.server_state.engine_for(DEFAULT_TENANT).store
    unreachable_server.run(store.create_conversation("boat", origin=origin))
    page.goto(unreachable_server.url())
    status = page.get_by_role("status", name="Model")
    expect(status).to_contain_text(
        "You need a model to chat here, but not to look at what agents recorded.", timeout=20_000
    )
    expect(status).not_to_have_class(re.compile("problem"))


def test_a_conversation_answers_with_the_model_that_was_chosen_for_it(
    page: Page, page_server: PageServer, demo_conversation: str, models: list[str]
) -> None:
    page.goto(page_server.url(demo_conversation))
    page.get_by_role("button", name="Model: gpt-4o").click()
    dialog = page.get_by_role("dialog", name="Choose a model")
    dialog.get_by_role("searchbox", name="Model").fill("4o mini")
    expect(dialog.get_by_role("listitem")).to_have_count(1)
    expect(dialog.get_by_role("listitem")).to_contain_text("128k, $0.15 / $0.6")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Model: gpt-4o-mini")).to_be_visible()
    models.clear()
    send_message(page, "Which gate first?")
    expect(page.get_by_role("article").last).to_contain_text("You asked: Which gate first?")
    assert "gpt-4o-mini" in models
    page.reload()
    expect(page.get_by_role("button", name="Model: gpt-4o-mini")).to_be_visible()
    page.goto(page_server.url())
    expect(page.get_by_role("button", name="Model: gpt-4o", exact=True)).to_be_visible()


def test_an_answer_is_regenerated_with_a_model_that_no_table_lists(
    page: Page, page_server: PageServer, demo_conversation: str, models: list[str]
) -> None:
    page.goto(page_server.url(demo_conversation))
    send_message(page, "Which gate first?")
    answer = page.get_by_role("article").last
    expect(answer).to_contain_text("You asked: Which gate first?")
    answer.hover()
    answer.get_by_role("button", name="Regenerate with another model").click()
    dialog = page.get_by_role("dialog", name="Regenerate with another model")
    dialog.get_by_role("searchbox", name="Model").fill("heron-1")
    expect(dialog).to_contain_text("No table lists it")
    models.clear()
    dialog.get_by_role("button", name="Use “heron-1”").click()
    expect(page).to_have_url(re.compile("branch=1"))
    expect(page.get_by_role("article").last).to_contain_text("You asked: Which gate first?")
    assert "heron-1" in models


def test_a_failed_question_is_answered_by_another_model(
    page: Page, page_server: PageServer, demo_conversation: str, models: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_daily_use import FAILURE, fail

    page.goto(page_server.url(demo_conversation))
    with monkeypatch.context() as patch:
        patch.setattr(page_server.model, "stream", fail)
        send_message(page, "Which gate first?")
        expect(page.get_by_role("alert")).to_contain_text(FAILURE, timeout=30_000)
    page.get_by_role("alert").get_by_role("button", name="Change model").click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("^gpt-4.1 ")).click()
    expect(page.get_by_role("article").last).to_contain_text("You asked: Which gate first?")
    assert models[-1] == "gpt-4.1"


def test_a_conversation_begins_with_its_first_message(page: Page, page_server: PageServer) -> None:
    page.goto(page_server.url())
    listed = page.get_by_role("navigation", name="Conversations").get_by_role("link")
    expect(page.get_by_role("status", name="Model")).to_contain_text("gpt-4o answers")
    count = page_server.run(count_conversations(page_server))
    for _ in range(3):
        page.get_by_role("button", name="New", exact=True).click()
        expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    assert page_server.run(count_conversations(page_server)) == count
    send_message(page, "How long is the mill race?")
    expect(page.get_by_role("article").last).to_contain_text("You asked: How long is the mill race?")
    expect(listed.filter(has_text="How long is the mill race?")).to_have_attribute("aria-current", "page")
    assert page_server.run(count_conversations(page_server)) == count + 1
    page.get_by_role("button", name="New", exact=True).click()
    expect(page.get_by_role("textbox", name="Message")).to_have_value("")


def test_a_first_message_that_was_refused_comes_back(
    page: Page, page_server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quire.errors import ModelRequestRejected

    def refuse(name: str) -> Any:
        raise ModelRequestRejected(f"The model {name} cannot be used: OPENAI_API_KEY is not set.")

    monkeypatch.setattr(page_server.server_state, "_model_factory", refuse)
    page.goto(page_server.url())
    expect(page.get_by_role("status", name="Model")).to_contain_text("OPENAI_API_KEY is not set")
    page.route("**/send", lambda route: route.abort())
    count = page_server.run(count_conversations(page_server))
    send_message(page, "How deep is the pond?")
    expect(page.get_by_role("textbox", name="Message")).to_have_value("How deep is the pond?")
    expect(page.locator(".notice.error")).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_have_text("See what the model sees")
    expect(page.get_by_role("navigation").get_by_role("link", name="Untitled")).to_have_count(0)
    assert page_server.run(count_conversations(page_server)) == count, "an empty conversation stays"


async def count_conversations(page_server: PageServer) -> int:
    return len(await page_server.server_state.store.list_conversations(limit=500))


@pytest.mark.parametrize("viewport", ["light", "dark", "phone"])
def test_no_new_view_has_a_fault(browser: Browser, page_server: PageServer, viewport: str) -> None:
    context = browser.new_context(reduced_motion="reduce", **VIEWPORTS[viewport])
    page = context.new_page()
    faults: list[str] = []
    page.goto(page_server.url())
    expect(page.get_by_role("status", name="Model")).to_contain_text("gpt-4o answers")
    faults += run_axe(page)
    page.get_by_role("button", name="Model: gpt-4o").click()
    expect(page.get_by_role("dialog").get_by_role("listitem").first).to_be_visible()
    faults += run_axe(page)
    code = create_conversation(page_server, Message.user("How?"), Message.assistant(FORMULAS))
    page.goto(page_server.url(code))
    expect(page.locator("math").first).to_be_visible()
    expect(page.locator(".hljs-keyword").first).to_be_visible()
    page.get_by_role("button", name="More actions").click()
    expect(page.get_by_role("menu")).to_be_visible()
    faults += run_axe(page)
    context.close()
    assert faults == []
