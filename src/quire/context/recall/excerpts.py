"""Which pieces of a long message answer a question: its passages with most of the question's terms, in their order."""

from quire.context.recall.passages import passages
from quire.context.recall.terms import distinct, terms

SHOWN = 2
"""So many passages of one message."""


def pieces(text: str, question: str) -> tuple[tuple[int, int], ...]:
    """From and up to which character; of equally good passages the first. The beginning, if none has a term."""
    asked = frozenset(distinct(terms(question)))
    places = _places(text)
    scored = sorted(places, key=lambda place: (-len(asked & set(terms(text[place[0] : place[1]]))), place))
    chosen = sorted(scored[:SHOWN])
    joined: list[tuple[int, int]] = []
    for start, end in chosen:
        if joined and start - joined[-1][1] <= 1:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return tuple(joined)


def _places(text: str) -> list[tuple[int, int]]:
    """Where the passages stand; one that was put together across a line break goes by its beginning and end."""
    found: list[tuple[int, int]] = []
    at = 0
    for passage in passages(text):
        ends: list[tuple[int, int]] = []
        for word in passage.split():
            start = text.find(word, at)
            if start < 0:
                break
            at = start + len(word)
            ends.append((start, at))
        if ends:
            found.append((ends[0][0], ends[-1][1]))
    return found
