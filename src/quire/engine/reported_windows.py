"""Context windows that providers report in overflow errors and lists of models, by upstream and model, for one tenant.

The message of an error may repeat what a client sent. A report is therefore trusted only if it is credible, never
applies to another tenant, has a minimum, and expires.
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from cachetools import TTLCache

from quire.errors import ModelContextOverflow
from quire.model import Policy
from quire.view.budget import MAX_RATIO, MIN_RATIO

MIN_REPORTED_WINDOW_TOKENS = 512
"""Smallest context window that is taken from an error. A smaller one is ignored."""
REPORTED_WINDOW_SECONDS = 3_600.0
"""Seconds that a reported window bounds the window of the settings."""
REPORTED_WINDOW_CACHE_SIZE = 1_000
"""Maximum reported windows of one tenant."""
MAX_RESERVED_SHARE = 0.5
"""Maximum share of a reported window that is reserved for the reply."""


class ModelEndpoint(NamedTuple):
    """Where requests for a model go: the upstream's base URL, empty for the provider's own, and the model's name
    there."""

    base_url: str
    model: str


class ReportedWindows:
    """Reported context windows of one tenant. They bound the windows of the settings until they expire."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._has_reports = False
        self._windows: TTLCache[ModelEndpoint, int] = TTLCache(
            REPORTED_WINDOW_CACHE_SIZE, REPORTED_WINDOW_SECONDS, timer=clock
        )

    def find(self, endpoint: ModelEndpoint) -> int | None:
        # Every request looks for one several times, and most engines never have any.
        return self._windows.get(endpoint) if self._has_reports else None

    def add(self, window: int, endpoint: ModelEndpoint) -> None:
        """Stores a reported window, unless it is below `MIN_REPORTED_WINDOW_TOKENS`."""
        if window >= MIN_REPORTED_WINDOW_TOKENS:
            self._windows[endpoint] = window
            self._has_reports = True

    def limit_policy(self, policy: Policy, endpoint: ModelEndpoint) -> Policy:
        """The policy within the reported window, if there is a smaller one."""
        window = self.find(endpoint)
        if window is None or window >= policy.window:
            return policy
        reserved = min(policy.reserved_response_tokens, int(window * MAX_RESERVED_SHARE))
        return policy.model_copy(update={"window": window, "reserved_response_tokens": reserved})


LISTED_WINDOW_FIELDS = (
    "max_input_tokens", "context_length", "max_model_len", "context_window", "max_context_length",
    "loaded_context_length",
)  # fmt: skip
"""Names of the window in providers' lists of models."""


def read_listed_window(model: Mapping[str, object]) -> int | None:
    """The window of a model in a provider's list, if the list has it."""
    values = (model.get(name) for name in LISTED_WINDOW_FIELDS)
    windows = [value for value in values if isinstance(value, int) and not isinstance(value, bool) and value > 0]
    return min(windows, default=None)


def is_credible(error: ModelContextOverflow, *, counted_tokens: int, policy: Policy) -> bool:
    """Whether an overflow error can be true of a request of `counted_tokens`, by our own count.

    Counts in fields of the error are trusted. A count in its message must agree with ours as far as tokenizers differ,
    and exceed the window together with the reply. An error without a count must concern a request that can exceed the
    policy's maximum if ours is too low, or the window that it names if the policy knows none.
    """
    if error.is_structured:
        return True
    if error.tokens is None:
        max_tokens = policy.max_input_tokens if policy.has_known_window else error.window or 0
        return counted_tokens * MAX_RATIO > max_tokens
    if error.window is not None and error.tokens + policy.reserved_response_tokens <= error.window:
        return False
    return counted_tokens * MIN_RATIO <= error.tokens <= counted_tokens * MAX_RATIO
