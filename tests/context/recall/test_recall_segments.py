"""Segments: what is built is read again, small, the same each time, and refused when it is not ours."""

import dataclasses
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recall_made import Letters, chat, histories, said, talk

from quire.context.recall import Segment, Spoken, build, read
from quire.context.recall.marks import FULL, PREFERENCE, STANDING
from quire.context.recall.packing import DIMENSIONS, shortened
from quire.context.recall.passages import passages
from quire.context.recall.segments import ROLES, cut
from quire.context.recall.terms import terms
from quire.errors import UnreadableSegment


def same(one: Segment, other: Segment) -> bool:
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(Segment)]
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)


@given(histories())
def test_what_is_built_is_read_again(spoken: list[Spoken]):
    segment = read(build(spoken))
    assert segment.seq.tolist() == [each.seq for each in spoken]
    assert segment.at.tolist() == [each.at for each in spoken]
    assert segment.tokens.tolist() == [each.tokens for each in spoken]
    assert [ROLES[role] for role in segment.roles] == [each.role for each in spoken]
    names = (None, *segment.names)
    assert [names[speaker] for speaker in segment.speakers] == [each.name for each in spoken]
    pieces = [(row, piece) for row, each in enumerate(spoken) for piece in passages(each.text)]
    assert segment.message_of.tolist() == [row for row, _ in pieces]
    assert list(segment.vocabulary) == sorted(segment.vocabulary)
    assert set(segment.vocabulary) == {term for _, piece in pieces for term in terms(piece)}
    for term in segment.vocabulary:
        having = segment.having(term)
        assert having is not None
        assert having.tolist() == [place for place, (_, piece) in enumerate(pieces) if term in terms(piece)]
    assert segment.having("never said") is None


@given(histories())
def test_the_same_messages_give_the_same_bytes(spoken: list[Spoken]):
    assert build(spoken, embed=Letters()) == build(list(spoken), embed=Letters())


@given(histories(), st.integers(0, 70))
def test_a_segment_that_is_cut_is_the_segment_of_the_messages_before_the_cut(spoken: list[Spoken], upto: int):
    whole = read(build(spoken, embed=Letters()))
    kept = [each for each in spoken if each.seq <= upto]
    expected = read(build(kept, embed=Letters()))
    cutting = cut(whole, upto=upto)
    # Who speaks only later may still stand among the names.
    speakers = [(None, *each.names) for each in (expected, cutting)]
    heard = [[names[at] for at in each.speakers] for names, each in zip(speakers, (expected, cutting), strict=True)]
    assert heard[0] == heard[1]
    plain = {"names": (), "speakers": expected.seq, "embedder": None}
    vectors = expected.vectors if kept else cutting.vectors
    assert same(dataclasses.replace(cutting, **plain), dataclasses.replace(expected, **plain, vectors=vectors))


def test_a_cut_keeps_the_message_that_it_names():
    segment = cut(read(build([said(4, "lake"), said(6, "tent"), said(9, "rain")])), upto=6)
    assert segment.seq.tolist() == [4, 6]
    assert segment.vocabulary == ("lak", "tent")


def test_vectors_come_back_nearly_as_they_were():
    spoken = chat("I went hiking by the lake", "How was it?", "", "Rain all day, and the tent was wet")
    rows = Letters().embed([each.text for each in spoken])
    segment = read(build(spoken, embed=Letters()))
    assert segment.embedder == "letters-32"
    assert segment.vectors is not None
    cosines = (segment.vectors * rows).sum(axis=1)
    assert cosines[[0, 1, 3]].min() > 0.98
    assert not segment.vectors[2].any()


def test_of_long_vectors_the_leading_dimensions_are_kept_and_odd_numbers_of_them_too():
    class Wide(Letters):
        dimensions = 3 * DIMENSIONS

    class Odd(Letters):
        dimensions = 7

    for embedder, width in ((Wide(), DIMENSIONS), (Odd(), 7)):
        segment = read(build(chat("lake", "tent"), embed=embedder))
        assert segment.vectors is not None
        assert segment.vectors.shape == (2, width)
        assert np.linalg.norm(segment.vectors, axis=1) == pytest.approx([1, 1], abs=1e-5)


def test_shortened_vectors_have_unit_length_and_zeros_stay():
    short = shortened(np.array([[3, 4], [0, 0]], dtype=np.float32))
    assert short.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0, 0]]


def test_messages_are_marked_by_what_they_show():
    segment = read(
        build(
            chat(
                "Always answer in French.",
                "I went there last week, on my birthday, last May, in 2021.",
                "I prefer tea",
                "Nice!",
            )
        )
    )
    assert segment.wishes.tolist() == [STANDING, 0, PREFERENCE, 0]
    assert segment.times.tolist() == [0, 3, 0, 0]
    assert segment.digits.tolist() == [0, 3, 0, 0]
    assert segment.own.tolist() == [0, round(FULL * 2 / 13), round(FULL / 4), 0]


def test_a_segment_takes_less_than_the_text_that_it_stands_for():
    words = terms("garden lake tent rain tea pasta mother school paint music river train bread window summer letter")
    texts = [" ".join(words[(at * 7 + step * (at % 5 + 1)) % len(words)] for step in range(18)) for at in range(512)]
    spoken = talk(*((("Anna", "Bo")[at % 2], text) for at, text in enumerate(texts)))
    text = sum(len(each.text.encode()) for each in spoken)
    assert len(build(spoken)) < text / 4
    assert len(build(spoken, embed=Letters())) < text / 2


def test_no_messages_are_a_segment_too():
    segment = read(build([], embed=Letters()))
    assert len(segment.seq) == 0
    assert segment.vectors is None


def test_bytes_of_another_format_are_refused_with_what_to_do():
    data = bytearray(build(chat("Hello there")))
    struct.pack_into("<H", data, len(b"quire-recall"), 999)
    with pytest.raises(UnreadableSegment, match=r"format 999.*build it anew"):
        read(bytes(data))


@given(st.binary(max_size=60))
def test_bytes_that_are_no_segment_are_refused(data: bytes):
    with pytest.raises(UnreadableSegment, match="build it anew"):
        read(data)


@given(st.data())
def test_bytes_that_are_not_whole_are_refused(data: st.DataObject):
    whole = build(chat("I went hiking", "By the lake?"), embed=Letters())
    short = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(UnreadableSegment, match="build it anew"):
        read(short)


def test_times_may_run_backwards_as_imported_chats_may_have_them():
    spoken = [said(1, "later", at=10**15), said(5, "earlier", at=5), said(9, "before 1970", at=-7)]
    assert read(build(spoken)).at.tolist() == [10**15, 5, -7]
