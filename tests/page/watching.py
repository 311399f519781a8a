"""What a window must not do: fail, log errors, or ask anything of another machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage

HERE = ("127.0.0.1", "localhost", None)


@contextmanager
def watched(context: "BrowserContext", *, expected: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Gives the faults; they are complete once the context has been left."""
    faults: list[str] = []

    def note(fault: str) -> None:
        if not any(known in fault for known in expected):
            faults.append(fault)

    context.on("weberror", lambda error: note(f"error: {error.error}"))
    context.on("console", lambda message: note(f"console: {message.text}") if _matters(message) else None)
    context.on("request", lambda request: _check(request.url, note))
    yield faults


def _matters(message: "ConsoleMessage") -> bool:
    """Chromium notes every answer of 400 and above as an error, though the page has said what was wrong."""
    return message.type == "error" and not message.text.startswith("Failed to load resource")


def _check(url: str, note: object) -> None:
    parts = urlsplit(url)
    if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname not in HERE:
        assert callable(note)
        note(f"asked elsewhere: {url}")
