"""Functions and MCP servers in a turn: called by the names that the model knows, allowed where they ask for it."""

import asyncio
from collections.abc import Callable

from staging import StagedModel, check_events, check_log, collected, letters
from support_mcp import Notes, all_gone, opened

from quire.agent.approvals import Allow, AllowAlways, Approvals, Verdict
from quire.agent.functions import tool
from quire.agent.loop import turn
from quire.agent.runners import FunctionRunner, ServerRunner
from quire.context.names import sent_name
from quire.engine import Engine
from quire.log import SqlStore
from quire.model import Message, ToolCallPart
from quire.model.agents import Agent, AgentMemory, OfferedTool, ToolServer
from quire.model.turns import ApprovalAsked, ToolAnswered, TurnEnded, TurnEvent
from quire.settings import Settings


@tool
def double(number: int) -> int:
    """Doubles a number."""
    return 2 * number


@tool(name="wipe the disk", needs_approval=lambda given: given["disk"] != "/dev/null")
def wipe(disk: str) -> str:
    return f"{disk} is empty"


def engine_with(store: SqlStore, *tools: OfferedTool) -> Engine:
    agent = Agent(name="a", tools=tools, memory=AgentMemory(enabled=False))
    return Engine(store, settings=Settings(model="gpt-4o", context_limit=16_000), agent=agent)


def calling(*calls: tuple[str, str]) -> Message:
    parts = [ToolCallPart(id=str(place), name=name, arguments=text) for place, (name, text) in enumerate(calls)]
    return Message(role="assistant", parts=tuple(parts))


def answers(told: list[TurnEvent]) -> dict[str, str]:
    return {event.call.id: event.result.text for event in told if isinstance(event, ToolAnswered)}


async def allow(call: ToolCallPart) -> Verdict:
    return Allow()


async def test_functions_are_run_by_the_names_that_the_model_knows(store: SqlStore):
    conversation = await engine_with(store, double.offered, wipe.offered).conversation("c")
    name = sent_name(wipe.offered.item)
    assert name != "wipe the disk"
    model = StagedModel(
        calling(
            ("double", '{"number": 21}'),
            ("double", '{"number": "x"}'),
            (name, '{"disk": "/dev/null"}'),
            (name, '{"disk": "/dev/sda"}'),
        ),
        "done",
    )
    told = await collected(turn(conversation, "go", model=model, runners=[FunctionRunner([double, wipe])]))
    assert answers(told)["0"] == "42"
    assert "Mend the arguments" in answers(told)["1"]
    assert answers(told)["2"] == "/dev/null is empty"
    assert "nobody is here to ask" in answers(told)["3"]
    assert [event.call.id for event in told if isinstance(event, ApprovalAsked)] == ["3"]
    check_events(told)
    await check_log(conversation)


async def test_tools_of_a_server_are_run_once_they_are_allowed(
    store: SqlStore, program: Callable[..., ToolServer], notes: Notes
):
    asked: list[str] = []

    async def ask(call: ToolCallPart) -> Verdict:
        asked.append(call.name)
        return AllowAlways()

    with all_gone(notes):
        async with opened(program("workshop", "stdio")) as servers:
            offered = await servers.tools()
            conversation = await engine_with(store, *offered).conversation("c")
            runners = [
                FunctionRunner([double]),
                ServerRunner(servers, offered, asks=lambda item: item.name != "words"),
            ]
            model = StagedModel(
                calling(("s__add", '{"a": 1, "b": 2}'), ("s__words", '{"text": "a b"}'), ("s__add", "no json")), "3"
            )
            told = await collected(turn(conversation, "go", model=model, runners=runners, approvals=Approvals(ask)))
    assert asked == ["s__add"]
    assert answers(told)["0"] == "3"
    assert answers(told)["1"] == "ab"
    assert "are no JSON object" in answers(told)["2"]
    check_events(told)
    await check_log(conversation)


async def test_stopping_a_turn_stops_the_call_at_the_server(
    store: SqlStore, program: Callable[..., ToolServer], notes: Notes
):
    stopping = asyncio.Event()
    with all_gone(notes):
        async with opened(program("workshop", "stdio")) as servers:
            offered = await servers.tools()
            conversation = await engine_with(store, *offered).conversation("c")
            events = turn(
                conversation,
                "go",
                model=StagedModel(calling(("s__wait", '{"seconds": 60}'))),
                runners=[ServerRunner(servers, offered)],
                approvals=Approvals(allow),
                stop=stopping,
            )
            told: list[TurnEvent] = []
            async for event in events:
                told.append(event)
                if isinstance(event, ApprovalAsked):
                    asyncio.get_running_loop().call_later(0.3, stopping.set)
            assert letters(told) == "SQPRCABE"
            assert isinstance(told[-1], TurnEnded)
            assert told[-1].reason == "stopped"
            again = StagedModel(calling(("s__add", '{"a": 1, "b": 2}')), "3")
            runner = ServerRunner(servers, offered, asks=lambda item: False)
            assert answers(await collected(turn(conversation, "add", model=again, runners=[runner]))) == {"0": "3"}
    assert "cancelled" in notes.path.read_text()
    await check_log(conversation)
