"""The capability of Pydantic AI: an agent runs past the window, is killed, and resumes; its history does not change."""

from pathlib import Path
from typing import Any

import pydantic_ai_run as run
import pytest
import scripted_turns as script
from pydantic import BaseModel
from pydantic_ai import NativeOutput
from pydantic_ai import messages as pai
from pydantic_ai.capabilities import NativeTool
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.native_tools import WebSearchTool
from pydantic_ai.profiles import ModelProfile

from quire.adapters.pydantic_ai import (
    QuireCapability,
    build_history,
    convert_model_message,
    list_items,
    open_capability,
)
from quire.engine import open_engine
from quire.model import Message
from quire.model.agents import Agent, Rule
from quire.proxy.framework_requests import make_match_key


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/quire.db"


@pytest.mark.slow
async def test_an_agent_runs_five_times_past_the_window(url: str):
    turns = range(1, script.TURNS + 1)
    requests = await run.run_turns(url, turns)
    assert len(requests) == 2 * len(turns)
    script.check_requests(requests)
    await script.check_history(url, turns)


@pytest.mark.slow
async def test_a_killed_agent_resumes_from_the_log(url: str):
    finished = script.run_until_killed("pydantic_ai", url)
    last = finished + script.RESUMED_TURNS
    resumed = await run.run_turns(url, range(finished + 1, last + 1), passes_history=False, streams=True)
    script.check_requests(resumed)
    await script.check_resumed(url, last)


async def test_a_model_reads_what_was_archived(url: str):
    await run.run_turns(url, range(1, 6))
    model = run.ScriptedModel()
    model.replies = [[pai.ToolCallPart("history_read", {"first": 3}, "read")], [pai.TextPart("Read.")]]
    async with open_capability(url, **script.OPTIONS) as capability:
        agent = run.make_agent(model, capability)
        result = await agent.run("What was high water at pier 1?", conversation_id=script.CONVERSATION)
    names = {tool["function"]["name"] for tool in model.requests[0].payload["tools"]}
    assert names == {"read_tide_table", "history_read", "history_search"}
    [returned] = [
        part for message in result.all_messages() for part in message.parts if part.part_kind == "tool-return"
    ]
    assert script.make_result(1)[:40] in str(returned.content)
    script.check_requests(model.requests)


async def test_the_history_tools_can_be_turned_off(url: str):
    await run.run_turns(url, range(1, 6))
    model = run.ScriptedModel()
    model.replies = [[pai.TextPart("Yes.")]]
    async with open_capability(url, **script.OPTIONS, context_tools=False) as capability:
        await run.make_agent(model, capability).run("Hello?", conversation_id=script.CONVERSATION)
    assert len(model.requests[0].payload["tools"]) == 1


class Tide(BaseModel):
    """High water."""

    hour: int


async def test_the_budget_has_room_for_native_tools_and_the_output_schema(url: str):
    model = run.ScriptedModel()
    model.replies = [[pai.TextPart('{"hour": 6}')]]
    async with open_capability(url, **script.OPTIONS) as capability:
        agent = run.make_agent(model, capability, output_type=NativeOutput(Tide))
        profile = ModelProfile(supports_json_schema_output=True, supported_native_tools=frozenset({WebSearchTool}))
        result = await agent.run(
            "When?",
            conversation_id=script.CONVERSATION,
            model=FunctionModel(model.reply, profile=profile),
            capabilities=[NativeTool(WebSearchTool())],
        )
        [(_, manifest)] = await capability.engine.store.list_manifests(script.CONVERSATION)
    assert result.output == Tide(hour=6)
    assert manifest.max_input_tokens < script.MAX_INPUT_TOKENS
    assert manifest.forwarded is not None
    assert manifest.forwarded.dropped == ("tools[web_search]", "output_object")


async def test_a_changed_history_is_stored_on_a_branch_of_its_own(url: str):
    model = run.ScriptedModel()
    async with open_capability(url, **script.OPTIONS) as capability:
        agent = run.make_agent(model, capability)
        model.add_turn(1)
        first = await agent.run(script.make_question(1), conversation_id=script.CONVERSATION)
        for question in ("One way", "Another way"):
            model.replies = [[pai.TextPart("Yes.")]]
            await agent.run(question, message_history=first.all_messages())
        branches = await capability.engine.store.list_branches(script.CONVERSATION)
    assert len(branches) == 2


async def test_a_rule_of_quires_own_agent_is_added_to_the_instructions(url: str):
    rules = (Rule(name="brief", text="Be brief.", include="always"),)
    model = run.ScriptedModel()
    model.replies = [[pai.TextPart("Yes.")]]
    async with open_engine(url, **script.OPTIONS, agent=Agent(name="office", rules=rules)) as engine:
        await run.make_agent(model, QuireCapability(engine)).run("Hello?", conversation_id=script.CONVERSATION)
    system = model.requests[0].payload["messages"][0]["content"]
    assert system.startswith(script.INSTRUCTIONS)
    assert "Be brief." in system


HISTORY: list[pai.ModelMessage] = [
    pai.ModelRequest(
        [
            pai.SystemPromptPart("Be brief."),
            pai.UserPromptPart(["What is this?", pai.ImageUrl("https://example.org/a.png")]),
        ]
    ),
    pai.ModelResponse([pai.ThinkingPart("Hm.", signature="c2ln"), pai.ToolCallPart("look", {"at": 1}, "c1")]),
    pai.ModelRequest([pai.ToolReturnPart("look", {"seen": "a gull"}, "c1", outcome="failed")]),
    pai.ModelResponse([pai.TextPart("A gull.")]),
    pai.ModelRequest([pai.UserPromptPart([pai.BinaryContent(b"%PDF-1.4", media_type="application/pdf")])]),
]


def convert(history: list[pai.ModelMessage]) -> list[Message]:
    converted = [each for message in history for each in convert_model_message(message)]
    return [each.message for each in converted if each.message is not None]


def test_originals_are_passed_on_as_the_same_objects():
    messages = convert(HISTORY)
    originals = dict(zip(map(make_match_key, messages), list_items(HISTORY), strict=True))
    rebuilt = build_history(messages, originals, load_blob=None)
    parts = [part for message in rebuilt for part in message.parts]
    assert all(one is other for one, other in zip(parts, [p for m in HISTORY for p in m.parts], strict=True))
    converted = build_history(messages, {}, load_blob=None)
    assert list(map(make_match_key, convert(converted))) == list(map(make_match_key, messages))


def test_what_has_no_place_is_named():
    audio: Any = pai.AudioUrl("https://example.org/a.wav")
    [converted] = convert_model_message(pai.ModelRequest([pai.UserPromptPart([audio])]))
    assert converted.message is not None
    assert (converted.message.text, converted.dropped) == ("[audio-url]", ("messages[audio-url]",))
    call = pai.NativeToolCallPart("web_search", {"query": "tides"}, "n1")
    [converted] = convert_model_message(pai.ModelResponse([call]))
    assert converted.dropped == ("messages[builtin-tool-call]",)


@pytest.mark.parametrize("page", ["pydantic-ai.md", "frameworks.md"])
def test_the_example_of_the_docs_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    code, printed = script.read_example(page)
    exec(code, {"__name__": "example"})
    assert capsys.readouterr().out == printed
