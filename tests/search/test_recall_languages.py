"""Recall finds the turn that answers a question in every language, about as well as in English."""

import statistics

import pytest

from infra.dialogues import LANGUAGE_CODES, Dialogue, load_dialogues
from quire.llm.embeddings import load_local_embedder
from quire.search.index import RecallIndex, merge_segments
from quire.search.query import parse_query
from quire.search.ranker import rank_messages
from quire.search.segments import IndexedMessage, build_segment

TOP_MESSAGES = 15
MIN_SHARE = 0.85
FILLERS_PER_DAY = 5


@pytest.mark.parametrize("language", LANGUAGE_CODES)
@pytest.mark.parametrize("embeds", [False, True], ids=["words", "vectors"])
def test_the_turns_that_answer_are_among_the_first(language: str, embeds: bool):
    shares = [share for dialogue in load_dialogues(language) for share in _measure(dialogue, embeds=embeds)]
    assert len(shares) >= 40
    assert statistics.mean(shares) >= MIN_SHARE


@pytest.mark.parametrize("language", LANGUAGE_CODES)
def test_the_dialogues_are_parallel(language: str):
    for dialogue, english in zip(load_dialogues(language), load_dialogues("en"), strict=True):
        assert [(turn.day, turn.speaker, turn.label) for turn in dialogue.labelled] == [
            (turn.day, turn.speaker, turn.label) for turn in english.labelled
        ]
        assert [question[:2] for question in dialogue.questions] == [question[:2] for question in english.questions]
        assert {name: len(words) for name, words in dialogue.fillers.items()} == {
            name: len(words) for name, words in english.fillers.items()
        }
        assert len(dialogue.templates) == len(english.templates)


def _measure(dialogue: Dialogue, *, embeds: bool) -> list[float]:
    """Of each question, the share of its turns among the first results."""
    embedder = load_local_embedder() if embeds else None
    turns = list(dialogue.generate_turns(fillers_per_day=FILLERS_PER_DAY))
    numbers = {turn.label: number for number, turn in enumerate(turns, start=1) if turn.label is not None}
    named = dialogue.name == "chat"
    messages = [
        IndexedMessage(
            number,
            ("user", "assistant")[turn.speaker],
            dialogue.speakers[turn.speaker] if named else None,
            int(turn.at.timestamp()) * 1_000_000,
            turn.text,
            20,
        )
        for number, turn in enumerate(turns, start=1)
    ]
    index: RecallIndex = merge_segments(
        [build_segment(messages, embedder=embedder)], embedder=embedder.name if embedder is not None else None
    )
    shares: list[float] = []
    for question in dialogue.questions:
        query = parse_query(
            question.text, at=int(dialogue.asked_at.timestamp()) * 1_000_000, speakers=index.speaker_names
        )
        vector = embedder.embed([query.topic])[0] if embedder is not None and query.topic else None
        found = {each.seq for each in rank_messages(index, query, vector=vector, limit=TOP_MESSAGES)}
        shares.append(statistics.mean(numbers[label] in found for label in question.labels))
    return shares
