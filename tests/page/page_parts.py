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


def missing() -> str | None:
    if not (BUILT / "index.html").is_file():
        return "THE PAGE IS NOT BUILT (just web): nothing of it is tested here"
    if not Path(CHROMIUM).exists():
        return "CHROMIUM IS NOT INSTALLED: nothing of the page is tested here"
    return None


def need(*commands: str) -> None:
    """Skip, or fail in CI, where the page, the browser or one of these commands is missing."""
    message = missing()
    for command in commands:
        if shutil.which(command) is None:
            message = message or f"{command.upper()} IS NOT INSTALLED: nothing that needs it is tested here"
    if message is not None:
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
