"""Clock and ID generation."""

import secrets
import time
from string import ascii_letters, digits

_BASE32 = "0123456789abcdefghjkmnpqrstvwxyz"
_BASE62 = digits + ascii_letters


def now() -> int:
    """The current time as the log stores it: microseconds since 1970, UTC."""
    return time.time_ns() // 1_000


def new_id() -> str:
    """26 characters like a ULID: 48 bits of time in milliseconds, then 80 random bits, so that ids sort by age."""
    value = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return "".join(_BASE32[value >> shift & 31] for shift in range(125, -1, -5))


def new_secret() -> str:
    """43 letters and digits: 256 random bits."""
    value = secrets.randbits(256)
    return "".join(_BASE62[value // 62**power % 62] for power in range(42, -1, -1))
