"""Patterns for secrets of an organization: a literal start, then characters of given kinds.

The syntax is a small part of regular expressions, such as `ACME-[0-9A-F]{16}`, so that a search takes linear time
whatever the pattern and the text are: there are no groups and no alternatives, and every repetition has an upper bound
and is possessive.
"""

import re
from typing import NamedTuple

MIN_HEAD_CHARS = 3
"""Minimum length of the literal start, which a search looks for."""
MIN_BODY_CHARS = 4
"""Minimum length of what follows it."""
MAX_SECRET_CHARS = 256
"""Maximum length of a match."""

_HEAD = re.compile(r"(?:[A-Za-z0-9_:#@/=-]|\\\.)+(?!\{)")
_PIECE = re.compile(
    r"(?:[A-Za-z0-9_:#@/=-]|\\[.dw]|\[(?:[A-Za-z0-9_.:#@/=+]|\\[dw-]|(?<=[A-Za-z0-9])-(?=[A-Za-z0-9])|-(?=\]))+\])"
    r"(?:\{(?P<least>\d{1,3})(?:,(?P<most>\d{1,3}))?\})?"
)
"""A character, a class such as `\\d` or `[A-Za-z0-9_-]`, and how often it is repeated."""


class SecretPattern(NamedTuple):
    """A compiled pattern."""

    kind: str
    """Name of the secret, which its mask has."""
    head: str
    """Literal start, which the mask preserves."""
    body: re.Pattern[str]


def compile_secret_pattern(kind: str, text: str) -> SecretPattern:
    """Raises `ValueError` for a pattern that the syntax does not allow."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 _-]{0,39}", kind) is None:
        raise ValueError(f"{kind!r} is no name of a secret: use up to 40 letters, digits and spaces")
    found = _HEAD.match(text)
    head = found[0] if found is not None else ""
    pieces, least, most, position = list[str](), 0, 0, len(head)
    while position < len(text) and (piece := _PIECE.match(text, position)) is not None:
        low = int(piece["least"] or 1)
        high = int(piece["most"] or low)
        least, most, position = least + low, most + high, piece.end()
        pieces.append(piece[0] + "+" if piece["least"] else piece[0])
    literal = head.replace("\\", "")
    if position < len(text) or len(literal) < MIN_HEAD_CHARS or least < MIN_BODY_CHARS:
        raise ValueError(
            f"{text!r} is no pattern of a secret: begin with at least {MIN_HEAD_CHARS} literal characters, then at "
            f"least {MIN_BODY_CHARS} characters such as \\d, \\w or [A-Z0-9], with repetitions such as {{16}} or "
            "{16,40}; groups, alternatives, * and + are not allowed"
        )
    if len(literal) + most > MAX_SECRET_CHARS:
        raise ValueError(f"{text!r} matches more than {MAX_SECRET_CHARS} characters")
    try:
        return SecretPattern(kind, literal, re.compile("".join(pieces), re.ASCII))
    except re.error as error:
        raise ValueError(f"{text!r} is no pattern of a secret: {error}") from error
