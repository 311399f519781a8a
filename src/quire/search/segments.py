"""Segments of the message index: columns, terms and vectors of a run of messages.

`columns` is what a search over all conversations needs, `terms` what recall needs in addition. Terms are hashed to 32
bits, so a segment holds no text. A segment grows from its decoded form: the messages in it are not read, tokenized or
embedded again.
"""

import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from quire.model.base import lazy_property
from quire.search.languages import detect_language
from quire.search.message_features import FRACTION_SCALE, MessageFeatures, extract_features
from quire.search.passages import group_passages, split_passages
from quire.search.tokenizer import iter_terms
from quire.search.vectors import (
    MAX_STATIC_DIMENSIONS,
    MAX_VECTOR_DIMENSIONS,
    FloatArray,
    PackedArray,
    pack_vectors,
    pack_zeros,
    truncate_vectors,
)

IntArray = NDArray[np.integer[Any]]
HashArray = NDArray[np.uint32]

ROLES = ("user", "assistant", "tool", "system")
ERASED_ROLE = 255
"""Role of a message that was purged: its row stays, so that the positions of the others do not change."""
MAX_EMBEDDED_WORDS = 80
"""Words of a message that are embedded: the mean over more of them carries less information."""
MAX_EMBEDDED_CHARS = 1_000
"""Characters of a message that are embedded."""

FEATURE_NAMES = MessageFeatures._fields
COLUMN_NAMES = ("seq", "at", "tokens", "roles", "speaker_ids", "spoken", *FEATURE_NAMES)
"""The integer columns of `MessageColumns`."""


class SegmentEmbedder(Protocol):
    @property
    def name(self) -> str: ...

    def embed(self, texts: Sequence[str]) -> FloatArray: ...


class IndexedMessage(NamedTuple):
    """A message as the index takes it: `at` in microseconds since 1970, `name` of the speaker, if any."""

    seq: int
    role: str
    name: str | None
    at: int
    text: str
    tokens: int
    spoken: float = 1.0
    """Share of the text that a person or an agent said. The rest is a tool's call or result."""


@dataclass(frozen=True)
class MessageColumns:
    """One row per message, in order of `seq`."""

    seq: IntArray
    at: IntArray
    tokens: IntArray
    roles: IntArray
    """Positions in `ROLES`, or `ERASED_ROLE`."""
    speaker_ids: IntArray
    """Positions in `speaker_names`, from 1, or 0 for a message without a name."""
    spoken: IntArray
    """Share of the text that a person or an agent said, times `FRACTION_SCALE`."""
    first_person: IntArray
    own_opening: IntArray
    time_words: IntArray
    digits: IntArray
    directive: IntArray
    speaker_names: tuple[str, ...] = ()
    embedder: str | None = None
    dimensions: int = 0
    packed_vectors: PackedArray | None = None

    def __len__(self) -> int:
        return len(self.seq)


class FeatureColumns(NamedTuple):
    """What a ranking of any kind reads of some messages."""

    at: IntArray
    session_opening: FloatArray
    """1 for the first message of a session, 1/2 for the second, and so on."""
    first_person: FloatArray


@dataclass(frozen=True)
class MessageTerms:
    """Inverted index from each term to the passages that contain it, in order."""

    passage_counts: IntArray
    """Number of passages of each message."""
    term_hashes: HashArray
    """Sorted."""
    posting_counts: IntArray
    """Number of passages with each term."""
    postings: IntArray
    """Those passages, term by term."""

    @lazy_property
    def passage_rows(self) -> IntArray:
        """Row of the message that each passage belongs to."""
        return np.repeat(np.arange(len(self.passage_counts)), self.passage_counts)


@dataclass(frozen=True)
class Segment:
    columns: MessageColumns
    terms: MessageTerms

    def __len__(self) -> int:
        return len(self.columns)

    @lazy_property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        columns, terms = self.columns, self.terms
        arrays = [getattr(columns, name) for name in COLUMN_NAMES]
        arrays += [terms.passage_counts, terms.term_hashes, terms.posting_counts, terms.postings]
        arrays += () if columns.packed_vectors is None else (columns.packed_vectors,)
        return sum(array.nbytes for array in arrays)


class ExtendedSegment(NamedTuple):
    """A segment with new messages, and how often each term occurs in each of them, and then in each ranked passage."""

    segment: Segment
    term_counts: tuple[tuple[Counter[str], ...], ...]


@lru_cache(maxsize=65_536)
def hash_term(term: str) -> int:
    """Hash of a term in segments. Among 100,000 terms, one of 40,000 shares the hash of another."""
    return zlib.crc32(term.encode("utf-8", "surrogatepass"))


def count_message_terms(text: str) -> Counter[str]:
    """How often each term occurs in a message, as the index counts them."""
    language = detect_language(text)
    return Counter(term for passage in split_passages(text) for term in iter_terms(passage, language))


def build_segment(messages: Iterable[IndexedMessage], *, embedder: SegmentEmbedder | None = None) -> Segment:
    """A segment of these messages, which come in order of `seq`."""
    return extend_segment(None, list(messages), embedder=embedder).segment


def extend_segment(
    segment: Segment | None, messages: Sequence[IndexedMessage], *, embedder: SegmentEmbedder | None = None
) -> ExtendedSegment:
    """Adds messages, which come in order of `seq`, to the end of the segment."""
    counts: list[tuple[Counter[str], ...]] = []
    passage_counts: list[int] = []
    hashes: list[int] = []
    distinct_counts: list[int] = []
    for message in messages:
        language = detect_language(message.text)
        by_passage = [list(iter_terms(passage, language)) for passage in split_passages(message.text)]
        for passage in by_passage:
            distinct = set(map(hash_term, passage))
            hashes += distinct
            distinct_counts.append(len(distinct))
        passage_counts.append(len(by_passage))
        ranked = [(0, len(by_passage)), *group_passages(len(by_passage))]
        # Counters of lists are made in C; adding one counter to another is not.
        counts.append(tuple(Counter(chain.from_iterable(by_passage[first:end])) for first, end in ranked))
    by_occurrence = np.array(hashes, dtype=np.uint32)
    term_hashes, posting_counts = np.unique(by_occurrence, return_counts=True)
    postings = np.repeat(np.arange(len(distinct_counts)), distinct_counts)
    features = [extract_features(each.text) for each in messages]
    terms = MessageTerms(
        passage_counts=_to_ints(passage_counts),
        term_hashes=term_hashes,
        posting_counts=posting_counts,
        postings=postings[np.argsort(by_occurrence, kind="stable")],
    )
    names = sorted({each.name for each in messages if each.name})
    speaker_ids = {name: speaker_id for speaker_id, name in enumerate(names, start=1)}
    dimensions, packed = _embed([each.text for each in messages], embedder) if embedder is not None else (0, None)
    columns = MessageColumns(
        seq=_to_ints(each.seq for each in messages),
        at=_to_ints(each.at for each in messages),
        tokens=_to_ints(each.tokens for each in messages),
        roles=_to_ints(ROLES.index(each.role) for each in messages),
        speaker_ids=_to_ints(speaker_ids.get(each.name or "", 0) for each in messages),
        spoken=_to_ints(round(FRACTION_SCALE * each.spoken) for each in messages),
        **{name: _to_ints(getattr(each, name) for each in features) for name in FEATURE_NAMES},
        speaker_names=tuple(names),
        embedder=embedder.name if embedder is not None else None,
        dimensions=dimensions,
        packed_vectors=packed,
    )
    added = Segment(columns, terms)
    if segment is not None and len(segment) > 0:
        added = _join(segment, added)
    return ExtendedSegment(added, tuple(counts))


class TopicCounts(NamedTuple):
    """How often each term occurs in each passage that was added to the message of a row."""

    row: int
    term_counts: tuple[Counter[str], ...]


def add_passages(segment: Segment, texts: Mapping[int, Iterable[str]]) -> tuple[Segment, tuple[TopicCounts, ...]]:
    """Adds passages to messages, behind their own, and returns the counts of the added ones. `texts` is by number.

    Idempotent: a passage with the terms of one that the message has is not added.
    """
    columns, terms = segment.columns, segment.terms
    is_erased = (columns.roles == ERASED_ROLE).tolist()
    rows = {seq: row for row, seq in enumerate(columns.seq.tolist()) if seq in texts and not is_erased[row]}
    ends = np.cumsum(terms.passage_counts)
    term_of = np.repeat(terms.term_hashes, terms.posting_counts)
    added: list[TopicCounts] = []
    for seq, row in rows.items():
        first = ends[row] - terms.passage_counts[row]
        known = {frozenset(term_of[terms.postings == passage].tolist()) for passage in range(first, ends[row])}
        counts: list[Counter[str]] = []
        for text in texts[seq]:
            passage = count_message_terms(text)
            hashes = frozenset(map(hash_term, passage))
            if hashes and hashes not in known:
                known.add(hashes)
                counts.append(passage)
        if counts:
            added.append(TopicCounts(row, tuple(counts)))
    if not added:
        return segment, ()
    added_counts = np.zeros(len(segment), dtype=np.int64)
    for each in added:
        added_counts[each.row] = len(each.term_counts)
    # The passages of later messages move behind the added ones.
    shifts = np.cumsum(added_counts) - added_counts
    hashes = [term_of]
    passages = [terms.postings + shifts[terms.passage_rows[terms.postings]]]
    for row, term_counts in added:
        for number, passage in enumerate(term_counts, start=int(ends[row] + shifts[row])):
            hashes.append(np.array(sorted(map(hash_term, passage)), dtype=np.uint32))
            passages.append(np.full(len(hashes[-1]), number))
    all_hashes, all_passages = np.concatenate(hashes), np.concatenate(passages)
    term_hashes, posting_counts = np.unique(all_hashes, return_counts=True)
    extended = MessageTerms(
        passage_counts=terms.passage_counts + added_counts,
        term_hashes=term_hashes,
        posting_counts=posting_counts,
        postings=all_passages[np.lexsort((all_passages, all_hashes))],
    )
    return replace(segment, terms=extended), tuple(added)


def _join(segment: Segment, added: Segment) -> Segment:
    old, new = segment.columns, added.columns
    names = tuple(dict.fromkeys((*old.speaker_names, *new.speaker_names)))
    own_ids = np.array([0, *(names.index(name) + 1 for name in new.speaker_names)], dtype=np.int64)
    joined = {name: np.concatenate([getattr(old, name), getattr(new, name)]) for name in COLUMN_NAMES}
    joined["speaker_ids"] = np.concatenate([old.speaker_ids, own_ids[new.speaker_ids]])
    embedder, dimensions, packed = old.embedder, old.dimensions, old.packed_vectors
    if len(new):
        # New messages without vectors get zeros. Vectors of two embedders are dropped: all messages are embedded again.
        same_embedder = new.packed_vectors is None or (embedder, dimensions) == (new.embedder, new.dimensions)
        if packed is None or not same_embedder:
            embedder, dimensions, packed = None, 0, None
        else:
            zeros = pack_zeros(len(new), dimensions)
            packed = np.concatenate([packed, zeros if new.packed_vectors is None else new.packed_vectors])
    merged = merge_postings([segment.terms, added.terms])
    return Segment(
        MessageColumns(**joined, speaker_names=names, embedder=embedder, dimensions=dimensions, packed_vectors=packed),
        MessageTerms(
            passage_counts=np.concatenate([segment.terms.passage_counts, added.terms.passage_counts]),
            term_hashes=merged.hashes,
            posting_counts=merged.counts,
            postings=merged.passages,
        ),
    )


def embed_segment(segment: Segment, texts: Mapping[int, str], embedder: SegmentEmbedder) -> Segment:
    """The segment with the vectors of an embedder, from the text of each message by its number.

    Messages that have a vector of this embedder are not embedded again.
    """
    old, rows = segment.columns, find_unembedded(segment, embedder.name)
    dimensions, packed = _embed([texts.get(seq, "") for seq in old.seq[rows].tolist()], embedder)
    if packed is None:
        return replace(segment, columns=replace(old, embedder=embedder.name))
    if len(rows) < len(segment) and old.packed_vectors is not None:
        merged = old.packed_vectors.copy()
        merged[rows] = packed
        packed = merged
    columns = replace(segment.columns, embedder=embedder.name, dimensions=dimensions, packed_vectors=packed)
    return replace(segment, columns=columns)


def find_unembedded(segment: Segment, embedder: str) -> IntArray:
    """Rows of the messages without a vector of this embedder."""
    columns = segment.columns
    if columns.packed_vectors is None or columns.embedder != embedder:
        return np.arange(len(segment))
    return np.flatnonzero((columns.packed_vectors == pack_zeros(1, columns.dimensions)).all(axis=1))


def erase_messages(segment: Segment, seqs: Collection[int]) -> Segment:
    """Erases everything about these messages but their place."""
    columns, terms = segment.columns, segment.terms
    erased = np.isin(columns.seq, list(seqs))
    remaining = ~erased[terms.passage_rows[terms.postings]]
    counts = _count_runs(remaining, terms.posting_counts)
    packed = columns.packed_vectors
    if packed is not None:
        packed = np.where(erased[:, np.newaxis], pack_zeros(1, columns.dimensions), packed)
    # Names that no other message has are erased too, and the rest are numbered again.
    speaker_ids = np.where(erased, 0, columns.speaker_ids)
    used = [number for number in range(1, len(columns.speaker_names) + 1) if (speaker_ids == number).any()]
    new_ids = np.zeros(len(columns.speaker_names) + 1, dtype=np.int64)
    new_ids[used] = np.arange(1, len(used) + 1)
    return Segment(
        replace(
            columns,
            **{name: np.where(erased, 0, getattr(columns, name)) for name in ("tokens", "spoken", *FEATURE_NAMES)},
            roles=np.where(erased, ERASED_ROLE, columns.roles),
            speaker_ids=new_ids[speaker_ids],
            speaker_names=tuple(columns.speaker_names[number - 1] for number in used),
            packed_vectors=packed,
        ),
        MessageTerms(
            passage_counts=terms.passage_counts,
            term_hashes=terms.term_hashes[counts > 0],
            posting_counts=counts[counts > 0],
            postings=terms.postings[remaining],
        ),
    )


def list_term_hashes(segment: Segment, row: int) -> set[int]:
    """Hashes of the terms of one message."""
    terms = segment.terms
    term_of = np.repeat(np.arange(len(terms.posting_counts)), terms.posting_counts)
    return set(terms.term_hashes[term_of[terms.passage_rows[terms.postings] == row]].tolist())


def truncate_segment(segment: Segment, *, last_seq: int) -> Segment:
    """Drops the messages after `last_seq`, for a branch that forks in the middle of the segment."""
    return select_messages(segment, 0, int(np.searchsorted(segment.columns.seq, last_seq, side="right")))


def select_messages(segment: Segment, start: int, end: int) -> Segment:
    """The messages of the rows `start` to `end` (exclusive)."""
    if (start, end) == (0, len(segment)):
        return segment
    columns, terms, rows = segment.columns, segment.terms, slice(start, end)
    first = int(terms.passage_counts[:start].sum())
    within = (terms.postings >= first) & (terms.postings < first + int(terms.passage_counts[rows].sum()))
    counts = _count_runs(within, terms.posting_counts)
    return Segment(
        replace(
            columns,
            **{name: getattr(columns, name)[rows] for name in COLUMN_NAMES},
            packed_vectors=None if columns.packed_vectors is None else columns.packed_vectors[rows],
        ),
        MessageTerms(
            passage_counts=terms.passage_counts[rows],
            term_hashes=terms.term_hashes[counts > 0],
            posting_counts=counts[counts > 0],
            postings=terms.postings[within] - first,
        ),
    )


class MergedPostings(NamedTuple):
    """Inverted index over several segments: sorted hashes, the number of passages of each, and those passages."""

    hashes: HashArray
    counts: IntArray
    passages: IntArray


def merge_postings(parts: Sequence[MessageTerms]) -> MergedPostings:
    """Joins the inverted indexes of segments. Their passages are numbered one segment after the other."""
    if not parts:
        empty = np.zeros(0, dtype=np.int64)
        return MergedPostings(np.zeros(0, dtype=np.uint32), empty, empty.astype(np.int32))
    first_passages = np.cumsum([0, *(int(each.passage_counts.sum()) for each in parts)])
    passages = np.concatenate(
        [each.postings.astype(np.int32) + np.int32(first) for each, first in zip(parts, first_passages, strict=False)]
    )
    hashes = np.concatenate([each.term_hashes for each in parts])
    counts = np.concatenate([each.posting_counts for each in parts]).astype(np.int64)
    order = np.argsort(hashes, kind="stable")
    # Where the run of each term begins now, and where in the result.
    starts, ordered_counts = (np.cumsum(counts) - counts)[order], counts[order]
    shifts = starts - (np.cumsum(ordered_counts) - ordered_counts)
    passages = passages[np.repeat(shifts, ordered_counts) + np.arange(len(passages))]
    ordered = hashes[order]
    is_first = np.ones(len(ordered), dtype=np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    [firsts] = np.nonzero(is_first)
    sums = np.add.reduceat(ordered_counts, firsts) if len(firsts) else ordered_counts
    return MergedPostings(ordered[firsts], sums, passages)


def extend_postings(before: MergedPostings, added: MergedPostings) -> MergedPostings:
    """Adds the postings of later passages: they are copied into their places, and no term is sorted again."""
    places = np.searchsorted(before.hashes, added.hashes)
    is_known = find_known_hashes(before.hashes, added.hashes)
    ends = np.concatenate([[0], np.cumsum(before.counts)])
    # Behind the term's own passages, or before those of the next term.
    passages = np.insert(before.passages, np.repeat(ends[places + is_known], added.counts), added.passages)
    counts = before.counts.copy()
    counts[places[is_known]] += added.counts[is_known]
    is_new, new_places = ~is_known, places[~is_known]
    return MergedPostings(
        np.insert(before.hashes, new_places, added.hashes[is_new]),
        np.insert(counts, new_places, added.counts[is_new]),
        passages,
    )


def find_known_hashes(known: HashArray, hashes: HashArray) -> NDArray[np.bool_]:
    """Which of the hashes are among the known ones. Both are sorted."""
    places = np.minimum(np.searchsorted(known, hashes), max(0, len(known) - 1))
    return known[places] == hashes if len(known) else np.zeros(len(hashes), dtype=np.bool_)


def _count_runs(selected: NDArray[np.bool_], counts: IntArray) -> IntArray:
    """Number of selected items in each run of these lengths."""
    return np.diff(np.concatenate([[0], np.cumsum(selected)])[np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])])


def _embed(texts: Sequence[str], embedder: SegmentEmbedder) -> tuple[int, PackedArray | None]:
    if not texts:
        return 0, None
    rows = embedder.embed([to_embedding_text(each) for each in texts])
    dimensions = min(rows.shape[1], stored_dimensions(embedder))
    return dimensions, pack_vectors(truncate_vectors(rows, dimensions))


def to_embedding_text(text: str) -> str:
    """The head of a message, from which its vector is made."""
    return " ".join(text[:MAX_EMBEDDED_CHARS].split()[:MAX_EMBEDDED_WORDS])


def stored_dimensions(embedder: SegmentEmbedder) -> int:
    """Leading dimensions of the embedder's vectors that are stored: of a contextual encoder all, up to a limit."""
    return min(getattr(embedder, "stored_dimensions", MAX_STATIC_DIMENSIONS), MAX_VECTOR_DIMENSIONS)


def _to_ints(numbers: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(numbers, dtype=np.int64)
