"""Ranks the messages of a recall index by a weighted sum of relevance signals, one column per signal.

The first pass uses the query alone: IDF of its terms as in BM25, embedding similarity, speaker, date. The second is
pseudo-relevance feedback: messages that are similar to the top results of the first, or near them. Every signal is 0 or
more where it speaks for a message, and is computed for all messages at once: a term costs time by the messages that
have it, not by all.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.search.dates import DAY_MICROS
from quire.search.index import MAX_NEIGHBOR_DISTANCE, BoolArray, RecallIndex
from quire.search.message_features import DIRECTIVE_STANDING
from quire.search.postings import inverse_document_frequency
from quire.search.query import Query
from quire.search.segments import IntArray
from quire.search.vectors import FloatArray

RankingMode = Literal["budget", "list"]
WEIGHTS: Mapping[RankingMode, Mapping[str, float]] = MappingProxyType(
    {
        "budget": {
            "match": 1.0,  # per nat of IDF of the query terms in the message's best passage
            "match_share": 2.0,  # the same as a share of the IDF of all query terms
            "adjacent_match": 0.25,  # per nat of IDF of the terms that only the message before or after has
            "nearby_match": 1.2,  # logarithm of the decayed matches of up to six messages on either side
            "coverage": 1.8,  # share of the query's IDF among the messages within `COVERAGE_DISTANCE`
            "similarity": 12.0,  # cosine of query and message
            "nearby_similarity": 0.3,  # decayed similarity of up to six messages on either side, where above the mean
            "speaker": 13.0,  # written by a speaker that the query names
            "user": 14.0,  # written by the user, where the assistant only answers
            "first_person": 20.0,  # share of "I" and "my" among its words
            "own_opening": 1.4,  # begins with such a word: a report of one's own
            "session_opening": 4.0,  # news comes at the beginning of a session
            "novelty": 7.0,  # share of its terms that were new to the conversation
            "standing_instruction": 6.0,  # an instruction for all later turns
            "preference": 8.0,  # that, or a preference, where the query is a request
            "date": 6.0,  # written at about the time that the query names
            "time_words": 2.0,  # for a query that asks when
            "digits": 4.0,  # for a query that asks for a number
            "similar_to_top": 6.0,  # similar to the top results of the first pass
            "near_top": 1.2,  # logarithm of how likely its neighbors are, by the first pass
            "near_top_region": 0.9,  # the same of all messages within `REGION_DISTANCE`
        },
        "list": {
            "words": 0.332,  # BM25 as a share of the IDF of all query terms, of the message or of its best passage
            "similarity": 0.527,
            "coverage": 0.091,
            "session_opening": 0.049,
            "date": 0.026,
            "first_person": 0.5,
        },
    }
)
"""Weights of the signals. With a budget, messages are chosen for a request: the strengths are log odds, from which the
cost is subtracted, so that length needs no further weight. As a list, each hit stands for its conversation and its
score is compared between queries: a score from 0 to 1, in which the length of a message is part of BM25."""
LIST_BONUSES = ("date", "first_person")
"""Signals for queries that name a day or are about oneself: in a list they are added to the mean of the others."""
COST_WEIGHT = 2.2
"""Utility that each nat of a message's token cost subtracts."""
SCORE_MIDPOINT, SCORE_SLOPE = 35.0, 6.4
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
COVERAGE_DISTANCE = 12
"""Distance, in messages, within which the terms of the query count as one topic."""
REGION_DISTANCE = 20
"""Distance, in messages, within which the top results of the first pass mark a region of the conversation."""
FEEDBACK_TOP_K = 10
"""Number of top results of the first pass that the second compares messages with."""
DECAY_DAYS_AFTER, DECAY_DAYS_BEFORE = 4.0, 2.0
"""Days after and before a named day over which the date signal decays by e: people write about yesterday."""

_NO_ROW = 1 << 40
"""A distance that no two messages have."""

Signals = dict[str, FloatArray]


class RankedMessage(NamedTuple):
    seq: int
    score: float
    """From 0 to 1: how likely the message is relevant to the query, regardless of its cost."""
    utility: float
    """Relevance minus cost, by which messages are chosen; comparable within one ranking."""


class TermMatches(NamedTuple):
    """Occurrences of the query's rarest terms, one term after the other, each in order."""

    passages: IntArray
    passage_idf: NDArray[np.float64]
    rows: IntArray
    row_idf: NDArray[np.float64]
    gaps: IntArray
    """Distance of each of `rows` to the next with the same term; `_NO_ROW` for the last. Preceded by one `_NO_ROW`."""
    total_idf: float
    rare_rows: IntArray
    """Messages with a term that at most `RARE_TERM_MESSAGES` have."""


def rank_messages(
    index: RecallIndex,
    query: Query,
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
    matches = find_terms(index, query)
    strength = sum_weighted(compute_query_signals(index, query, matches, vector=vector))
    strength += sum_weighted(compute_feedback_signals(index, strength))
    # A query term that hardly any other message has is a name, a number, a path.
    has_rare_term = np.zeros(len(index), dtype=np.float32)
    has_rare_term[matches.rare_rows] = 1
    strength += RARE_TERM_UTILITY * has_rare_term * index.is_tool_result
    utility = strength - COST_WEIGHT * index.log_tokens
    rows = np.arange(len(index)) if allowed is None else np.flatnonzero(allowed)
    if limit is not None and limit < len(rows):
        rows = rows[utility[rows] >= np.partition(utility[rows], -limit)[-limit]] if limit > 0 else rows[:0]
    rows = rows[np.argsort(-utility[rows], kind="stable")][:limit]
    scores = 1 / (1 + np.exp(np.clip((SCORE_MIDPOINT - strength[rows]) / SCORE_SLOPE, -60, 60)))
    return list(map(RankedMessage, index.seq[rows].tolist(), scores.tolist(), utility[rows].tolist()))


def find_terms(index: RecallIndex, query: Query) -> TermMatches:
    matches: list[tuple[IntArray, IntArray]] = []
    for term in query.terms:
        passages = index.find_passages(term)
        if len(passages):
            # A message with several of the passages, which are sorted, counts once.
            rows = index.passage_rows[passages]
            is_first = np.ones(len(rows), dtype=np.bool_)
            np.not_equal(rows[1:], rows[:-1], out=is_first[1:])
            matches.append((passages, rows[is_first]))
    matches = sorted(matches, key=lambda match: len(match[1]))[:MAX_QUERY_TERMS]
    lengths = [len(rows) for _, rows in matches]
    total = max(len(index), MIN_CORPUS_SIZE)
    idf = np.array([inverse_document_frequency(length, total=total) for length in lengths], dtype=np.float64)
    rows = _concatenate([rows for _, rows in matches])
    gaps = np.full(len(rows) + 1, _NO_ROW)
    gaps[1:-1] = rows[1:] - rows[:-1]
    gaps[np.cumsum(lengths, dtype=np.int64)] = _NO_ROW
    return TermMatches(
        passages=_concatenate([passages for passages, _ in matches]),
        passage_idf=np.repeat(idf, [len(passages) for passages, _ in matches]),
        rows=rows,
        row_idf=np.repeat(idf, lengths),
        gaps=gaps,
        total_idf=max(float(idf.sum()), 1e-6),
        rare_rows=_concatenate([rows for _, rows in matches if len(rows) <= RARE_TERM_MESSAGES]),
    )


def compute_query_signals(
    index: RecallIndex, query: Query, matches: TermMatches, *, vector: FloatArray | None = None
) -> Signals:
    """Signals of the first pass. `matches` are the query's terms in the index, by `find_terms`."""
    # IDF sum of the query terms in a message's best passage.
    passage_count = len(index.passage_rows)
    match = np.bincount(matches.passages, matches.passage_idf, minlength=passage_count).astype(np.float32)
    if passage_count > len(index):
        match = np.maximum.reduceat(match, index.passage_offsets)
    named_speakers = [speaker_id for speaker_id, name in enumerate(index.speaker_names) if name in query.speakers]
    signals = {
        "match": match,
        "match_share": match / np.float32(matches.total_idf),
        "adjacent_match": _adjacent_signal(index, matches),
        "nearby_match": np.log1p(sum_neighbors(index, match)),
        "coverage": _coverage_signal(index, matches),
        "speaker": np.isin(index.speaker_ids, named_speakers).astype(np.float32),
        "user": index.is_user * (not query.asks_summary and not query.about_reply),
        "first_person": index.first_person,
        "own_opening": index.own_opening,
        "session_opening": index.session_opening,
        "novelty": index.novelty,
        "standing_instruction": (index.directives == DIRECTIVE_STANDING).astype(np.float32),
        "preference": (index.directives > 0).astype(np.float32) * query.is_request,
        "date": compute_date_signal(index.at, query),
        "time_words": index.time_words * query.asks_when,
        "digits": index.digits * query.asks_number,
    }
    if vector is not None and index.centered_vectors is not None:
        similarity = index.compute_similarities(vector)
        if index.has_vector.any() and not index.has_vector.all():
            # Messages without a vector get the mean similarity of the others.
            similarity = np.where(index.has_vector, similarity, similarity[index.has_vector].mean())
        above_mean = np.maximum(similarity - similarity.mean(), 0) / max(float(similarity.std()), 1e-6)
        signals["similarity"] = similarity
        signals["nearby_similarity"] = sum_neighbors(index, above_mean)
    return signals


def compute_feedback_signals(index: RecallIndex, strength: FloatArray) -> Signals:
    """Signals of the second pass, from the strength that the first gave each message."""
    likelihood = np.exp((strength - strength.max(initial=-np.inf)) / np.float32(SCORE_SLOPE))
    likelihood /= likelihood.sum()
    # For each message, the sum over the others within `REGION_DISTANCE`, across sessions.
    rows = np.arange(len(likelihood))
    sums = np.concatenate([[0], np.cumsum(likelihood, dtype=np.float64)])
    first, end = np.maximum(rows - REGION_DISTANCE, 0), np.minimum(rows + REGION_DISTANCE + 1, len(rows))
    region = np.maximum(sums[end] - sums[first] - likelihood, 0).astype(np.float32)
    signals = {
        "near_top": np.log1p(1_000 * sum_neighbors(index, likelihood)),
        "near_top_region": np.log1p(1_000 * region),
    }
    vectors = index.centered_vectors
    if vectors is not None:
        # Cosine with the mean of the top results, weighted by their likelihood. Ties of strength go by age.
        if len(rows) > FEEDBACK_TOP_K:
            rows = np.flatnonzero(strength >= np.partition(strength, -FEEDBACK_TOP_K)[-FEEDBACK_TOP_K])
        top = rows[np.argsort(-strength[rows], kind="stable")][:FEEDBACK_TOP_K]
        center: FloatArray = likelihood[top] @ vectors[top]
        center /= max(float(np.linalg.norm(center)), 1e-6)
        signals["similar_to_top"] = vectors @ center
    return signals


def sum_neighbors(index: RecallIndex, values: FloatArray) -> FloatArray:
    """For each message, the sum over its neighbors in the same session, decayed by distance."""
    total = np.zeros_like(values)
    for distance in range(1, min(MAX_NEIGHBOR_DISTANCE, len(index) - 1) + 1):
        weight = index.same_session[distance - 1] * np.float32(NEIGHBOR_DECAY ** (distance - 1))
        total[distance:] += values[:-distance] * weight
        total[:-distance] += values[distance:] * weight
    return total


def sum_weighted(signals: Signals, mode: RankingMode = "budget") -> FloatArray:
    """Weighted sum of the signals."""
    total: FloatArray = np.zeros(len(next(iter(signals.values()))), dtype=np.float32)
    for name, signal in signals.items():
        total += np.float32(WEIGHTS[mode][name]) * signal
    return total


def score_for_list(signals: Signals) -> FloatArray:
    """Scores from 0 to 1: the weighted mean of the signals that there are, and the bonuses."""
    mean_of = {name: signal for name, signal in signals.items() if name not in LIST_BONUSES}
    scores = sum_weighted(mean_of, "list") / np.float32(sum(WEIGHTS["list"][name] for name in mean_of))
    for name in LIST_BONUSES:
        if name in signals:
            scores += np.float32(WEIGHTS["list"][name]) * signals[name]
    return np.minimum(scores, 1)


def _adjacent_signal(index: RecallIndex, matches: TermMatches) -> FloatArray:
    """IDF sum of the query terms that a message lacks and the one before or after, in its session, has."""
    connected = np.concatenate([[False], index.same_session[0][: len(index) - 1] > 0, [False]])
    rows, gap_before, gap_after = matches.rows, matches.gaps[:-1], matches.gaps[1:]
    # Between two messages with the term, the message counts once: as the one after the first.
    counted = (gap_before == 2) & connected[rows - 1]
    after = (gap_after > 1) & connected[rows + 1]
    before = (gap_before > 1) & connected[rows] & ~counted
    adjacent = np.concatenate([rows[after] + 1, rows[before] - 1])
    idf = np.concatenate([matches.row_idf[after], matches.row_idf[before]])
    return np.bincount(adjacent, idf, minlength=len(index)).astype(np.float32)


def _coverage_signal(index: RecallIndex, matches: TermMatches) -> FloatArray:
    """Share of the IDF of all query terms that the messages within `COVERAGE_DISTANCE` have together."""
    opens, closes = matches.gaps[:-1] > 2 * COVERAGE_DISTANCE, matches.gaps[1:] > 2 * COVERAGE_DISTANCE
    first = np.maximum(matches.rows[opens] - COVERAGE_DISTANCE, 0)
    end = np.minimum(matches.rows[closes] + COVERAGE_DISTANCE + 1, len(index))
    # The change from each row to the next.
    steps = np.bincount(first, matches.row_idf[opens], minlength=len(index) + 1)
    steps -= np.bincount(end, matches.row_idf[closes], minlength=len(index) + 1)
    return (np.maximum(np.cumsum(steps[:-1]), 0) / matches.total_idf).astype(np.float32)


def compute_date_signal(at: IntArray, query: Query) -> FloatArray:
    """1 in a time range that the query names, decaying before and after it."""
    date = np.zeros(len(at), dtype=np.float32)
    for time_range in query.time_ranges:
        late = np.maximum(at - time_range.end, 0) / DAY_MICROS
        early = np.maximum(time_range.start - at, 0) / DAY_MICROS
        date = np.maximum(date, np.exp(-late / DECAY_DAYS_AFTER - early / DECAY_DAYS_BEFORE).astype(np.float32))
    return date


def _concatenate(columns: Sequence[IntArray]) -> IntArray:
    return np.concatenate(columns) if columns else np.zeros(0, dtype=np.int64)
