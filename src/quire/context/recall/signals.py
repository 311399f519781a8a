"""Signals: in what respects a message may answer a question, one column for each, a row for each message.

The first reading goes by the question alone. The second goes by what the first found: messages that are like the best
of them, and messages that stand near them. Every signal is 0 or more where it speaks for a message.
"""

from math import log

import numpy as np

from quire.context.recall.archive import REACH, Archive
from quire.context.recall.dates import DAY, Span
from quire.context.recall.marks import STANDING
from quire.context.recall.packing import Floats, Ints, shortened
from quire.context.recall.question import Question

FEW = 500
"""In an archive of fewer messages a term is as rare as if there were so many: no word can be common yet."""
TERMS = 32
"""So many of a question's rarest terms are looked up."""
FADES = 0.8
"""What a neighbour's words count for, with each further message between."""
LEADERS = 5
"""The first reading's best, by which the second looks for more of their kind."""
SPREAD = 3.0
"""How much less likely by the first reading makes a message count e times less in the second."""
AFTER, BEFORE = 4.0, 2.0
"""Days after and before a named day in which what was said may still be about it: one tells of yesterday."""
KIN_AMONG = 4_096
"""So many of the first reading's best are compared with the leaders: the others are too far behind."""

Signals = dict[str, Floats]


def first_reading(archive: Archive, question: Question, *, vector: Floats | None = None) -> Signals:
    match, around = _words(archive, question)
    found = {
        "match": match,
        "around": around,
        "nearby": np.log1p(smoothed(archive, match)),
        "named": _named(archive, question),
        "user": archive.asking * (not question.summary and not question.of_reply),
        "own": archive.own,
        "opening": archive.opening,
        "new": archive.new,
        "standing": (archive.wishes == STANDING).astype(np.float32),
        "wish": (archive.wishes > 0).astype(np.float32) * question.asks,
        "date": _dated(archive, question.spans),
        "times": archive.times * question.when,
        "digits": archive.digits * question.number,
        "price": archive.price,
    }
    if vector is not None and archive.vectors is not None:
        found["meaning"] = _known(archive, archive.vectors @ shortened(vector[np.newaxis])[0])
    return found


def second_reading(archive: Archive, strength: Floats) -> Signals:
    """By the strength that the first reading gave each message."""
    likely = np.exp((strength - strength.max(initial=0.0)) / SPREAD)
    total = likely.sum() or 1.0
    found = {"company": np.log1p(1_000 * smoothed(archive, likely) / total)}
    if archive.vectors is not None:
        found["kin"] = _kin(archive, archive.vectors, strength)
    return {name: signal.astype(np.float32) for name, signal in found.items()}


def smoothed(archive: Archive, values: Floats) -> Floats:
    """For each message, what its neighbours in the same sitting have of it; the further away, the less."""
    near = np.zeros_like(values)
    for distance in range(1, min(REACH, len(archive) - 1) + 1):
        kept = archive.together[distance - 1] * np.float32(FADES ** (distance - 1))
        near[distance:] += values[:-distance] * kept
        near[:-distance] += values[distance:] * kept
    return near


def _words(archive: Archive, question: Question) -> tuple[Floats, Floats]:
    """The weight of the question's terms in a message's best passage, and of those that only a neighbour has."""
    having = {term: archive.passages_having(term) for term in question.terms}
    rows = {term: _distinct(archive.message_of[places]) for term, places in having.items() if len(places)}
    weights = {term: _rarity(len(rows[term]), of=len(archive)) for term in rows}
    rarest = sorted(weights, key=lambda term: -weights[term])[:TERMS]
    matched = np.zeros(len(archive.message_of), dtype=np.float32)
    around = np.zeros(len(archive), dtype=np.float32)
    for term in rarest:
        matched[having[term]] += weights[term]
        around += np.float32(weights[term]) * _beside(archive, rows[term])
    if len(matched) > len(archive):
        matched = np.maximum.reduceat(matched, archive.passage_starts)
    return matched, around


def _rarity(having: int, *, of: int) -> float:
    """How much it says that a message has a term, by how many have it, in nats."""
    return log(1 + (max(of, FEW) - having + 0.5) / (having + 0.5))


def _distinct(rising: Ints) -> Ints:
    return rising[np.diff(rising, prepend=-1) > 0]


def _beside(archive: Archive, rows: Ints) -> Floats:
    """1 for the next neighbours of these messages within their sitting, 0 for these messages themselves."""
    having = np.zeros(len(archive), dtype=np.float32)
    having[rows] = 1
    beside = np.zeros_like(having)
    if len(having) > 1:
        joined = archive.together[0]
        np.maximum(having[:-1] * joined, beside[1:], out=beside[1:])
        np.maximum(having[1:] * joined, beside[:-1], out=beside[:-1])
    beside[rows] = 0
    return beside


def _named(archive: Archive, question: Question) -> Floats:
    meant = [place for place, name in enumerate(archive.names) if name in question.speakers]
    return np.isin(archive.speakers, meant).astype(np.float32)


def _dated(archive: Archive, spans: tuple[Span, ...]) -> Floats:
    """1 on a day that the question names, less before and after it."""
    nearest = np.zeros(len(archive), dtype=np.float32)
    for span in spans:
        late = np.maximum(archive.at - span.end, 0) / DAY
        early = np.maximum(span.start - archive.at, 0) / DAY
        nearest = np.maximum(nearest, np.exp(-late / AFTER - early / BEFORE).astype(np.float32))
    return nearest


def _known(archive: Archive, likeness: Floats) -> Floats:
    """What has no vector counts as the rest does on average."""
    if archive.seen.all() or not archive.seen.any():
        return likeness
    return np.where(archive.seen, likeness, likeness[archive.seen].mean())


def _kin(archive: Archive, vectors: Floats, strength: Floats) -> Floats:
    """How like the leaders a message is, after what all messages have in common is taken away."""
    near = _best(strength, KIN_AMONG)
    leaders = near[:LEADERS]
    share = np.exp((strength[leaders] - strength[leaders[0]]) / SPREAD)
    apart = vectors[near] - archive.common
    apart /= np.maximum(np.linalg.norm(apart, axis=1, keepdims=True), 1e-6)
    kin = np.zeros_like(strength)
    kin[near] = apart @ ((share / share.sum()) @ apart[:LEADERS]) * archive.seen[near]
    return kin


def _best(strength: Floats, count: int) -> Ints:
    """The strongest first; of equals the oldest."""
    some = np.arange(len(strength))
    if len(strength) > count:
        some = np.flatnonzero(strength >= np.partition(strength, -count)[-count])
    return some[np.argsort(-strength[some], kind="stable")][:count]
