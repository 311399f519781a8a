"""The scripted model keeps to its script, keeps what it was asked, and refuses what its window cannot hold."""

from typing import Any

import pytest

from quire.errors import ModelOverflow, ModelThrottled, ModelUnavailable
from quire.llm import Model, Prompt, Reply, TextDelta, ThinkingDelta, ToolCallDelta
from quire.model import Message, TextPart, ThinkingPart, ToolCallPart, ToolDefinition
from quire.testing.scripted import ScriptedModel, Slow, Step, prompt_tokens
from quire.view.shapes import OpenAIShape
from quire.view.tokens import counter_for


def asking(text: str, **more: Any) -> Prompt:
    return Prompt(**{"system": "Be brief.", "messages": (Message.user(text),), **more})


def everything() -> Message:
    return Message(
        role="assistant",
        parts=(
            ThinkingPart(text="Let me see."),
            TextPart(text=" One,\n two  three. "),
            ToolCallPart(id="c", name="f", arguments='{"a": 1}'),
        ),
    )


async def test_replies_come_in_turn_and_prompts_are_kept():
    call = everything()
    cut = Reply(Message.assistant("half an ans"), None, "length")
    model: Model = ScriptedModel("one", call, cut, lambda prompt: prompt.messages[-1].text.upper())
    replies = [await model.complete(asking(text)) for text in ("a", "b", "c", "d")]
    assert [reply.message for reply in replies] == [
        Message.assistant("one"), call, cut.message, Message.assistant("D"),
    ]  # fmt: skip
    assert [reply.finish for reply in replies] == ["stop", "tool_calls", "length", "stop"]
    assert isinstance(model, ScriptedModel)
    assert [prompt.messages[0].text for prompt in model.prompts] == ["a", "b", "c", "d"]
    assert replies[0].usage is not None
    assert replies[0].usage.input_tokens == prompt_tokens(model.prompts[0])
    assert replies[0].usage.output_tokens == 1


@pytest.mark.parametrize("step", [ModelThrottled(retry_after=2), ModelThrottled, lambda _: ModelThrottled()])
async def test_exceptions_are_raised(step: Step):
    with pytest.raises(ModelThrottled):
        await ScriptedModel(step).complete(asking("hello"))
    with pytest.raises(ModelThrottled):
        await anext(ScriptedModel(step).stream(asking("hello")))


async def test_a_stream_is_the_reply_in_words():
    chunks = [chunk async for chunk in ScriptedModel(everything()).stream(asking("hello"))]
    *deltas, reply = chunks
    assert isinstance(reply, Reply)
    assert reply.message == everything()
    assert [chunk.text for chunk in deltas if isinstance(chunk, TextDelta)] == [" One,", "\n two", "  three. "]
    assert [chunk.text for chunk in deltas if isinstance(chunk, ThinkingDelta)] == ["Let", " me", " see."]
    calls = [chunk for chunk in deltas if isinstance(chunk, ToolCallDelta)]
    assert (calls[0].index, calls[0].id, calls[0].name) == (2, "c", "f")
    assert "".join(call.arguments for call in calls) == '{"a": 1}'


async def test_a_slow_reply_meets_the_time_out():
    model = ScriptedModel(Slow(30, "late"), Slow(0, "soon"))
    with pytest.raises(ModelUnavailable, match="in time"):
        await model.complete(asking("hello", timeout=0.02))
    assert (await model.complete(asking("hello", timeout=5))).message.text == "soon"


async def test_a_window_is_kept():
    prompt = asking("word " * 100)
    tokens = prompt_tokens(prompt)
    exact = ScriptedModel("ok", window=tokens)
    assert (await exact.complete(prompt)).message.text == "ok"
    narrow = ScriptedModel("never", "short", window=tokens - 1)
    with pytest.raises(ModelOverflow) as caught:
        await narrow.complete(prompt)
    assert (caught.value.tokens, caught.value.window) == (tokens, tokens - 1)
    assert (narrow.largest, len(narrow.prompts), narrow.unused) == (tokens, 1, 2)
    await narrow.complete(asking("hello"))
    assert (narrow.largest, len(narrow.prompts), narrow.unused) == (tokens, 2, 1)


async def test_a_script_that_is_used_up_says_so():
    model = ScriptedModel("only one")
    await model.complete(asking("a"))
    with pytest.raises(AssertionError, match=r"1 replies in its script.*one more request"):
        await model.complete(asking("b"))
    with pytest.raises(AssertionError, match="0 replies"):
        await ScriptedModel(repeat=True).complete(asking("c"))
    again = ScriptedModel("first", "last", repeat=True)
    said = [(await again.complete(asking("?"))).message.text for _ in range(4)]
    assert said == ["first", "last", "last", "last"]


def test_a_prompt_is_counted_as_its_request_in_openais_shape():
    tool = ToolDefinition(name="f", description="does", parameters={"type": "object", "properties": {}})
    prompt = asking("hello", messages=(Message.user("hello"), everything(), Message.tool("c", "done")), tools=(tool,))
    shape = OpenAIShape("gpt-4o")
    units = [unit for message in prompt.messages for unit in shape.units(message)]
    payload = shape.payload(
        model="gpt-4o", system=prompt.system, tools=[shape.tool(tool)], units=units, max_tokens=None
    )
    assert prompt_tokens(prompt) == shape.recount(payload, counter_for("gpt-4o"))
