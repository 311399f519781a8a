"""Context windows that upstreams report in overflow errors, by tenant, upstream and model.

The message of an error may repeat what the client sent. A report is therefore trusted only if it is credible, never
applies to another tenant, has a minimum, and expires.
"""

import time
from collections.abc import Callable

from cachetools import TTLCache

from quire.errors import ModelContextOverflow
from quire.settings.schema import Upstream
from quire.view.tokens import MAX_RATIO, MIN_RATIO

MIN_REPORTED_WINDOW_TOKENS = 512
"""Smallest context window that is taken from an error; a smaller one is ignored."""
REPORTED_WINDOW_SECONDS = 3_600.0
"""Seconds that a reported window overrides the settings."""
REPORTED_WINDOW_CACHE_SIZE = 10_000
"""Maximum reported windows of all tenants."""


class ReportedWindows:
    """Reported context windows, which override the settings until they expire."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._windows: TTLCache[tuple[str, str, str], int] = TTLCache(
            REPORTED_WINDOW_CACHE_SIZE, REPORTED_WINDOW_SECONDS, timer=clock
        )

    def find(self, *, tenant: str, upstream: Upstream, model: str) -> int | None:
        return self._windows.get(_build_key(tenant, upstream, model))

    def add(self, window: int, *, tenant: str, upstream: Upstream, model: str) -> None:
        """Stores a reported window, unless it is below `MIN_REPORTED_WINDOW_TOKENS`."""
        if window >= MIN_REPORTED_WINDOW_TOKENS:
            self._windows[_build_key(tenant, upstream, model)] = window

    def clear(self) -> None:
        self._windows.clear()


def _build_key(tenant: str, upstream: Upstream, model: str) -> tuple[str, str, str]:
    return (tenant, upstream.base_url, upstream.model or model)


def is_credible(error: ModelContextOverflow, *, counted_tokens: int, max_input_tokens: int) -> bool:
    """Whether an overflow error can be true of a request of `counted_tokens`, by our own count.

    Counts in fields of the error are trusted. A count in its message must agree with ours as far as tokenizers differ.
    An error without a count must concern a request that can exceed `max_input_tokens` if ours is too low.
    """
    if error.is_structured:
        return True
    if error.tokens is None:
        return counted_tokens * MAX_RATIO > max_input_tokens
    return counted_tokens * MIN_RATIO <= error.tokens <= counted_tokens * MAX_RATIO
