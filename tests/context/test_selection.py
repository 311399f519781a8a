"""Item selection for a message: precision and recall on a team's items, and three requests to one agent."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from selection_cases import HELD_OUT_CASES, TUNING_CASES, SelectionCase, make_shop_agent

from infra.strategies import texts
from quire.context.selection import (
    ItemCandidate,
    ItemSelection,
    ScoredItem,
    SearchableText,
    SelectionSettings,
    Selector,
    extract_keywords,
    list_candidates,
    score_keywords,
    select_items,
)
from quire.errors import ModelUnavailable
from quire.llm.embeddings import load_local_embedder
from quire.model import ContextItem
from quire.model.agents import Agent, AgentTool, Reference, Rule, ToolServer
from quire.model.messages import ToolDefinition


class Measurement(NamedTuple):
    precision: float
    recall: float


def make_selector(method: str) -> Selector:
    return Selector(load_local_embedder() if method == "embedding" else None)


async def measure(cases: Sequence[SelectionCase], method: str, **settings: Any) -> Measurement:
    selector, items = make_selector(method), list_candidates(make_shop_agent())
    right = wrong = missing = 0
    for each in cases:
        selection = await selector.select(
            each.message, items, recent=each.recent, settings=SelectionSettings(**settings)
        )
        chosen = {scored.item.name for scored in selection.selected}
        right += len(chosen & each.expected)
        wrong += len(chosen - each.allowed)
        missing += len(each.expected - chosen)
    return Measurement(right / (right + wrong), right / (right + missing))


@pytest.mark.parametrize(
    ("cases", "method", "precision", "recall"),
    [
        (TUNING_CASES, "keyword", 0.92, 0.95),
        (TUNING_CASES, "embedding", 0.97, 0.95),
        (HELD_OUT_CASES, "keyword", 0.80, 0.85),
        (HELD_OUT_CASES, "embedding", 0.90, 0.75),
    ],
    ids=["tuned-words", "tuned-meaning", "held-out-words", "held-out-meaning"],
)
async def test_a_message_brings_in_what_bears_on_it(
    cases: Sequence[SelectionCase], method: str, precision: float, recall: float
):
    measured = await measure(cases, method)
    assert measured.precision >= precision
    assert measured.recall >= recall


@pytest.mark.parametrize("method", ["keyword", "embedding"])
async def test_the_minimum_score_is_where_neither_more_nor_less_would_do_better(method: str):
    async def both(bound: float) -> float:
        precision, recall = await measure(TUNING_CASES, method, min_score=bound)
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


@pytest.mark.parametrize("method", ["keyword", "embedding"])
async def test_each_message_of_the_flow_brings_in_its_own_item(method: str):
    selector, items = make_selector(method), list_candidates(FLOW)
    assert [each.item.name for each in items] == ["Rule C", "Reference Y"]
    first, second = "How do I authenticate?", "What's the error handling?"
    one = await selector.select(first, items)
    two = await selector.select(second, items, recent=[first])
    assert [scored.item.name for scored in one.selected] == ["Rule C"]
    assert [scored.item.name for scored in two.selected] == ["Reference Y"]
    assert one.method == two.method == method
    for selection in (one, two):
        assert selection.scored[0].score > SelectionSettings().min_score + 0.1
        assert selection.scored[1].score < SelectionSettings().min_score - 0.1
        assert selection.scored[1].exclusion_reason == "below_score"


def test_candidates_are_in_mode_agent_switched_on_and_not_in_the_session():
    def tool(name: str, **more: Any) -> AgentTool:
        return AgentTool(definition=ToolDefinition(name=name, parameters={}, server="s"), **more)

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
    scored = list_candidates(agent, session_items=[ContextItem(type="rule", name="there")])
    assert [each.item.name for each in scored] == ["on", "inherits"]


ITEMS = st.builds(
    ContextItem,
    type=st.sampled_from(["rule", "reference", "tool"]),
    name=st.sampled_from("abcdefgh"),
    server=st.sampled_from([None, "s"]),
)
SCORES = st.dictionaries(ITEMS, st.sampled_from([0.0, 0.2, 0.35, 0.5, 0.9]), max_size=20)
SETTINGS = st.builds(
    SelectionSettings,
    top_k=st.integers(0, 6),
    top_k_per_type=st.integers(0, 4),
    min_score=st.sampled_from([0.0, 0.35, 1.0]),
)


@given(SCORES, SETTINGS, st.randoms())
def test_every_candidate_has_a_verdict_within_the_bounds(
    scores: dict[ContextItem, float], settings: SelectionSettings, random: Any
):
    scored = select_items(scores, settings)
    assert {each.item: each.score for each in scored} == scores
    shuffled = list(scores.items())
    random.shuffle(shuffled)
    assert select_items(dict(shuffled), settings) == scored
    assert [each.score for each in scored] == sorted(scores.values(), reverse=True)
    chosen = ItemSelection(scored).selected
    assert len(chosen) <= settings.top_k
    for kind in ("rule", "reference", "tool"):
        assert sum(each.item.type == kind for each in chosen) <= settings.top_k_per_type
    assert all(each.score >= settings.min_score for each in chosen)
    for each in scored:
        assert (each.exclusion_reason == "below_score") == (each.score < settings.min_score)
        assert each.min_score == (settings.min_score if each.score < settings.min_score else None)
        if each.exclusion_reason == "over_budget":
            better = [other for other in chosen if other.score >= each.score]
            same_type = sum(other.item.type == each.item.type for other in better)
            assert len(better) >= settings.top_k or same_type >= settings.top_k_per_type


def test_ties_go_by_name():
    scores = {ContextItem(type="rule", name=name): 0.5 for name in ("b", "c", "a")}
    assert [each.item.name for each in select_items(scores, SelectionSettings(top_k_per_type=2))] == ["a", "b", "c"]


@given(texts(), st.lists(st.tuples(texts(), texts(), texts()), max_size=4), st.lists(texts(), max_size=2))
def test_scores_are_from_0_to_1_and_the_same_in_any_order(
    message: str, described: list[tuple[str, str, str]], recent: list[str]
):
    items = [SearchableText(*each) for each in described]
    scores = score_keywords(message, items, recent=recent)
    assert all(0 <= score <= 1 for score in scores)
    assert score_keywords(message, items[::-1], recent=recent) == scores[::-1]


async def test_the_same_question_has_the_same_scores_from_a_new_selector():
    first, second = [
        await Selector(load_local_embedder()).select(
            "Which dashboard shows latency?", list_candidates(make_shop_agent())
        )
        for _ in range(2)
    ]
    assert first == second
    assert all(scored.score == round(scored.score, 4) for scored in first.scored)


async def test_a_long_message_is_not_lost_in_its_own_words():
    padding = "Yesterday the ferry crossed slowly while gulls circled above quiet harbours near bright villages. " * 2
    chosen = (
        await Selector().select(f"{padding} Alembic migration schema backfill.", list_candidates(make_shop_agent()))
    ).selected
    assert [scored.item.name for scored in chosen][:1] == ["sql-migrations"]


async def test_a_message_that_only_continues_is_read_with_the_turn_before():
    items = list_candidates(make_shop_agent())
    alone = await Selector().select("Go on", items)
    after = await Selector().select("Go on", items, recent=["How do we invalidate Redis keys?"])
    assert not alone.selected
    assert [scored.item.name for scored in after.selected] == ["caching"]
    changed = await Selector().select("Who gets a refund?", items, recent=["How do we invalidate Redis keys?"])
    assert "caching" not in {scored.item.name for scored in changed.selected}


def test_the_turn_before_counts_for_more_than_those_before_it():
    items = [SearchableText("ferry", ""), SearchableText("glacier", "")]
    later, earlier = score_keywords("And then?", items, recent=["The ferry", "The glacier"])
    assert later > earlier > 0
    assert score_keywords("And then?", items, recent=["The glacier", "The ferry"]) == [earlier, later]


def test_no_score_exceeds_1_however_much_is_found():
    words = "ferry glacier harbour island jungle kettle lantern meadow needle orchard"
    assert score_keywords(words, [SearchableText(words, ""), SearchableText("other", "")]) == [1.0, 0.0]


class RecordingEmbedder:
    """Embedder with two dimensions that records the texts of each call."""

    name, dimensions = "recording", 2

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.down = False

    async def embed_async(self, texts: Sequence[str]) -> "np.ndarray":
        return self.embed(texts)

    def embed(self, texts: Sequence[str]) -> "np.ndarray":
        if self.down:
            raise ModelUnavailable
        self.requests.append(list(texts))
        return np.array([[1.0, 0.0] if "sea" in text else [0.0, 1.0] for text in texts], dtype=np.float32)


def make_candidate(name: str, text: str) -> ItemCandidate:
    return ItemCandidate(ContextItem(type="rule", name=name), SearchableText(name, text))


async def test_vectors_of_items_are_cached_by_their_text():
    embedder = RecordingEmbedder()
    selector = Selector(embedder)
    await selector.select(
        "the sea", [make_candidate("a", "sea"), make_candidate("b", "land"), make_candidate("b2", "land")]
    )
    await selector.select("a boat", [make_candidate("a", "sea"), make_candidate("b", "sky")])
    assert embedder.requests == [["a: sea", "b: land", "b2: land"], ["the sea"], ["b: sky"], ["a boat"]]


async def test_words_decide_where_the_endpoint_is_out_of_reach():
    embedder = RecordingEmbedder()
    selector = Selector(embedder)
    items = [make_candidate("harbour", "boats"), make_candidate("shore", "the sea")]
    by_meaning = await selector.select("waves at sea", items)
    assert by_meaning.method == "embedding"
    embedder.down = True
    by_words = await selector.select("waves at sea", items)
    assert by_words == await Selector().select("waves at sea", items)
    assert by_words.method == "keyword"


async def test_embeddings_count_in_addition_to_keywords():
    items = [make_candidate("a", "seaside"), make_candidate("b", "land"), make_candidate("c", "seashore")]
    scored = (await Selector(RecordingEmbedder()).select("the sea", items)).scored
    assert [(each.item.name, each.score) for each in scored] == [("a", 0.5), ("c", 0.5), ("b", 0.0)]


async def test_nothing_to_choose_from_asks_nothing():
    embedder = RecordingEmbedder()
    assert (await Selector(embedder).select("anything", [])).scored == ()
    assert embedder.requests == []


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
    assert extract_keywords(text) == extract_keywords(expected)


def test_ideographs_are_found_by_pairs():
    scored = score_keywords("検索", [SearchableText("検索の設計", ""), SearchableText("支払い", "")])
    assert scored == [1.0, 0.0]


async def test_choosing_among_a_thousand_items_is_quick():
    items = [make_candidate(f"item {number}", f"about topic {number} and the sea") for number in range(1_000)]
    selector = Selector(load_local_embedder())
    await selector.select("topic 7", items)
    began = asyncio.get_running_loop().time()
    scored = (await selector.select("tell me of topic 7", items)).scored
    assert asyncio.get_running_loop().time() - began < 0.5
    assert scored[0].item.name == "item 7"
    assert isinstance(scored[0], ScoredItem)
