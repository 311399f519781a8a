"""Work and memory that outside text can cause stay in proportion: names, questions, upstream errors, documents."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from quire.compaction import line_scorer
from quire.compaction.document_summaries import extract_first_paragraph, extract_leading_sentences
from quire.compaction.line_scorer import LineScorer
from quire.context.selection import extract_keywords
from quire.engine.runtime import MAX_CALIBRATIONS, EngineRuntime
from quire.errors import ModelContextOverflow, ModelError, ModelRateLimited
from quire.llm.error_mapping import MAX_BODY_DEPTH, MAX_CLASSIFIED_CHARS, classify_error
from quire.model import Message
from quire.model.policy import MAX_MODEL_NAME_CHARS
from quire.search.dates import MAX_EDGE_CHARS, find_time_ranges
from quire.search.query import parse_query
from quire.view import rendered
from quire.view.budget import Calibration
from quire.view.excerpts import find_largest_limit
from quire.view.model_specs import MAX_PROVIDER_PREFIXES, UNKNOWN_MODEL, model_spec_for
from quire.view.rendered import MessageCounter
from quire.wire import wire_format_for
from quire.wire.tokens import counter_for, vocabulary_for

NOW = 1_700_000_000_000_000
CHARS = 30_000


def measure_seconds(work: Callable[[str], object], text: str) -> float:
    started = time.thread_time()
    work(text)
    return time.thread_time() - started


WORK: dict[str, tuple[Callable[[str], object], str]] = {
    "vocabulary of a model": (vocabulary_for, "a."),
    "spec of a model": (model_spec_for, "a:"),
    "dates of a question": (lambda text: find_time_ranges(text, at=NOW), "may "),
    "question": (lambda text: parse_query(text, at=NOW, speakers=["Ada"]), "what is the "),
    "upstream error": (lambda text: classify_error(400, text), "violating a "),
    "upstream error with counts": (
        lambda text: classify_error(400, text),
        "context length is 1 tokens (1 in the messages ",
    ),
    "first paragraph": (extract_first_paragraph, "# a\n"),
    "leading sentences": (lambda text: extract_leading_sentences(text, 300), "# a\n"),
    "line of a message": (lambda text: list(LineScorer(None).score_message(1, Message.user(f"a{text}b, c"))), "\t"),
}


@pytest.mark.parametrize("name", WORK)
def test_four_times_the_text_takes_about_four_times_the_time(name: str):
    work, piece = WORK[name]
    texts = [piece * (count // len(piece)) for count in (CHARS, 4 * CHARS)]
    work("warm up")
    # A millisecond more than measured, because work on a cut text takes next to none.
    short, long = (min(measure_seconds(work, text + str(run)) for run in range(3)) + 0.001 for text in texts)
    # Quadratic work takes 16 times as long.
    assert long / short < 8


def test_a_name_longer_than_the_limit_belongs_to_no_model():
    longest = "/" + "gpt-4o".rjust(MAX_MODEL_NAME_CHARS - 1, "-").replace("-gpt", "/gpt")
    assert (len(longest), vocabulary_for(longest)) == (MAX_MODEL_NAME_CHARS, "o200k_base")
    assert vocabulary_for(f"-{longest}") is None
    assert model_spec_for(f"-{longest}") == UNKNOWN_MODEL


def test_a_name_has_a_limited_number_of_prefixes():
    assert model_spec_for("x/" * MAX_PROVIDER_PREFIXES + "gpt-4o").window == 128_000
    assert model_spec_for("x/" * (MAX_PROVIDER_PREFIXES + 1) + "gpt-4o").window is None
    assert vocabulary_for("a.b.c.d.llama3") == "llama3"


def test_a_question_is_parsed_at_its_beginning_and_end_only():
    filler = "word " * MAX_EDGE_CHARS
    june, july = (find_time_ranges(f"in {month} 2023", at=NOW) for month in ("june", "july"))
    assert find_time_ranges(f"in june 2023 {filler} in july 2023", at=NOW) == (*june, *july)
    assert find_time_ranges(f"{filler} in june 2023 {filler}", at=NOW) == ()
    assert parse_query(f"{filler} how many boats?", at=NOW).asks_number
    assert not parse_query(f"{filler} how many boats? {filler}", at=NOW).asks_number
    assert find_time_ranges(" " * 3 * MAX_EDGE_CHARS, at=NOW) == ()


@pytest.mark.parametrize(
    "question", ["what is the best rate?", "hello\nwhat was my what is the goal", "what are the costs"]
)
def test_a_question_about_a_number_is_recognised(question: str):
    assert parse_query(question, at=NOW).asks_number
    assert not parse_query("what is the\nrate", at=NOW).asks_number


def test_an_upstream_error_is_classified_by_its_beginning():
    overflow = "maximum context length is 10 tokens"
    assert isinstance(classify_error(400, "x" * (MAX_CLASSIFIED_CHARS - 100) + overflow), ModelContextOverflow)
    assert not isinstance(classify_error(400, "x" * MAX_CLASSIFIED_CHARS + overflow), ModelContextOverflow)


@pytest.mark.parametrize("opening", ['{"error":', "[{", "["])
def test_a_deeply_nested_upstream_error_is_still_an_error(opening: str):
    assert type(classify_error(400, opening * 200_000)) is not ModelError
    body: Any = {"code": "context_length_exceeded"}
    for _ in range(MAX_BODY_DEPTH - 1):
        body = {"error": body}
    assert isinstance(classify_error(400, body), ModelContextOverflow)
    assert not isinstance(classify_error(400, {"error": {"error": body}}), ModelContextOverflow)


@pytest.mark.parametrize("delay", ["1.2.3s", "...s", "9" * 400 + "s"])
def test_an_unreadable_retry_delay_is_no_failure(delay: str):
    error = classify_error(429, f"rate limit: try again in {delay}")
    assert isinstance(error, ModelRateLimited)
    assert error.retry_after is None or error.retry_after < 1e10


def test_calibrations_are_limited():
    runtime = EngineRuntime()
    for number in range(MAX_CALIBRATIONS + 1):
        runtime.calibrations[f"model-{number}"] = Calibration()
    assert len(runtime.calibrations) == MAX_CALIBRATIONS


def test_all_counters_together_cache_rendered_messages_up_to_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rendered, "MAX_CACHED_BYTES", 10_000)
    monkeypatch.setattr(rendered, "_budget", rendered._CacheBudget())  # pyright: ignore[reportPrivateUsage]
    counters = [MessageCounter(counter_for("gpt-4o"), wire_format_for("chat")) for _ in range(5)]
    for number in range(100):
        counters[number % 5].render_data(f"{number} " + "x" * 1_000)
    cached = [each for counter in counters for each in counter._cache.values()]  # pyright: ignore[reportPrivateUsage]
    assert 0 < sum(len(each.encoded) for each in cached) <= 10_000


def test_long_texts_are_not_cached_and_take_no_room_from_others():
    counter = MessageCounter(counter_for("gpt-4o"), wire_format_for("chat"))
    short = counter.render_data("short")
    for _ in range(3):
        counter.render_data("x" * (rendered.MAX_CACHED_BYTES // 2))
        counter.count_system("y" * (rendered.MAX_CACHED_BYTES // 2))
    assert counter.render_data("short") is short
    texts = [text for text in counter._system_counts if len(text) > 1_000_000]  # pyright: ignore[reportPrivateUsage]
    assert texts == []


@pytest.mark.parametrize("unit", ["a ", " ", "x", "ab \n", f"{'w' * 59_999} ", f" {'w' * 59_999}", f"{' ' * 60_000}ab"])
def test_whitespace_of_a_long_text_is_collapsed_in_pieces(unit: str):
    text = unit * (200_000 // len(unit))
    assert line_scorer.collapse_whitespace(text) == " ".join(text.split())


def test_an_excerpt_is_chosen_without_counting_much_longer_ones():
    counted: list[int] = []

    def count_tokens(limit: int) -> int:
        counted.append(limit)
        return limit // 4

    assert find_largest_limit(count_tokens, max_chars=15_000_000, max_tokens=100_000) == 400_003
    assert max(counted) <= 2 * 400_003


def test_long_words_are_not_cached():
    word = "q" * 100_000
    cache = line_scorer._score_short_word  # pyright: ignore[reportPrivateUsage]
    cache.cache_clear()
    list(LineScorer(None).score_message(1, Message.user(word)))
    # The ellipsis of a truncated message.
    assert cache.cache_info().currsize == 1
    assert extract_keywords(word) == [word[:40]]
