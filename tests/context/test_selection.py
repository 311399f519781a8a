"""Choosing items for a message: measured on a team's shelf, and the flow of three requests over one agent."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from selection_data import HELD_OUT, TUNED, Asked, shelf

from quire.context.overlap import Described, overlap, terms
from quire.context.selection import Candidate, Found, Selection, SelectionSettings, Selector, candidates, choose
from quire.errors import ModelUnavailable
from quire.llm.embeddings import local_embedder
from quire.model import ContextItem
from quire.model.agents import Agent, OfferedTool, Reference, Rule, ToolServer
from quire.model.tools import ToolDefinition
from quire.testing.strategies import texts


class Measured(NamedTuple):
    precision: float
    recall: float


def selector(by: str) -> Selector:
    return Selector(local_embedder() if by == "meaning" else None)


async def measure(asked: Sequence[Asked], by: str, **settings: Any) -> Measured:
    choosing, items = selector(by), candidates(shelf())
    right = wrong = missing = 0
    for each in asked:
        selection = await choosing.select(
            each.message, items, recent=each.recent, settings=SelectionSettings(**settings)
        )
        chosen = {found.item.name for found in selection.chosen}
        right += len(chosen & each.expected)
        wrong += len(chosen - each.allowed)
        missing += len(each.expected - chosen)
    return Measured(right / (right + wrong), right / (right + missing))


@pytest.mark.parametrize(
    ("asked", "by", "precision", "recall"),
    [
        (TUNED, "words", 0.92, 0.95),
        (TUNED, "meaning", 0.98, 0.95),
        (HELD_OUT, "words", 0.80, 0.85),
        (HELD_OUT, "meaning", 0.90, 0.75),
    ],
    ids=["tuned-words", "tuned-meaning", "held-out-words", "held-out-meaning"],
)
async def test_a_message_brings_in_what_bears_on_it(asked: Sequence[Asked], by: str, precision: float, recall: float):
    measured = await measure(asked, by)
    assert measured.precision >= precision
    assert measured.recall >= recall


@pytest.mark.parametrize("by", ["words", "meaning"])
async def test_the_bound_stands_where_neither_more_nor_less_would_do_better(by: str):
    async def both(bound: float) -> float:
        precision, recall = await measure(TUNED, by, min_score=bound)
        return 2 * precision * recall / (precision + recall)

    bound = SelectionSettings().min_score
    here = await both(bound)
    assert here >= await both(bound - 0.15)
    assert here >= await both(bound + 0.15)


FLOW = Agent(
    name="helper",
    rules=(
        Rule(name="Rule A", text="Answer in English.", include="always"),
        Rule(name="Rule B", text="Show code in Python.", include="manual"),
        Rule(
            name="Rule C",
            description="Authentication: how clients log in and which tokens they send",
            text="Clients authenticate with a bearer token. Never put a token into a URL.",
            include="agent",
        ),
    ),
    references=(
        Reference(name="Reference X", text="The service has three parts.", include="always"),
        Reference(
            name="Reference Y",
            description="Error handling: status codes, retries, and what a client is shown",
            text="Every error has a code. Handle 429 by waiting; handle 5xx by trying again with a growing pause.",
            include="agent",
        ),
    ),
)


@pytest.mark.parametrize("by", ["words", "meaning"])
async def test_each_message_of_the_flow_brings_in_its_own_item(by: str):
    choosing, items = selector(by), candidates(FLOW)
    assert [each.item.name for each in items] == ["Rule C", "Reference Y"]
    first, second = "How do I authenticate?", "What's the error handling?"
    one = await choosing.select(first, items)
    two = await choosing.select(second, items, recent=[first])
    assert [found.item.name for found in one.chosen] == ["Rule C"]
    assert [found.item.name for found in two.chosen] == ["Reference Y"]
    assert one.by == two.by == by
    for selection in (one, two):
        assert selection.found[0].score > SelectionSettings().min_score + 0.1
        assert selection.found[1].score < SelectionSettings().min_score - 0.1
        assert selection.found[1].left_out == "below_score"


def test_candidates_are_in_mode_agent_switched_on_and_not_in_the_session():
    def tool(name: str, **more: Any) -> OfferedTool:
        return OfferedTool(definition=ToolDefinition(name=name, parameters={}, server="s"), **more)

    agent = Agent(
        name="a",
        rules=(
            Rule(name="there", text="", include="agent"),
            Rule(name="off", text="", include="agent", enabled=False),
            Rule(name="on", text="", include="agent"),
            Rule(name="always", text="", include="always"),
        ),
        servers=(ToolServer(name="s", command="c", include="agent"),),
        tools=(tool("own", include="manual"), tool("inherits"), tool("off", enabled=False)),
    )
    found = candidates(agent, present=[ContextItem(type="rule", name="there")])
    assert [each.item.name for each in found] == ["on", "inherits"]


ITEMS = st.builds(
    ContextItem,
    type=st.sampled_from(["rule", "reference", "tool"]),
    name=st.sampled_from("abcdefgh"),
    server=st.sampled_from([None, "s"]),
)
SCORES = st.dictionaries(ITEMS, st.sampled_from([0.0, 0.2, 0.35, 0.5, 0.9]), max_size=20)
SETTINGS = st.builds(
    SelectionSettings, top_k=st.integers(0, 6), top_n=st.integers(0, 4), min_score=st.sampled_from([0.0, 0.35, 1.0])
)


@given(SCORES, SETTINGS, st.randoms())
def test_every_candidate_has_a_verdict_within_the_bounds(
    scores: dict[ContextItem, float], settings: SelectionSettings, random: Any
):
    found = choose(scores, settings)
    assert {each.item: each.score for each in found} == scores
    shuffled = list(scores.items())
    random.shuffle(shuffled)
    assert choose(dict(shuffled), settings) == found
    assert [each.score for each in found] == sorted(scores.values(), reverse=True)
    chosen = Selection(found).chosen
    assert len(chosen) <= settings.top_k
    for kind in ("rule", "reference", "tool"):
        assert sum(each.item.type == kind for each in chosen) <= settings.top_n
    assert all(each.score >= settings.min_score for each in chosen)
    for each in found:
        assert (each.left_out == "below_score") == (each.score < settings.min_score)
        if each.left_out == "over_budget":
            better = [other for other in chosen if other.score >= each.score]
            same_type = sum(other.item.type == each.item.type for other in better)
            assert len(better) >= settings.top_k or same_type >= settings.top_n


def test_ties_go_by_name():
    scores = {ContextItem(type="rule", name=name): 0.5 for name in ("b", "c", "a")}
    assert [each.item.name for each in choose(scores, SelectionSettings(top_n=2))] == ["a", "b", "c"]


@given(texts(), st.lists(st.tuples(texts(), texts(), texts()), max_size=4), st.lists(texts(), max_size=2))
def test_scores_are_from_0_to_1_and_the_same_in_any_order(
    message: str, described: list[tuple[str, str, str]], recent: list[str]
):
    items = [Described(*each) for each in described]
    scores = overlap(message, items, recent=recent)
    assert all(0 <= score <= 1 for score in scores)
    assert overlap(message, items[::-1], recent=recent) == scores[::-1]


async def test_the_same_question_has_the_same_scores_from_a_new_selector():
    first, second = [
        await Selector(local_embedder()).select("Which dashboard shows latency?", candidates(shelf())) for _ in range(2)
    ]
    assert first == second
    assert all(found.score == round(found.score, 4) for found in first.found)


async def test_a_long_message_is_not_lost_in_its_own_words():
    padding = "Yesterday the ferry crossed slowly while gulls circled above quiet harbours near bright villages. " * 2
    chosen = (await Selector().select(f"{padding} Alembic migration schema backfill.", candidates(shelf()))).chosen
    assert [found.item.name for found in chosen][:1] == ["sql-migrations"]


async def test_a_message_that_only_goes_on_is_read_with_the_turn_before():
    items = candidates(shelf())
    alone = await Selector().select("Go on", items)
    after = await Selector().select("Go on", items, recent=["How do we invalidate Redis keys?"])
    assert not alone.chosen
    assert [found.item.name for found in after.chosen] == ["caching"]
    changed = await Selector().select("Who gets a refund?", items, recent=["How do we invalidate Redis keys?"])
    assert "caching" not in {found.item.name for found in changed.chosen}


def test_the_turn_before_counts_for_more_than_those_before_it():
    items = [Described("ferry", ""), Described("glacier", "")]
    later, earlier = overlap("And then?", items, recent=["The ferry", "The glacier"])
    assert later > earlier > 0
    assert overlap("And then?", items, recent=["The glacier", "The ferry"]) == [earlier, later]


def test_no_score_exceeds_1_however_much_is_found():
    words = "ferry glacier harbour island jungle kettle lantern meadow needle orchard"
    assert overlap(words, [Described(words, ""), Described("other", "")]) == [1.0, 0.0]


class Noting:
    """An embedder of two numbers that notes what it is asked for."""

    name, dimensions = "noting", 2

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.down = False

    async def embed_async(self, texts: Sequence[str]) -> "np.ndarray":
        return self.embed(texts)

    def embed(self, texts: Sequence[str]) -> "np.ndarray":
        if self.down:
            raise ModelUnavailable
        self.asked.append(list(texts))
        return np.array([[1.0, 0.0] if "sea" in text else [0.0, 1.0] for text in texts], dtype=np.float32)


def about(name: str, text: str) -> Candidate:
    return Candidate(ContextItem(type="rule", name=name), Described(name, text))


async def test_vectors_of_items_are_kept_by_their_text():
    embedder = Noting()
    choosing = Selector(embedder)
    await choosing.select("the sea", [about("a", "sea"), about("b", "land"), about("b2", "land")])
    await choosing.select("a boat", [about("a", "sea"), about("b", "sky")])
    assert embedder.asked == [["a: sea", "b: land", "b2: land"], ["the sea"], ["b: sky"], ["a boat"]]


async def test_words_decide_where_the_endpoint_is_out_of_reach():
    embedder = Noting()
    choosing = Selector(embedder)
    items = [about("harbour", "boats"), about("shore", "the sea")]
    by_meaning = await choosing.select("waves at sea", items)
    assert by_meaning.by == "meaning"
    embedder.down = True
    by_words = await choosing.select("waves at sea", items)
    assert by_words == await Selector().select("waves at sea", items)
    assert by_words.by == "words"


async def test_meaning_counts_besides_words():
    found = (await Selector(Noting()).select("the sea", [about("a", "seaside"), about("b", "land")])).found
    assert [(each.item.name, each.score) for each in found] == [("a", 0.5), ("b", 0.0)]


async def test_nothing_to_choose_from_asks_nothing():
    embedder = Noting()
    assert (await Selector(embedder).select("anything", [])).found == ()
    assert embedder.asked == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("How do I authenticate?", "authentication"),
        ("queries", "query"),
        ("readFile", "read_file"),
        ("Translating", "translation"),
        ("running", "run"),
        ("deployments deployed", "deploy deploying"),
        ("検索の設計", "検索の設計"),
        ("the of and", ""),
        ("Größe GRÖSSE", "größe grösse"),
        ("v2 502", "v2 502"),
    ],
)
def test_words_that_mean_the_same_are_the_same(text: str, expected: str):
    assert terms(text) == terms(expected)


def test_ideographs_are_found_by_pairs():
    found = overlap("検索", [Described("検索の設計", ""), Described("支払い", "")])
    assert found == [1.0, 0.0]


async def test_choosing_among_a_thousand_items_is_quick():
    items = [about(f"item {number}", f"about topic {number} and the sea") for number in range(1_000)]
    choosing = Selector(local_embedder())
    await choosing.select("topic 7", items)
    began = asyncio.get_running_loop().time()
    found = (await choosing.select("tell me of topic 7", items)).found
    assert asyncio.get_running_loop().time() - began < 0.5
    assert found[0].item.name == "item 7"
    assert isinstance(found[0], Found)
