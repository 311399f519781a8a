"""Passages: a long message in pieces of a few sentences, so that words count together only where they stand together.

A short message is one passage. Of a very long one only the head and the tail are read.
"""

import re
from collections.abc import Iterator

WORDS = 60
"""About what a passage holds; a longer sentence stays whole, up to twice as much."""
READ_CHARACTERS = 60_000
_TAIL = 20_000

_SENTENCES = re.compile(r"(?<=[.!?])\s+|\n+|(?<=[。！？])")
_LONGEST = 6 * 2 * WORDS
"""Characters; what has no sentences, as code or a table may, is cut there."""


def passages(text: str) -> list[str]:
    """The pieces in their order; together they hold every word that is read. At least one, though it be empty."""
    if len(text) > READ_CHARACTERS:
        text = f"{text[: READ_CHARACTERS - _TAIL]}\n{text[-_TAIL:]}"
    if len(text) <= _LONGEST // 2:
        return [text]
    return list(_joined(text)) or [""]


def _joined(text: str) -> Iterator[str]:
    held: list[str] = []
    count = 0
    for piece in _pieces(text):
        words = max(piece.count(" ") + 1, len(piece) // 12)
        if held and count + words > WORDS:
            yield " ".join(held)
            held, count = [], 0
        held.append(piece)
        count += words
    if held:
        yield " ".join(held)


def _pieces(text: str) -> Iterator[str]:
    for sentence in _SENTENCES.split(text):
        while len(sentence) > _LONGEST:
            cut = sentence.rfind(" ", _LONGEST // 2, _LONGEST) + 1 or _LONGEST
            yield sentence[:cut]
            sentence = sentence[cut:]
        if sentence:
            yield sentence
