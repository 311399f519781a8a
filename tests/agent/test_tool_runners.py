"""Functions and MCP servers in a turn: called by their wire names, with approval where they need it."""

import asyncio
from collections.abc import Callable

from mcp_fixtures import ServerLog, assert_processes_exit, make_mcp_servers
from turn_fixtures import FaultyModel, check_events, check_log, collect_events, encode_events

from quire.agent.approvals import Allow, AllowAlways, ApprovalDecision, Approvals
from quire.agent.function_tools import FunctionToolRunner, tool
from quire.agent.mcp.servers import MCPToolRunner
from quire.agent.turn import run_turn
from quire.context.items import wire_name
from quire.engine import Engine, EngineConfig
from quire.model import Message, ToolCallPart
from quire.model.agents import Agent, AgentMemory, AgentTool, ToolServer
from quire.model.events import ApprovalRequested, ToolCompleted, TurnEnded, TurnEvent
from quire.settings import Settings
from quire.store import SqlStore


@tool
def double(number: int) -> int:
    """Doubles a number."""
    return 2 * number


@tool(name="wipe the disk", needs_approval=lambda arguments: arguments["disk"] != "/dev/null")
def wipe(disk: str) -> str:
    return f"{disk} is empty"


def make_engine_with_tools(store: SqlStore, *tools: AgentTool) -> Engine:
    agent = Agent(name="a", tools=tools, memory=AgentMemory(enabled=False))
    return Engine(store, EngineConfig.create(Settings(model="gpt-4o", context_limit=16_000), agent=agent))


def make_tool_call_reply(*calls: tuple[str, str]) -> Message:
    parts = [ToolCallPart(id=str(index), name=name, arguments=text) for index, (name, text) in enumerate(calls)]
    return Message(role="assistant", parts=tuple(parts))


def get_results_by_id(events: list[TurnEvent]) -> dict[str, str]:
    return {event.call.id: event.result.text for event in events if isinstance(event, ToolCompleted)}


async def always_approve(call: ToolCallPart) -> ApprovalDecision:
    return Allow()


async def test_functions_are_run_by_the_names_that_the_model_knows(store: SqlStore):
    conversation = await make_engine_with_tools(store, double.offered_tool, wipe.offered_tool).conversation("c")
    name = wire_name(wipe.offered_tool.item)
    assert name != "wipe the disk"
    model = FaultyModel(
        make_tool_call_reply(
            ("double", '{"number": 21}'),
            ("double", '{"number": "x"}'),
            (name, '{"disk": "/dev/null"}'),
            (name, '{"disk": "/dev/sda"}'),
        ),
        "done",
    )
    events = await collect_events(
        run_turn(conversation, "go", model=model, runners=[FunctionToolRunner([double, wipe])])
    )
    assert get_results_by_id(events)["0"] == "42"
    assert "Correct the arguments" in get_results_by_id(events)["1"]
    assert get_results_by_id(events)["2"] == "/dev/null is empty"
    assert "no way to request one" in get_results_by_id(events)["3"]
    assert [event.call.id for event in events if isinstance(event, ApprovalRequested)] == ["3"]
    check_events(events)
    await check_log(conversation)


async def test_tools_of_a_server_are_run_once_they_are_allowed(
    store: SqlStore, make_tool_server: Callable[..., ToolServer], server_log: ServerLog
):
    approved_names: list[str] = []

    async def ask(call: ToolCallPart) -> ApprovalDecision:
        approved_names.append(call.name)
        return AllowAlways()

    with assert_processes_exit(server_log):
        async with make_mcp_servers(make_tool_server("sdk_server", "stdio")) as servers:
            tools = await servers.list_tools()
            conversation = await make_engine_with_tools(store, *tools).conversation("c")
            runners = [FunctionToolRunner([double]), MCPToolRunner(servers, tools)]
            approvals = Approvals(ask, always_allowed=["s__words"])
            model = FaultyModel(
                make_tool_call_reply(
                    ("s__add", '{"a": 1, "b": 2}'), ("s__words", '{"text": "a b"}'), ("s__add", "no json")
                ),
                "3",
            )
            events = await collect_events(
                run_turn(conversation, "go", model=model, runners=runners, approvals=approvals)
            )
    assert approved_names == ["s__add"]
    assert get_results_by_id(events)["0"] == "3"
    assert get_results_by_id(events)["1"] == "ab"
    assert "are not a JSON object" in get_results_by_id(events)["2"]
    check_events(events)
    await check_log(conversation)


async def test_stopping_a_turn_stops_the_call_at_the_server(
    store: SqlStore, make_tool_server: Callable[..., ToolServer], server_log: ServerLog
):
    stopping = asyncio.Event()
    with assert_processes_exit(server_log):
        async with make_mcp_servers(make_tool_server("sdk_server", "stdio")) as servers:
            tools = await servers.list_tools()
            conversation = await make_engine_with_tools(store, *tools).conversation("c")
            events = run_turn(
                conversation,
                "go",
                model=FaultyModel(make_tool_call_reply(("s__wait", '{"seconds": 60}'))),
                runners=[MCPToolRunner(servers, tools)],
                approvals=Approvals(always_approve),
                stop=stopping,
            )
            received: list[TurnEvent] = []
            async for event in events:
                received.append(event)
                if isinstance(event, ApprovalRequested):
                    asyncio.get_running_loop().call_later(0.3, stopping.set)
            assert encode_events(received) == "SQPRCABE"
            assert isinstance(received[-1], TurnEnded)
            assert received[-1].reason == "stopped"
            again = FaultyModel(make_tool_call_reply(("s__add", '{"a": 1, "b": 2}')), "3")
            events = run_turn(
                conversation,
                "add",
                model=again,
                runners=[MCPToolRunner(servers, tools)],
                approvals=Approvals(always_approve),
            )
            assert get_results_by_id(await collect_events(events)) == {"0": "3"}
    assert "cancelled" in server_log.path.read_text()
    await check_log(conversation)
