"""Ranks the messages of a recall index by a weighted sum of relevance signals, one column per signal.

The first pass uses the query alone: IDF of its terms as in BM25, embedding similarity, speaker, date. The second is
pseudo-relevance feedback: messages that are similar to the top results of the first, or near them. Every signal is 0 or
more where it speaks for a message.
"""

from collections.abc import Mapping
from math import log
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from quire.context.recall.index import MAX_NEIGHBOR_DISTANCE, BoolArray, RecallIndex
from quire.context.recall.message_features import DIRECTIVE_STANDING
from quire.context.recall.query import DAY_MICROS, RecallQuery, TimeRange
from quire.context.recall.segments import FloatArray, IntArray, truncate_vectors

SIGNAL_WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "match": 1.0,  # per nat of IDF of the query terms in the message's best passage
        "adjacent_match": 0.25,  # the same for terms that only the message before or after has
        "nearby_match": 2.0,  # logarithm of the decayed matches of up to six messages on either side
        "similarity": 20.0,  # cosine of query and message
        "speaker": 12.0,  # written by a speaker that the query names
        "user": 10.0,  # written by the user, where the assistant only answers
        "first_person": 20.0,  # share of "I" and "my" among its words
        "session_opening": 4.0,  # news comes at the beginning of a session
        "novelty": 6.0,  # share of its terms that were new to the conversation
        "standing_instruction": 5.0,  # an instruction for all later turns
        "preference": 6.0,  # that, or a preference, where the query is a request
        "date": 6.0,  # written at about the time that the query names
        "time_words": 2.0,  # for a query that asks when
        "digits": 4.0,  # for a query that asks for a number
        "similar_to_top": 5.0,  # similar to the top results of the first pass
        "near_top": 0.7,  # logarithm of how likely its neighbors are, by the first pass
        "cost": -2.2,  # logarithm of its tokens
    }
)
SCORE_MIDPOINT, SCORE_SLOPE = 30.0, 6.4
"""The strength that scores one half, which about one message in thirty exceeds, and the increase that multiplies the
odds by e: the slope of relevant messages in the datasets on which the weights were tuned."""
MIN_CORPUS_SIZE = 500
"""Minimum corpus size for the IDF: in an index of fewer messages no term can be called common yet."""
MAX_QUERY_TERMS = 32
"""Number of the query's rarest terms that are looked up."""
RARE_TERM_MESSAGES = 2
"""A query term that at most this many messages have identifies them."""
RARE_TERM_UTILITY = 100.0
"""Added to tool results with such a term, above all other signals: those are tuned on dialogues, whose messages are
short."""
NEIGHBOR_DECAY = 0.8
"""Factor on a neighbor's value for each further message of distance."""
FEEDBACK_TOP_K = 5
"""Number of top results of the first pass that the second compares messages with."""
FEEDBACK_TEMPERATURE = 3.0
"""Difference in first-pass strength that divides a message's weight in the second pass by e."""
DECAY_DAYS_AFTER, DECAY_DAYS_BEFORE = 4.0, 2.0
"""Days after and before a named day over which the date signal decays by e: people write about yesterday."""
MAX_FEEDBACK_CANDIDATES = 4_096
"""Number of first-pass results that are compared with the top ones: the others are too far behind."""

Signals = dict[str, FloatArray]


class RankedMessage(NamedTuple):
    seq: int
    score: float
    """From 0 to 1: how likely the message is relevant to the query, regardless of its cost."""
    utility: float
    """Relevance minus cost, by which messages are chosen; comparable within one ranking."""


def rank_messages(
    index: RecallIndex,
    query: RecallQuery,
    *,
    vector: FloatArray | None = None,
    allowed: BoolArray | None = None,
    limit: int | None = None,
) -> list[RankedMessage]:
    """The allowed messages by descending utility, ties by age, at most `limit` of them.

    `vector` is the embedding of the query's topic by the index's embedder.
    """
    if len(index) == 0:
        return []
    signals = compute_query_signals(index, query, vector=vector)
    signals |= compute_feedback_signals(index, sum_weighted(signals))
    utility = sum_weighted(signals) + RARE_TERM_UTILITY * _mark_rare_terms(index, query)
    strength = utility - SIGNAL_WEIGHTS["cost"] * signals["cost"]
    scores = 1 / (1 + np.exp(np.clip((SCORE_MIDPOINT - strength) / SCORE_SLOPE, -60, 60)))
    rows = np.arange(len(index)) if allowed is None else np.flatnonzero(allowed)
    if limit is not None and limit < len(rows):
        rows = rows[utility[rows] >= np.partition(utility[rows], -limit)[-limit]] if limit > 0 else rows[:0]
    rows = rows[np.argsort(-utility[rows], kind="stable")][:limit]
    columns = index.seq[rows].tolist(), scores[rows].tolist(), utility[rows].tolist()
    return [RankedMessage(*values) for values in zip(*columns, strict=True)]


def _mark_rare_terms(index: RecallIndex, query: RecallQuery) -> FloatArray:
    """1 for tool results with a query term that hardly any other message has: a name, a number, a path."""
    marked = np.zeros(len(index), dtype=np.float32)
    for term in query.terms:
        rows = _deduplicate_sorted(index.passage_rows[index.find_passages(term)])
        if len(rows) <= RARE_TERM_MESSAGES:
            marked[rows] = 1
    return marked * index.is_tool_result


def compute_query_signals(index: RecallIndex, query: RecallQuery, *, vector: FloatArray | None = None) -> Signals:
    match, adjacent = _term_signals(index, query)
    signals = {
        "match": match,
        "adjacent_match": adjacent,
        "nearby_match": np.log1p(sum_neighbors(index, match)),
        "speaker": _speaker_signal(index, query),
        "user": index.is_user * (not query.asks_summary and not query.about_reply),
        "first_person": index.first_person,
        "session_opening": index.session_opening,
        "novelty": index.novelty,
        "standing_instruction": (index.directives == DIRECTIVE_STANDING).astype(np.float32),
        "preference": (index.directives > 0).astype(np.float32) * query.is_request,
        "date": _date_signal(index, query.time_ranges),
        "time_words": index.time_words * query.asks_when,
        "digits": index.digits * query.asks_number,
        "cost": index.log_tokens,
    }
    if vector is not None and index.vectors is not None:
        signals["similarity"] = _fill_missing(index, index.vectors @ truncate_vectors(vector[np.newaxis])[0])
    return signals


def compute_feedback_signals(index: RecallIndex, strength: FloatArray) -> Signals:
    """Signals of the second pass, from the strength that the first gave each message."""
    likelihood = np.exp((strength - strength.max(initial=0.0)) / FEEDBACK_TEMPERATURE)
    total = likelihood.sum() or 1.0
    signals = {"near_top": np.log1p(1_000 * sum_neighbors(index, likelihood) / total)}
    if index.vectors is not None:
        signals["similar_to_top"] = _similarity_to_top(index, index.vectors, strength)
    return {name: signal.astype(np.float32) for name, signal in signals.items()}


def sum_neighbors(index: RecallIndex, values: FloatArray) -> FloatArray:
    """For each message, the sum over its neighbors in the same session, decayed by distance."""
    total = np.zeros_like(values)
    for distance in range(1, min(MAX_NEIGHBOR_DISTANCE, len(index) - 1) + 1):
        weight = index.same_session[distance - 1] * np.float32(NEIGHBOR_DECAY ** (distance - 1))
        total[distance:] += values[:-distance] * weight
        total[:-distance] += values[distance:] * weight
    return total


def sum_weighted(signals: Signals) -> FloatArray:
    """Weighted sum of the signals."""
    total: FloatArray = np.zeros(len(next(iter(signals.values()))), dtype=np.float32)
    for name, signal in signals.items():
        total += np.float32(SIGNAL_WEIGHTS[name]) * signal
    return total


def _term_signals(index: RecallIndex, query: RecallQuery) -> tuple[FloatArray, FloatArray]:
    """IDF sum of the query terms in a message's best passage, and of those that only an adjacent message has."""
    postings = {term: index.find_passages(term) for term in query.terms}
    rows = {
        term: _deduplicate_sorted(index.passage_rows[passages]) for term, passages in postings.items() if len(passages)
    }
    weights = {term: _idf(len(rows[term]), total=len(index)) for term in rows}
    rarest = sorted(weights, key=lambda term: -weights[term])[:MAX_QUERY_TERMS]
    matched = np.zeros(len(index.passage_rows), dtype=np.float32)
    adjacent = np.zeros(len(index), dtype=np.float32)
    for term in rarest:
        matched[postings[term]] += weights[term]
        adjacent += np.float32(weights[term]) * _mark_neighbors(index, rows[term])
    if len(matched) > len(index):
        matched = np.maximum.reduceat(matched, index.passage_offsets)
    return matched, adjacent


def _idf(matching: int, *, total: int) -> float:
    """Inverse document frequency of a term, as in BM25, in nats."""
    return log(1 + (max(total, MIN_CORPUS_SIZE) - matching + 0.5) / (matching + 0.5))


def _deduplicate_sorted(values: IntArray) -> IntArray:
    return values[np.diff(values, prepend=-1) > 0]


def _mark_neighbors(index: RecallIndex, rows: IntArray) -> FloatArray:
    """1 for the messages adjacent to these rows within their session, 0 for the rows themselves."""
    has_term = np.zeros(len(index), dtype=np.float32)
    has_term[rows] = 1
    adjacent = np.zeros_like(has_term)
    if len(has_term) > 1:
        connected = index.same_session[0]
        np.maximum(has_term[:-1] * connected, adjacent[1:], out=adjacent[1:])
        np.maximum(has_term[1:] * connected, adjacent[:-1], out=adjacent[:-1])
    adjacent[rows] = 0
    return adjacent


def _speaker_signal(index: RecallIndex, query: RecallQuery) -> FloatArray:
    named = [speaker_id for speaker_id, name in enumerate(index.speaker_names) if name in query.speakers]
    return np.isin(index.speaker_ids, named).astype(np.float32)


def _date_signal(index: RecallIndex, time_ranges: tuple[TimeRange, ...]) -> FloatArray:
    """1 in a time range that the query names, decaying before and after it."""
    signal = np.zeros(len(index), dtype=np.float32)
    for time_range in time_ranges:
        late = np.maximum(index.at - time_range.end, 0) / DAY_MICROS
        early = np.maximum(time_range.start - index.at, 0) / DAY_MICROS
        signal = np.maximum(signal, np.exp(-late / DECAY_DAYS_AFTER - early / DECAY_DAYS_BEFORE).astype(np.float32))
    return signal


def _fill_missing(index: RecallIndex, similarity: FloatArray) -> FloatArray:
    """Gives messages without a vector the mean similarity of the others."""
    if index.has_vector.all() or not index.has_vector.any():
        return similarity
    return np.where(index.has_vector, similarity, similarity[index.has_vector].mean())


def _similarity_to_top(index: RecallIndex, vectors: FloatArray, strength: FloatArray) -> FloatArray:
    """Cosine with the top results, after subtracting the mean vector, which all messages have in common."""
    candidates = _top_rows(strength, MAX_FEEDBACK_CANDIDATES)
    top = candidates[:FEEDBACK_TOP_K]
    weights = np.exp((strength[top] - strength[top[0]]) / FEEDBACK_TEMPERATURE)
    centered = vectors[candidates] - index.mean_vector
    centered /= np.maximum(np.linalg.norm(centered, axis=1, keepdims=True), 1e-6)
    similarity = np.zeros_like(strength)
    similarity[candidates] = (
        centered @ ((weights / weights.sum()) @ centered[:FEEDBACK_TOP_K]) * index.has_vector[candidates]
    )
    return similarity


def _top_rows(strength: FloatArray, count: int) -> IntArray:
    """Rows of the strongest messages, strongest first, ties by age."""
    rows = np.arange(len(strength))
    if len(strength) > count:
        rows = np.flatnonzero(strength >= np.partition(strength, -count)[-count])
    return rows[np.argsort(-strength[rows], kind="stable")][:count]
