"""Faults of a browser window: script errors, logged errors, requests to other machines."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage, Page

LOCAL_HOSTS = ("127.0.0.1", "localhost", None)


@contextmanager
def collect_faults(context: "BrowserContext", *, ignored: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Yields the list of faults, complete when the context exits; faults that contain an `ignored` text are dropped."""
    faults: list[str] = []

    def report(fault: str) -> None:
        if not any(text in fault for text in ignored):
            faults.append(fault)

    context.on("weberror", lambda error: report(f"error: {error.error}"))
    context.on("console", lambda message: report(f"console: {message.text}") if _is_fault(message) else None)
    context.on("request", lambda request: _check_local(request.url, report))
    yield faults


def _is_fault(message: "ConsoleMessage") -> bool:
    """Excludes failed loads: Chromium logs every status of 400 and above, though the page has reported the error."""
    return message.type == "error" and not message.text.startswith("Failed to load resource")


def _check_local(url: str, report: object) -> None:
    parts = urlsplit(url)
    if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname not in LOCAL_HOSTS:
        assert callable(report)
        report(f"request to another machine: {url}")


def save_picture(page: "Page", name: str) -> None:
    """Saves a picture to look at, if QUIRE_PICTURES names a folder."""
    if folder := os.environ.get("QUIRE_PICTURES"):
        page.screenshot(path=Path(folder) / f"{name}.png")
