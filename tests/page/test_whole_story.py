"""`quire serve` as people start it, with a real model, on SQLite and on PostgreSQL: the page from end to end."""

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
from test_talking import send

import demo
from quire.testing.llama import Address

pytestmark = pytest.mark.slow

PATIENCE = 60_000
"""Milliseconds: a small model on a busy machine."""


@contextmanager
def quire_serve(place: Path, url: str, model: Address) -> Iterator[str]:
    """The command in a process of its own; gives the address that it prints."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "XDG_"))}
    environ = {
        **others,
        "HOME": str(place),
        "QUIRE_DATABASE_URL": url,
        "QUIRE_BASE_URL": model.url,
        "QUIRE_MODEL": model.name,
        "QUIRE_CONTEXT_LIMIT": str(model.context),
        "QUIRE_VAULT": str(demo.write_vault(place)),
        "QUIRE_CONTEXT_BACKGROUND_THRESHOLD": "1.0",
        "QUIRE_RECENT_MESSAGES_TO_KEEP": "2",
    }
    command = [str(Path(sys.executable).with_name("quire")), "serve", "--port", "0", "--grace", "0"]
    with (
        (place / "log").open("w") as log,
        subprocess.Popen(command, env=environ, cwd=place, stdout=subprocess.PIPE, stderr=log, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            assert address.startswith("http://"), (place / "log").read_text()
            yield address
        finally:
            server.terminate()


def answered(page: Page, number: int) -> None:
    """Waits until the turn is over and so many replies stand in the transcript."""
    expect(page.get_by_role("button", name="Stop")).to_have_count(0, timeout=PATIENCE)
    expect(page.locator("article.assistant")).to_have_count(number, timeout=PATIENCE)


def ask(page: Page, text: str, *, number: int) -> None:
    """Asks, and stops the model when it has said something."""
    send(page, text)
    expect(page.locator("article.user")).to_have_count(number, timeout=PATIENCE)
    stop_when_heard(page)
    answered(page, number)


def stop_when_heard(page: Page) -> None:
    """It would go on for long; it may also have ended by itself a moment before."""
    expect(page.locator("section.live > .prose")).to_be_visible(timeout=PATIENCE)
    with suppress(PlaywrightError):
        page.get_by_role("button", name="Stop").click(timeout=1_000)


def test_the_whole_story(page: Page, database_url: str, local_model: Address, tmp_path: Path) -> None:
    with quire_serve(tmp_path, database_url, local_model) as address:
        page.goto(address)
        talk(page)
        look(page)
        compact(page)
        branch(page)
        page.goto("about:blank")


def talk(page: Page) -> None:
    page.get_by_role("button", name="New", exact=True).click()
    ask(page, "What is a tide mill? See [[Tide mill#Wheel]] and [[Nowhere]].", number=1)
    asked = page.locator("article.user").first
    expect(asked.get_by_role("list", name="Documents")).to_contain_text("Tide mill.md")
    expect(asked.get_by_role("list", name="Documents")).to_contain_text("broken")
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.locator("article.assistant")).to_have_count(1)
    ask(page, "Say more about the wheel.", number=2)
    expect(other.locator("article.assistant")).to_have_count(2, timeout=1_000)
    other.close()


def look(page: Page) -> None:
    expect(page.get_by_role("img", name=re.compile("^Context window"))).to_be_visible()
    reply = page.locator("article.assistant").last
    reply.hover()
    reply.get_by_role("button", name="Context").click()
    context = page.get_by_role("complementary", name="Context")
    expect(context.get_by_role("region", name="Messages")).to_be_visible()
    context.get_by_role("button", name="Build it again and check").click()
    expect(context).to_contain_text("Same to the byte")
    panels = page.get_by_role("group", name="Panels")
    panels.get_by_role("button", name="References").click()
    references = page.get_by_role("complementary", name="References")
    expect(references).to_contain_text("1 broken link")
    references.get_by_role("button", name=re.compile("^Tide mill.md")).click()
    expect(references.locator("mark")).to_contain_text("Twelve feet across")


def compact(page: Page) -> None:
    page.get_by_role("group", name="Panels").get_by_role("button", name="Window").click()
    window = page.get_by_role("complementary", name="Window")
    expect(window.locator("figure .bar")).to_have_count(2)
    window.get_by_role("button", name="Compact now").click()
    marker = page.get_by_role("article", name="Compaction 1")
    expect(marker).to_contain_text(re.compile(r"\d+ messages? archived"), timeout=PATIENCE)
    expect(page.locator("article.archived").first).to_be_visible()
    marker.get_by_role("button").first.click()
    citation = marker.locator(".citation").first
    if citation.count():
        citation.click()
        expect(page).to_have_url(re.compile("at="))
    marker.get_by_role("button", name="Undo").click()
    expect(marker).to_contain_text("undone")
    expect(page.locator("article.archived")).to_have_count(0)


def branch(page: Page) -> None:
    first = page.locator("article.user").first
    first.hover()
    first.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name=re.compile("Edit message")).fill("What is a windmill?")
    page.get_by_role("button", name="Send", exact=True).first.click()
    expect(page).to_have_url(re.compile("branch=1"))
    expect(page.locator("article.user").first).to_contain_text("windmill", timeout=PATIENCE)
    stop_when_heard(page)
    answered(page, 1)
    expect(page.locator("article.user").first).to_contain_text("2 of 2")
    page.get_by_role("button", name="Earlier version").click()
    expect(page.locator("article.user").first).to_contain_text("What is a tide mill?")
