"""The scripted model plays its script, records its prompts, and rejects prompts above its context window."""

from typing import Any

import pytest

from payload_oracle import count_payload
from quire.errors import ModelContextOverflow, ModelRateLimited, ModelUnavailable
from quire.llm import Model, Prompt, Reply, TextDelta, ThinkingDelta, ToolCallDelta
from quire.model import Message, TextPart, ThinkingPart, ToolCallPart, ToolDefinition
from quire.testing.scripted_model import DelayedReply, ScriptedModel, ScriptStep, count_prompt_tokens
from quire.wire.chat.render import OpenAIChatFormat
from quire.wire.tokens import counter_for


def make_prompt(text: str, **more: Any) -> Prompt:
    return Prompt(**{"system": "Be brief.", "messages": (Message.user(text),), **more})


def make_full_message() -> Message:
    return Message(
        role="assistant",
        parts=(
            ThinkingPart(text="Let me see."),
            TextPart(text=" One,\n two  three. "),
            ToolCallPart(id="c", name="f", arguments='{"a": 1}'),
        ),
    )


async def test_replies_come_in_order_and_prompts_are_recorded():
    call = make_full_message()
    cut = Reply(Message.assistant("half an ans"), None, "length")
    model: Model = ScriptedModel("one", call, cut, lambda prompt: prompt.messages[-1].text.upper())
    replies = [await model.complete(make_prompt(text)) for text in ("a", "b", "c", "d")]
    assert [reply.message for reply in replies] == [
        Message.assistant("one"), call, cut.message, Message.assistant("D"),
    ]  # fmt: skip
    assert [reply.finish_reason for reply in replies] == ["stop", "tool_calls", "length", "stop"]
    assert isinstance(model, ScriptedModel)
    assert [prompt.messages[0].text for prompt in model.prompts] == ["a", "b", "c", "d"]
    assert replies[0].usage is not None
    assert replies[0].usage.input_tokens == count_prompt_tokens(model.prompts[0])
    assert replies[0].usage.output_tokens == 1


@pytest.mark.parametrize("step", [ModelRateLimited(retry_after=2), ModelRateLimited, lambda _: ModelRateLimited()])
async def test_exceptions_are_raised(step: ScriptStep):
    with pytest.raises(ModelRateLimited):
        await ScriptedModel(step).complete(make_prompt("hello"))
    with pytest.raises(ModelRateLimited):
        await anext(ScriptedModel(step).stream(make_prompt("hello")))


async def test_a_stream_is_the_reply_in_words():
    chunks = [chunk async for chunk in ScriptedModel(make_full_message()).stream(make_prompt("hello"))]
    *deltas, reply = chunks
    assert isinstance(reply, Reply)
    assert reply.message == make_full_message()
    assert [chunk.text for chunk in deltas if isinstance(chunk, TextDelta)] == [" One,", "\n two", "  three. "]
    assert [chunk.text for chunk in deltas if isinstance(chunk, ThinkingDelta)] == ["Let", " me", " see."]
    calls = [chunk for chunk in deltas if isinstance(chunk, ToolCallDelta)]
    assert (calls[0].index, calls[0].id, calls[0].name) == (2, "c", "f")
    assert "".join(call.arguments for call in calls) == '{"a": 1}'


async def test_a_slow_reply_meets_the_time_out():
    model = ScriptedModel(DelayedReply(30, "late"), DelayedReply(0, "soon"))
    with pytest.raises(ModelUnavailable, match="in time"):
        await model.complete(make_prompt("hello", timeout=0.02))
    assert (await model.complete(make_prompt("hello", timeout=5))).message.text == "soon"


async def test_a_prompt_above_the_window_is_rejected():
    prompt = make_prompt("word " * 100)
    tokens = count_prompt_tokens(prompt)
    exact = ScriptedModel("ok", window=tokens)
    assert (await exact.complete(prompt)).message.text == "ok"
    narrow = ScriptedModel("never", "short", window=tokens - 1)
    with pytest.raises(ModelContextOverflow) as caught:
        await narrow.complete(prompt)
    assert (caught.value.tokens, caught.value.window) == (tokens, tokens - 1)
    assert (narrow.max_prompt_tokens, len(narrow.prompts), narrow.remaining_replies) == (tokens, 1, 2)
    await narrow.complete(make_prompt("hello"))
    assert (narrow.max_prompt_tokens, len(narrow.prompts), narrow.remaining_replies) == (tokens, 2, 1)


async def test_a_script_that_is_used_up_says_so():
    model = ScriptedModel("only one")
    await model.complete(make_prompt("a"))
    with pytest.raises(AssertionError, match=r"1 replies in its script.*one more request"):
        await model.complete(make_prompt("b"))
    with pytest.raises(AssertionError, match="0 replies"):
        await ScriptedModel(repeat=True).complete(make_prompt("c"))
    again = ScriptedModel("first", "last", repeat=True)
    said = [(await again.complete(make_prompt("?"))).message.text for _ in range(4)]
    assert said == ["first", "last", "last", "last"]


def test_a_prompt_is_counted_as_its_request_in_openais_shape():
    tool = ToolDefinition(name="f", description="does", parameters={"type": "object", "properties": {}})
    prompt = make_prompt(
        "hello", messages=(Message.user("hello"), make_full_message(), Message.tool("c", "done")), tools=(tool,)
    )
    shape = OpenAIChatFormat("gpt-4o")
    units = [unit for message in prompt.messages for unit in shape.render_message(message)]
    payload = shape.build_payload(
        model="gpt-4o", system=prompt.system, tools=[shape.render_tool(tool)], messages=units, max_tokens=None
    )
    assert count_prompt_tokens(prompt) == count_payload(shape, payload, counter_for("gpt-4o"))
