"""A summarizer's own window and output limit hold for every pair of models in the table of genai-prices.

The strict provider below knows the published limits by its own table. It counts with the model's vocabulary, or where
no vocabulary is public with a tokenizer that needs half as many tokens again as o200k.
"""

import random
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from math import ceil
from typing import NamedTuple

import pytest
from compaction_builders import make_chat
from genai_prices.data_snapshot import get_snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.sizes import IS_FULL_SIZE
from quire.compaction.execution import max_summary_tokens
from quire.compaction.model_summary import MAX_SUMMARY_CALLS, SummaryCalls, summarize
from quire.compaction.summarizer import Summarizer
from quire.engine.config import EngineConfig
from quire.errors import SummaryFailed
from quire.llm import ModelChunk, Prompt, Reply
from quire.model import Entry, Message, Usage
from quire.settings import Settings
from quire.view.model_specs import output_limit_for, thinking_tokens_for
from quire.wire.tokens import TokenCounter, counter_for, estimating_counter

UNKNOWN_TOKENIZER_FACTOR = 1.5
MESSAGE_OVERHEAD_TOKENS = 12
"""Tokens that a provider adds for the system text, one message and the start of the reply."""
MAX_HISTORY_TOKENS = 40_000
PUBLISHED_OUTPUT_LIMITS = {
    "gpt-3.5-turbo": 4_096,
    "gpt-4": 8_192,
    "gpt-4-turbo": 4_096,
    "gpt-4o": 16_384,
    "gpt-4o-2024-05-13": 4_096,
    "gpt-4o-mini": 16_384,
    "gpt-4.1": 32_768,
    "gpt-4.1-mini": 32_768,
    "o1": 100_000,
    "o1-mini": 65_536,
    "o1-preview": 32_768,
    "o3": 100_000,
    "o4-mini": 100_000,
    "gpt-5": 128_000,
    "claude-3-haiku": 4_096,
    "claude-3-opus": 4_096,
    "claude-3-5-haiku": 8_192,
    "claude-3-5-sonnet": 8_192,
    "claude-opus-4-1": 32_000,
    "claude-opus-4-0": 32_000,
    "claude-sonnet-4-5": 64_000,
    "gemini-1.5-pro": 8_192,
    "gemini-2.0-flash": 8_192,
    "gemini-2.5-pro": 65_536,
    "gemini-2.5-flash": 65_536,
    "deepseek-chat": 8_192,
}


class TableModel(NamedTuple):
    name: str
    window: int


@cache
def list_table() -> list[TableModel]:
    """Models whose window the table lists under a name that finds it."""
    listed = [
        TableModel(f"{provider.id}:{model.id}", model.context_window)
        for provider in get_snapshot().providers
        for model in provider.models
        if model.context_window is not None
    ]
    return [each for each in listed if find_window(each.name) == each.window]


def find_window(name: str) -> int:
    return EngineConfig.create(Settings(model=name)).policy.window


@dataclass
class StrictProvider:
    """Refuses what exceeds its window or output limit, and writes the longest summary that is accepted."""

    name: str
    window: int
    output_limit: int
    reader_counter: TokenCounter
    calls: int = 0
    largest_share: float = 0.0
    largest_answer: int = 0
    refusals: list[str] = field(default_factory=list[str])

    async def complete(self, prompt: Prompt) -> Reply:
        self.calls += 1
        tokens = MESSAGE_OVERHEAD_TOKENS + sum(
            map(self._count, [prompt.system or "", *(message.text for message in prompt.messages)])
        )
        answer = prompt.max_tokens or self.output_limit + 1
        self.largest_answer = max(self.largest_answer, answer)
        self.largest_share = max(self.largest_share, (tokens + answer) / self.window)
        if answer > self.output_limit:
            self.refusals.append(f"max_tokens {answer} > {self.output_limit}")
        if tokens + answer > self.window:
            self.refusals.append(f"{tokens} + {answer} > {self.window}")
        requested = re.search(r"Stay under (\d+) tokens", prompt.system or "")
        assert requested is not None
        return Reply(Message.assistant(make_summary(int(requested[1]), self.reader_counter)), Usage(), "stop")

    async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelChunk, None]:
        yield await self.complete(prompt)

    def _count(self, text: str) -> int:
        counter = counter_for(self.name)
        if counter.exact:
            return counter.count(text)
        return ceil(estimating_counter().count(text) * UNKNOWN_TOKENIZER_FACTOR)


@cache
def make_facts() -> str:
    chance = random.Random(5)
    facts = (
        f"Item {number} costs {chance.randrange(10_000)} in {chance.choice('ABCXYZ')} [#1]." for number in range(9_000)
    )
    return " ".join(facts)


@cache
def count_chars_per_token(vocabulary: str) -> float:
    """Measured once for each vocabulary; `estimate` counts with o200k."""
    counter = estimating_counter() if vocabulary == "estimate" else counter_for("", tokenizer=vocabulary)
    return 20_000 / counter.count(make_facts()[:20_000])


def make_summary(tokens: int, counter: TokenCounter) -> str:
    """A text of 1.15 times as many tokens, just below the tolerance."""
    text = make_facts()[: int(tokens * 1.15 * count_chars_per_token(counter.name))]
    return text[: text.rfind(".") + 1] or "Item 1."


def make_history(tokens: int, seed: int) -> list[Entry]:
    """Messages of 5 to 5,000 characters of many scripts."""
    chance, texts = random.Random(seed), list[str]()
    alphabets = (
        "the road was dry and the weather held until noon ",
        "def f(x): return {x: [1, 2.5]}\n",
        "日本語の文章です。",
        "Größe über alles ñandú ",
    )
    while tokens > 0:
        alphabet = chance.choice(alphabets)
        text = (alphabet * 400)[: chance.choice((5, 80, 600, 5_000))]
        texts.append(f"{chance.randrange(10**6)} {text}")
        tokens -= estimating_counter().count(text)
    return make_chat(*texts)


def find_output_limit(name: str) -> int:
    return PUBLISHED_OUTPUT_LIMITS.get(re.split(r"[:/]", name)[-1], output_limit_for(name))


def open_pair(chat: str, summarizer: TableModel) -> tuple[EngineConfig, Summarizer, StrictProvider]:
    """The engine of the chat model with this summarizer: its limits come from the engine's own look-up."""
    provider = StrictProvider(summarizer.name, summarizer.window, find_output_limit(summarizer.name), counter_for(chat))
    config = EngineConfig.create(Settings(model=chat), summarizer=provider)
    assert config.summarizer is not None
    return config, config.summarizer, provider


async def run_pair(chat: str, summarizer: TableModel, entries: list[Entry], previous: str | None) -> StrictProvider:
    config, limits, provider = open_pair(chat, summarizer)
    try:
        await summarize(
            limits,
            entries,
            previous=previous,
            instructions=None,
            target_tokens=max_summary_tokens(config.policy.target_tokens),
            counter=counter_for(chat),
        )
    except SummaryFailed as failure:
        if failure.reason != "overflow" or provider.calls:
            raise
    assert provider.refusals == []
    return provider


def list_chat_models() -> list[str]:
    """One model for each window and vocabulary of the table: no other property of the reader counts."""
    return list({(each.window, counter_for(each.name).name): each.name for each in list_table()}.values())


def list_summarizers() -> list[TableModel]:
    """One model for each window, vocabulary, output limit and reserve for thinking."""
    distinct = {
        (each.window, counter_for(each.name).name, find_output_limit(each.name), thinking_tokens_for(each.name)): each
        for each in list_table()
    }
    return list(distinct.values())


@pytest.mark.parametrize(("model", "limit"), PUBLISHED_OUTPUT_LIMITS.items())
def test_no_published_output_limit_is_exceeded(model: str, limit: int) -> None:
    assert limit / 2 < output_limit_for(model) <= limit
    assert output_limit_for(f"openrouter:vendor/{model}") == output_limit_for(model)


@pytest.mark.parametrize(
    ("chat", "summarizer", "max_tokens"),
    [
        ("gpt-4o", "gpt-4o-mini", 16_384),
        ("gpt-4.1", "gpt-4.1-mini", 32_768),
        ("claude-sonnet-4-5", "claude-3-5-haiku-latest", 8_192),
    ],
)
async def test_the_output_limit_of_the_summarizer_bounds_the_answer(
    chat: str, summarizer: str, max_tokens: int
) -> None:
    provider = await run_pair(chat, TableModel(summarizer, find_window(summarizer)), make_history(3_000, 1), None)
    assert provider.calls == 1
    assert max_tokens / 2 < provider.largest_answer <= max_tokens


async def test_a_summarizer_with_a_small_window_serves_a_model_with_a_large_one() -> None:
    provider = await run_pair("gpt-4o", TableModel("gpt-4", 8_191), make_history(100_000, 2), None)
    assert 10 < provider.calls <= MAX_SUMMARY_CALLS
    assert provider.largest_share > 0.8, "the window is used"


def test_the_limits_of_all_pairs_hold() -> None:
    """Arithmetic over the pairs: the longest prompt and its answer fit, and the running summary leaves half of it.

    At full size over every pair, otherwise over every tenth reader.
    """
    readers = [
        (chat, max_summary_tokens(EngineConfig.create(Settings(model=chat)).policy.target_tokens))
        for chat in list_chat_models()[:: 1 if IS_FULL_SIZE else 10]
    ]
    checked = 0
    for summarizer in list_summarizers():
        _, limits, provider = open_pair("gpt-4o", summarizer)
        factor = 1.0 if limits.token_counter.exact else UNKNOWN_TOKENIZER_FACTOR
        for chat, target in readers:
            try:
                calls = SummaryCalls.create(
                    limits, target_tokens=target, instructions=None, reader_counter=counter_for(chat)
                )
            except SummaryFailed:
                assert summarizer.window <= 1_024
                continue
            assert calls.answer_tokens <= provider.output_limit
            assert calls.max_prompt_tokens * factor + calls.answer_tokens <= summarizer.window
            assert calls.max_running_tokens <= calls.free_prompt_tokens / 2
            checked += 1
    assert len(list_table()) > 1_200
    assert checked > (20_000 if IS_FULL_SIZE else 2_000)


@pytest.mark.slow
async def test_no_summary_request_of_any_pair_is_refused() -> None:
    """One call for each pair, with a history that fits; the property below goes past the windows.

    At full size for every pair, which takes minutes; otherwise for every two hundredth.
    """
    entries, calls = make_history(1_500, 3), 0
    pairs = list(product(list_summarizers(), list_chat_models()))[:: 1 if IS_FULL_SIZE else 199]
    for summarizer, chat in pairs:
        calls += (await run_pair(chat, summarizer, entries, "Set up on a Monday [#1].")).calls
    assert calls >= len(pairs) > 100


@settings(max_examples=60 if IS_FULL_SIZE else 12, deadline=None)
@given(st.data())
async def test_no_summary_request_is_refused_whatever_the_history(data: st.DataObject) -> None:
    summarizer = data.draw(st.sampled_from(sorted(list_summarizers(), key=lambda each: each.window)))
    chat = data.draw(st.sampled_from(sorted(list_chat_models())))
    share = data.draw(st.sampled_from((0.2, 0.8, 1.2, 4.0)))
    tokens = min(MAX_HISTORY_TOKENS, int(summarizer.window * share))
    previous = data.draw(st.sampled_from((0, 50, 1_000, 10_000)))
    await run_pair(
        chat, summarizer, make_history(tokens, data.draw(st.integers(0, 99))), make_summary(previous, counter_for(chat))
    )


@settings(max_examples=200 if IS_FULL_SIZE else 50, deadline=None)
@given(st.integers(1, 3_000), st.integers(1, 5_000), st.integers(0, 9_000), st.sampled_from((0, 500, 8_192)))
async def test_tiny_windows_and_output_limits_are_never_exceeded(
    window: int, limit: int, tokens: int, thinking: int
) -> None:
    provider = StrictProvider("gpt-4o", window, limit, counter_for("gpt-4o"))
    summarizer = Summarizer(model=provider, window=window, output_limit=limit, thinking_tokens=thinking)
    entries = make_history(tokens, tokens)
    try:
        await summarize(
            summarizer, entries, previous=None, instructions=None, target_tokens=500, counter=counter_for("gpt-4o")
        )
    except SummaryFailed as failure:
        if failure.reason not in ("overflow", "empty"):
            raise
    assert provider.refusals == []
    if window > 1_100 and limit > 200 and 0 < tokens < 20 * window:
        assert provider.calls > 0
