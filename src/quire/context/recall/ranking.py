"""Ranking: the archived messages by what they are worth to a question.

Strength is a sum of signals, each times its weight, and grows with the odds that the message answers. Worth is strength
less what its tokens cost: in its order messages are taken while they fit. The same archive and question give the same
ranking, and so do the same messages parted into other segments.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from quire.context.recall.archive import Archive, Bools
from quire.context.recall.packing import Floats
from quire.context.recall.question import Question
from quire.context.recall.signals import Signals, first_reading, second_reading

WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "match": 1.0,  # for each nat of rarity of the question's terms in the message's best passage
        "around": 0.25,  # the same for terms that only the message before or after has
        "nearby": 2.0,  # the logarithm of what up to six messages on either side match, fading
        "meaning": 20.0,  # the cosine of question and message
        "named": 12.0,  # said by whom the question names
        "user": 10.0,  # said by the user, where the assistant only answers
        "own": 20.0,  # the share of "I" and "my" among its words
        "opening": 4.0,  # news stand at the beginning of a sitting
        "new": 6.0,  # the share of its terms that were new to the conversation
        "standing": 5.0,  # what is to be done from now on
        "wish": 6.0,  # that, or a preference, where the question asks for something
        "date": 6.0,  # said about when the question says
        "times": 2.0,  # words of time for a question of when
        "digits": 4.0,  # digits for a question of how many
        "kin": 5.0,  # like the best that the first reading found
        "company": 0.7,  # the logarithm of how likely those near it are, by the first reading
        "price": -2.2,  # the logarithm of its tokens
    }
)
MIDDLE, SLOPE = 30.0, 6.4
"""The strength that scores one half, which about one message in thirty exceeds, and how much more makes the odds e
times better: the slope is that of evidence among the messages of the sets that the weights were chosen on."""


class Ranked(NamedTuple):
    seq: int
    score: float
    """From 0 to 1: how likely it bears on the question, whatever it costs."""
    worth: float
    """What it is taken by, whatever else is asked; comparable within one ranking."""


def rank(
    archive: Archive,
    question: Question,
    *,
    vector: Floats | None = None,
    allowed: Bools | None = None,
    limit: int | None = None,
) -> list[Ranked]:
    """The messages by worth, the worthiest first, of equals the oldest: those allowed, at most `limit` of them.

    `vector` is what the archive's embedder makes of the question's topic."""
    if len(archive) == 0:
        return []
    signals = first_reading(archive, question, vector=vector)
    signals |= second_reading(archive, weighed(signals))
    worth = weighed(signals)
    strength = worth - WEIGHTS["price"] * signals["price"]
    scores = 1 / (1 + np.exp(np.clip((MIDDLE - strength) / SLOPE, -60, 60)))
    rows = np.arange(len(archive)) if allowed is None else np.flatnonzero(allowed)
    if limit is not None and limit < len(rows):
        rows = rows[worth[rows] >= np.partition(worth[rows], -limit)[-limit]] if limit > 0 else rows[:0]
    rows = rows[np.argsort(-worth[rows], kind="stable")][:limit]
    return [
        Ranked(seq, score, value)
        for seq, score, value in zip(
            archive.seq[rows].tolist(), scores[rows].tolist(), worth[rows].tolist(), strict=True
        )
    ]


def weighed(signals: Signals) -> Floats:
    """The sum of the signals, each times its weight."""
    total: Floats = np.zeros(len(next(iter(signals.values()))), dtype=np.float32)
    for name, signal in signals.items():
        total += np.float32(WEIGHTS[name]) * signal
    return total
