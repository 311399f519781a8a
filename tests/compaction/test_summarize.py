"""Summaries by a model: folded piece by piece within its window, and refused for every reason there is."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import COUNTER, chat, entries

from quire.compaction.pieces import pieces
from quire.compaction.summarize import CallPlan, Summary, summarize
from quire.errors import (
    ModelInvalid,
    ModelOverflow,
    ModelRefused,
    ModelThrottled,
    ModelUnavailable,
    SummaryFailed,
    SummaryFault,
)
from quire.llm import Prompt, Reply
from quire.model import Message, Usage
from quire.testing.histories import histories
from quire.testing.scripted import ScriptedModel, Slow, prompt_tokens
from quire.view.tokens import estimate

GOOD = "## Task\nA parser for the log files [#1]."
BLOCK = chat("Write a parser for the log files, please.", "Which format do they have?", "JSON lines, in /var/log/app.")


async def summary(model: ScriptedModel, block: list = BLOCK, **changes: object) -> Summary:
    given = {
        "previous": None,
        "instructions": None,
        "limit": 200,
        "window": 4_000,
        "reserve": 300,
        "counter": COUNTER,
        "timeout": 5.0,
    }
    return await summarize(model, block, **{**given, **changes})


async def test_one_call_where_all_fits() -> None:
    model = ScriptedModel(GOOD)
    made = await summary(model, previous="Set up [#1].", instructions="keep paths", reserve=600)
    assert (made.text, made.sources, made.dropped, made.calls, made.model) == (GOOD, (1,), 0, 1, "scripted")
    assert made.usage is not None
    assert made.usage.input_tokens > 100
    (prompt,) = model.prompts
    assert prompt.max_tokens == 600
    assert prompt.timeout == 5.0
    assert "Set up [#1]." in prompt.messages[0].text
    assert "keep paths" in (prompt.system or "")


async def test_citations_of_unknown_messages_are_dropped_those_of_the_previous_summary_stay() -> None:
    model = ScriptedModel("Uses JSON lines [#12, #99]. Chosen early [#3]. Fast [#5].")
    made = await summary(model, chat("a", "b", first=11), previous="Chosen early [#3].")
    assert made.text == "Uses JSON lines [#12]. Chosen early [#3]. Fast."
    assert made.sources == (3, 12)
    assert made.dropped == 2


async def test_pieces_are_folded_one_into_the_next_within_the_window() -> None:
    block = chat(*(f"Step {place}: {'all went well ' * 20}" for place in range(100)))
    answers = [f"## Progress\nPart {place} is done [#{place + 1}]." for place in range(100)]
    model = ScriptedModel(*answers, window=1_000)
    made = await summary(model, block, window=1_000, limit=100, reserve=100)
    assert made.calls == len(model.prompts) > 5
    assert made.text == answers[made.calls - 1]
    for call, prompt in enumerate(model.prompts):
        assert prompt_tokens(prompt) + (prompt.max_tokens or 0) <= 1_000
        assert (answers[call - 1] in prompt.messages[0].text) == (call > 0)
    assert made.usage is not None
    assert made.usage.input_tokens == sum(map(prompt_tokens, model.prompts))


async def test_a_model_may_cite_only_what_it_was_shown_so_far() -> None:
    block = chat(*("word " * 150 for _ in range(4)))
    assert len(pieces(block, room=400, counter=COUNTER)) > 1
    model = ScriptedModel("All of it [#1, #4].", "All of it [#1, #4].", repeat=True)
    made = await summary(model, block, window=1_000, limit=60, reserve=60)
    assert made.calls > 1
    assert made.dropped >= 1
    assert made.sources == (1, 4)


async def test_a_message_larger_than_the_window_is_excerpted_and_named() -> None:
    model = ScriptedModel(GOOD, window=1_000)
    made = await summary(model, chat("BEGIN " + "word " * 20_000 + "END"), window=1_000, limit=100, reserve=100)
    assert made.excerpted == (1,)
    assert made.calls == 1


async def test_a_previous_summary_larger_than_the_window_is_folded_by_its_best_lines() -> None:
    previous = "\n".join(f"- The code of box {place} lies with clerk {place} [#{place}]" for place in range(1, 500))
    model = ScriptedModel("All kept [#1].", window=1_000)
    made = await summary(model, chat("Go on.", first=600), previous=previous, window=1_000, limit=100, reserve=100)
    assert made.previous_excerpted
    assert made.text == "All kept [#1]."


async def test_what_fits_alone_but_not_beside_the_summary_so_far_is_divided() -> None:
    previous = "So far: " + " ".join(f"word{place}" for place in range(60)) + " [#1]."
    block = chat(*("all went well " * 10 for _ in range(11)), first=10)
    model = ScriptedModel("All went well [#10].", window=1_000, repeat=True)
    assert (await summary(model, block, window=1_000, limit=100, reserve=100)).calls == 1
    assert (await summary(model, block, previous=previous, window=1_000, limit=100, reserve=100)).calls == 2


async def test_where_tokens_are_estimated_a_tenth_of_the_window_stays_free() -> None:
    model = ScriptedModel("All went well.")
    await summary(model, chat("word " * 20_000), window=1_000, limit=100, reserve=100, counter=estimate())
    (prompt,) = model.prompts
    assert 800 < prompt_tokens(prompt) + (prompt.max_tokens or 0) <= 900


async def test_a_prompt_that_exceeds_the_window_is_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object, **__: object) -> CallPlan:
        return CallPlan(tuple(pieces(chat("word " * 900), room=5_000, counter=COUNTER)), None)

    monkeypatch.setattr("quire.compaction.summarize.plan_calls", wrong)
    model = ScriptedModel()
    with pytest.raises(SummaryFailed) as failed:
        await summary(model, window=1_000, limit=100, reserve=100)
    assert (failed.value.reason, failed.value.calls, model.prompts) == ("overflow", 0, [])


async def test_no_window_for_the_template_is_an_overflow_without_a_call() -> None:
    model = ScriptedModel()
    with pytest.raises(SummaryFailed) as failed:
        await summary(model, window=300)
    assert failed.value.reason == "overflow"
    assert model.prompts == []


async def test_nothing_to_summarize_takes_no_call() -> None:
    with pytest.raises(SummaryFailed) as failed:
        await summary(ScriptedModel(), [])
    assert failed.value.reason == "empty"


def overflows_above(tokens: int) -> ScriptedModel:
    """A model that counts more tokens than Quire does."""

    def answer(prompt: Prompt) -> str | ModelOverflow:
        return ModelOverflow() if prompt_tokens(prompt) > tokens else "## Progress\nAll went well."

    return ScriptedModel(answer, repeat=True)


async def test_an_overflow_all_the_same_halves_what_is_left_once() -> None:
    block = chat(*("all went well " * 20 for _ in range(40)))
    made = await summary(overflows_above(2_400), block, limit=100, reserve=100)
    assert made.text == "## Progress\nAll went well."
    assert made.calls == 4, "one that was too long, and what it held in three"
    with pytest.raises(SummaryFailed) as failed:
        await summary(overflows_above(400), block, limit=100, reserve=100)
    assert failed.value.reason == "overflow"
    assert failed.value.calls == 2


def stopped(text: str, finish: str | None) -> Reply:
    return Reply(Message.assistant(text), Usage(input_tokens=7, output_tokens=3), finish)


ECHO = "\n".join(f"[#{place}] user:\n{entry.message.text}" for place, entry in enumerate(BLOCK, start=1))
FAULTS: list[tuple[SummaryFault, object]] = [
    ("timed_out", Slow(30, GOOD)),
    ("throttled", ModelThrottled(retry_after=3)),
    ("refused", ModelRefused()),
    ("invalid", ModelInvalid()),
    ("unavailable", ModelUnavailable()),
    ("unavailable", ConnectionResetError("gone")),
    ("refused", stopped("", "content_filter")),
    ("refused", stopped("No.", "refusal")),
    ("refused", "I'm sorry, but I can't help with that."),
    ("refused", "Unfortunately I cannot summarize this conversation."),
    ("empty", ""),
    ("empty", " \n\t"),
    ("empty", "<think>Let me see.</think>\n"),
    ("garbage", "[#404]"),
    ("truncated", stopped(GOOD, "length")),
    ("truncated", stopped(GOOD, "max_tokens")),
    ("truncated", stopped("## Task\nA parser for the log fi", None)),
    ("too_long", "Every word counts, and there are many. " + " ".join(f"word{place}" for place in range(300))),
    ("garbage", "... --- ... 42 42"),
    ("garbage", "the " * 60),
    ("garbage", "And so on, and so forth, until the end. " * 20),
    ("garbage", ECHO),
]


@pytest.mark.parametrize(("reason", "answer"), FAULTS)
async def test_every_fault_has_its_reason(reason: SummaryFault, answer: object) -> None:
    model = ScriptedModel(answer)  # type: ignore[arg-type]
    with pytest.raises(SummaryFailed) as failed:
        await summary(model, timeout=0.05 if isinstance(answer, Slow) else 5.0)
    assert failed.value.reason == reason
    assert failed.value.calls == 1
    assert str(failed.value).count("There is no summary") == 1
    if isinstance(answer, Reply):
        assert (failed.value.input_tokens, failed.value.output_tokens) == (7, 3)


async def test_a_fault_in_a_later_piece_tells_what_the_earlier_ones_cost() -> None:
    block = chat(*("all went well " * 40 for _ in range(20)))
    with pytest.raises(SummaryFailed) as failed:
        await summary(ScriptedModel(GOOD, ModelThrottled()), block, window=1_000, limit=100, reserve=100)
    assert failed.value.calls == 2
    assert failed.value.input_tokens > 500


async def test_a_long_message_given_back_is_no_summary() -> None:
    text = "The quick brown fox, of whom much has been told, jumps again over a dog that is as lazy as ever. " * 6
    text = " ".join(f"{place}: {sentence}" for place, sentence in enumerate(text.split(". ")))
    with pytest.raises(SummaryFailed) as failed:
        await summary(ScriptedModel(f"Summary: {text}"), chat(text), limit=1_000)
    assert failed.value.reason == "garbage"


@pytest.mark.parametrize(
    "answer",
    [
        f"<think>Hm, {'hm, ' * 50}</think>\n{GOOD}",
        f"```markdown\n{GOOD}\n```",
        stopped(GOOD, None),
        f"<quire:summary key=0123456789abcdef>\n{GOOD}\n</quire:summary key=0123456789abcdef>",
    ],
)
async def test_what_models_put_around_a_summary_is_taken_off(answer: str | Reply) -> None:
    assert (await summary(ScriptedModel(answer))).text == GOOD


@pytest.mark.parametrize(
    "answer",
    [
        "Sorry state of the build is the topic [#1].",
        "## Facts and identifiers\n" + "\n".join(f"- code of door {n}: QX-{n * 379 % 9973} [#1]" for n in range(12)),
        "Benutzer will einen Parser für Protokolle.",
        "日志解析器。",
    ],
)
async def test_unusual_summaries_are_taken(answer: str) -> None:
    assert (await summary(ScriptedModel(answer), limit=400)).text == answer


async def test_a_model_that_ignores_its_timeout_is_stopped_all_the_same() -> None:
    class Deaf(ScriptedModel):
        async def complete(self, prompt: Prompt) -> Reply:
            await asyncio.sleep(30)
            raise AssertionError

    with pytest.raises(SummaryFailed) as failed:
        await summary(Deaf(), timeout=0.02)
    assert failed.value.reason == "timed_out"


@given(histories(), st.integers(900, 3_000), st.integers(20, 150), st.none() | st.text(max_size=4_000))
async def test_no_call_ever_exceeds_the_window(
    history: list[Message], window: int, limit: int, previous: str | None
) -> None:
    block = entries(history)
    model = ScriptedModel("## Progress\nAll went well [#1].", window=window - limit, repeat=True)
    if not block:
        return
    made = await summary(model, block, previous=previous, window=window, limit=limit, reserve=limit)
    assert made.calls == len(model.prompts)
    assert all(prompt_tokens(prompt) + (prompt.max_tokens or 0) <= window for prompt in model.prompts)
