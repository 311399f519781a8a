"""End-to-end test of the page: `quire serve` with a real model."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Page, expect
from test_chat_page import send_message

import demo
from infra.llama import LocalModelAddress

pytestmark = [pytest.mark.nightly, pytest.mark.real_model]

TIMEOUT_MS = 60_000
"""Long, for a small model on a busy machine."""


@contextmanager
def start_quire_serve(folder: Path, url: str, model: LocalModelAddress) -> Iterator[str]:
    """Runs the command as a subprocess; yields the address that it prints."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "XDG_"))}
    environ = {
        **others,
        "HOME": str(folder),
        "QUIRE_DATABASE_URL": url,
        "QUIRE_BASE_URL": model.url,
        "QUIRE_MODEL": model.name,
        "QUIRE_CONTEXT_LIMIT": str(model.context),
        "QUIRE_VAULT": str(demo.write_vault(folder)),
        "QUIRE_CONTEXT_BACKGROUND_THRESHOLD": "1.0",
        "QUIRE_RECENT_MESSAGES_TO_KEEP": "2",
    }
    command = [str(Path(sys.executable).with_name("quire")), "serve", "--port", "0", "--grace", "0"]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, env=environ, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            assert address.startswith("http://"), (folder / "log").read_text()
            yield address
        finally:
            server.terminate()


def wait_for_replies(page: Page, count: int) -> None:
    """Waits until the turn is over and the transcript has `count` replies."""
    expect(page.get_by_role("button", name="Stop")).to_have_count(0, timeout=TIMEOUT_MS)
    expect(page.locator("article.assistant")).to_have_count(count, timeout=TIMEOUT_MS)


def ask(page: Page, text: str, *, number: int) -> None:
    """Sends a question and stops the turn after its first text."""
    send_message(page, text)
    expect(page.locator("article.user")).to_have_count(number, timeout=TIMEOUT_MS)
    stop_after_first_text(page)
    wait_for_replies(page, number)


def stop_after_first_text(page: Page) -> None:
    """Stops the turn; it may also have ended by itself just before."""
    expect(page.locator("section.live > .prose")).to_be_visible(timeout=TIMEOUT_MS)
    with suppress(PlaywrightError):
        page.get_by_role("button", name="Stop").click(timeout=1_000)


def test_the_page_end_to_end(page: Page, database_url: str, local_model: LocalModelAddress, tmp_path: Path) -> None:
    with start_quire_serve(tmp_path, database_url, local_model) as address:
        page.goto(address)
        check_chat(page)
        check_panels(page)
        check_compaction(page)
        check_branching(page)
        page.goto("about:blank")


def check_chat(page: Page) -> None:
    page.get_by_role("button", name="New", exact=True).click()
    ask(page, "What is a tide mill? See [[Tide mill#Wheel]] and [[Nowhere]].", number=1)
    question = page.locator("article.user").first
    expect(question.get_by_role("list", name="Documents")).to_contain_text("Tide mill.md")
    expect(question.get_by_role("list", name="Documents")).to_contain_text("broken")
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.locator("article.assistant")).to_have_count(1)
    ask(page, "Say more about the wheel.", number=2)
    expect(other.locator("article.assistant")).to_have_count(2, timeout=1_000)
    other.close()


def check_panels(page: Page) -> None:
    expect(page.get_by_role("img", name=re.compile("^Context window"))).to_be_visible()
    reply = page.locator("article.assistant").last
    reply.hover()
    reply.get_by_role("button", name="What the model saw").click()
    context = page.get_by_role("complementary", name="Context")
    expect(context.get_by_role("region", name="Messages")).to_be_visible()
    context.get_by_role("button", name="Rebuild and verify").click()
    expect(context).to_contain_text("Rebuilt from its record")
    panels = page.get_by_role("group", name="Panels")
    panels.get_by_role("button", name="References").click()
    references = page.get_by_role("complementary", name="References")
    expect(references).to_contain_text("1 broken link")
    references.get_by_role("button", name=re.compile("^Tide mill.md")).click()
    expect(references.locator("mark")).to_contain_text("Twelve feet across")


def check_compaction(page: Page) -> None:
    page.get_by_role("group", name="Panels").get_by_role("button", name="Usage").click()
    usage = page.get_by_role("complementary", name="Usage")
    expect(usage.locator("figure .bar")).to_have_count(2)
    usage.get_by_role("button", name="Compact now").click()
    marker = page.get_by_role("article", name="Compaction 1")
    expect(marker).to_contain_text(re.compile(r"\d+ messages? archived"), timeout=TIMEOUT_MS)
    expect(page.locator("article.archived").first).to_be_visible()
    marker.get_by_role("button").first.click()
    citation = marker.locator(".citation").first
    if citation.count():
        citation.click()
        expect(page).to_have_url(re.compile("at="))
    marker.get_by_role("button", name="Undo").click()
    expect(marker).to_contain_text("undone")
    expect(page.locator("article.archived")).to_have_count(0)


def check_branching(page: Page) -> None:
    first = page.locator("article.user").first
    first.hover()
    first.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name=re.compile("Edit message")).fill("What is a windmill?")
    page.get_by_role("button", name="Send", exact=True).first.click()
    expect(page).to_have_url(re.compile("branch=1"))
    expect(page.locator("article.user").first).to_contain_text("windmill", timeout=TIMEOUT_MS)
    stop_after_first_text(page)
    wait_for_replies(page, 1)
    expect(page.locator("article.user").first).to_contain_text("2 of 2")
    page.get_by_role("button", name="Earlier version").click()
    expect(page.locator("article.user").first).to_contain_text("What is a tide mill?")
