"""Real MCP servers as subprocesses, well behaved and misbehaving."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mcp_fixtures import (
    FAST_MCP_LIMITS,
    ServerLog,
    assert_processes_exit,
    find_free_port,
    get_error_text,
    get_text,
    make_mcp_servers,
    make_tool_item,
    wait_for_tool,
)

from infra.processes import wait_for_exit
from quire.errors import InvalidConfiguration, MissingExtra
from quire.model import FilePart, ImagePart, TextPart
from quire.model.agents import ToolOverride, ToolServer


async def test_tools_are_listed_with_their_modes_and_called(
    make_tool_server: Callable[..., ToolServer], server_log: ServerLog
):
    server = make_tool_server("sdk_server", "stdio", include="agent", tools={"add": ToolOverride(include="always")})
    blobs: dict[str, bytes] = {}

    async def put_blob(data: bytes, *, media_type: str) -> str:
        digest = f"{len(blobs):064x}"
        blobs[digest] = data
        return digest

    with assert_processes_exit(server_log):
        async with make_mcp_servers(server, put_blob=put_blob) as servers:
            assert server_log.pids == []  # servers start on first use
            offered = {tool.name: tool for tool in await servers.list_tools()}
            assert offered["add"].include == "always"
            assert offered["echo"].include is None
            assert offered["echo"].server == "s"
            assert offered["echo"].definition.description == "Says it again."
            assert offered["echo"].definition.parameters["required"] == ["text"]
            assert get_text(await servers.call_tool(make_tool_item("echo"), '{"text": "naïve 🦊"}')) == "naïve 🦊"
            assert get_text(await servers.call_tool(make_tool_item("add"), '{"a": 1, "b": 2}')) == "3"
            assert (
                get_text(await servers.call_tool(make_tool_item("person"), "")).count("Zoë") == 1
            )  # not once more as structured content
            assert get_text(await servers.call_tool(make_tool_item("words"), '{"text": "a b"}')) == "ab"
            assert "Error executing tool fail" in get_error_text(
                await servers.call_tool(make_tool_item("fail"), '{"reason": "r"}')
            )
            assert "Input should be a valid integer" in get_error_text(
                await servers.call_tool(make_tool_item("add"), '{"a": "x", "b": 2}')
            )
            assert "Unknown tool" in get_error_text(await servers.call_tool(make_tool_item("missing"), "{}"))

            mixed = (await servers.call_tool(make_tool_item("mixed"), "{}")).to_part("call-1")
            assert mixed.call_id == "call-1"
            text, image, note, file, link, last = mixed.content
            assert (text, last) == (TextPart(text="first"), TextPart(text="last 🦊"))
            assert isinstance(image, ImagePart)
            assert (image.width, image.height, image.media_type) == (2, 3, "image/png")
            assert image.blob is not None
            assert blobs[image.blob].startswith(b"\x89PNG")
            assert note == TextPart(text="[resource: note://a]\na note")
            assert isinstance(file, FilePart)
            assert (file.name, file.media_type, blobs[file.blob or ""]) == ("report.pdf", "application/pdf", b"%PDF-")
            assert link == TextPart(text="[resource: more, note://b, another note]")

            await servers.call_tool(make_tool_item("grow"), "{}")
            await wait_for_tool("late", servers)
            assert get_text(await servers.call_tool(make_tool_item("late"), '{"text": "x"}')) == "X"
            assert servers.problems == ()
            assert len(server_log.pids) == 1


@pytest.mark.parametrize(
    "arguments", ["[1]", '{"text": ', "null", '{"text": NaN}', '"\\ud800"', "\ud800", "[" * 99_999]
)
async def test_arguments_that_are_no_object_do_not_reach_the_server(
    arguments: str, make_tool_server: Callable[..., ToolServer], server_log: ServerLog
):
    async with make_mcp_servers(make_tool_server("sdk_server", "stdio")) as servers:
        assert "not a JSON object" in get_error_text(await servers.call_tool(make_tool_item("echo"), arguments))
        assert "there is no server other" in get_error_text(
            await servers.call_tool(make_tool_item("echo", "other"), "{}")
        )
    assert server_log.pids == []


@pytest.mark.slow
async def test_a_server_that_hangs_costs_its_own_tools_and_its_time_limit_only(
    make_tool_server: Callable[..., ToolServer], server_log: ServerLog
):
    deaf = make_tool_server("misbehaving_server", "deaf", name="deaf")
    slow = make_tool_server("paged_tools_server", "hang", name="slow")
    impatient = {
        name: FAST_MCP_LIMITS.model_copy(update={"start_seconds": 2, "list_seconds": 0.5}) for name in ("deaf",)
    }
    impatient["slow"] = FAST_MCP_LIMITS.model_copy(update={"list_seconds": 0.5})
    limits = FAST_MCP_LIMITS.model_copy(update={"call_seconds": 0.5})
    with assert_processes_exit(server_log):
        async with make_mcp_servers(
            deaf, slow, make_tool_server("sdk_server", "stdio"), limits=limits, limits_by_server=impatient
        ) as servers:
            offered = await servers.list_tools()
            assert {tool.server for tool in offered} == {"s"}
            problems = {problem.server: problem.message for problem in servers.problems}
            assert "too long to start" in problems["deaf"]
            assert "too long to list its tools" in problems["slow"]
            assert "is unavailable" in get_error_text(await servers.call_tool(make_tool_item("talk", "deaf"), "{}"))

            started_at = time.monotonic()
            late = get_error_text(await servers.call_tool(make_tool_item("wait"), '{"seconds": 600}'))
            assert time.monotonic() - started_at < 5
            assert "no result within 0.5 s" in late
            await server_log.wait_for_line("cancelled")
            assert get_text(await servers.call_tool(make_tool_item("echo"), '{"text": "still here"}')) == "still here"
    assert len(server_log.pids) == 3  # `deaf` twice: the call tried it again; `paged_tools_server` writes nothing down


async def test_cancelling_the_caller_notifies_the_server_and_preserves_the_connection(
    make_tool_server: Callable[..., ToolServer], server_log: ServerLog
):
    async with make_mcp_servers(make_tool_server("sdk_server", "stdio")) as servers:
        turn = asyncio.create_task(servers.call_tool(make_tool_item("wait"), '{"seconds": 600}'))
        concurrent = asyncio.create_task(servers.call_tool(make_tool_item("wait"), '{"seconds": 0.5}'))
        await server_log.wait_for_line("waiting")
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        await server_log.wait_for_line("cancelled")
        assert get_text(await concurrent) == "waited"
        assert get_text(await servers.call_tool(make_tool_item("echo"), '{"text": "on"}')) == "on"
    assert len(server_log.pids) == 1


async def test_cancelling_a_caller_while_the_server_starts_does_not_cancel_the_start(
    make_tool_server: Callable[..., ToolServer], server_log: ServerLog
):
    async with make_mcp_servers(make_tool_server("sdk_server", "stdio")) as servers:
        first = asyncio.create_task(servers.call_tool(make_tool_item("echo"), '{"text": "a"}'))
        second = asyncio.create_task(servers.call_tool(make_tool_item("echo"), '{"text": "b"}'))
        await server_log.wait_for_starts()
        first.cancel()
        assert get_text(await second) == "b"
    assert len(server_log.pids) == 1


@pytest.mark.slow
async def test_a_server_that_dies_is_started_again_and_at_last_given_up(
    make_tool_server: Callable[..., ToolServer], server_log: ServerLog
):
    limits = FAST_MCP_LIMITS.model_copy(update={"max_restarts": 1})
    with assert_processes_exit(server_log):
        async with make_mcp_servers(make_tool_server("sdk_server", "stdio"), limits=limits) as servers:
            tools = await servers.list_tools()
            assert "exited during the call" in get_error_text(
                await servers.call_tool(make_tool_item("die"), '{"code": 3}')
            )
            assert await servers.list_tools() == tools
            assert get_text(await servers.call_tool(make_tool_item("echo"), '{"text": "back"}')) == "back"
            assert "the boiler burst" in servers.problems[0].message

            os.kill(server_log.pids[-1], signal.SIGKILL)  # between two calls
            await asyncio.to_thread(wait_for_exit, server_log.pids)
            await asyncio.sleep(0.1)
            assert get_text(await servers.call_tool(make_tool_item("echo"), '{"text": "again"}')) == "again"
            assert len(server_log.pids) == 3

            get_error_text(await servers.call_tool(make_tool_item("die"), '{"code": 3}'))
            get_error_text(await servers.call_tool(make_tool_item("die"), '{"code": 3}'))
            assert "is given up: it failed 2 times in a row" in get_error_text(
                await servers.call_tool(make_tool_item("echo"), '{"text": "?"}')
            )
            assert await servers.list_tools() == ()
            assert len(server_log.pids) == 4

            servers.reset_failures("s")
            assert get_text(await servers.call_tool(make_tool_item("echo"), '{"text": "forgiven"}')) == "forgiven"


async def test_a_result_of_five_megabytes_is_complete_and_does_not_block_the_loop(
    make_tool_server: Callable[..., ToolServer],
):
    size, longest_block = 5_000_000, 0.0

    async def measure() -> None:
        nonlocal longest_block
        while True:
            started_at = time.perf_counter()
            await asyncio.sleep(0.001)
            longest_block = max(longest_block, time.perf_counter() - started_at)

    async with make_mcp_servers(make_tool_server("sdk_server", "stdio")) as servers:
        await servers.call_tool(make_tool_item("large"), '{"size": 10}')
        measurement = asyncio.create_task(measure())
        result = get_text(await servers.call_tool(make_tool_item("large"), f'{{"size": {size}}}'))
        measurement.cancel()
        assert result == "é" + "x" * (size - 1)
        assert longest_block < 0.5


async def test_what_exceeds_the_limits_is_truncated_or_dropped_and_its_size_reported(
    make_tool_server: Callable[..., ToolServer],
):
    limits = FAST_MCP_LIMITS.model_copy(update={"max_result_chars": 1_000, "max_message_bytes": 1_000_000})
    sdk_server, misbehaving = (
        make_tool_server("sdk_server", "stdio"),
        make_tool_server("misbehaving_server", "plain", name="h"),
    )
    async with make_mcp_servers(sdk_server, misbehaving, limits=limits) as servers:
        cut = get_text(await servers.call_tool(make_tool_item("large"), '{"size": 100000}'))
        assert len(cut) < 1_200
        assert cut.endswith("[truncated: this text has 100,000 characters; the limit of a result is 1,000]")
        assert "more than 1,000,000 bytes" in get_error_text(
            await servers.call_tool(make_tool_item("large"), '{"size": 2000000}')
        )
        assert "more than 1,000,000 bytes" in get_error_text(
            await servers.call_tool(make_tool_item("talk", "h"), '{"how": "endless"}')
        )
        assert get_text(await servers.call_tool(make_tool_item("talk", "h"), "{}")) == "fine"
        assert {problem.server for problem in servers.problems} == {"s", "h"}


async def test_invalid_lines_on_standard_output_and_broken_tools_are_skipped_and_reported(
    make_tool_server: Callable[..., ToolServer],
):
    async with make_mcp_servers(make_tool_server("misbehaving_server", "rude")) as servers:
        assert [tool.name for tool in await servers.list_tools()] == ["talk", "lax"]
        problems = "\n".join(problem.message for problem in servers.problems)
        assert "Welcome to the server!" in problems
        for broken in ("number 2", "number 3", "'no_schema'", "'takes_text'"):
            assert f"the tool {broken} is skipped" in problems
        assert "'lax'" not in problems
        assert "log line" not in problems  # only the first three invalid lines are reported
        assert get_text(await servers.call_tool(make_tool_item("talk"), "{}")) == "fine"
        assert get_text(await servers.call_tool(make_tool_item("lax"), "{}")) == "fine"
        assert get_text(await servers.call_tool(make_tool_item("talk"), '{"how": "half"}')) == "half a fox: \ufffd"
        assert "violates the protocol" in get_error_text(
            await servers.call_tool(make_tool_item("talk"), '{"how": "nonsense"}')
        )
        assert "an invalid message" in get_error_text(
            await servers.call_tool(make_tool_item("talk"), '{"how": "unreadable"}')
        )
        assert get_text(await servers.call_tool(make_tool_item("talk"), '{"how": "asks"}')) == "refused: True"
        assert get_text(await servers.call_tool(make_tool_item("talk"), '{"how": "grow"}')) == "grown"
        await wait_for_tool("shout", servers)


async def test_a_list_of_pages_without_end_is_read_once(make_tool_server: Callable[..., ToolServer]):
    async with make_mcp_servers(make_tool_server("misbehaving_server", "loop")) as servers:
        assert [tool.name for tool in await servers.list_tools()] == ["talk"]
        assert [problem.message for problem in servers.problems] == [
            "the tool 'talk' is skipped: another tool of this server has the same name"
        ]


async def test_three_hundred_tools_come_in_pages_and_those_no_model_could_use_are_left_out(
    make_tool_server: Callable[..., ToolServer],
):
    async with make_mcp_servers(make_tool_server("paged_tools_server")) as servers:
        offered = [tool.name for tool in await servers.list_tools()]
        assert offered == [*(f"tool_{number}" for number in range(300)), "Übersetze 日本語 🦊"]
        problems = [problem.message for problem in servers.problems]
        assert len(problems) == 6
        for expected in ("same name", "no name", "unprintable", "256 characters", "properties.a.type", "pattern"):
            assert any(expected in problem for problem in problems), expected
        assert (
            get_text(await servers.call_tool(make_tool_item("Übersetze 日本語 🦊"), "{}"))
            == "Übersetze 日本語 🦊 was called"
        )


async def test_a_server_that_floods_standard_error_is_read_and_answers(make_tool_server: Callable[..., ToolServer]):
    async with make_mcp_servers(make_tool_server("sdk_server", "stdio")) as servers:
        assert get_text(await servers.call_tool(make_tool_item("shout"), '{"lines": 100000}')) == "quiet again"
        assert servers.problems == ()


async def test_a_process_gets_what_is_configured_and_no_other_key(
    make_tool_server: Callable[..., ToolServer], server_log: ServerLog
):
    server = make_tool_server("sdk_server", "stdio", env={"TOKEN": "Bearer ${OPENAI_API_KEY}"})
    async with make_mcp_servers(server) as servers:
        seen = get_text(await servers.call_tool(make_tool_item("environment"), "{}"))
    assert '"TOKEN": "Bearer sk-secret"' in seen
    assert '"HOME": "/nowhere"' in seen
    assert "OPENAI_API_KEY" not in seen
    assert seen.count("sk-secret") == 1


async def test_what_cannot_be_started_is_said(make_tool_server: Callable[..., ToolServer], tmp_path: Path):
    missing = ToolServer(name="missing", command="no-such-make_tool_server-anywhere")
    lost = make_tool_server("sdk_server", "stdio", name="lost", cwd=str(tmp_path / "nowhere"))
    unset = make_tool_server("sdk_server", "stdio", name="unset", env={"A": "${UNSET}"})
    broken = make_tool_server("no_such_script", name="broken")
    unreachable = ToolServer(name="unreachable", url=f"http://127.0.0.1:{find_free_port()}/mcp", transport="http")
    off = make_tool_server("sdk_server", "stdio", name="off", enabled=False)
    async with make_mcp_servers(missing, lost, unset, broken, unreachable, off) as servers:
        assert await servers.list_tools() == ()
        problems = {problem.server: problem.message for problem in servers.problems}
        assert "no-such-make_tool_server-anywhere" in problems["missing"]
        assert "nowhere" in problems["lost"]
        assert "UNSET" in problems["unset"]
        assert "No such file" in problems["broken"]
        assert "cannot connect to 127.0.0.1" in problems["unreachable"]
        assert "off" not in problems
        assert "there is no server off" in get_error_text(await servers.call_tool(make_tool_item("echo", "off"), "{}"))


async def test_servers_are_used_within_their_block(make_tool_server: Callable[..., ToolServer]):
    with pytest.raises(InvalidConfiguration, match="async with"):
        await make_mcp_servers(make_tool_server("sdk_server", "stdio")).list_tools()


async def test_without_the_extra_entering_names_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "quire.agent.mcp.connection", raising=False)
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtra, match=r"quire\[mcp\]"):
        await make_mcp_servers().__aenter__()
