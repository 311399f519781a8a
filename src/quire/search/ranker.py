"""The one ranker: which messages are candidates for a query, and a weighted sum of relevance signals of each.

It ranks a `MessageTable`: the catalog of a tenant's messages for a search (a list of hits), or the index of a branch
for recall (messages for a budget of tokens). Words, their coverage nearby, similarity, dates and the features of a
message are the same signals in both, by `compute_signals`, each computed for all candidates at once. With a budget,
signals of a message's neighbors and pseudo-relevance feedback are added: messages that are similar to the top results,
or near them. Every signal is 0 or more where it speaks for a message.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from quire.search.dates import DAY_MICROS
from quire.search.index import MAX_NEIGHBOR_DISTANCE, BoolArray, RecallIndex
from quire.search.message_features import DIRECTIVE_STANDING
from quire.search.postings import inverse_document_frequency
from quire.search.query import Query
from quire.search.segments import FeatureColumns, IntArray
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
            "match_share": 0.332,  # with BM25: each word by its weight in the message, or in its best passage
            "similarity": 0.527,
            "coverage": 0.091,
            "session_opening": 0.049,
            "date": 0.026,
            "first_person": 0.5,
        },
    }
)
"""Weights of the signals. With a budget, messages are chosen for a request: the strengths are log odds, from which the
cost is subtracted, so that length needs no further weight. As a list, each hit represents its conversation and its
score is compared between queries: a score from 0 to 1, in which the length of a message is part of BM25."""
LIST_BONUSES = ("session_opening", "date", "first_person")
"""Signals of the context, of a day that the query names, and for queries about oneself: in a list they are added to the
mean of the others, so that they weigh the same with and without a vector."""
OTHER_KIND_COST = 0.17
"""Share of its score that a message loses in a list which is of another kind than the query asks for: the output of a
tool where it asks what was said, or what was said where it asks for an error."""
COST_WEIGHT = 2.2
"""Utility that each nat of a message's token cost subtracts."""
SCORE_MIDPOINT, SCORE_SLOPE = 35.0, 6.4
"""The strength that scores one half, which about one message in thirty exceeds, and the increase that multiplies the
odds by e: the slope of relevant messages in the datasets on which the weights were tuned."""
MIN_CORPUS_SIZE = 500
"""Minimum corpus size for the IDF in recall: in an index of fewer messages no term can be called common yet."""
MAX_QUERY_TERMS = 32
"""Number of the query's rarest terms that recall looks up."""
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
MIN_SIMILARITY = 0.34
"""Similarity below which a message without any word of the query is no hit of a list: by chance, messages have up to
0.3 with the offline embedder, and a message with a related word has more."""
MIN_NEARBY_SIMILARITY = 0.2
"""The same for a message near one with a word of the query."""

_SHARE_DIGITS = 9
_NO_ROW = 1 << 40
"""A distance that no two messages have."""

Signals = dict[str, FloatArray]


class RankedMessage(NamedTuple):
    seq: int
    score: float
    """From 0 to 1: how likely the message is relevant to the query, regardless of its cost."""
    utility: float
    """Relevance minus cost, by which messages are chosen; comparable within one ranking."""


class WordMatches(NamedTuple):
    """Where the words of a query occur in a table."""

    strength: FloatArray
    """By message: IDF of the words in it, or in its best passage. In a list each word counts by its BM25 weight."""
    rows: IntArray
    """The messages with a word, one word after the other, each in order."""
    counts: IntArray
    """Number of messages with each word."""
    idfs: NDArray[np.float64]
    """IDF of each word."""
    is_past_head: BoolArray | None = None
    """Whether a passage after the first has that strength."""

    @property
    def total_idf(self) -> float:
        return max(float(self.idfs.sum()), 1e-6)

    @property
    def row_idfs(self) -> NDArray[np.float64]:
        """IDF of the word of each of `rows`."""
        return np.repeat(self.idfs, self.counts)

    @property
    def is_last(self) -> BoolArray:
        """Which of `rows` are the last of their word."""
        is_last = np.zeros(len(self.rows), dtype=np.bool_)
        is_last[np.cumsum(self.counts)[self.counts > 0] - 1] = True
        return is_last


class MessageTable(Protocol):
    """Messages that are ranked together, one row each."""

    def __len__(self) -> int: ...

    def read_features(self, rows: IntArray) -> FeatureColumns: ...

    def find_context(self, rows: IntArray) -> tuple[IntArray | int, IntArray | int]:
        """First row and end of the messages in a row to which each of these belongs."""
        ...

    def compute_similarities(self, vector: FloatArray, rows: IntArray) -> FloatArray:
        """Cosine of each of these messages and a query's vector."""
        ...


def compute_signals(
    table: MessageTable,
    query: Query,
    matches: WordMatches,
    rows: IntArray,
    *,
    vector: FloatArray | None,
) -> Signals:
    """The signals of these messages that a list and a budget have in common. `vector` is None if there is nothing to
    compare it with."""
    features = table.read_features(rows)
    signals: Signals = {
        "session_opening": features.session_opening,
        "first_person": features.first_person,
        "date": compute_date_signal(features.at, query),
    }
    if query.words:
        signals["match_share"] = matches.strength[rows] / np.float32(matches.total_idf)
        signals["coverage"] = compute_coverage(table, matches, rows)
    if vector is not None:
        signals["similarity"] = table.compute_similarities(vector, rows)
    return signals


def compute_coverage(table: MessageTable, matches: WordMatches, rows: IntArray) -> FloatArray:
    """Share of the IDF of all query words that the messages within `COVERAGE_DISTANCE` of each of these, in order, have
    together."""
    start, stop = table.find_context(matches.rows)
    first, end = (
        np.maximum(matches.rows - COVERAGE_DISTANCE, start),
        np.minimum(matches.rows + COVERAGE_DISTANCE + 1, stop),
    )
    # A word counts once where its messages are near each other.
    closes = matches.is_last
    closes[:-1] |= first[1:] > end[:-1]
    opens = np.concatenate([[True], closes[:-1]])[: len(closes)]
    idfs, size = matches.row_idfs, len(rows) + 1
    # The change from each row to the next.
    steps = np.bincount(np.searchsorted(rows, first[opens]), idfs[opens], minlength=size)
    steps -= np.bincount(np.searchsorted(rows, end[closes]), idfs[closes], minlength=size)
    # Without what the sums leave: where no word is near, the share is 0.
    return np.round(np.cumsum(steps[:-1]) / matches.total_idf, _SHARE_DIGITS).astype(np.float32)


def find_highest(values: NDArray[Any], limit: int) -> IntArray:
    """Positions, in order, of the `limit` highest values, and of those that equal the last of them."""
    if limit >= len(values):
        return np.arange(len(values))
    return np.flatnonzero(values >= np.partition(values, -limit)[-limit]) if limit > 0 else np.arange(0)


def compute_date_signal(at: IntArray, query: Query) -> FloatArray:
    """1 in a time range that the query names, decaying before and after it."""
    date = np.zeros(len(at), dtype=np.float32)
    for time_range in query.time_ranges:
        late = np.maximum(at - time_range.end, 0) / DAY_MICROS
        early = np.maximum(time_range.start - at, 0) / DAY_MICROS
        date = np.maximum(date, np.exp(-late / DECAY_DAYS_AFTER - early / DECAY_DAYS_BEFORE).astype(np.float32))
    return date


def sum_weighted(signals: Signals, mode: RankingMode = "budget") -> FloatArray:
    """Weighted sum of the signals."""
    total: FloatArray = np.zeros(len(next(iter(signals.values()))), dtype=np.float32)
    for name, signal in signals.items():
        total += np.float32(WEIGHTS[mode][name]) * signal
    return total


def compute_list_signals(
    table: MessageTable, query: Query, matches: WordMatches, rows: IntArray, *, vector: FloatArray | None
) -> tuple[Signals, BoolArray]:
    """The signals of these rows, and which of them are hits."""
    signals = compute_signals(table, query, matches, rows, vector=vector)
    is_hit = matches.strength[rows] > 0
    if not query.about_self:
        del signals["first_person"]
    if vector is not None:
        cosines = signals["similarity"]
        is_hit |= cosines >= MIN_SIMILARITY
        if query.words:
            is_hit |= (cosines >= MIN_NEARBY_SIMILARITY) & (signals["coverage"] > 0)
        signals["similarity"] = np.clip(cosines, 0, 1)
        if query.words and matches.is_past_head is not None:
            # A vector describes the message's head, and says nothing about a passage further down.
            raised = np.maximum(signals["similarity"], signals["match_share"])
            signals["similarity"] = np.where(matches.is_past_head[rows], raised, signals["similarity"])
    return signals, is_hit


def score_for_list(signals: Signals) -> FloatArray:
    """Scores from 0 to 1: the weighted mean of the signals that there are, the bonuses, and the cost of a kind."""
    mean_of = {name: signal for name, signal in signals.items() if name not in (*LIST_BONUSES, "asked_kind")}
    if not mean_of:
        # A query without words and without a vector says nothing about any message.
        return np.zeros(len(next(iter(signals.values()))), dtype=np.float32)
    scores = sum_weighted(mean_of, "list") / np.float32(sum(WEIGHTS["list"][name] for name in mean_of))
    for name in LIST_BONUSES:
        if name in signals:
            scores += np.float32(WEIGHTS["list"][name]) * signals[name]
    if "asked_kind" in signals:
        scores *= 1 - np.float32(OTHER_KIND_COST) * (1 - signals["asked_kind"])
    return np.minimum(scores, 1)


def rank_messages(
    index: RecallIndex,
    query: Query,
    *,
    vector: FloatArray | None = None,
    allowed: BoolArray | None = None,
    limit: int | None = None,
) -> list[RankedMessage]:
    """The allowed messages by descending utility for a budget, ties by age, at most `limit` of them.

    `vector` is the embedding of the query's topic by the index's embedder.
    """
    if len(index) == 0:
        return []
    matches = find_terms(index, query)
    strength = sum_weighted(compute_budget_signals(index, query, matches, vector=vector))
    strength += sum_weighted(compute_feedback_signals(index, strength))
    # A query term that hardly any other message has is a name, a number, a path.
    has_rare_term = np.zeros(len(index), dtype=np.float32)
    has_rare_term[matches.rows[np.repeat(matches.counts, matches.counts) <= RARE_TERM_MESSAGES]] = 1
    strength += RARE_TERM_UTILITY * has_rare_term * index.is_tool_result
    utility = strength - COST_WEIGHT * index.log_tokens
    rows = np.arange(len(index)) if allowed is None else np.flatnonzero(allowed)
    rows = rows[find_highest(utility[rows], limit)] if limit is not None else rows
    rows = rows[np.argsort(-utility[rows], kind="stable")][:limit]
    scores = 1 / (1 + np.exp(np.clip((SCORE_MIDPOINT - strength[rows]) / SCORE_SLOPE, -60, 60)))
    return list(map(RankedMessage, index.seq[rows].tolist(), scores.tolist(), utility[rows].tolist()))


def find_terms(index: RecallIndex, query: Query) -> WordMatches:
    """Matches of the query's rarest terms in passages: presence counts, because the cost has the length already."""
    found: list[tuple[IntArray, IntArray]] = []
    for term in query.terms:
        passages = index.find_passages(term)
        if len(passages):
            # A message with several of the passages, which are sorted, counts once.
            rows = index.passage_rows[passages]
            is_first = np.ones(len(rows), dtype=np.bool_)
            np.not_equal(rows[1:], rows[:-1], out=is_first[1:])
            found.append((passages, rows[is_first]))
    found = sorted(found, key=lambda each: len(each[1]))[:MAX_QUERY_TERMS]
    counts = np.array([len(rows) for _, rows in found], dtype=np.int64)
    total = max(len(index), MIN_CORPUS_SIZE)
    idfs = np.array([inverse_document_frequency(count, total=total) for count in counts.tolist()], dtype=np.float64)
    passages = _concatenate([passages for passages, _ in found])
    passage_idfs = np.repeat(idfs, [len(passages) for passages, _ in found])
    strength = np.bincount(passages, passage_idfs, minlength=len(index.passage_rows)).astype(np.float32)
    if len(strength) > len(index):
        strength = np.maximum.reduceat(strength, index.passage_offsets)
    return WordMatches(strength, _concatenate([rows for _, rows in found]), counts, idfs)


def compute_budget_signals(
    index: RecallIndex, query: Query, matches: WordMatches, *, vector: FloatArray | None = None
) -> Signals:
    """Signals of the first pass. `matches` are the query's terms in the index, by `find_terms`."""
    vector = vector if index.centered_vectors is not None else None
    signals = compute_signals(index, query, matches, np.arange(len(index)), vector=vector)
    named_speakers = [speaker_id for speaker_id, name in enumerate(index.speaker_names) if name in query.speakers]
    signals |= {
        "match": matches.strength,
        "adjacent_match": _adjacent_signal(index, matches),
        "nearby_match": np.log1p(sum_neighbors(index, matches.strength)),
        "speaker": np.isin(index.speaker_ids, named_speakers).astype(np.float32),
        "user": index.is_user * (not query.asks_summary and not query.about_reply),
        "own_opening": index.own_opening,
        "novelty": index.novelty,
        "standing_instruction": (index.directives == DIRECTIVE_STANDING).astype(np.float32),
        "preference": (index.directives > 0).astype(np.float32) * query.is_request,
        "time_words": index.time_words * query.asks_when,
        "digits": index.digits * query.asks_number,
    }
    if "similarity" in signals:
        similarity = signals["similarity"]
        above_mean = np.maximum(similarity - similarity.mean(), 0) / max(float(similarity.std()), 1e-6)
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
        rows = find_highest(strength, FEEDBACK_TOP_K)
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


def _adjacent_signal(index: RecallIndex, matches: WordMatches) -> FloatArray:
    """IDF sum of the query terms that a message lacks and the one before or after, in its session, has."""
    connected = np.concatenate([[False], index.same_session[0][: len(index) - 1] > 0, [False]])
    rows, is_last, idfs = matches.rows, matches.is_last, matches.row_idfs
    # Distance to the next message with the same term, and to the one before.
    gap_after = np.where(is_last, _NO_ROW, np.diff(rows, append=0))
    gap_before = np.concatenate([[_NO_ROW], gap_after])[:-1]
    # Between two messages with the term, the message counts once: as the one after the first.
    counted = (gap_before == 2) & connected[rows - 1]
    after = (gap_after > 1) & connected[rows + 1]
    before = (gap_before > 1) & connected[rows] & ~counted
    adjacent = np.concatenate([rows[after] + 1, rows[before] - 1])
    return np.bincount(adjacent, np.concatenate([idfs[after], idfs[before]]), minlength=len(index)).astype(np.float32)


def _concatenate(columns: Sequence[IntArray]) -> IntArray:
    return np.concatenate(columns) if columns else np.zeros(0, dtype=np.int64)
