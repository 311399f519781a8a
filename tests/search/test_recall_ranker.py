"""Ranker: each signal, the order of the messages, and that the ranking depends on nothing else."""

from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recall_fixtures import (
    HOUR_MICROS,
    START_MICROS,
    TEXTS,
    LetterEmbedder,
    build_index,
    make_chat,
    make_message,
    make_named_chat,
    message_histories,
    noon_micros,
)

from quire.search.index import RecallIndex, merge_segments
from quire.search.query import Query, parse_query
from quire.search.ranker import (
    COVERAGE_DISTANCE,
    REGION_DISTANCE,
    WEIGHTS,
    RankedMessage,
    Signals,
    compute_budget_signals,
    compute_feedback_signals,
    find_terms,
    rank_messages,
)
from quire.search.segments import IndexedMessage, build_segment
from quire.search.vectors import FloatArray

ASKED_AT = START_MICROS + 400 * 24 * HOUR_MICROS


def rank_question(
    index: RecallIndex,
    text: str,
    *,
    embedder: LetterEmbedder | None = None,
    name: str | None = None,
    limit: int | None = None,
) -> list[RankedMessage]:
    question = parse_query(text, at=ASKED_AT, speakers=index.speaker_names, name=name)
    vector = embedder.embed([question.topic])[0] if embedder else None
    return rank_messages(index, question, vector=vector, limit=limit)


def ranked_seqs(
    index: RecallIndex, text: str, *, embedder: LetterEmbedder | None = None, name: str | None = None
) -> list[int]:
    return [each.seq for each in rank_question(index, text, embedder=embedder, name=name)]


def query_signals(index: RecallIndex, query: Query, *, vector: FloatArray | None = None) -> Signals:
    return compute_budget_signals(index, query, find_terms(index, query), vector=vector)


SMALL_TALK = ("Good morning to all", "Nice weather today", "Very well then", "See you soon", "Sounds good", "Take care")


def build_index_with_small_talk(*messages: IndexedMessage) -> RecallIndex:
    """These messages, each in its own session, and small talk after them."""
    chatter = [
        make_message(100 + at, text, at=START_MICROS + (100 + at) * 9 * HOUR_MICROS)
        for at, text in enumerate(SMALL_TALK)
    ]
    separated = [each._replace(at=START_MICROS + each.seq * 9 * HOUR_MICROS) for each in messages]
    return build_index([*separated, *chatter])


def test_the_message_with_the_words_of_the_question_comes_first():
    index = build_index_with_small_talk(
        make_message(1, "The tent leaked."), make_message(2, "Mother paints lakes."), make_message(3, "Bread is up.")
    )
    assert ranked_seqs(index, "What does my mother paint?")[0] == 2


def test_a_rare_word_weighs_more_than_a_common_one():
    common = [make_message(seq, f"The garden is green {seq}") for seq in range(2, 9)]
    index = build_index_with_small_talk(make_message(1, "The zeppelin is green 1"), *common)
    assert ranked_seqs(index, "garden or zeppelin?")[0] == 1


def test_words_count_together_only_where_they_stand_together():
    filler = "Then we spoke of other things for a good while, as one does on such days. " * 12
    near = make_message(1, f"The red kite flew over the barn. {filler}")
    separated = make_message(2, f"The red door. {filler} A kite is for sale. {filler} That barn.")
    index = build_index_with_small_talk(near, separated)
    signals = query_signals(index, parse_query("red kite barn", at=ASKED_AT))
    assert signals["match"][0] > 1.5 * signals["match"][1] > 0


def test_an_answer_is_found_by_the_question_before_it():
    messages = make_named_chat(
        ("Bo", "Which instrument did you learn as a child?"),
        ("Anna", "The clarinet, for six years!"),
        ("Bo", "Lovely."),
        *((("Anna", "Bo")[at % 2], text) for at, text in enumerate(SMALL_TALK)),
    )
    assert ranked_seqs(build_index(messages), "Which instrument did Anna learn?")[0] == 2


def test_a_term_of_an_adjacent_message_counts_only_if_missing_and_within_the_session():
    messages = make_chat("lake", "lake", "tent", "rain", "wind")
    messages[3] = messages[3]._replace(at=START_MICROS + 9 * HOUR_MICROS)
    messages[4] = messages[4]._replace(at=START_MICROS + 9 * HOUR_MICROS)
    around = query_signals(build_index(messages), parse_query("lake or tent", at=ASKED_AT))["adjacent_match"]
    lake, tent = (
        query_signals(build_index(messages), parse_query(word, at=ASKED_AT))["match"].max() for word in ("lake", "tent")
    )
    assert around.tolist() == pytest.approx([0, tent, lake, 0, 0])


def test_a_message_between_two_with_the_term_counts_it_once():
    signals = query_signals(build_index(make_chat("lake", "tent", "lake", "rain")), parse_query("lake", at=ASKED_AT))
    assert signals["adjacent_match"].tolist() == pytest.approx([0, signals["match"][0], 0, signals["match"][0]])


def test_the_terms_of_a_query_count_together_within_a_few_messages_across_sessions():
    hours = (0, 0, *[9] * COVERAGE_DISTANCE)
    texts = ("lake", "tent", *["rain"] * COVERAGE_DISTANCE)
    messages = [
        make_message(seq, text, at=START_MICROS + hour * HOUR_MICROS)
        for seq, (text, hour) in enumerate(zip(texts, hours, strict=True), start=1)
    ]
    coverage = query_signals(build_index(messages), parse_query("lake tent", at=ASKED_AT))["coverage"]
    assert coverage[:-1].tolist() == pytest.approx([1.0] * (len(messages) - 1))
    assert coverage[-1] == pytest.approx(0.5)
    assert query_signals(build_index(messages), parse_query("kayak", at=ASKED_AT))["coverage"].max() == 0


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.sampled_from(["lake", "tent", "lake tent"]))
def test_coverage_is_what_counting_within_the_distance_gives(gaps: list[int], term: str):
    texts = [text for gap in gaps for text in (*["rain"] * gap, term, "tent")]
    coverage = query_signals(build_index(make_chat(*texts)), parse_query("lake tent", at=ASKED_AT))["coverage"]
    idf = {
        term: log(1 + (500 - count + 0.5) / (count + 0.5))
        for term in ("lake", "tent")
        if (count := sum(term in text for text in texts))
    }
    for row, share in enumerate(coverage):
        near = texts[max(0, row - COVERAGE_DISTANCE) : row + COVERAGE_DISTANCE + 1]
        covered = sum(value for term, value in idf.items() if any(term in text for text in near))
        assert share == pytest.approx(covered / max(sum(idf.values()), 1e-6), abs=1e-5)


def test_a_message_that_begins_in_the_first_person_comes_before_the_same_words_in_another_order():
    texts = ("Lease and friend ran out", "The lease, my friend, ran out", "My lease ran out, the friend")
    index = build_index_with_small_talk(*(make_message(seq, text) for seq, text in enumerate(texts, start=1)))
    ranked = ranked_seqs(index, "What about the lease?")
    assert ranked.index(3) < ranked.index(2)


def test_what_the_named_speaker_said_comes_before_what_others_said():
    messages = make_named_chat(("Bo", "I went hiking by the lake"), ("Anna", "I went hiking by the lake"))
    assert ranked_seqs(build_index(messages), "When did Anna go hiking?") == [2, 1]
    assert ranked_seqs(build_index(messages), "When did Bo go hiking?") == [1, 2]


def test_the_first_person_ranks_the_speakers_own_messages_first():
    messages = make_named_chat(("Bo", "I went hiking by the lake"), ("Anna", "I went hiking by the lake"))
    assert ranked_seqs(build_index(messages), "When did I go hiking?", name="Anna") == [2, 1]


def test_the_users_word_comes_before_the_assistants_unless_the_query_is_about_a_reply():
    messages = [make_message(1, "Keep the cache small.", role="assistant"), make_message(2, "Keep the cache small.")]
    index = build_index_with_small_talk(*messages)
    assert ranked_seqs(index, "How large is the cache?")[0] == 2
    advised = parse_query("What did you recommend about the cache?", at=ASKED_AT)
    assert query_signals(index, advised)["user"].max() == 0


def test_what_was_said_about_the_named_day_comes_first():
    messages = [make_message(seq, "We had the party", at=noon_micros(f"2023-0{seq}-10")) for seq in (3, 4, 5)]
    index = build_index(messages)
    assert ranked_seqs(index, "Who was at the party on 9 April 2023?")[0] == 4
    assert ranked_seqs(index, "Who was at the party in May 2023?")[0] == 5


def test_the_named_day_fades_within_days_more_slowly_after_it_than_before():
    days = ("2023-04-01", "2023-04-08", "2023-04-09", "2023-04-10", "2023-04-20")
    index = build_index([make_message(seq, "party", at=noon_micros(day)) for seq, day in enumerate(days, start=1)])
    date = query_signals(index, parse_query("on 9 April 2023", at=ASKED_AT))["date"]
    assert date[2] == 1 > date[3] > date[1] > 0.5
    assert max(date[0], date[4]) < 0.1


def test_a_question_of_when_wants_words_of_time_and_one_of_how_many_wants_digits():
    index = build_index_with_small_talk(
        make_message(1, "The lease ran out on Monday"), make_message(2, "The lease ran out unseen")
    )
    assert ranked_seqs(index, "When did the lease run out?")[:2] == [1, 2]
    index = build_index_with_small_talk(
        make_message(1, "The lease costs 1250"), make_message(2, "The lease costs money")
    )
    assert ranked_seqs(index, "How much is the lease?")[:2] == [1, 2]
    for text, expected in (("When?", "time_words"), ("How many?", "digits"), ("Why?", None)):
        signals = query_signals(index, parse_query(text, at=ASKED_AT))
        assert {name for name in ("time_words", "digits") if signals[name].any()} <= {expected}
    assert query_signals(index, parse_query("How many?", at=ASKED_AT))["digits"][:2].tolist() == [1, 0]


def test_a_standing_instruction_or_preference_ranks_higher_for_a_request():
    index = build_index_with_small_talk(
        make_message(1, "Usually tests are listed"), make_message(2, "Always list the tests")
    )
    assert ranked_seqs(index, "Could you show me the tests?")[0] == 2
    index = build_index_with_small_talk(
        make_message(1, "Tea was mentioned here"), make_message(2, "Tea is what we prefer")
    )
    assert ranked_seqs(index, "Which tea should I buy?")[0] == 2


def test_of_two_that_say_the_same_the_cheaper_is_worth_more_and_scores_the_same():
    messages = [make_message(seq, "Lease", at=START_MICROS + seq * 9 * HOUR_MICROS) for seq in (1, 2, 3)]
    cheap, dear = rank_question(build_index([messages[0], messages[1], messages[2]._replace(tokens=400)]), "the lease")[
        1:
    ]
    assert (cheap.seq, dear.seq) == (2, 3)
    assert cheap.utility - dear.utility > 4
    assert cheap.score == pytest.approx(dear.score)


def test_the_second_pass_finds_what_is_similar_to_the_top_of_the_first():
    embedder = LetterEmbedder()
    messages = [
        make_message(1, "kayaking paddles kayaks lagoon", at=START_MICROS),
        make_message(2, "paddles kayaks lagoons paddling", at=START_MICROS + 9 * HOUR_MICROS),
        make_message(3, "quartz jubilee vex zinc wolf", at=START_MICROS + 18 * HOUR_MICROS),
        make_message(4, "quiz fjord vexed nymph glyph", at=START_MICROS + 27 * HOUR_MICROS),
    ]
    index = build_index(messages, embedder=embedder)
    similarity = compute_feedback_signals(index, np.array([9, 0, 0, 0], dtype=np.float32))["similar_to_top"]
    assert similarity[1] > 0.3 > 0 > max(similarity[2], similarity[3])


def test_a_message_without_a_vector_is_similar_to_nothing():
    embedder = LetterEmbedder()
    messages = [make_message(1, "kayaks lagoon"), make_message(2, "quartz zinc")]
    index = merge_segments(
        [
            build_segment(messages, embedder=embedder),
            build_segment([make_message(3, "kayaks")]),
        ],
        embedder=embedder.name,
    )
    assert compute_feedback_signals(index, np.array([9, 0, 0], dtype=np.float32))["similar_to_top"][2] == 0


def test_a_message_near_the_top_is_ranked_before_the_same_words_elsewhere():
    near = [make_message(seq, text) for seq, text in ((1, "tent lake zeppelin"), (2, "vex"), (3, "vex"))]
    far = [make_message(seq, "vex", at=START_MICROS + 9 * HOUR_MICROS + seq) for seq in range(4, 9)]
    index = build_index([*near, *far])
    ranking = {each.seq: each.utility for each in rank_question(index, "zeppelin")}
    signals = query_signals(index, parse_query("zeppelin", at=ASKED_AT))
    ahead = WEIGHTS["budget"]["nearby_match"] * (signals["nearby_match"][2] - signals["nearby_match"][5])
    ahead += WEIGHTS["budget"]["session_opening"] * (signals["session_opening"][2] - signals["session_opening"][5])
    assert ranking[3] - ranking[6] > ahead + 0.5


def test_near_top_is_high_near_the_top_of_the_first_pass_within_a_session():
    messages = [make_message(seq, "word", at=START_MICROS + (seq > 3) * HOUR_MICROS) for seq in range(1, 6)]
    near_top = compute_feedback_signals(build_index(messages), np.array([0, 0, 20, 0, 0], dtype=np.float32))["near_top"]
    assert near_top[1] > near_top[0] > near_top[3]
    assert near_top[3] == pytest.approx(near_top[4])


def test_the_region_of_the_top_results_reaches_across_sessions_and_ends():
    count = REGION_DISTANCE + 3
    messages = [make_message(seq, "word", at=START_MICROS + seq * HOUR_MICROS) for seq in range(1, count + 1)]
    strength = np.zeros(count, dtype=np.float32)
    strength[0] = 90
    region = compute_feedback_signals(build_index(messages), strength)["near_top_region"]
    assert region[1] == pytest.approx(region[REGION_DISTANCE]) == pytest.approx(np.log1p(1_000), rel=0.01)
    assert max(region[0], *region[REGION_DISTANCE + 1 :]) < 0.1


def test_similar_neighbors_count_where_they_are_above_the_mean():
    embedder = LetterEmbedder()
    texts = ("photography", "zinc", "vexed wolf", "jumpy fjord")
    messages = [make_message(seq, text, at=START_MICROS + (seq > 2) * HOUR_MICROS) for seq, text in enumerate(texts, 1)]
    vector = embedder.embed(["photographs"])[0]
    nearby = query_signals(
        build_index(messages, embedder=embedder), parse_query("photographs", at=ASKED_AT), vector=vector
    )["nearby_similarity"]
    assert nearby[1] > 1
    assert nearby[0] == nearby[2] == nearby[3] == 0


def test_a_question_and_messages_without_a_common_word_meet_by_meaning():
    embedder = LetterEmbedder()
    texts = ("my photography", "her zinc quiz", "our vexed wolf", "his jumpy fjord")
    messages = [
        make_message(seq, text, at=START_MICROS + seq * 9 * HOUR_MICROS) for seq, text in enumerate(texts, start=1)
    ]
    index = build_index(messages, embedder=embedder)
    assert ranked_seqs(index, "photographs", embedder=embedder)[0] == 1
    signals = query_signals(index, parse_query("photographs", at=ASKED_AT), vector=embedder.embed(["photographs"])[0])
    assert signals["match"].max() == 0


def test_what_the_embedder_has_not_seen_counts_as_the_rest_does_on_average():
    embedder = LetterEmbedder()
    one, two, three = (
        make_message(seq, text, at=START_MICROS) for seq, text in enumerate(("lake", "tent", "lakes"), start=1)
    )
    index = merge_segments(
        [build_segment([one, two], embedder=embedder), build_segment([three])],
        embedder=embedder.name,
    )
    similarities = query_signals(index, parse_query("lake", at=ASKED_AT), vector=embedder.embed(["lake"])[0])[
        "similarity"
    ]
    assert similarities[2] == pytest.approx(similarities[:2].mean())


def test_only_what_is_allowed_is_ranked_and_no_more_than_the_limit():
    index = build_index(make_chat(*(f"lake {number}" for number in range(20))))
    question = parse_query("the lake", at=ASKED_AT)
    every = rank_messages(index, question)
    assert [each.seq for each in every] != sorted(each.seq for each in every)
    allowed = index.select_rows([(5, 14)], excluded={7})
    allowed_ranking = rank_messages(index, question, allowed=allowed)
    assert allowed_ranking == [each for each in every if 5 <= each.seq <= 14 and each.seq != 7]
    assert rank_messages(index, question, limit=6) == every[:6]
    assert rank_messages(index, question, allowed=allowed, limit=3) == allowed_ranking[:3]
    assert rank_messages(index, question, limit=0) == []
    assert rank_messages(index, question, limit=99) == every


def test_equals_stand_in_the_order_of_the_log():
    messages = [make_message(seq, "same words", at=START_MICROS + seq * 9 * HOUR_MICROS) for seq in range(2, 20)]
    assert ranked_seqs(build_index(messages), "nothing of that") == [*range(2, 20)]


def test_an_empty_index_has_nothing_to_rank():
    assert rank_messages(merge_segments([]), parse_query("What?", at=ASKED_AT)) == []


def test_every_signal_has_a_weight_and_every_weight_a_signal():
    embedder = LetterEmbedder()
    index = build_index(make_chat("lake", "tent"), embedder=embedder)
    first = query_signals(index, parse_query("lake", at=ASKED_AT), vector=embedder.embed(["lake"])[0])
    assert {*first, *compute_feedback_signals(index, first["match"])} == set(WEIGHTS["budget"])


@given(message_histories(), TEXTS, st.lists(st.integers(0, 30), max_size=4))
def test_a_ranking_depends_on_the_messages_alone(messages: list[IndexedMessage], text: str, cuts: list[int]):
    embedder = LetterEmbedder()
    whole = build_index(messages, embedder=embedder)
    segmented = build_index(messages, cuts=[min(cut, len(messages)) for cut in cuts], embedder=embedder)
    ranking = rank_question(whole, text, embedder=embedder)
    assert ranking == rank_question(whole, text, embedder=embedder) == rank_question(segmented, text, embedder=embedder)
    assert sorted(each.seq for each in ranking) == [each.seq for each in messages]
    assert all(0 <= each.score <= 1 for each in ranking)
    assert [each.utility for each in ranking] == sorted((each.utility for each in ranking), reverse=True)


@given(message_histories(), st.text())
def test_any_question_ranks_any_history_without_an_embedder(messages: list[IndexedMessage], text: str):
    ranking = rank_question(build_index(messages), text)
    assert len(ranking) == len(messages)
    assert np.isfinite([each.utility for each in ranking]).all()


def test_a_pasted_page_is_a_question_too():
    page = " ".join(f"word{number}" for number in range(20_000))
    index = build_index_with_small_talk(make_message(1, "word3 and word19999 were there"), make_message(2, "Tea again"))
    assert ranked_seqs(index, page)[0] == 1
