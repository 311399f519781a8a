"""Fixtures: the page in a real browser (Debian's Chromium with Playwright) against a server in this process.

Without a built page or Chromium, the tests are skipped on a laptop and fail in CI.
"""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from browser_setup import CHROMIUM, CHROMIUM_ARGS, WEB_DIR, require_browser

sys.path.insert(0, str(WEB_DIR))

if TYPE_CHECKING:
    from page_server import PageServer
    from playwright.sync_api import Browser, Page

    from infra.agent_sessions import AgentSessions


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """One per module: Playwright's sync API runs an event loop, and async tests need their own."""
    require_browser()
    from playwright.sync_api import expect, sync_playwright

    # An event that does not come is a fault; on a busy machine it may come late.
    expect.set_options(timeout=20_000)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=list(CHROMIUM_ARGS))
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: "Browser") -> "Iterator[Page]":
    """A separate window. Errors in it, and requests to other machines, fail the test."""
    from page_faults import collect_faults

    context = browser.new_context(viewport={"width": 1360, "height": 860}, reduced_motion="reduce")
    with collect_faults(context) as faults:
        yield context.new_page()
    context.close()
    assert faults == []


@pytest.fixture(scope="session")
def page_server(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[PageServer]":
    """Server of the demo; tests create their own conversations on it."""
    from page_server import serve_page

    with serve_page(tmp_path_factory.mktemp("page")) as server:
        yield server


@pytest.fixture
def demo_conversation(page_server: "PageServer") -> str:
    """ID of a new copy of the demo's conversation."""
    import demo

    return page_server.run(demo.create_demo_conversation(page_server.server_state))


@pytest.fixture(scope="session")
def agent_sessions(page_server: "PageServer") -> "AgentSessions":
    """Sessions of Claude Code and Codex, once: replayed again, they would continue the same conversations."""
    from infra.agent_sessions import create_agent_sessions

    return page_server.run(create_agent_sessions(page_server.server_state.store))
