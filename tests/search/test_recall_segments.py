"""Segments of the message index: extended without a trace, erased row by row, and a codec that is strict."""

import dataclasses
import struct
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recall_fixtures import LetterEmbedder, make_chat, make_message, make_named_chat, message_histories

from quire.errors import UnreadableSegment
from quire.search.languages import detect_language
from quire.search.message_features import DIRECTIVE_PREFERENCE, DIRECTIVE_STANDING, FRACTION_SCALE
from quire.search.passages import split_passages
from quire.search.segment_codec import decode_segment, encode_segment
from quire.search.segments import (
    ERASED_ROLE,
    ROLES,
    IndexedMessage,
    Segment,
    build_segment,
    count_message_terms,
    embed_segment,
    erase_messages,
    extend_segment,
    find_unembedded,
    hash_term,
    list_term_hashes,
    truncate_segment,
)
from quire.search.tokenizer import iter_terms, tokenize
from quire.search.vectors import MAX_STATIC_DIMENSIONS, MAX_VECTOR_DIMENSIONS, truncate_vectors, unpack_vectors

EMBEDDER = LetterEmbedder()


def rebuild(segment: Segment) -> Segment:
    """Encodes and decodes a segment."""
    return decode_segment(*encode_segment(segment))


def describe(segment: Segment) -> dict[str, Any]:
    """Everything about a segment, by plain values; names by message, since their order may differ."""
    values: dict[str, Any] = {}
    for part in (segment.columns, segment.terms):
        values |= {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    names = (None, *values.pop("speaker_names"))
    values["names"] = [names[number] for number in values.pop("speaker_ids")]
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in values.items()}


def find_passages(segment: Segment, term: str) -> list[int]:
    terms = segment.terms
    [position] = np.flatnonzero(terms.term_hashes == hash_term(term))
    end = np.cumsum(terms.posting_counts)[position]
    return terms.postings[end - terms.posting_counts[position] : end].tolist()


@given(message_histories())
def test_what_is_built_is_read_again(messages: list[IndexedMessage]):
    segment = rebuild(build_segment(messages, embedder=EMBEDDER))
    columns = segment.columns
    assert describe(segment) == describe(build_segment(messages, embedder=EMBEDDER))
    assert columns.seq.tolist() == [each.seq for each in messages]
    assert columns.at.tolist() == [each.at for each in messages]
    assert columns.tokens.tolist() == [each.tokens for each in messages]
    assert [ROLES[role] for role in columns.roles] == [each.role for each in messages]
    names = (None, *columns.speaker_names)
    assert [names[speaker] for speaker in columns.speaker_ids] == [each.name for each in messages]
    passages = [
        (row, set(iter_terms(passage, detect_language(each.text))))
        for row, each in enumerate(messages)
        for passage in split_passages(each.text)
    ]
    assert segment.terms.passage_rows.tolist() == [row for row, _ in passages]
    vocabulary = {term for _, terms in passages for term in terms}
    assert segment.terms.term_hashes.tolist() == sorted(map(hash_term, vocabulary))
    for term in vocabulary:
        assert find_passages(segment, term) == [number for number, (_, terms) in enumerate(passages) if term in terms]


@given(message_histories(), st.data())
def test_a_segment_that_grows_is_the_segment_of_all_its_messages(messages: list[IndexedMessage], data: st.DataObject):
    cut = data.draw(st.integers(0, len(messages)))
    first = extend_segment(None, messages[:cut], embedder=EMBEDDER)
    grown = extend_segment(rebuild(first.segment), messages[cut:], embedder=EMBEDDER)
    whole = extend_segment(None, messages, embedder=EMBEDDER)
    assert describe(grown.segment) == describe(whole.segment)
    assert (*first.term_counts, *grown.term_counts) == whole.term_counts
    assert [counts[0] for counts in whole.term_counts] == [count_message_terms(each.text) for each in messages]
    for total, *passages in whole.term_counts:
        assert not passages or sum(passages, Counter[str]()) == total


@given(message_histories(), st.data())
def test_an_erased_message_leaves_nothing_but_its_place(messages: list[IndexedMessage], data: st.DataObject):
    erased = data.draw(st.sets(st.sampled_from([each.seq for each in messages]))) if messages else set[int]()
    segment = rebuild(erase_messages(build_segment(messages, embedder=EMBEDDER), erased))
    blank = [
        each if each.seq not in erased else each._replace(text="", name=None, role="user", tokens=0, spoken=0.0)
        for each in messages
    ]
    expected, actual = describe(build_segment(blank, embedder=EMBEDDER)), describe(segment)
    is_erased = [each.seq in erased for each in messages]
    assert [role == ERASED_ROLE for role in actual.pop("roles")] == is_erased
    del expected["roles"]
    # Of an erased message only the number of its passages shows; the passages of others are numbered after them.
    for values in (expected, actual):
        del values["passage_counts"], values["postings"]
    assert actual == expected
    assert set(segment.columns.speaker_names) == {each.name for each in blank if each.name}
    for row, each in enumerate(blank):
        assert list_term_hashes(segment, row) == set(map(hash_term, count_message_terms(each.text)))


@given(message_histories())
def test_a_segment_can_be_embedded_later(messages: list[IndexedMessage]):
    later = embed_segment(build_segment(messages), {each.seq: each.text for each in messages}, EMBEDDER)
    assert describe(later) == describe(build_segment(messages, embedder=EMBEDDER))


def test_vectors_of_two_embedders_are_not_joined():
    class Other(LetterEmbedder):
        name = "other"

    messages = make_chat("lake", "tent")
    first = build_segment(messages[:1], embedder=EMBEDDER)
    joined = extend_segment(first, messages[1:], embedder=Other()).segment.columns
    assert (joined.embedder, joined.dimensions, joined.packed_vectors) == (None, 0, None)
    assert extend_segment(first, [], embedder=None).segment.columns.embedder == EMBEDDER.name


def test_messages_without_a_vector_have_zeros_until_they_are_embedded():
    messages = make_chat("lake", "tent")
    segment = extend_segment(build_segment(messages[:1], embedder=EMBEDDER), messages[1:]).segment
    assert find_unembedded(segment, EMBEDDER.name).tolist() == [1]
    assert find_unembedded(segment, "other").tolist() == [0, 1]
    embedded = embed_segment(segment, {2: "tent"}, EMBEDDER)
    assert describe(embedded) == describe(build_segment(messages, embedder=EMBEDDER))


@given(message_histories())
def test_the_same_messages_give_the_same_bytes(messages: list[IndexedMessage]):
    assert encode_segment(build_segment(messages, embedder=EMBEDDER)) == encode_segment(
        build_segment(list(messages), embedder=LetterEmbedder())
    )


@given(message_histories(), st.integers(0, 70))
def test_a_segment_that_is_cut_is_the_segment_of_the_messages_before_the_cut(
    messages: list[IndexedMessage], last_seq: int
):
    truncated = truncate_segment(build_segment(messages, embedder=EMBEDDER), last_seq=last_seq)
    expected = describe(build_segment([each for each in messages if each.seq <= last_seq], embedder=EMBEDDER))
    vectors = ("dimensions", "packed_vectors") if not len(truncated) else ()
    assert {key: value for key, value in describe(truncated).items() if key not in vectors} == {
        key: value for key, value in expected.items() if key not in vectors
    }


def test_a_cut_includes_the_message_that_it_names():
    messages = [make_message(4, "lake"), make_message(6, "tent"), make_message(9, "rain")]
    segment = truncate_segment(build_segment(messages), last_seq=6)
    assert segment.columns.seq.tolist() == [4, 6]
    assert segment.terms.term_hashes.tolist() == sorted(map(hash_term, tokenize("lake tent")))


def unpack(segment: Segment) -> np.ndarray:
    assert segment.columns.packed_vectors is not None
    return unpack_vectors(segment.columns.packed_vectors, segment.columns.dimensions)


def test_vectors_come_back_nearly_as_they_were():
    messages = make_chat("I went hiking by the lake", "How was it?", "", "Rain all day, and the tent was wet")
    rows = EMBEDDER.embed([each.text for each in messages])
    segment = rebuild(build_segment(messages, embedder=EMBEDDER))
    assert segment.columns.embedder == "letters-32"
    cosines = (unpack(segment) * rows).sum(axis=1)
    assert cosines[[0, 1, 3]].min() > 0.98
    assert not unpack(segment)[2].any()


def test_vectors_are_truncated_to_the_dimensions_that_their_embedder_stores():
    class Wide(LetterEmbedder):
        dimensions = 3 * MAX_STATIC_DIMENSIONS

    class Odd(LetterEmbedder):
        dimensions = 7

    class Contextual(Wide):
        stored_dimensions = 3 * MAX_STATIC_DIMENSIONS

    class Huge(LetterEmbedder):
        dimensions = stored_dimensions = MAX_VECTOR_DIMENSIONS + 2

    widths = {Wide: MAX_STATIC_DIMENSIONS, Odd: 7, Contextual: 3 * MAX_STATIC_DIMENSIONS, Huge: MAX_VECTOR_DIMENSIONS}
    for kind, width in widths.items():
        vectors = unpack(rebuild(build_segment(make_chat("lake", "tent"), embedder=kind())))
        assert vectors.shape == (2, width)
        assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1], abs=1e-5)


def test_shortened_vectors_have_unit_length_and_zeros_stay():
    short = truncate_vectors(np.array([[3, 4], [0, 0]], dtype=np.float32))
    assert short.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0, 0]]


def test_messages_have_features():
    features = build_segment(
        make_chat(
            "Always answer in French.",
            "I went there last week, on my birthday, last May, in 2021.",
            "I prefer tea",
            "Nice!",
        )
    ).columns
    assert features.directive.tolist() == [DIRECTIVE_STANDING, 0, DIRECTIVE_PREFERENCE, 0]
    assert features.time_words.tolist() == [0, 3, 0, 0]
    assert features.digits.tolist() == [0, 3, 0, 0]
    assert features.first_person.tolist() == [0, round(FRACTION_SCALE * 2 / 13), round(FRACTION_SCALE / 4), 0]


def test_a_segment_is_smaller_than_its_text():
    words = tokenize("garden lake tent rain tea pasta mother school paint music river train bread window summer letter")
    texts = [" ".join(words[(at * 7 + step * (at % 5 + 1)) % len(words)] for step in range(18)) for at in range(512)]
    messages = make_named_chat(*((("Anna", "Bo")[at % 2], text) for at, text in enumerate(texts)))
    size = sum(len(each.text.encode()) for each in messages)
    blobs = encode_segment(build_segment(messages))
    assert sum(map(len, blobs)) < size / 4
    assert sum(map(len, encode_segment(build_segment(messages, embedder=EMBEDDER)))) < size / 2


def test_no_messages_are_a_segment_too():
    segment = rebuild(build_segment([], embedder=EMBEDDER))
    assert len(segment) == 0
    assert segment.columns.packed_vectors is None


def test_bytes_of_another_format_are_refused_with_what_to_do():
    columns, terms = (bytearray(blob) for blob in encode_segment(build_segment(make_chat("Hello there"))))
    struct.pack_into("<H", columns, len(b"QSEG"), 999)
    with pytest.raises(UnreadableSegment, match=r"format 999.*rebuild it"):
        decode_segment(bytes(columns), bytes(terms))


@given(st.binary(max_size=60))
def test_bytes_that_are_no_segment_are_refused(data: bytes):
    columns, terms = encode_segment(build_segment(make_chat("Hello there")))
    for blobs in ((data, terms), (columns, data), (terms, columns)):
        with pytest.raises(UnreadableSegment, match="rebuild it"):
            decode_segment(*blobs)


@given(st.data())
def test_bytes_that_are_not_whole_are_refused(data: st.DataObject):
    columns, terms = encode_segment(build_segment(make_chat("I went hiking", "By the lake?"), embedder=EMBEDDER))
    with pytest.raises(UnreadableSegment, match="rebuild it"):
        decode_segment(columns[: data.draw(st.integers(0, len(columns) - 1))], terms)
    with pytest.raises(UnreadableSegment, match="rebuild it"):
        decode_segment(columns, terms[: data.draw(st.integers(0, len(terms) - 1))])


def test_times_may_run_backwards_as_imported_chats_may_have_them():
    messages = [
        make_message(1, "later", at=10**15),
        make_message(5, "earlier", at=5),
        make_message(9, "before 1970", at=-7),
    ]
    assert rebuild(build_segment(messages)).columns.at.tolist() == [10**15, 5, -7]


def test_terms_are_counted_with_their_repetitions():
    assert count_message_terms("tent lake tent") == Counter(tokenize("tent lake tent"))
