"""Pieces: a block of messages divided so that each piece, as it is shown, fits into the room that a call has for it.

Order is kept and every message has its place. One that is larger than the room is divided, or beyond a few parts
excerpted; `left_out` on what is shown says so.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quire.compaction.template import Said, messages_block, said, shortened
from quire.errors import SummaryFailed
from quire.model import Entry
from quire.view.excerpts import largest_that_fits
from quire.view.tokens import Counter

MOST_PARTS = 4
"""A message that would need more calls than this for itself alone is excerpted."""

_WIDEST = 12
"""Characters a token that an excerpt is tried with."""
_DENSER = (0.9, 0.7, 0.5)
"""A text's tokens are spread unevenly: parts are tried at this share of their mean length, then shorter."""


class Piece(NamedTuple):
    said: tuple[Said, ...]
    tokens: int

    @property
    def excerpted(self) -> tuple[int, ...]:
        """The numbers of the messages that are not shown whole."""
        return tuple(each.seq for each in self.said if each.left_out)


def pieces(entries: Sequence[Entry], *, room: int, counter: Counter) -> list[Piece]:
    """The messages among these entries, in pieces of at most `room` tokens, label included."""
    return packed([said(entry) for entry in entries if entry.kind == "message"], room=room, counter=counter)


def packed(block: Sequence[Said], *, room: int, counter: Counter) -> list[Piece]:
    fitted = [part for each in block for part in _fitted(each, room, counter)]
    found: list[Piece] = []
    start = 0
    while start < len(fitted):
        piece = _next(fitted, start, room, counter)
        found.append(piece)
        start += len(piece.said)
    return found


def _next(fitted: Sequence[Said], start: int, room: int, counter: Counter) -> Piece:
    """As many as fit from `start` on: guessed by adding up, then measured as a whole."""
    label = counter.count(messages_block(()))
    end, tokens = start, label
    while end < len(fitted) and tokens <= room:
        tokens += counter.count(fitted[end].shown) + 1
        end += 1
    if tokens > room:
        end = max(start + 1, end - 1)
    while (measured := _tokens(fitted[start:end], counter)) > room and end > start + 1:
        end -= 1
    return Piece(tuple(fitted[start:end]), measured)


def _tokens(block: Sequence[Said], counter: Counter) -> int:
    return counter.count(messages_block(block))


def _fitted(whole: Said, room: int, counter: Counter) -> Sequence[Said]:
    tokens = _tokens([whole], counter)
    if tokens <= room:
        return [whole]
    frame = _tokens([whole._replace(text="")], counter)
    if room > frame and tokens - frame <= (room - frame) * MOST_PARTS:
        for share in _DENSER:
            length = int(len(whole.text) * (room - frame) / (tokens - frame) * share)
            parts = _parts(whole, length)
            if len(parts) <= MOST_PARTS and all(_tokens([part], counter) <= room for part in parts):
                return parts
    return [_excerpted(whole, room, counter)]


def _parts(whole: Said, length: int) -> list[Said]:
    texts = list(_slices(whole.text, max(length, 1)))
    # What is already not shown is told once.
    hidden = [whole.left_out, *(0 for _ in texts[1:])]
    return [
        whole._replace(text=text, part=f"{whole.part}, part {number} of {len(texts)}", left_out=left_out)
        for number, (text, left_out) in enumerate(zip(texts, hidden, strict=True), start=1)
    ]


def _slices(text: str, length: int) -> Iterator[str]:
    """Slices of about this length, cut after a line or a word where one ends in their last fifth."""
    start = 0
    while start < len(text):
        end = min(len(text), start + length)
        if end < len(text):
            near = start + length * 4 // 5
            end = next((at + 1 for sign in ("\n", " ") if (at := text.rfind(sign, near, end)) > start), end)
        yield text[start:end]
        start = end


def _excerpted(whole: Said, room: int, counter: Counter) -> Said:
    def at(limit: int) -> Said:
        text, left_out = shortened(whole.text, limit, seq=whole.seq)
        return whole._replace(text=text, left_out=whole.left_out + left_out)

    longest = min(len(whole.text), room * _WIDEST)
    limit = largest_that_fits(lambda limit: _tokens([at(limit)], counter), longest=max(longest, 0), room=room)
    if limit is None:
        raise SummaryFailed("overflow", f"A call has {room:,} tokens for message #{whole.seq}, too few.")
    return at(limit)
