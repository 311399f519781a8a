"""The page in a real browser: Debian's Chromium, driven by Playwright, against a server in this process.

Where the page is not built or there is no Chromium, its tests are one loud skip on a laptop and a failure in CI.
"""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from page_parts import ARGUMENTS, CHROMIUM, WEB, need

sys.path.insert(0, str(WEB))

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from serving_page import Served


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """For one file, because Playwright's blocking face keeps a loop running, with which no test can have its own."""
    need()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: "Browser") -> "Iterator[Page]":
    """A window of its own. Whatever goes wrong in it, and every request to another machine, fails the test."""
    from watching import watched

    context = browser.new_context(viewport={"width": 1360, "height": 860}, reduced_motion="reduce")
    with watched(context) as faults:
        yield context.new_page()
    context.close()
    assert faults == []


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Served]":
    """The demo's server; tests make conversations of their own on it."""
    from serving_page import served as serve

    with serve(tmp_path_factory.mktemp("page")) as server:
        yield server


@pytest.fixture
def mill(served: "Served") -> str:
    """The demo's conversation, made anew."""
    import demo

    return served.do(demo.fill(served.shared))
