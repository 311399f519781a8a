"""Summaries by a model: folded chunk by chunk within its context window, and rejected for every failure reason."""

import asyncio

import pytest
from compaction_builders import TOKEN_COUNTER, make_chat, make_entries
from hypothesis import given
from hypothesis import strategies as st

from quire.compaction.model_summary import ModelSummary, SummaryCallPlan, summarize
from quire.compaction.transcript_chunks import chunk_entries
from quire.errors import (
    ModelContextOverflow,
    ModelRateLimited,
    ModelRefused,
    ModelRequestRejected,
    ModelUnavailable,
    SummaryFailed,
    SummaryFailureReason,
)
from quire.llm import Prompt, Reply
from quire.model import Message, Usage
from quire.testing.scripted_model import DelayedReply, ScriptedModel, count_prompt_tokens
from quire.testing.strategies import histories
from quire.view.tokens import estimating_counter

GOOD = "## Task\nA parser for the log files [#1]."
BLOCK = make_chat(
    "Write a parser for the log files, please.", "Which format do they have?", "JSON lines, in /var/log/app."
)


async def run_summarize(model: ScriptedModel, block: list = BLOCK, **changes: object) -> ModelSummary:
    arguments = {
        "previous": None,
        "instructions": None,
        "target_tokens": 200,
        "window": 4_000,
        "reserved_tokens": 300,
        "counter": TOKEN_COUNTER,
        "timeout": 5.0,
    }
    return await summarize(model, block, **{**arguments, **changes})


async def test_one_call_where_all_fits() -> None:
    model = ScriptedModel(GOOD)
    result = await run_summarize(model, previous="Set up [#1].", instructions="keep paths", reserved_tokens=600)
    assert (result.text, result.sources, result.dropped_citations, result.calls, result.model) == (
        GOOD,
        (1,),
        0,
        1,
        "scripted",
    )
    assert result.usage is not None
    assert result.usage.input_tokens > 100
    (prompt,) = model.prompts
    assert prompt.max_tokens == 600
    assert prompt.timeout == 5.0
    assert "Set up [#1]." in prompt.messages[0].text
    assert "keep paths" in (prompt.system or "")


async def test_citations_of_unknown_messages_are_dropped_those_of_the_previous_summary_stay() -> None:
    model = ScriptedModel("Uses JSON lines [#12, #99]. Chosen early [#3]. Fast [#5].")
    result = await run_summarize(model, make_chat("a", "b", first_seq=11), previous="Chosen early [#3].")
    assert result.text == "Uses JSON lines [#12]. Chosen early [#3]. Fast."
    assert result.sources == (3, 12)
    assert result.dropped_citations == 2


async def test_pieces_are_folded_one_into_the_next_within_the_window() -> None:
    block = make_chat(*(f"Step {number}: {'all went well ' * 20}" for number in range(100)))
    answers = [f"## Progress\nPart {number} is done [#{number + 1}]." for number in range(100)]
    model = ScriptedModel(*answers, window=1_000)
    result = await run_summarize(model, block, window=1_000, target_tokens=100, reserved_tokens=100)
    assert result.calls == len(model.prompts) > 5
    assert result.text == answers[result.calls - 1]
    for call, prompt in enumerate(model.prompts):
        assert count_prompt_tokens(prompt) + (prompt.max_tokens or 0) <= 1_000
        assert (answers[call - 1] in prompt.messages[0].text) == (call > 0)
    assert result.usage is not None
    assert result.usage.input_tokens == sum(map(count_prompt_tokens, model.prompts))


async def test_a_model_may_cite_only_what_it_has_seen_so_far() -> None:
    block = make_chat(*("word " * 150 for _ in range(4)))
    assert len(chunk_entries(block, max_tokens=400, counter=TOKEN_COUNTER)) > 1
    model = ScriptedModel("All of it [#1, #4].", "All of it [#1, #4].", repeat=True)
    result = await run_summarize(model, block, window=1_000, target_tokens=60, reserved_tokens=60)
    assert result.calls > 1
    assert result.dropped_citations >= 1
    assert result.sources == (1, 4)


async def test_a_message_larger_than_the_window_is_excerpted_and_named() -> None:
    model = ScriptedModel(GOOD, window=1_000)
    result = await run_summarize(
        model, make_chat("BEGIN " + "word " * 20_000 + "END"), window=1_000, target_tokens=100, reserved_tokens=100
    )
    assert result.excerpted_seqs == (1,)
    assert result.calls == 1


async def test_a_previous_summary_larger_than_the_window_is_folded_by_its_best_lines() -> None:
    previous = "\n".join(f"- The code of box {number} lies with clerk {number} [#{number}]" for number in range(1, 500))
    model = ScriptedModel("All kept [#1].", window=1_000)
    result = await run_summarize(
        model,
        make_chat("Go on.", first_seq=600),
        previous=previous,
        window=1_000,
        target_tokens=100,
        reserved_tokens=100,
    )
    [prompt] = model.prompts
    sent_boxes = prompt.messages[-1].text.count("The code of box")
    assert 0 < sent_boxes < 499
    assert result.text == "All kept [#1]."


async def test_what_fits_alone_but_not_with_the_summary_so_far_is_split() -> None:
    previous = "So far: " + " ".join(f"word{number}" for number in range(60)) + " [#1]."
    block = make_chat(*("all went well " * 10 for _ in range(11)), first_seq=10)
    model = ScriptedModel("All went well [#10].", window=1_000, repeat=True)
    assert (await run_summarize(model, block, window=1_000, target_tokens=100, reserved_tokens=100)).calls == 1
    assert (
        await run_summarize(model, block, previous=previous, window=1_000, target_tokens=100, reserved_tokens=100)
    ).calls == 2


async def test_where_tokens_are_estimated_a_tenth_of_the_window_stays_free() -> None:
    model = ScriptedModel("All went well.")
    await run_summarize(
        model,
        make_chat("word " * 20_000),
        window=1_000,
        target_tokens=100,
        reserved_tokens=100,
        counter=estimating_counter(),
    )
    (prompt,) = model.prompts
    assert 800 < count_prompt_tokens(prompt) + (prompt.max_tokens or 0) <= 900


async def test_a_prompt_that_exceeds_the_window_is_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object, **__: object) -> SummaryCallPlan:
        return SummaryCallPlan(
            tuple(chunk_entries(make_chat("word " * 900), max_tokens=5_000, counter=TOKEN_COUNTER)), None
        )

    monkeypatch.setattr("quire.compaction.model_summary.plan_calls", wrong)
    model = ScriptedModel()
    with pytest.raises(SummaryFailed) as failed:
        await run_summarize(model, window=1_000, target_tokens=100, reserved_tokens=100)
    assert (failed.value.reason, failed.value.calls, model.prompts) == ("overflow", 0, [])


async def test_no_window_for_the_template_is_an_overflow_without_a_call() -> None:
    model = ScriptedModel()
    with pytest.raises(SummaryFailed) as failed:
        await run_summarize(model, window=300)
    assert failed.value.reason == "overflow"
    assert model.prompts == []


async def test_nothing_to_summarize_takes_no_call() -> None:
    with pytest.raises(SummaryFailed) as failed:
        await run_summarize(ScriptedModel(), [])
    assert failed.value.reason == "empty"


def overflows_above(tokens: int) -> ScriptedModel:
    """A model that counts more tokens than Quire, so that it rejects prompts above `tokens`."""

    def answer(prompt: Prompt) -> str | ModelContextOverflow:
        return ModelContextOverflow() if count_prompt_tokens(prompt) > tokens else "## Progress\nAll went well."

    return ScriptedModel(answer, repeat=True)


async def test_an_overflow_all_the_same_halves_what_is_left_once() -> None:
    block = make_chat(*("all went well " * 20 for _ in range(40)))
    result = await run_summarize(overflows_above(2_400), block, target_tokens=100, reserved_tokens=100)
    assert result.text == "## Progress\nAll went well."
    assert result.calls == 4, "one call that was too long, and three with its halved chunks"
    with pytest.raises(SummaryFailed) as failed:
        await run_summarize(overflows_above(400), block, target_tokens=100, reserved_tokens=100)
    assert failed.value.reason == "overflow"
    assert failed.value.calls == 2


def make_reply(text: str, finish: str | None) -> Reply:
    return Reply(Message.assistant(text), Usage(input_tokens=7, output_tokens=3), finish)


ECHO = "\n".join(f"[#{number}] user:\n{entry.message.text}" for number, entry in enumerate(BLOCK, start=1))
FAULTS: list[tuple[SummaryFailureReason, object]] = [
    ("timed_out", DelayedReply(30, GOOD)),
    ("rate_limited", ModelRateLimited(retry_after=3)),
    ("refused", ModelRefused()),
    ("invalid", ModelRequestRejected()),
    ("unavailable", ModelUnavailable()),
    ("unavailable", ConnectionResetError("gone")),
    ("refused", make_reply("", "content_filter")),
    ("refused", make_reply("No.", "refusal")),
    ("refused", "I'm sorry, but I can't help with that."),
    ("refused", "Unfortunately I cannot summarize this conversation."),
    ("empty", ""),
    ("empty", " \n\t"),
    ("empty", "<think>Let me see.</think>\n"),
    ("malformed", "[#404]"),
    ("truncated", make_reply(GOOD, "length")),
    ("truncated", make_reply(GOOD, "max_tokens")),
    ("truncated", make_reply("## Task\nA parser for the log fi", None)),
    ("too_long", "Every word counts, and there are many. " + " ".join(f"word{number}" for number in range(300))),
    ("malformed", "... --- ... 42 42"),
    ("malformed", "the " * 60),
    ("malformed", "And so on, and so forth, until the end. " * 20),
    ("malformed", ECHO),
]


@pytest.mark.parametrize(("reason", "answer"), FAULTS)
async def test_every_fault_has_its_reason(reason: SummaryFailureReason, answer: object) -> None:
    model = ScriptedModel(answer)  # type: ignore[arg-type]
    with pytest.raises(SummaryFailed) as failed:
        await run_summarize(model, timeout=0.05 if isinstance(answer, DelayedReply) else 5.0)
    assert failed.value.reason == reason
    assert failed.value.calls == 1
    assert str(failed.value).count("The summary failed") == 1
    if isinstance(answer, Reply):
        assert (failed.value.input_tokens, failed.value.output_tokens) == (7, 3)


async def test_a_failure_in_a_later_chunk_reports_the_cost_of_earlier_ones() -> None:
    block = make_chat(*("all went well " * 40 for _ in range(20)))
    with pytest.raises(SummaryFailed) as failed:
        await run_summarize(
            ScriptedModel(GOOD, ModelRateLimited()), block, window=1_000, target_tokens=100, reserved_tokens=100
        )
    assert failed.value.calls == 2
    assert failed.value.input_tokens > 500


async def test_a_long_message_given_back_is_no_summary() -> None:
    text = "The quick brown fox, of whom much has been told, jumps again over a dog that is as lazy as ever. " * 6
    text = " ".join(f"{number}: {sentence}" for number, sentence in enumerate(text.split(". ")))
    with pytest.raises(SummaryFailed) as failed:
        await run_summarize(ScriptedModel(f"Summary: {text}"), make_chat(text), target_tokens=1_000)
    assert failed.value.reason == "malformed"


@pytest.mark.parametrize(
    "answer",
    [
        f"<think>Hm, {'hm, ' * 50}</think>\n{GOOD}",
        f"```markdown\n{GOOD}\n```",
        make_reply(GOOD, None),
        f"<quire:summary key=0123456789abcdef>\n{GOOD}\n</quire:summary key=0123456789abcdef>",
    ],
)
async def test_what_models_put_around_a_summary_is_taken_off(answer: str | Reply) -> None:
    assert (await run_summarize(ScriptedModel(answer))).text == GOOD


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
    assert (await run_summarize(ScriptedModel(answer), target_tokens=400)).text == answer


async def test_a_model_that_ignores_its_timeout_is_stopped_all_the_same() -> None:
    class Deaf(ScriptedModel):
        async def complete(self, prompt: Prompt) -> Reply:
            await asyncio.sleep(30)
            raise AssertionError

    with pytest.raises(SummaryFailed) as failed:
        await run_summarize(Deaf(), timeout=0.02)
    assert failed.value.reason == "timed_out"


@given(histories(), st.integers(900, 3_000), st.integers(20, 150), st.none() | st.text(max_size=4_000))
async def test_no_call_ever_exceeds_the_window(
    history: list[Message], window: int, limit: int, previous: str | None
) -> None:
    block = make_entries(history)
    model = ScriptedModel("## Progress\nAll went well [#1].", window=window - limit, repeat=True)
    if not block:
        return
    result = await run_summarize(
        model, block, previous=previous, window=window, target_tokens=limit, reserved_tokens=limit
    )
    assert result.calls == len(model.prompts)
    assert all(count_prompt_tokens(prompt) + (prompt.max_tokens or 0) <= window for prompt in model.prompts)
