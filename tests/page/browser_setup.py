"""Requirements of the page tests: the built page, and a Chromium without background traffic."""

import os
import shutil
from pathlib import Path

import pytest

from quire.server.page import STATIC_DIR

WEB_DIR = Path(__file__).parents[2] / "web"

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
CHROMIUM_ARGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Options that stop Chromium's background requests at startup."""


def require_browser(*commands: str) -> None:
    """Skips the test (fails in CI) if the page, the browser or one of these commands is missing."""
    if not (STATIC_DIR / "index.html").is_file():
        problem = "THE PAGE IS NOT BUILT (just web)"
    elif missing := [command for command in (CHROMIUM, *commands) if shutil.which(command) is None]:
        problem = f"{missing[0].upper()} IS NOT INSTALLED"
    else:
        return
    message = f"{problem}: nothing that needs it is tested here"
    pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
