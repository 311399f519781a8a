"""What the page's tests need on the machine: the page built, and a Chromium that keeps to itself."""

import os
import shutil
from pathlib import Path

import pytest

from quire.server.page import BUILT

WEB = Path(__file__).parents[2] / "web"

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Chromium calls home at its start unless it is told not to."""


def need(*commands: str) -> None:
    """Skip, or fail in CI, where the page, the browser or one of these commands is missing."""
    if not (BUILT / "index.html").is_file():
        lacking = "THE PAGE IS NOT BUILT (just web)"
    elif missing := [command for command in (CHROMIUM, *commands) if shutil.which(command) is None]:
        lacking = f"{missing[0].upper()} IS NOT INSTALLED"
    else:
        return
    message = f"{lacking}: nothing that needs it is tested here"
    pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
