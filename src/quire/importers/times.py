"""Times of other programs as microseconds since 1970."""

from datetime import UTC, datetime

MAX_SECONDS = 10**10
"""Latest time in seconds; a larger number is in milliseconds."""
MAX_MICROS = 253_402_300_799_000_000
"""The year 9999, the last that `datetime` can format."""


def parse_time(value: object) -> int | None:
    """Microseconds of an ISO 8601 text, or of a number of seconds or milliseconds since 1970; None for anything else.

    A text without a time zone is in UTC.
    """
    match value:
        case bool():
            return None
        case int() | float():
            if not 0 <= value < MAX_SECONDS * 1_000:
                return None
            return round(value * 1_000_000 if value < MAX_SECONDS else value * 1_000)
        case str():
            try:
                time = datetime.fromisoformat(value)
            except ValueError:
                return None
            micros = round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1_000_000)
            return micros if 0 <= micros <= MAX_MICROS else None
        case _:
            return None
