"""Catalog of a tenant's messages: what a search over all conversations needs in memory, and the search itself.

One row per message: time, role, speaker, a quantized vector and its sketch. Words are read from the inverted index with
each query. The catalog grows by the segments that changed since its last revision. A changed segment is written behind
the last row again and its former rows become dead. When there are many of them, the rows are compacted.

Candidates are the best by words and by sketch. All of them are scored exactly, as a list, by `quire.search.ranker`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.errors import UnreadableSegment
from quire.search.index import starts_session
from quire.search.message_features import FRACTION_SCALE
from quire.search.passages import MAX_RANKED_PASSAGES
from quire.search.postings import (
    ENTRIES_PER_SEGMENT,
    BlockPostings,
    inverse_document_frequency,
    read_word,
)
from quire.search.query import MAX_QUERY_WORDS, AskedKind, Query, QueryWord
from quire.search.ranker import WordMatches, compute_list_signals, find_highest, score_for_list
from quire.search.segment_codec import decode_columns
from quire.search.segments import ERASED_ROLE, ROLES, FeatureColumns, IntArray, MessageColumns
from quire.search.vectors import (
    FloatArray,
    PackedArray,
    compute_similarities,
    count_differing_bits,
    make_sketches,
    pack_vectors,
    pack_zeros,
    packed_width,
    sketch_words,
    truncate_vectors,
)

BoolArray = NDArray[np.bool_]
SearchOrder = Literal["relevance", "newest", "oldest"]

PASSAGE_WEIGHT = 0.7
"""Weight of the words in a passage of a long message, relative to those in a message of that length."""
MAX_CANDIDATES = 2_048
"""Messages by words and as many by sketch that are scored exactly."""
MIN_TIME_ORDER_SCORE = 0.2
"""Score below which a message is no match where time decides the order: one common word would do otherwise."""
MAX_SESSION_PLACE = 255
"""Place of a message in its session, counted in entries of the log, above which places are not distinguished."""
MAX_DEAD_SHARE = 0.25
"""Share of dead rows above which the rows are compacted."""
_SCORE_DIGITS = 6
_MIN_CAPACITY = 1_024


class SegmentChange(NamedTuple):
    """A segment that was written since the last revision. Empty columns if its conversation was purged."""

    number: int
    conversation: str
    branch: int
    columns: bytes


@dataclass(frozen=True)
class RowFilter:
    """Conditions on messages, or None where there is none. Times are microseconds, `until` is exclusive."""

    conversations: Collection[str] | None = None
    role: str | None = None
    person: str | None = None
    since: int | None = None
    until: int | None = None
    ranges: Collection[tuple[int, int, int]] | None = None
    """Branch, first and last number of messages, in one conversation."""


class CatalogHit(NamedTuple):
    conversation: str
    branch: int
    seq: int
    score: float


class _Place(NamedTuple):
    """Rows of a segment: from the first to before the end."""

    start: int
    end: int


@dataclass
class MessageCatalog:
    """All messages of one tenant, with the vectors of one embedder."""

    embedder: str | None
    revision: int = 0
    dimensions: int = 0
    _size: int = 0
    _dead: int = 0
    _live: int = 0
    _columns: dict[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    _places: dict[int, _Place] = field(default_factory=dict[int, _Place])
    _owners: dict[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])
    _starts: IntArray = field(default_factory=lambda: np.full(0, -1, dtype=np.int64))
    """First row of each segment number; -1 for unknown numbers."""
    _counts: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _names: dict[str, int] = field(default_factory=dict[str, int])
    _unembedded: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        self._columns = {name: np.zeros((0, *shape), dtype) for name, (dtype, shape) in self._layout().items()}

    def __len__(self) -> int:
        """Messages that a search can find."""
        return self._live

    @property
    def nbytes(self) -> int:
        own = sum(array.nbytes for array in (*self._columns.values(), self._starts, self._counts))
        # A dict's entry of a segment: two tuples, integers and the table's slots.
        return own + 400 * len(self._places)

    @property
    def is_embedded(self) -> bool:
        """Whether every message has a vector of the embedder."""
        return self.embedder is None or not self._unembedded

    def apply(self, changes: Sequence[SegmentChange], *, revision: int) -> None:
        """Adds segments, or replaces them by their current columns."""
        added: dict[int, tuple[SegmentChange, MessageColumns]] = {}
        for change in changes:
            place = self._places.pop(change.number, None)
            self._unembedded.discard(change.number)
            if place is not None:
                del self._owners[change.number]
                self._starts[change.number] = -1
                self._live -= int((self._columns["role"][place.start : place.end] != ERASED_ROLE).sum())
                if place.end == self._size:
                    self._size = place.start
                else:
                    self._columns["role"][place.start : place.end] = ERASED_ROLE
                    self._dead += place.end - place.start
            # A segment whose bytes are damaged is not searched by meaning; one bad row must not fail every search.
            with suppress(UnreadableSegment):
                columns = decode_columns(change.columns)
                if len(columns):
                    added[change.number] = change, columns
        if added:
            self._add(list(added.values()))
        self.revision = revision
        if self._dead > _MIN_CAPACITY and self._dead > MAX_DEAD_SHARE * self._size:
            start = 0
            live_rows: list[IntArray] = [np.zeros(0, dtype=np.int64)]
            for place, number in sorted((place, number) for number, place in self._places.items()):
                live_rows.append(np.arange(place.start, place.end))
                end = start + place.end - place.start
                self._places[number] = _Place(start, end)
                self._starts[number] = start
                start = end
            self._resize(np.concatenate(live_rows), max(_MIN_CAPACITY, start + start // 4))
            self._size, self._dead = start, 0

    def search(
        self,
        query: Query,
        postings: Mapping[str, Sequence[BlockPostings]],
        *,
        vector: FloatArray | None = None,
        where: RowFilter | None = None,
        order: SearchOrder = "relevance",
        min_score: float = 0.0,
        limit: int,
    ) -> list[CatalogHit]:
        """The messages that match the words, or are similar to the vector, and meet the conditions.

        `postings` belong to the query's terms.
        """
        allowed = self._select(where or RowFilter())
        # Truncated like the messages' vectors; None if there is nothing to compare it with.
        query_vector: FloatArray | None = None
        if vector is not None and self.dimensions and vector.any():
            [query_vector] = truncate_vectors(vector[np.newaxis], self.dimensions)
        words = self.find_words(query.words[:MAX_QUERY_WORDS], postings)
        candidates = self._find_candidates(
            words.strength * allowed, allowed, query_vector, in_time_order=order != "relevance"
        )
        rows, scores = np.zeros(0, dtype=np.int64), np.zeros(0)
        floor = min_score if order == "relevance" else max(min_score, MIN_TIME_ORDER_SCORE)
        # In time order, what comes first is scored first, until there are enough.
        for some in [candidates] if order == "relevance" else self._iter_by_time(candidates, newest=order == "newest"):
            signals, is_hit = compute_list_signals(self, query, words, some, vector=query_vector)
            signals["asked_kind"] = self._measure_asked_kind(query.asks_for, some)
            some_scores = np.round((score_for_list(signals) * is_hit).astype(np.float64), _SCORE_DIGITS)
            matching = (some_scores > 0) & (some_scores >= floor)
            rows, scores = np.concatenate([rows, some[matching]]), np.concatenate([scores, some_scores[matching]])
            if len(rows) >= limit:
                break
        if order == "relevance" and len(rows) > limit:
            # Sorting the hits below compares texts; only those that can be among the first are sorted.
            best = find_highest(scores, limit)
            rows, scores = rows[best], scores[best]
        times, seqs, segments = (self._columns[name][rows].tolist() for name in ("at", "seq", "segment"))
        hits = [
            (CatalogHit(*self._owners[segment], seq, score), time)
            for segment, seq, score, time in zip(segments, seqs, scores.tolist(), times, strict=True)
        ]
        # Ties go to the newer message, then by conversation, branch and number, so that the order is total.
        if order == "relevance":
            hits.sort(key=lambda hit: (-hit[0].score, -hit[1], hit[0]))
        else:
            sign = -1 if order == "newest" else 1
            hits.sort(key=lambda hit: (sign * hit[1], hit[0].conversation, hit[0].branch, sign * hit[0].seq))
        return [hit for hit, _ in hits[:limit]]

    def read_features(self, rows: IntArray) -> FeatureColumns:
        at, place, first_person = (self._columns[name][rows] for name in ("at", "place", "first_person"))
        opening = (1 / (1 + place.astype(np.int64))).astype(np.float32)
        return FeatureColumns(at, opening, (first_person / FRACTION_SCALE).astype(np.float32))

    def find_context(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """The rows of the segment that each message belongs to."""
        segments = self._columns["segment"][rows]
        starts = self._starts[segments]
        return starts, starts + self._counts[segments]

    def compute_similarities(self, vector: FloatArray, rows: IntArray) -> FloatArray:
        return compute_similarities(self._columns["vector"][rows], vector)

    def _measure_asked_kind(self, kind: AskedKind, rows: IntArray) -> FloatArray:
        """Share of each message that is of the kind that a query asks for."""
        if kind == "said":
            return (self._columns["spoken"][rows] / FRACTION_SCALE).astype(np.float32)
        role = ROLES.index("user" if kind == "own" else "tool")
        return (self._columns["role"][rows] == role).astype(np.float32)

    def _iter_by_time(self, rows: IntArray, *, newest: bool) -> Iterator[IntArray]:
        """Yields rows in chunks by time. Messages of one time are in one chunk, so that their order is decided."""
        times: IntArray = self._columns["at"][rows] * (-1 if newest else 1)
        order = np.argsort(times, kind="stable")
        rows, times, start = rows[order], times[order], 0
        while start < len(rows):
            last: np.int64 = times[min(start + MAX_CANDIDATES, len(rows)) - 1]
            end = int(np.searchsorted(times, last, side="right"))
            yield np.sort(rows[start:end])
            start = end

    def _layout(self) -> dict[str, tuple[Any, tuple[int, ...]]]:
        return {
            "at": (np.int64, ()),
            "seq": (np.int32, ()),
            "segment": (np.int32, ()),
            "speaker": (np.int32, ()),
            "role": (np.uint8, ()),
            "place": (np.uint8, ()),
            "spoken": (np.uint8, ()),
            "first_person": (np.uint8, ()),
            "vector": (np.uint8, (packed_width(self.dimensions),)),
            "sketch": (np.uint64, (sketch_words(self.dimensions),)),
        }

    def _column(self, name: str) -> NDArray[Any]:
        return self._columns[name][: self._size]

    def _add(self, added: Sequence[tuple[SegmentChange, MessageColumns]]) -> None:
        """Writes segments behind the last row, all at once: a tenant's first search adds them by the thousand."""
        numbers = np.array([change.number for change, _ in added], dtype=np.int64)
        counts = np.array([len(columns) for _, columns in added], dtype=np.int64)
        ends = self._size + np.cumsum(counts)
        starts, first, size = ends - counts, self._size, int(ends[-1])
        vectors: list[PackedArray | None] = []
        for change, columns in added:
            has_vectors = columns.packed_vectors is not None and columns.embedder == self.embedder
            if has_vectors and not self.dimensions:
                # The rows so far have no vectors: they get zeros.
                self.dimensions = columns.dimensions
                for name in ("vector", "sketch"):
                    dtype, shape = self._layout()[name]
                    self._columns[name] = np.zeros((len(self._columns["at"]), *shape), dtype)
                self._columns["vector"][:] = pack_zeros(1, self.dimensions)
            has_vectors = has_vectors and columns.dimensions == self.dimensions
            if not has_vectors:
                self._unembedded.add(change.number)
            vectors.append(columns.packed_vectors if has_vectors else None)
        if size > len(self._columns["at"]):
            self._resize(slice(first), max(_MIN_CAPACITY, size + size // 4))
        self._size = size
        packed = np.concatenate(
            [
                pack_zeros(len(columns), self.dimensions) if each is None else each
                for each, (_, columns) in zip(vectors, added, strict=True)
            ]
        )
        speakers: list[IntArray] = []
        for _, columns in added:
            name_ids = [-1, *(self._names.setdefault(each, len(self._names)) for each in columns.speaker_names)]
            speakers.append(np.array(name_ids, dtype=np.int32)[columns.speaker_ids])
        at, seq, roles, spoken, first_person = (
            np.concatenate([getattr(columns, name) for _, columns in added])
            for name in ("at", "seq", "roles", "spoken", "first_person")
        )
        self._live += int((roles != ERASED_ROLE).sum())
        # The first session of a segment may continue one of the segment before, or of the branch that this one forks.
        is_segment_start = np.zeros(len(at), dtype=np.bool_)
        is_segment_start[starts - first] = True
        is_opening = is_segment_start | starts_session(at)
        openings = np.maximum.accumulate(np.where(is_opening, np.arange(len(at)), 0))
        opening_seqs = np.where(is_segment_start, 1, seq)[openings]
        values = {
            "at": at,
            "seq": seq,
            "segment": np.repeat(numbers, counts),
            "speaker": np.concatenate(speakers),
            "role": roles,
            "place": np.minimum(seq - opening_seqs, MAX_SESSION_PLACE),
            "spoken": spoken,
            "first_person": first_person,
            "vector": packed,
            "sketch": make_sketches(packed) if self.dimensions else 0,
        }
        for name, value in values.items():
            self._columns[name][first:size] = value
        if (highest := int(numbers.max())) >= len(self._starts):
            grown = max(64, 2 * highest)
            self._starts = np.concatenate([self._starts, np.full(grown - len(self._starts), -1, dtype=np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(grown - len(self._counts), dtype=np.int64)])
        self._starts[numbers], self._counts[numbers] = starts, counts
        for (change, _), start, end in zip(added, starts.tolist(), ends.tolist(), strict=True):
            self._places[change.number] = _Place(start, end)
            self._owners[change.number] = (change.conversation, change.branch)

    def _resize(self, rows: IntArray | slice, capacity: int) -> None:
        for name, array in self._columns.items():
            selected, resized = array[rows], np.zeros((capacity, *array.shape[1:]), array.dtype)
            resized[: len(selected)] = selected
            self._columns[name] = resized

    def _select(self, where: RowFilter) -> BoolArray:
        """Mask of the live rows that meet the conditions."""
        role, at = self._column("role"), self._column("at")
        allowed = role != ERASED_ROLE
        if where.role is not None:
            allowed &= role == (ROLES.index(where.role) if where.role in ROLES else ERASED_ROLE)
        if where.person is not None:
            allowed &= self._column("speaker") == self._names.get(where.person, -2)
        if where.since is not None:
            allowed &= at >= where.since
        if where.until is not None:
            allowed &= at < where.until
        if where.conversations is not None:
            names = frozenset(where.conversations)
            allowed &= self._select_segments(number for number, (name, _) in self._owners.items() if name in names)
        if where.ranges is not None:
            seq, in_ranges = self._column("seq"), np.zeros(self._size, dtype=np.bool_)
            for branch, first, last in where.ranges:
                on_branch = self._select_segments(number for number, (_, own) in self._owners.items() if own == branch)
                in_ranges |= on_branch & (seq >= first) & (seq <= last)
            allowed &= in_ranges
        return allowed

    def _select_segments(self, numbers: Iterable[int]) -> BoolArray:
        """Mask of the rows in these segments."""
        chosen = np.zeros(len(self._starts) + 1, dtype=np.bool_)
        chosen[list(numbers)] = True
        return chosen[self._column("segment")]

    def find_words(self, words: Sequence[QueryWord], postings: Mapping[str, Sequence[BlockPostings]]) -> WordMatches:
        """Matches of a query's words. A long message has the BM25 score of all of it, or of its best passage if that is
        higher."""
        scores = np.zeros(self._size, dtype=np.float32)
        is_past_head = np.zeros(self._size, dtype=np.bool_)
        passage_keys: list[IntArray] = []
        passage_scores: list[FloatArray] = []
        rows_by_word: list[IntArray] = []
        idfs: list[float] = []
        for word in words:
            matching, found = read_word(word.terms, postings)
            idfs.append(word.weight * inverse_document_frequency(matching, total=len(self)))
            word_rows: list[IntArray] = [np.zeros(0, dtype=np.int64)]
            for numbers, passages, weights in found if len(self._starts) else ():
                segments, offsets = numbers // ENTRIES_PER_SEGMENT, numbers % ENTRIES_PER_SEGMENT
                in_table = segments < len(self._starts)
                segments = np.where(in_table, segments, 0)
                starts = self._starts[segments]
                known = in_table & (starts >= 0) & (offsets < self._counts[segments])
                rows, added = starts + offsets, weights * np.float32(idfs[-1])
                # As a whole, a message occurs once in the postings of a term, so this addition loses nothing.
                is_whole, in_passage = known & (passages == 0), known & (passages > 0)
                scores[rows[is_whole]] += added[is_whole]
                passage_keys.append(rows[in_passage] * (MAX_RANKED_PASSAGES + 1) + passages[in_passage])
                passage_scores.append(added[in_passage])
                word_rows.append(rows[is_whole])
            rows_by_word.append(np.sort(np.concatenate(word_rows)))
        if passage_keys and len(keys := np.concatenate(passage_keys)):
            keys, positions = np.unique(keys, return_inverse=True)
            sums = np.bincount(positions, np.concatenate(passage_scores)).astype(np.float32)
            rows, passages = np.divmod(keys, MAX_RANKED_PASSAGES + 1)
            # The last of each row is its best passage, of equal ones the first.
            order = np.lexsort((-passages, sums, rows))
            order = order[np.append(np.diff(rows[order]) > 0, True)]
            rows, passages, best = rows[order], passages[order], np.float32(PASSAGE_WEIGHT) * sums[order]
            is_past_head[rows] = (passages > 1) & (best > scores[rows])
            scores[rows] = np.maximum(scores[rows], best)
        counts = np.array([len(rows) for rows in rows_by_word], dtype=np.int64)
        return WordMatches(
            np.minimum(scores, np.float32(sum(idfs))),
            np.concatenate([np.zeros(0, dtype=np.int64), *rows_by_word]),
            counts,
            np.array(idfs, dtype=np.float64),
            is_past_head,
        )

    def _find_candidates(
        self, word_scores: FloatArray, allowed: BoolArray, query: FloatArray | None, *, in_time_order: bool
    ) -> IntArray:
        """Rows to score, in order: the best by words, in time order all of them, and the best by sketch."""
        by_words = np.flatnonzero(word_scores)
        if len(by_words) > MAX_CANDIDATES and not in_time_order:
            by_words = np.sort(by_words[self._top(word_scores[by_words], by_words)])
        if query is None:
            return by_words
        if np.count_nonzero(allowed) <= MAX_CANDIDATES:
            return np.union1d(by_words, np.flatnonzero(allowed))
        # The nearest sketches. There are few distances: counting them is quicker than a partition.
        [sketch] = make_sketches(pack_vectors(query[np.newaxis]))
        distances = count_differing_bits(self._column("sketch"), sketch)
        distances[~allowed] = self.dimensions + 1
        threshold = int(np.searchsorted(np.cumsum(np.bincount(distances)), MAX_CANDIDATES))
        near = np.flatnonzero(distances <= threshold)
        near = near[self._top(-distances[near].astype(np.float32), near)]
        return np.union1d(by_words, near)

    def _top(self, values: FloatArray, rows: IntArray) -> IntArray:
        """Positions of the `MAX_CANDIDATES` highest values, of equal ones the newest."""
        best = find_highest(values, MAX_CANDIDATES)
        return best[np.lexsort((-self._columns["at"][rows[best]], -values[best]))[:MAX_CANDIDATES]]
