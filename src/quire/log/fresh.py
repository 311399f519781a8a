"""What is new in the world: the time, and ids that nobody has used."""

import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def now() -> int:
    """The time as the log keeps it: microseconds since 1970, UTC."""
    return time.time_ns() // 1_000


def new_id() -> str:
    """26 characters: 48 bits of time in milliseconds, then 80 of chance, so that ids sort by age."""
    value = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))
