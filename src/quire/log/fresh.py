"""What is new in the world: the time, and ids that nobody has used."""

import secrets
import time
from string import ascii_letters, digits

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_SIGNS = digits + ascii_letters


def now() -> int:
    """The time as the log keeps it: microseconds since 1970, UTC."""
    return time.time_ns() // 1_000


def new_id() -> str:
    """26 characters: 48 bits of time in milliseconds, then 80 of chance, so that ids sort by age."""
    value = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))


def new_secret() -> str:
    """43 letters and digits: 256 bits of chance."""
    value = secrets.randbits(256)
    return "".join(_SIGNS[value // 62**place % 62] for place in range(42, -1, -1))
