"""Recall index: merged segments; no result depends on the segment boundaries."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from recall_fixtures import (
    HOUR_MICROS,
    START_MICROS,
    LetterEmbedder,
    build_index,
    make_chat,
    make_message,
    make_named_chat,
    message_histories,
)

from quire.search.index import RecallIndex, merge_segments
from quire.search.segments import IndexedMessage, build_segment
from quire.search.tokenizer import tokenize


@given(message_histories(), st.lists(st.integers(0, 30), max_size=4), st.integers(0, 5))
def test_neither_segment_boundaries_nor_an_extended_index_make_a_difference(
    messages: list[IndexedMessage], cuts: list[int], new_count: int
):
    whole = build_index(messages, embedder=LetterEmbedder())
    earlier = build_index(messages[: max(0, len(messages) - new_count)], embedder=LetterEmbedder())
    cuts = [min(cut, len(messages)) for cut in cuts]
    segmented = build_index(messages, cuts=cuts, embedder=LetterEmbedder(), earlier=earlier)
    assert_equal_indexes(whole, segmented)
    for term in {term for each in messages for term in tokenize(each.text)}:
        assert whole.find_passages(term).tolist() == segmented.find_passages(term).tolist()


def assert_equal_indexes(whole: RecallIndex, segmented: RecallIndex) -> None:
    for field in (each for each in dataclasses.fields(RecallIndex) if each.compare):
        one, other = getattr(whole, field.name), getattr(segmented, field.name)
        if isinstance(one, tuple):
            assert len(one) == len(other), field.name
            assert all(map(np.array_equal, one, other)), field.name
        else:
            assert np.array_equal(one, other), field.name


def test_a_silence_of_half_an_hour_separates_sessions():
    half = HOUR_MICROS // 2
    times = [
        START_MICROS,
        START_MICROS + half,
        START_MICROS + 2 * half + 1,
        START_MICROS + 2 * half + 2,
        START_MICROS + 9 * half,
    ]
    index = build_index([make_message(seq, "word", at=at) for seq, at in enumerate(times, start=1)])
    assert index.session_ids.tolist() == [0, 0, 1, 1, 2]
    assert index.session_opening.tolist() == [1, 0.5, 1, 0.5, 1]


def test_novelty_is_the_share_of_a_messages_terms_that_none_before_it_has():
    index = build_index(make_chat("lake tent rain", "lake tent", "rain music"))
    assert index.novelty.tolist() == [np.float32(3 / 4), 0, np.float32(1 / 3)]


def test_speakers_have_one_number_over_all_segments():
    messages = make_named_chat(("Bo", "one"), ("Anna", "two"), ("Cleo", "three"), ("Bo", "four"))
    index = build_index(messages, cuts=[2])
    assert index.speaker_names == ("Anna", "Bo", "Cleo")
    assert index.speaker_ids.tolist() == [1, 0, 2, 1]


def test_only_the_user_of_a_chat_without_names_is_asking():
    messages = [
        make_message(1, "a"),
        make_message(2, "b", role="assistant"),
        make_message(3, "c", role="tool"),
        make_message(4, "d", name="Anna"),
    ]
    assert build_index(messages).is_user.tolist() == [1, 0, 0, 0]


def test_rows_can_be_chosen_by_number():
    index = build_index([make_message(seq, "word") for seq in (3, 5, 8, 9, 12)])
    assert index.select_rows([(5, 8), (12, 40)]).tolist() == [False, True, True, False, True]
    assert index.select_rows([(1, 99)], excluded={5, 9}).tolist() == [True, False, True, False, True]
    assert not index.select_rows([]).any()


def test_vectors_are_those_of_one_embedder_and_zeros_elsewhere():
    first, second, third = make_chat("lake", "tent", "rain")
    segments = [
        build_segment([first], embedder=LetterEmbedder()),
        build_segment([second]),
        build_segment([third], embedder=LetterEmbedder()),
    ]
    index = merge_segments(segments, embedder="letters-32")
    assert index.has_vector.tolist() == [True, False, True]
    assert merge_segments(segments, embedder="another").centered_vectors is None
    assert merge_segments(segments).centered_vectors is None


def test_no_segments_are_an_empty_index():
    index = merge_segments([build_segment([])])
    assert len(index) == 0
    assert index.find_passages("lake").tolist() == []


def test_later_messages_are_behind_those_that_an_index_has():
    messages = make_chat("lake tent", "rain", "lake tent rain", "boat lake")
    index = build_index(messages, cuts=[1, 3], earlier=build_index(messages[:2]))
    found = {term: index.find_passages(term).tolist() for term in ("boat", "lake", "rain", "tent")}
    assert found == {"boat": [3], "lake": [0, 2, 3], "rain": [1, 2], "tent": [0, 2]}
    assert index.novelty.tolist() == build_index(messages).novelty.tolist()


def test_an_index_of_other_messages_is_not_extended():
    earlier = build_index([make_message(4, "tent")])
    index = build_index([make_message(seq, "lake") for seq in (3, 5)], earlier=earlier)
    assert (index.seq.tolist(), index.find_passages("tent").tolist()) == ([3, 5], [])


def test_an_index_that_was_extended_twice_has_not_changed():
    messages = [make_message(seq, f"lake{seq % 7} tent", at=START_MICROS + seq * HOUR_MICROS) for seq in range(32)]
    others = [*messages[:30], make_message(30, "rain boat", name="Anna"), make_message(31, "tent", name="Bo")]
    # Grown before, so that its columns have room for a few more rows.
    earlier = build_index(messages[:30], earlier=build_index(messages[:20]))
    expected = (messages, others, messages[:31])
    extended = [build_index(each, earlier=earlier) for each in expected]
    assert_equal_indexes(earlier, build_index(messages[:30]))
    for index, each in zip(extended, expected, strict=True):
        assert_equal_indexes(index, build_index(each))
