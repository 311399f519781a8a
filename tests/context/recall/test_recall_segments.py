"""Segment codec: lossless, compact, deterministic, and strict about foreign bytes."""

import dataclasses
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recall_fixtures import LetterEmbedder, make_chat, make_message, make_named_chat, message_histories

from quire.context.recall import IndexedMessage, RecallSegment, build_segment, decode_segment
from quire.context.recall.message_features import DIRECTIVE_PREFERENCE, DIRECTIVE_STANDING, FRACTION_SCALE
from quire.context.recall.passages import split_passages
from quire.context.recall.segments import MAX_VECTOR_DIMENSIONS, ROLES, truncate_segment, truncate_vectors
from quire.context.recall.tokenizer import tokenize
from quire.errors import UnreadableSegment


def is_equal(one: RecallSegment, other: RecallSegment) -> bool:
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(RecallSegment)]
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)


@given(message_histories())
def test_what_is_built_is_read_again(messages: list[IndexedMessage]):
    segment = decode_segment(build_segment(messages))
    assert segment.seq.tolist() == [each.seq for each in messages]
    assert segment.at.tolist() == [each.at for each in messages]
    assert segment.tokens.tolist() == [each.tokens for each in messages]
    assert [ROLES[role] for role in segment.roles] == [each.role for each in messages]
    names = (None, *segment.speaker_names)
    assert [names[speaker] for speaker in segment.speaker_ids] == [each.name for each in messages]
    passages = [(row, passage) for row, each in enumerate(messages) for passage in split_passages(each.text)]
    assert segment.passage_rows.tolist() == [row for row, _ in passages]
    assert list(segment.vocabulary) == sorted(segment.vocabulary)
    assert set(segment.vocabulary) == {term for _, passage in passages for term in tokenize(passage)}
    for term in segment.vocabulary:
        postings = segment.find_postings(term)
        assert postings is not None
        assert postings.tolist() == [
            number for number, (_, passage) in enumerate(passages) if term in tokenize(passage)
        ]
    assert segment.find_postings("never said") is None


@given(message_histories())
def test_the_same_messages_give_the_same_bytes(messages: list[IndexedMessage]):
    assert build_segment(messages, embedder=LetterEmbedder()) == build_segment(
        list(messages), embedder=LetterEmbedder()
    )


@given(message_histories(), st.integers(0, 70))
def test_a_segment_that_is_cut_is_the_segment_of_the_messages_before_the_cut(
    messages: list[IndexedMessage], last_seq: int
):
    whole = decode_segment(build_segment(messages, embedder=LetterEmbedder()))
    before_cut = [each for each in messages if each.seq <= last_seq]
    expected = decode_segment(build_segment(before_cut, embedder=LetterEmbedder()))
    truncated = truncate_segment(whole, last_seq=last_seq)
    # The names may include speakers of later messages only.
    speakers = [(None, *each.speaker_names) for each in (expected, truncated)]
    speakers_by_message = [
        [names[at] for at in each.speaker_ids] for names, each in zip(speakers, (expected, truncated), strict=True)
    ]
    assert speakers_by_message[0] == speakers_by_message[1]
    same = {"speaker_names": (), "speaker_ids": expected.seq, "embedder": None}
    vectors = expected.vectors if before_cut else truncated.vectors
    assert is_equal(dataclasses.replace(truncated, **same), dataclasses.replace(expected, **same, vectors=vectors))


def test_a_cut_keeps_the_message_that_it_names():
    segment = truncate_segment(
        decode_segment(build_segment([make_message(4, "lake"), make_message(6, "tent"), make_message(9, "rain")])),
        last_seq=6,
    )
    assert segment.seq.tolist() == [4, 6]
    assert segment.vocabulary == ("lak", "tent")


def test_vectors_come_back_nearly_as_they_were():
    messages = make_chat("I went hiking by the lake", "How was it?", "", "Rain all day, and the tent was wet")
    rows = LetterEmbedder().embed([each.text for each in messages])
    segment = decode_segment(build_segment(messages, embedder=LetterEmbedder()))
    assert segment.embedder == "letters-32"
    assert segment.vectors is not None
    cosines = (segment.vectors * rows).sum(axis=1)
    assert cosines[[0, 1, 3]].min() > 0.98
    assert not segment.vectors[2].any()


def test_long_vectors_are_truncated_to_leading_dimensions_also_to_an_odd_number():
    class Wide(LetterEmbedder):
        dimensions = 3 * MAX_VECTOR_DIMENSIONS

    class Odd(LetterEmbedder):
        dimensions = 7

    for embedder, width in ((Wide(), MAX_VECTOR_DIMENSIONS), (Odd(), 7)):
        segment = decode_segment(build_segment(make_chat("lake", "tent"), embedder=embedder))
        assert segment.vectors is not None
        assert segment.vectors.shape == (2, width)
        assert np.linalg.norm(segment.vectors, axis=1) == pytest.approx([1, 1], abs=1e-5)


def test_shortened_vectors_have_unit_length_and_zeros_stay():
    short = truncate_vectors(np.array([[3, 4], [0, 0]], dtype=np.float32))
    assert short.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0, 0]]


def test_messages_have_features():
    segment = decode_segment(
        build_segment(
            make_chat(
                "Always answer in French.",
                "I went there last week, on my birthday, last May, in 2021.",
                "I prefer tea",
                "Nice!",
            )
        )
    )
    assert segment.directives.tolist() == [DIRECTIVE_STANDING, 0, DIRECTIVE_PREFERENCE, 0]
    assert segment.time_words.tolist() == [0, 3, 0, 0]
    assert segment.digits.tolist() == [0, 3, 0, 0]
    assert segment.first_person.tolist() == [0, round(FRACTION_SCALE * 2 / 13), round(FRACTION_SCALE / 4), 0]


def test_a_segment_is_smaller_than_its_text():
    words = tokenize("garden lake tent rain tea pasta mother school paint music river train bread window summer letter")
    texts = [" ".join(words[(at * 7 + step * (at % 5 + 1)) % len(words)] for step in range(18)) for at in range(512)]
    messages = make_named_chat(*((("Anna", "Bo")[at % 2], text) for at, text in enumerate(texts)))
    text = sum(len(each.text.encode()) for each in messages)
    assert len(build_segment(messages)) < text / 4
    assert len(build_segment(messages, embedder=LetterEmbedder())) < text / 2


def test_no_messages_are_a_segment_too():
    segment = decode_segment(build_segment([], embedder=LetterEmbedder()))
    assert len(segment.seq) == 0
    assert segment.vectors is None


def test_bytes_of_another_format_are_refused_with_what_to_do():
    data = bytearray(build_segment(make_chat("Hello there")))
    struct.pack_into("<H", data, len(b"quire-recall"), 999)
    with pytest.raises(UnreadableSegment, match=r"format 999.*rebuild it"):
        decode_segment(bytes(data))


@given(st.binary(max_size=60))
def test_bytes_that_are_no_segment_are_refused(data: bytes):
    with pytest.raises(UnreadableSegment, match="rebuild it"):
        decode_segment(data)


@given(st.data())
def test_bytes_that_are_not_whole_are_refused(data: st.DataObject):
    whole = build_segment(make_chat("I went hiking", "By the lake?"), embedder=LetterEmbedder())
    short = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(UnreadableSegment, match="rebuild it"):
        decode_segment(short)


def test_times_may_run_backwards_as_imported_chats_may_have_them():
    messages = [
        make_message(1, "later", at=10**15),
        make_message(5, "earlier", at=5),
        make_message(9, "before 1970", at=-7),
    ]
    assert decode_segment(build_segment(messages)).at.tolist() == [10**15, 5, -7]
