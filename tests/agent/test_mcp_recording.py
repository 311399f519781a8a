"""From a server's tool list to the log: tools are included by their mode, and results are recorded untruncated."""

from collections.abc import Callable

from mcp_fixtures import make_mcp_servers, make_tool_item

from quire.context.items import build_initial_changes
from quire.model import ImagePart, Message, TextPart, ToolCallPart
from quire.model.agents import Agent, ToolOverride, ToolServer
from quire.store import SqlStore


async def test_tools_enter_by_their_mode_and_results_are_in_the_log(
    store: SqlStore, make_tool_server: Callable[..., ToolServer]
):
    server = make_tool_server(
        "sdk_server",
        "stdio",
        include="manual",
        tools={"large": ToolOverride(include="always"), "add": ToolOverride(include="always", enabled=False)},
    )
    conversation = (await store.create_conversation()).id
    async with make_mcp_servers(server, put_blob=store.put_blob) as servers:
        agent = Agent(name="a", servers=(server,)).with_tools(*await servers.list_tools())
        assert [change.item for change in build_initial_changes(agent)] == [make_tool_item("large")]
        large = (await servers.call_tool(make_tool_item("large"), '{"size": 5000000}')).to_part("1")
        mixed = (await servers.call_tool(make_tool_item("mixed"), "{}")).to_part("2")
        failed = (await servers.call_tool(make_tool_item("fail"), '{"reason": "none"}')).to_part("3")
    calls = tuple(ToolCallPart(id=call, name="t") for call in "123")
    messages = [Message(role="assistant", parts=calls), Message(role="tool", parts=(large, mixed, failed))]
    await store.append(conversation, Message.user("go"), *messages)

    recorded = (await store.get_entry(conversation, 3)).body
    assert recorded == messages[1]
    assert isinstance(recorded, Message)
    assert len(recorded.tool_results[0].text) == 5_000_000
    assert recorded.tool_results[2].is_error
    image = recorded.tool_results[1].content[1]
    assert isinstance(image, ImagePart)
    assert image.blob is not None
    assert (await store.get_blob(image.blob)).data.startswith(b"\x89PNG")
    assert isinstance(recorded.tool_results[1].content[0], TextPart)
    assert await store.verify_conversation(conversation) == []
