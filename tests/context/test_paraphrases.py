"""Selection by meaning alone, with the local embedder: paraphrases select their item, unrelated messages none."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paraphrase_cases import IRRELEVANT, IRRELEVANT_HELD_OUT, SHOP_HELD_OUT, SHOP_TUNING, SMALL_AGENTS
from selection_cases import make_shop_agent

from quire.context.selection import DEFAULT_MIN_SCORE, SelectionSettings, Selector, list_candidates, score_outlier
from quire.llm.embeddings import load_local_embedder
from quire.model.agents import Agent


class ParaphraseCounts(NamedTuple):
    chosen: int
    """Messages whose right item is selected."""
    ranked_first: int
    """Messages whose right item has the highest score; no threshold can select more without wrong ones."""
    wrong: int
    """Wrong items that are selected."""


async def count_paraphrases(agent: Agent, cases: Mapping[str, str]) -> ParaphraseCounts:
    selector, items = Selector(load_local_embedder()), list_candidates(agent)
    chosen = ranked_first = wrong = 0
    for message, name in cases.items():
        selection = await selector.select(message, items)
        selected = [each.item.name for each in selection.selected]
        chosen += name in selected
        ranked_first += selection.scored[0].item.name == name
        wrong += len(selected) - (name in selected)
    return ParaphraseCounts(chosen, ranked_first, wrong)


async def count_selected(agent: Agent, messages: Sequence[str]) -> int:
    selector, items = Selector(load_local_embedder()), list_candidates(agent)
    return sum([len((await selector.select(message, items)).selected) for message in messages])


@pytest.mark.parametrize(
    ("cases", "min_chosen", "max_wrong"),
    [(SHOP_TUNING, 7, 4), (SHOP_HELD_OUT, 4, 5)],
    ids=["tuned", "held-out"],
)
async def test_paraphrases_choose_their_item_among_many(cases: Mapping[str, str], min_chosen: int, max_wrong: int):
    counts = await count_paraphrases(make_shop_agent(), cases)
    assert counts.chosen >= min_chosen
    assert counts.chosen >= 0.6 * counts.ranked_first
    assert counts.wrong <= max_wrong


async def test_paraphrases_choose_their_item_among_few():
    counts = [await count_paraphrases(agent, cases) for agent, cases in SMALL_AGENTS]
    assert sum(each.chosen for each in counts) >= 9
    assert sum(each.wrong for each in counts) == 0


@pytest.mark.parametrize("messages", [IRRELEVANT, IRRELEVANT_HELD_OUT], ids=["tuned", "held-out"])
async def test_unrelated_messages_choose_nothing(messages: Sequence[str]):
    assert await count_selected(make_shop_agent(), messages) <= 0.2 * len(messages)


SIMILARITIES = st.lists(st.integers(0, 20).map(lambda twentieths: twentieths / 20), max_size=30)


@given(SIMILARITIES)
def test_at_most_one_item_is_an_outlier_and_it_is_the_most_similar(similarities: list[float]):
    scores = score_outlier(similarities)
    assert len(scores) == len(similarities)
    assert all(0 <= score <= 1 for score in scores)
    outliers = [index for index, score in enumerate(scores) if score]
    assert outliers in ([], [similarities.index(max(similarities, default=0))] if similarities else [])


@given(SIMILARITIES, st.floats(0, 0.5))
def test_a_constant_that_an_embedder_adds_to_all_similarities_changes_nothing(
    similarities: list[float], constant: float
):
    shifted = score_outlier([each + constant for each in similarities])
    assert shifted == pytest.approx(score_outlier(similarities))


def test_the_more_items_there_are_the_further_an_outlier_must_be():
    def is_outlier(items: int) -> bool:
        return score_outlier([0.16, *[0.0] * (items - 1)])[0] >= DEFAULT_MIN_SCORE

    assert is_outlier(5)
    assert not is_outlier(100)
    assert score_outlier([0.9]) == [0.0]
    assert SelectionSettings().min_score == DEFAULT_MIN_SCORE
