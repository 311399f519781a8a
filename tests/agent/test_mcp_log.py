"""From a server's list to the log: tools enter by their mode, and what a call gave is kept whole."""

from collections.abc import Callable

from support_mcp import of, opened

from quire.context.items import initial_changes
from quire.log import SqlStore
from quire.model import ImagePart, Message, TextPart, ToolCallPart
from quire.model.agents import Agent, ToolOverride, ToolServer


async def test_tools_enter_by_their_mode_and_results_are_in_the_log(
    store: SqlStore, program: Callable[..., ToolServer]
):
    server = program(
        "workshop",
        "stdio",
        include="manual",
        tools={"large": ToolOverride(include="always"), "add": ToolOverride(include="always", enabled=False)},
    )
    conversation = (await store.create_conversation()).id
    async with opened(server, keep=store.put_blob) as servers:
        agent = Agent(name="a", servers=(server,)).offering(*await servers.tools())
        assert [change.item for change in initial_changes(agent)] == [of("large")]
        large = (await servers.call(of("large"), '{"size": 5000000}')).part("1")
        mixed = (await servers.call(of("mixed"), "{}")).part("2")
        failed = (await servers.call(of("fail"), '{"reason": "none"}')).part("3")
    calls = tuple(ToolCallPart(id=call, name="t") for call in "123")
    said = [Message(role="assistant", parts=calls), Message(role="tool", parts=(large, mixed, failed))]
    await store.append(conversation, Message.user("go"), *said)

    kept = (await store.entry(conversation, 3)).body
    assert kept == said[1]
    assert isinstance(kept, Message)
    assert len(kept.tool_results[0].text) == 5_000_000
    assert kept.tool_results[2].is_error
    image = kept.tool_results[1].content[1]
    assert isinstance(image, ImagePart)
    assert image.blob is not None
    assert (await store.blob(image.blob)).data.startswith(b"\x89PNG")
    assert isinstance(kept.tool_results[1].content[0], TextPart)
    assert await store.verify(conversation) == []
