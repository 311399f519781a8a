"""Archive: segments joined, and nothing that it says depends on where they were parted."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from recall_made import HOUR, START, Letters, archive_of, chat, histories, said, talk

from quire.context.recall import Archive, Spoken, build, join, read

PARTED = {"segments", "first_passage"}


@given(histories(), st.lists(st.integers(0, 30), max_size=4))
def test_where_segments_are_parted_makes_no_difference(spoken: list[Spoken], cuts: list[int]):
    whole = archive_of(spoken, embed=Letters())
    parted = archive_of(spoken, cuts=[min(cut, len(spoken)) for cut in cuts], embed=Letters())
    for field in dataclasses.fields(Archive):
        if field.name not in PARTED:
            one, other = getattr(whole, field.name), getattr(parted, field.name)
            if isinstance(one, tuple):
                assert len(one) == len(other), field.name
                assert all(map(np.array_equal, one, other)), field.name
            else:
                assert np.array_equal(one, other), field.name
    for term in {term for segment in whole.segments for term in segment.vocabulary}:
        assert whole.passages_having(term).tolist() == parted.passages_having(term).tolist()


def test_a_silence_of_half_an_hour_parts_sittings():
    half = HOUR // 2
    times = [START, START + half, START + 2 * half + 1, START + 2 * half + 2, START + 9 * half]
    archive = archive_of([said(seq, "word", at=at) for seq, at in enumerate(times, start=1)])
    assert archive.sittings.tolist() == [0, 0, 1, 1, 2]
    assert archive.opening.tolist() == [1, 0.5, 1, 0.5, 1]


def test_new_is_the_share_of_a_messages_terms_that_none_before_it_has():
    archive = archive_of(chat("lake tent rain", "lake tent", "rain music"))
    assert archive.new.tolist() == [np.float32(3 / 4), 0, np.float32(1 / 3)]


def test_speakers_have_one_number_over_all_segments():
    spoken = talk(("Bo", "one"), ("Anna", "two"), ("Cleo", "three"), ("Bo", "four"))
    archive = archive_of(spoken, cuts=[2])
    assert archive.names == ("Anna", "Bo", "Cleo")
    assert archive.speakers.tolist() == [1, 0, 2, 1]


def test_only_the_user_of_a_chat_without_names_is_asking():
    spoken = [said(1, "a"), said(2, "b", role="assistant"), said(3, "c", role="tool"), said(4, "d", name="Anna")]
    assert archive_of(spoken).asking.tolist() == [1, 0, 0, 0]


def test_rows_can_be_chosen_by_number():
    archive = archive_of([said(seq, "word") for seq in (3, 5, 8, 9, 12)])
    assert archive.among([(5, 8), (12, 40)]).tolist() == [False, True, True, False, True]
    assert archive.among([(1, 99)], leaving={5, 9}).tolist() == [True, False, True, False, True]
    assert not archive.among([]).any()


def test_vectors_are_those_of_one_embedder_and_zeros_elsewhere():
    first, second, third = chat("lake", "tent", "rain")
    segments = [read(build([first], embed=Letters())), read(build([second])), read(build([third], embed=Letters()))]
    archive = join(segments, embedder="letters-32")
    assert archive.seen.tolist() == [True, False, True]
    assert join(segments, embedder="another").vectors is None
    assert join(segments).vectors is None


def test_no_segments_are_an_empty_archive():
    archive = join([read(build([]))])
    assert len(archive) == 0
    assert archive.passages_having("lake").tolist() == []
