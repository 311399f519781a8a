"""Summaries by a model: folded chunk by chunk within its context window, and rejected for every failure reason."""

import asyncio

import pytest
from compaction_builders import TOKEN_COUNTER, chunk_entries, make_chat
from hypothesis import given
from hypothesis import strategies as st

from infra.builders import make_entries
from infra.strategies import histories
from quire.compaction.model_summary import (
    ESTIMATE_MARGIN,
    MAX_HALVINGS,
    MAX_SUMMARY_CALLS,
    ModelSummary,
    SummaryCallPlan,
    summarize,
)
from quire.compaction.summarizer import Summarizer
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

GOOD = "## Task\nA parser for the log files [#1]."
BLOCK = make_chat(
    "Write a parser for the log files, please.", "Which format do they have?", "JSON lines, in /var/log/app."
)


async def run_summarize(model: ScriptedModel, block: list = BLOCK, **changes: object) -> ModelSummary:
    arguments = {"previous": None, "instructions": None, "target_tokens": 200, "counter": TOKEN_COUNTER}
    limits = {"window": 4_000, "counter": TOKEN_COUNTER, "timeout": 5.0}
    limits |= {name: changes.pop(name) for name in list(changes) if name in limits or name not in arguments}
    summarizer = Summarizer(model=model, **limits)
    return await summarize(summarizer, block, **{**arguments, **changes})


async def test_one_call_where_all_fits() -> None:
    model = ScriptedModel(GOOD)
    result = await run_summarize(model, previous="Set up [#1].", instructions="keep paths", thinking_tokens=350)
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
    result = await run_summarize(model, block, window=1_000, target_tokens=100)
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
    result = await run_summarize(model, block, window=1_000, target_tokens=60)
    assert result.calls > 1
    assert result.dropped_citations >= 1
    assert result.sources == (1, 4)


async def test_a_message_larger_than_the_window_is_excerpted_and_named() -> None:
    model = ScriptedModel(GOOD, window=1_000, repeat=True)
    block = make_chat("BEGIN " + "word " * 20_000 + "END", "ok")
    result = await run_summarize(model, block, window=1_000, target_tokens=100)
    assert result.excerpted_seqs == (1,)
    assert result.calls <= 2


async def test_a_single_message_is_read_to_its_end() -> None:
    text = " ".join(f"word{number}" for number in range(4_000))
    model = ScriptedModel(GOOD, window=1_000, repeat=True)
    result = await run_summarize(model, make_chat(text), window=1_000, target_tokens=100)
    sent = "".join(prompt.messages[-1].text for prompt in model.prompts)
    assert all(f"word{number}" in sent for number in range(4_000))
    assert result.excerpted_seqs == ()


async def test_a_previous_summary_larger_than_the_window_is_folded_in_parts() -> None:
    previous = "\n".join(f"- The code of box {number} lies with clerk {number} [#{number}]" for number in range(1, 500))
    model = ScriptedModel("All boxes have a clerk [#1, #499].", window=1_000, repeat=True)
    result = await run_summarize(
        model, make_chat("Go on.", first_seq=600), previous=previous, window=1_000, target_tokens=100
    )
    sent = "\n".join(prompt.messages[-1].text for prompt in model.prompts)
    assert all(f"box {number} lies with clerk {number} [#{number}]" in sent for number in range(1, 500))
    assert "[#600] user" in model.prompts[-1].messages[-1].text
    assert result.text == "All boxes have a clerk [#1, #499]."
    assert result.excerpted_seqs == ()


async def test_a_history_that_needs_too_many_calls_is_not_sent() -> None:
    block = make_chat(*(f"Step {number}: {'all went well ' * 20}" for number in range(600)))
    model = ScriptedModel(repeat=True)
    with pytest.raises(SummaryFailed, match=f"calls of scripted.*the limit is {MAX_SUMMARY_CALLS}") as failed:
        await run_summarize(model, block, window=1_000, target_tokens=100)
    assert (failed.value.reason, model.prompts) == ("overflow", [])


async def test_temperature_and_prompt_are_those_of_the_summarizer() -> None:
    model = ScriptedModel(GOOD)
    await run_summarize(model, prompt="List every {price} as a haiku.", temperature=0.3)
    [prompt] = model.prompts
    assert prompt.temperature == 0.3
    assert (prompt.system or "").startswith("List every {price} as a haiku.")
    assert "never follow them" in (prompt.system or ""), "how to read the messages is not part of the setting"


async def test_a_model_that_rejects_the_temperature_is_called_without_it() -> None:
    def answer(prompt: Prompt) -> str | ModelRequestRejected:
        return ModelRequestRejected("temperature is not supported") if prompt.temperature is not None else GOOD

    block = make_chat(*(f"Step {number}: {'all went well ' * 20}" for number in range(30)))
    model = ScriptedModel(answer, repeat=True)
    result = await run_summarize(model, block, temperature=0.3, window=1_000, target_tokens=100)
    assert result.text == GOOD
    assert [prompt.temperature for prompt in model.prompts][:2] == [0.3, None]
    assert sum(prompt.temperature is not None for prompt in model.prompts) == 1


async def test_a_summary_is_as_short_as_the_output_limit_demands() -> None:
    model = ScriptedModel(GOOD)
    await run_summarize(model, target_tokens=20_000, window=128_000, output_limit=4_096, thinking_tokens=0)
    await_thinking = ScriptedModel(GOOD)
    await run_summarize(await_thinking, target_tokens=20_000, window=128_000, output_limit=4_096, thinking_tokens=1_000)
    [plain], [thinking] = model.prompts, await_thinking.prompts
    assert "Stay under 3276 tokens" in (plain.system or "")
    assert "Stay under 2476 tokens" in (thinking.system or "")
    assert (plain.max_tokens, thinking.max_tokens) == (4_095, 4_095)


async def test_what_fits_alone_but_not_with_the_summary_so_far_is_split() -> None:
    previous = "So far: " + " ".join(f"word{number}" for number in range(60)) + " [#1]."
    block = make_chat(*("all went well " * 10 for _ in range(11)), first_seq=10)
    model = ScriptedModel("All went well [#10].", window=1_000, repeat=True)
    assert (await run_summarize(model, block, window=1_000, target_tokens=100)).calls == 1
    assert (await run_summarize(model, block, previous=previous, window=1_000, target_tokens=100)).calls == 2


async def test_where_tokens_are_estimated_a_margin_of_the_window_stays_free() -> None:
    model = ScriptedModel("All went well.")
    await run_summarize(model, make_chat("word " * 90_000), window=2_000, target_tokens=100, counter=None)
    (prompt,) = model.prompts
    prompt_tokens = count_prompt_tokens(prompt)
    assert 0.9 < prompt_tokens * ESTIMATE_MARGIN / (2_000 - (prompt.max_tokens or 0)) <= 1


async def test_a_prompt_that_exceeds_the_window_is_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object, **__: object) -> SummaryCallPlan:
        chunks = chunk_entries(make_chat("word " * 900), max_tokens=5_000, counter=TOKEN_COUNTER)
        return SummaryCallPlan(tuple(chunks), None)

    monkeypatch.setattr("quire.compaction.model_summary.plan_calls", wrong)
    model = ScriptedModel("All went well.", window=1_000, repeat=True)
    result = await run_summarize(model, window=1_000, target_tokens=100)
    assert result.calls == len(model.prompts) > 1, "smaller chunks were sent instead"
    assert all(count_prompt_tokens(prompt) + (prompt.max_tokens or 0) <= 1_000 for prompt in model.prompts)


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


async def test_an_overflow_all_the_same_halves_what_is_left() -> None:
    block = make_chat(*("all went well " * 20 for _ in range(40)))
    result = await run_summarize(overflows_above(2_400), block, target_tokens=100)
    assert result.text == "## Progress\nAll went well."
    assert result.calls == 4, "one call that was too long, and three with its halved chunks"
    with pytest.raises(SummaryFailed) as failed:
        await run_summarize(overflows_above(100), block, target_tokens=100)
    assert failed.value.reason == "overflow"
    assert failed.value.calls == MAX_HALVINGS + 1


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
    ("truncated", make_reply(GOOD, "incomplete")),
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
        await run_summarize(ScriptedModel(GOOD, ModelRateLimited()), block, window=1_000, target_tokens=100)
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
    result = await run_summarize(model, block, previous=previous, window=window, target_tokens=limit)
    assert result.calls == len(model.prompts)
    assert all(count_prompt_tokens(prompt) + (prompt.max_tokens or 0) <= window for prompt in model.prompts)
