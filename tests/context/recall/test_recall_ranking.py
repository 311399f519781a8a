"""Ranking: which messages bear on a question, what speaks for them, and that nothing but them decides."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recall_made import HOUR, START, TEXTS, Letters, archive_of, chat, histories, moment, said, talk

from quire.context.recall import WEIGHTS, Archive, Ranked, Spoken, build, join, rank, read, read_question
from quire.context.recall.signals import first_reading, second_reading

LATER = START + 400 * 24 * HOUR


def ranked(
    archive: Archive, text: str, *, embed: Letters | None = None, name: str | None = None, limit: int | None = None
) -> list[Ranked]:
    question = read_question(text, at=LATER, speakers=archive.names, name=name)
    vector = embed.embed([question.topic])[0] if embed else None
    return rank(archive, question, vector=vector, limit=limit)


def order(archive: Archive, text: str, *, embed: Letters | None = None, name: str | None = None) -> list[int]:
    return [each.seq for each in ranked(archive, text, embed=embed, name=name)]


SMALL_TALK = ("Good morning to all", "Nice weather today", "Very well then", "See you soon", "Sounds good", "Take care")


def among_small_talk(*spoken: Spoken) -> Archive:
    """These messages, each in a sitting of its own, with small talk before and after them."""
    chatter = [said(100 + at, text, at=START + (100 + at) * 9 * HOUR) for at, text in enumerate(SMALL_TALK)]
    apart = [each._replace(at=START + each.seq * 9 * HOUR) for each in spoken]
    return archive_of([*apart, *chatter])


def test_the_message_with_the_words_of_the_question_comes_first():
    archive = among_small_talk(said(1, "The tent leaked."), said(2, "Mother paints lakes."), said(3, "Bread is up."))
    assert order(archive, "What does my mother paint?")[0] == 2


def test_a_rare_word_weighs_more_than_a_common_one():
    common = [said(seq, f"The garden is green {seq}") for seq in range(2, 9)]
    archive = among_small_talk(said(1, "The zeppelin is green 1"), *common)
    assert order(archive, "garden or zeppelin?")[0] == 1


def test_words_count_together_only_where_they_stand_together():
    filler = "Then we spoke of other things for a good while, as one does on such days. " * 12
    near = said(1, f"The red kite flew over the barn. {filler}")
    apart = said(2, f"The red door. {filler} A kite is for sale. {filler} That barn.")
    archive = among_small_talk(near, apart)
    signals = first_reading(archive, read_question("red kite barn", at=LATER))
    assert signals["match"][0] > 1.5 * signals["match"][1] > 0


def test_an_answer_is_found_by_the_question_before_it():
    spoken = talk(
        ("Bo", "Which instrument did you learn as a child?"),
        ("Anna", "The clarinet, for six years!"),
        ("Bo", "Lovely."),
        *((("Anna", "Bo")[at % 2], text) for at, text in enumerate(SMALL_TALK)),
    )
    assert order(archive_of(spoken), "Which instrument did Anna learn?")[0] == 2


def test_a_word_counts_around_a_message_only_where_it_has_not_the_word_itself_and_not_across_sittings():
    spoken = chat("lake", "lake", "tent", "rain", "wind")
    spoken[3] = spoken[3]._replace(at=START + 9 * HOUR)
    spoken[4] = spoken[4]._replace(at=START + 9 * HOUR)
    around = first_reading(archive_of(spoken), read_question("lake or tent", at=LATER))["around"]
    lake, tent = (
        first_reading(archive_of(spoken), read_question(word, at=LATER))["match"].max() for word in ("lake", "tent")
    )
    assert around.tolist() == pytest.approx([0, tent, lake, 0, 0])


def test_what_the_named_speaker_said_comes_before_what_others_said():
    spoken = talk(("Bo", "I went hiking by the lake"), ("Anna", "I went hiking by the lake"))
    assert order(archive_of(spoken), "When did Anna go hiking?") == [2, 1]
    assert order(archive_of(spoken), "When did Bo go hiking?") == [1, 2]


def test_who_asks_about_himself_means_what_he_said():
    spoken = talk(("Bo", "I went hiking by the lake"), ("Anna", "I went hiking by the lake"))
    assert order(archive_of(spoken), "When did I go hiking?", name="Anna") == [2, 1]


def test_the_users_word_comes_before_the_assistants_unless_that_is_asked_for():
    spoken = [said(1, "Keep the cache small.", role="assistant"), said(2, "Keep the cache small.")]
    archive = among_small_talk(*spoken)
    assert order(archive, "How large is the cache?")[0] == 2
    advised = read_question("What did you recommend about the cache?", at=LATER)
    assert first_reading(archive, advised)["user"].max() == 0


def test_what_was_said_about_the_named_day_comes_first():
    spoken = [said(seq, "We had the party", at=moment(f"2023-0{seq}-10")) for seq in (3, 4, 5)]
    archive = archive_of(spoken)
    assert order(archive, "Who was at the party on 9 April 2023?")[0] == 4
    assert order(archive, "Who was at the party in May 2023?")[0] == 5


def test_the_named_day_fades_within_days_more_slowly_after_it_than_before():
    days = ("2023-04-01", "2023-04-08", "2023-04-09", "2023-04-10", "2023-04-20")
    archive = archive_of([said(seq, "party", at=moment(day)) for seq, day in enumerate(days, start=1)])
    date = first_reading(archive, read_question("on 9 April 2023", at=LATER))["date"]
    assert date[2] == 1 > date[3] > date[1] > 0.5
    assert max(date[0], date[4]) < 0.1


def test_a_question_of_when_wants_words_of_time_and_one_of_how_many_wants_digits():
    archive = among_small_talk(said(1, "The lease ran out on Monday"), said(2, "The lease ran out unseen"))
    assert order(archive, "When did the lease run out?")[:2] == [1, 2]
    archive = among_small_talk(said(1, "The lease costs 1250"), said(2, "The lease costs money"))
    assert order(archive, "How much is the lease?")[:2] == [1, 2]
    for text, wanted in (("When?", "times"), ("How many?", "digits"), ("Why?", None)):
        signals = first_reading(archive, read_question(text, at=LATER))
        assert {name for name in ("times", "digits") if signals[name].any()} <= {wanted}
    assert first_reading(archive, read_question("How many?", at=LATER))["digits"][:2].tolist() == [1, 0]


def test_a_standing_wish_bears_on_what_is_asked_for():
    archive = among_small_talk(said(1, "Usually tests are listed"), said(2, "Always list the tests"))
    assert order(archive, "Could you show me the tests?")[0] == 2
    archive = among_small_talk(said(1, "Tea was mentioned here"), said(2, "Tea is what we prefer"))
    assert order(archive, "Which tea should I buy?")[0] == 2


def test_of_two_that_say_the_same_the_cheaper_is_worth_more_and_scores_the_same():
    spoken = [said(seq, "Lease", at=START + seq * 9 * HOUR) for seq in (1, 2, 3)]
    cheap, dear = ranked(archive_of([spoken[0], spoken[1], spoken[2]._replace(tokens=400)]), "the lease")[1:]
    assert (cheap.seq, dear.seq) == (2, 3)
    assert cheap.worth - dear.worth > 4
    assert cheap.score == pytest.approx(dear.score)


def test_the_second_reading_finds_what_is_like_the_best_of_the_first():
    embed = Letters()
    spoken = [
        said(1, "kayaking paddles kayaks lagoon", at=START),
        said(2, "paddles kayaks lagoons paddling", at=START + 9 * HOUR),
        said(3, "quartz jubilee vex zinc wolf", at=START + 18 * HOUR),
        said(4, "quiz fjord vexed nymph glyph", at=START + 27 * HOUR),
    ]
    archive = archive_of(spoken, embed=embed)
    kin = second_reading(archive, np.array([9, 0, 0, 0], dtype=np.float32))["kin"]
    assert kin[1] > 0.3 > 0 > max(kin[2], kin[3])


def test_what_has_no_vector_is_kin_to_nothing():
    embed = Letters()
    spoken = [said(1, "kayaks lagoon"), said(2, "quartz zinc")]
    archive = join([read(build(spoken, embed=embed)), read(build([said(3, "kayaks")]))], embedder=embed.name)
    assert second_reading(archive, np.array([9, 0, 0], dtype=np.float32))["kin"][2] == 0


def test_what_stands_near_the_best_is_ranked_before_the_same_words_elsewhere():
    near = [said(seq, text) for seq, text in ((1, "tent lake zeppelin"), (2, "vex"), (3, "vex"))]
    far = [said(seq, "vex", at=START + 9 * HOUR + seq) for seq in range(4, 9)]
    archive = archive_of([*near, *far])
    found = {each.seq: each.worth for each in ranked(archive, "zeppelin")}
    signals = first_reading(archive, read_question("zeppelin", at=LATER))
    ahead = WEIGHTS["nearby"] * (signals["nearby"][2] - signals["nearby"][5])
    ahead += WEIGHTS["opening"] * (signals["opening"][2] - signals["opening"][5])
    assert found[3] - found[6] > ahead + 1


def test_company_is_near_the_best_of_the_first_reading_and_in_their_sitting():
    spoken = [said(seq, "word", at=START + (seq > 3) * HOUR) for seq in range(1, 6)]
    company = second_reading(archive_of(spoken), np.array([0, 0, 20, 0, 0], dtype=np.float32))["company"]
    assert company[1] > company[0] > company[3]
    assert company[3] == pytest.approx(company[4])


def test_a_question_and_messages_without_a_common_word_meet_by_meaning():
    embed = Letters()
    texts = ("my photography", "her zinc quiz", "our vexed wolf", "his jumpy fjord")
    spoken = [said(seq, text, at=START + seq * 9 * HOUR) for seq, text in enumerate(texts, start=1)]
    archive = archive_of(spoken, embed=embed)
    assert order(archive, "photographs", embed=embed)[0] == 1
    signals = first_reading(archive, read_question("photographs", at=LATER), vector=embed.embed(["photographs"])[0])
    assert signals["match"].max() == 0


def test_what_the_embedder_has_not_seen_counts_as_the_rest_does_on_average():
    embed = Letters()
    one, two, three = (said(seq, text, at=START) for seq, text in enumerate(("lake", "tent", "lakes"), start=1))
    archive = join([read(build([one, two], embed=embed)), read(build([three]))], embedder=embed.name)
    meaning = first_reading(archive, read_question("lake", at=LATER), vector=embed.embed(["lake"])[0])["meaning"]
    assert meaning[2] == pytest.approx(meaning[:2].mean())


def test_only_what_is_allowed_is_ranked_and_no_more_than_the_limit():
    archive = archive_of(chat(*(f"lake {number}" for number in range(20))))
    question = read_question("the lake", at=LATER)
    every = rank(archive, question)
    assert [each.seq for each in every] != sorted(each.seq for each in every)
    allowed = archive.among([(5, 14)], leaving={7})
    kept = rank(archive, question, allowed=allowed)
    assert kept == [each for each in every if 5 <= each.seq <= 14 and each.seq != 7]
    assert rank(archive, question, limit=6) == every[:6]
    assert rank(archive, question, allowed=allowed, limit=3) == kept[:3]
    assert rank(archive, question, limit=0) == []
    assert rank(archive, question, limit=99) == every


def test_equals_stand_in_the_order_of_the_log():
    spoken = [said(seq, "same words", at=START + seq * 9 * HOUR) for seq in range(2, 30)]
    assert order(archive_of(spoken), "nothing of that") == [2, *range(3, 30)]


def test_an_empty_archive_has_nothing_to_rank():
    assert rank(join([]), read_question("What?", at=LATER)) == []


def test_every_signal_has_a_weight_and_every_weight_a_signal():
    embed = Letters()
    archive = archive_of(chat("lake", "tent"), embed=embed)
    first = first_reading(archive, read_question("lake", at=LATER), vector=embed.embed(["lake"])[0])
    assert {*first, *second_reading(archive, first["match"])} == set(WEIGHTS)


@given(histories(), TEXTS, st.lists(st.integers(0, 30), max_size=4))
def test_a_ranking_depends_on_the_messages_alone(spoken: list[Spoken], text: str, cuts: list[int]):
    embed = Letters()
    whole = archive_of(spoken, embed=embed)
    parted = archive_of(spoken, cuts=[min(cut, len(spoken)) for cut in cuts], embed=embed)
    found = ranked(whole, text, embed=embed)
    assert found == ranked(whole, text, embed=embed) == ranked(parted, text, embed=embed)
    assert sorted(each.seq for each in found) == [each.seq for each in spoken]
    assert all(0 <= each.score <= 1 for each in found)
    assert [each.worth for each in found] == sorted((each.worth for each in found), reverse=True)


@given(histories(), st.text())
def test_any_question_ranks_any_history_without_an_embedder(spoken: list[Spoken], text: str):
    found = ranked(archive_of(spoken), text)
    assert len(found) == len(spoken)
    assert np.isfinite([each.worth for each in found]).all()


def test_a_pasted_page_is_a_question_too():
    page = " ".join(f"word{number}" for number in range(20_000))
    archive = among_small_talk(said(1, "word3 and word19999 were there"), said(2, "Tea again"))
    assert order(archive, page)[0] == 1
