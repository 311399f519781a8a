"""Sessions of the OpenAI Agents SDK in the log: the SDK's agent runs past the window, is killed, and resumes."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import openai_agents_run as run
import pytest
import scripted_turns as script
from agents import Agent, RunConfig, Runner, WebSearchTool
from agents.memory import OpenAIResponsesCompactionAwareSession, Session
from agents.models.chatcmpl_converter import Converter
from agents.models.fake_id import FAKE_RESPONSES_ID
from agents.testing import ScriptedModel, assistant_message
from pydantic import BaseModel

from quire.adapters.openai_agents import QuireSession
from quire.engine import Engine, open_engine

ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather in Oslo?"},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Call both"}]},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'},
    {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "time", "arguments": "{}", "status": "completed"},
    {"type": "function_call_output", "call_id": "c1", "output": "rain"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "noon"}]},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "Oslo"}},
    {
        "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "Rain at noon.", "annotations": [], "logprobs": []}],
    },
    {"type": "message", "role": "developer", "content": "Be brief."},
]  # fmt: skip


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/quire.db"


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[Engine]:
    async with open_engine(database_url, **script.OPTIONS) as engine:
        yield engine


@pytest.fixture
def session(engine: Engine) -> QuireSession:
    return QuireSession(script.CONVERSATION, engine)


@pytest.mark.slow
async def test_an_agent_runs_five_times_past_the_window(url: str):
    turns = range(1, script.TURNS + 1)
    requests = await run.run_turns(url, turns, streams=True)
    assert len(requests) == 2 * len(turns)
    script.check_requests(requests)
    await script.check_history(url, turns)


@pytest.mark.slow
async def test_a_killed_agent_resumes_from_the_log(url: str):
    finished = script.run_until_killed("openai_agents", url)
    last = finished + script.RESUMED_TURNS
    script.check_requests(await run.run_turns(url, range(finished + 1, last + 1)))
    await script.check_resumed(url, last)


async def test_items_are_returned_as_they_were_added(session: QuireSession):
    assert isinstance(session, Session)
    assert isinstance(session, OpenAIResponsesCompactionAwareSession)
    assert session.session_settings.limit is None
    assert await session.get_items() == []
    for start in (0, 4, 8):
        await session.add_items(cast(Any, ITEMS[start : start + 4]))
    assert await session.get_items() == ITEMS
    assert await session.get_items(limit=3) == ITEMS[-3:]
    assert await session.get_items(limit=0) == []
    assert await session.get_items(limit=len(ITEMS) + 1) == ITEMS


async def test_popped_and_cleared_items_stay_in_the_log(session: QuireSession, engine: Engine):
    await session.add_items(cast(Any, ITEMS))
    popped = [await session.pop_item() for _ in range(6)]
    assert popped == ITEMS[:2:-1]
    assert await session.get_items() == ITEMS[:3]
    await session.add_items(cast(Any, ITEMS[3:]))
    await session.clear_session()
    assert await session.get_items() == []
    assert await session.pop_item() is None
    await session.add_items(cast(Any, ITEMS[:1]))
    assert await QuireSession(script.CONVERSATION, engine).get_items() == ITEMS[:1]
    first = await engine.conversation(script.CONVERSATION)
    assert len(await first.messages()) == 6


async def test_a_compaction_on_request_changes_requests_and_no_items(url: str):
    await run.run_turns(url, range(1, 3))
    async with open_engine(url, **script.OPTIONS) as engine:
        session = QuireSession(script.CONVERSATION, engine)
        before = await session.get_items()
        await session.run_compaction({"response_id": "resp_1"})
        assert await engine.store.read_range(script.CONVERSATION, kinds=["compaction"]) == []
        await session.run_compaction({"force": True})
        assert len(await engine.store.read_range(script.CONVERSATION, kinds=["compaction"])) == 1
        assert await session.get_items() == before


class Tide(BaseModel):
    hour: int
    minute: int


async def test_the_budget_has_room_for_handoffs_hosted_tools_and_the_output_schema(url: str):
    model = ScriptedModel([[assistant_message('{"hour": 6, "minute": 12}')]])
    async with open_engine(url, **script.OPTIONS) as engine:
        session = QuireSession(script.CONVERSATION, engine)
        config = RunConfig(call_model_input_filter=session.filter_input, tracing_disabled=True)
        pilot = Agent(name="pilot", handoff_description="Guides ships")
        agent = run.make_agent(model, output_type=Tide, handoffs=[pilot])
        agent.tools.append(WebSearchTool())
        reasoning: Any = {"type": "reasoning", "id": "rs_1", "summary": []}
        question: Any = [{"role": "user", "content": "High water?"}, reasoning, {"role": "user", "content": "Now?"}]
        await Runner.run(agent, question, session=session, run_config=config)
        agent.tools.remove(run.read_tide_table)
        [(_, manifest)] = await engine.store.list_manifests(script.CONVERSATION)
    tools = [row.name for row in manifest.decisions if row.kind == "tool"]
    assert tools == ["read_tide_table", "transfer_to_pilot"]
    assert manifest.max_input_tokens < script.MAX_INPUT_TOKENS
    assert manifest.forwarded is not None
    assert manifest.forwarded.dropped == ("tools[web_search]", "text.format", "input[reasoning]")


async def test_models_for_chat_completions_take_the_replies_of_earlier_turns(session: QuireSession):
    """Such a model adds fields of its own to a reply, and has a stricter converter than the one for responses."""
    text: Any = {"type": "output_text", "text": "At six.", "annotations": [], "logprobs": []}
    cited = {**text, "annotations": [{"type": "url_citation", "url": "https://example.org", "title": "Tides",
                                      "start_index": 0, "end_index": 2}]}  # fmt: skip
    for content in (text, cited):
        reply: Any = {
            "type": "message", "id": FAKE_RESPONSES_ID, "role": "assistant", "status": "completed",
            "content": [content], "provider_data": {"model": "m"},
        }  # fmt: skip
        await session.add_items([{"role": "user", "content": "When?"}, reply])
    model = ScriptedModel([[assistant_message("At seven.")]])
    config = RunConfig(call_model_input_filter=session.filter_input, tracing_disabled=True)
    await Runner.run(run.make_agent(model), "And now?", session=session, run_config=config)
    messages: Any = Converter.items_to_messages(model.calls[0].input)
    assert [each["role"] for each in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert "At six." in str(messages[1]["content"])
    assert "At six." in str(messages[3]["content"])


async def test_the_usage_of_a_reply_is_recorded(url: str):
    from agents.usage import Usage

    model = ScriptedModel(default_usage=Usage(requests=1, input_tokens=70, output_tokens=5, total_tokens=75))
    model.enqueue([assistant_message("At six.")])
    async with open_engine(url, **script.OPTIONS) as engine:
        session = QuireSession(script.CONVERSATION, engine)
        config = RunConfig(call_model_input_filter=session.filter_input, tracing_disabled=True)
        await Runner.run(run.make_agent(model), "When?", session=session, run_config=config, hooks=session.hooks)
        [reply] = await engine.store.read_range(script.CONVERSATION, roles=["assistant"])
    assert reply.metadata.usage is not None
    assert (reply.metadata.usage.input_tokens, reply.metadata.usage.output_tokens) == (70, 5)


def test_the_example_of_the_docs_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    code, printed = script.read_example("openai-agents.md")
    exec(code, {"__name__": "example"})
    assert capsys.readouterr().out == printed
