"""The middleware of LangChain: an agent runs past the window, is killed, and resumes; its state does not change."""

import asyncio
import os
import signal
from pathlib import Path
from threading import Event
from typing import Any

import langchain_run as run
import pytest
import scripted_turns as script
from langchain.agents.middleware.types import ToolCallRequest
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from quire.adapters import langchain
from quire.adapters.langchain import (
    QuireMiddleware,
    convert_message,
    open_middleware,
    parse_message,
    parse_reply,
    to_langchain,
)
from quire.engine import open_engine
from quire.errors import InvalidRequest

PIXEL = "iVBORw0KGgo="
CALL: Any = {"name": "weather", "args": {"city": "Oslo"}, "id": "c1", "type": "tool_call"}
CONFIG: Any = {"configurable": {"thread_id": script.CONVERSATION}}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/quire.db"


def ask(text: str) -> Any:
    return {"messages": [HumanMessage(text)]}


@pytest.mark.slow
async def test_an_agent_runs_five_times_past_the_window(url: str):
    turns = range(1, script.TURNS + 1)
    requests = await run.run_turns(url, turns, is_async=False)
    assert len(requests) == 2 * len(turns)
    script.check_requests(requests)
    await script.check_history(url, turns)


@pytest.mark.slow
async def test_a_killed_agent_resumes_from_the_log(url: str):
    finished = script.run_until_killed("langchain", url)
    last = finished + script.RESUMED_TURNS
    script.check_requests(await run.run_turns(url, range(finished + 1, last + 1)))
    await script.check_resumed(url, last)


async def test_a_model_reads_what_was_archived(url: str):
    await run.run_turns(url, range(1, 6))
    call: Any = {"name": "history_read", "args": {"first": 3}, "id": "read"}
    model = run.make_model([AIMessage("", tool_calls=[call]), AIMessage("Read.")])
    with open_middleware(url, **script.OPTIONS) as middleware:
        agent = run.make_agent(model, middleware)
        result = agent.invoke(ask("What was high water at pier 1?"), CONFIG)
    assert {tool["function"]["name"] for tool in model.bound_tools} >= {"history_read", "history_search"}
    assert script.make_result(1)[:40] in result["messages"][2].text
    script.check_requests(model.requests)


async def test_a_changed_history_is_stored_on_a_branch_of_its_own(url: str):
    saver = InMemorySaver()
    model = run.make_model([*run.script_turn(1), *run.script_turn(2), AIMessage("Another answer.")])
    with open_middleware(url, **script.OPTIONS) as middleware:
        agent = run.make_agent(model, middleware, checkpointer=saver)
        agent.invoke(ask(script.make_question(1)), CONFIG)
        before = agent.get_state(CONFIG)
        agent.invoke(ask(script.make_question(2)), CONFIG)
        agent.invoke(ask("Another question"), before.config)
    async with open_engine(url, **script.OPTIONS) as engine:
        branches = await engine.store.list_branches(script.CONVERSATION)
        texts = [[entry.message.text for entry in await engine.store.read_range(script.CONVERSATION, branch=number,
                  roles=["user"])] for number in (0, 1)]  # fmt: skip
    assert len(branches) == 2
    assert texts == [
        [script.make_question(1), script.make_question(2)],
        [script.make_question(1), "Another question"],
    ]


class Tide(BaseModel):
    """High water."""

    hour: int


async def test_structured_output_is_stored_and_its_schema_is_counted(url: str):
    call: Any = {"name": "Tide", "args": {"hour": 6}, "id": "out"}
    model = run.make_model([AIMessage("", tool_calls=[call])])
    with open_middleware(url, **script.OPTIONS) as middleware:
        agent = run.make_agent(model, middleware, response_format=ToolStrategy(Tide))
        assert agent.invoke(ask("When?"), CONFIG)["structured_response"] == Tide(hour=6)
    async with open_engine(url, **script.OPTIONS) as engine:
        [(_, manifest)] = await engine.store.list_manifests(script.CONVERSATION)
        entries = await engine.store.read_range(script.CONVERSATION, kinds=["message"])
    assert [entry.role for entry in entries] == ["user", "assistant", "tool"]
    assert manifest.max_input_tokens < script.MAX_INPUT_TOKENS
    assert manifest.forwarded is not None
    assert manifest.forwarded.dropped == ("response_format",)


async def test_a_run_without_a_thread_needs_a_name(url: str):
    with open_middleware(url, **script.OPTIONS) as middleware, pytest.raises(InvalidRequest, match="thread_id"):
        run.make_agent(run.make_model([AIMessage("Yes.")]), middleware).invoke(ask("Hello?"))
    with open_middleware(url, conversation="named", **script.OPTIONS) as middleware:
        run.make_agent(run.make_model([AIMessage("Yes.")]), middleware).invoke(ask("Hello?"))
    async with open_engine(url, **script.OPTIONS) as engine:
        assert len(await engine.store.read_range("named")) == 2


async def test_a_synchronous_run_on_the_engines_own_loop_is_refused(url: str):
    async with open_engine(url, **script.OPTIONS) as engine:
        middleware = QuireMiddleware(engine, conversation=script.CONVERSATION)
        agent = run.make_agent(run.make_model([AIMessage("Yes."), AIMessage("Yes.")]), middleware)
        with pytest.raises(InvalidRequest, match="ainvoke"):
            agent.invoke(ask("Hello?"))
        assert (await agent.ainvoke(ask("Hello?")))["messages"][-1].text == "Yes."


@pytest.mark.usefixtures("default_interrupt")
def test_ctrl_c_ends_the_work_before_it_is_raised(url: str, monkeypatch: pytest.MonkeyPatch):
    has_ended = Event()

    async def interrupt(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(3_600)
        finally:
            has_ended.set()

    monkeypatch.setattr(langchain, "read_history", interrupt)
    call: Any = {"name": "history_read", "args": {"first": 3}, "id": "read"}
    request = ToolCallRequest(tool_call=call, tool=None, state={}, runtime=None)  # pyright: ignore[reportArgumentType]
    with open_middleware(url, conversation=script.CONVERSATION, **script.OPTIONS) as middleware:
        with pytest.raises(KeyboardInterrupt):
            middleware.wrap_tool_call(request, lambda _: ToolMessage("", tool_call_id="read"))
        assert has_ended.is_set()


def test_messages_are_the_same_after_both_conversions():
    messages = [
        SystemMessage("Be brief."),
        HumanMessage(
            [{"type": "text", "text": "What is this?"}, {"type": "image", "url": "https://example.org/a.png"}]
        ),
        HumanMessage([{"type": "image", "base64": PIXEL, "mime_type": "image/png"}], name="ann"),
        AIMessage("Let me see.", tool_calls=[CALL]),
        ToolMessage("no such city", tool_call_id="c1", name="weather", status="error"),
        AIMessage("I cannot say."),
    ]
    assert not any(convert_message(message).dropped for message in messages)
    parsed = [parse_message(message) for message in messages]
    converted = [each for group in to_langchain(parsed, load_blob=None) for each in group]
    assert [parse_message(message) for message in converted] == parsed
    assert [type(message) for message in converted] == [type(message) for message in messages]
    assert [message.text for message in converted] == [message.text for message in messages]


def test_what_has_no_place_is_named():
    audio = convert_message(HumanMessage([{"type": "audio", "base64": PIXEL, "mime_type": "audio/wav"}]))
    assert (audio.message and audio.message.text, audio.dropped) == ("[audio]", ("messages[audio]",))
    image = convert_message(HumanMessage([{"type": "image", "file_id": "file_1"}]))
    assert (image.message and image.message.text, image.dropped) == ("[image]", ("messages[image]",))


def test_usage_and_signed_thinking_are_recorded():
    usage: Any = {"input_tokens": 9, "output_tokens": 2, "total_tokens": 11, "input_token_details": {"cache_read": 4}}
    thinking: Any = [{"type": "reasoning", "reasoning": "Hm.", "extras": {"signature": "c2ln"}}]
    reply = parse_reply(AIMessage(thinking, usage_metadata=usage, response_metadata={"model_name": "m"}))
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.cache_read_tokens, reply.usage.model) == (9, 4, "m")
    assert reply.message.parts[0].model_dump(include={"text", "signature"}) == {"text": "Hm.", "signature": "c2ln"}


def test_the_example_of_the_docs_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    code, printed = script.read_example("langchain.md")
    exec(code, {"__name__": "example"})
    assert capsys.readouterr().out == printed
