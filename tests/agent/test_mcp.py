"""Real MCP servers in processes of their own, well behaved and not."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support_mcp import QUICK, Notes, all_gone, error, free_port, of, offering, opened, said

from quire.errors import InvalidConfiguration, MissingExtra
from quire.model import FilePart, ImagePart, TextPart
from quire.model.agents import ToolOverride, ToolServer
from quire.testing.processes import wait_until_gone


async def test_tools_are_listed_with_their_modes_and_called(program: Callable[..., ToolServer], notes: Notes):
    server = program("workshop", "stdio", include="agent", tools={"add": ToolOverride(include="always")})
    kept: dict[str, bytes] = {}

    async def keep(data: bytes, *, media_type: str) -> str:
        digest = f"{len(kept):064x}"
        kept[digest] = data
        return digest

    with all_gone(notes):
        async with opened(server, keep=keep) as servers:
            assert notes.pids == []  # nothing starts before it is needed
            offered = {tool.name: tool for tool in await servers.tools()}
            assert offered["add"].include == "always"
            assert offered["echo"].include is None
            assert offered["echo"].server == "s"
            assert offered["echo"].definition.description == "Says it again."
            assert offered["echo"].definition.parameters["required"] == ["text"]
            assert said(await servers.call(of("echo"), '{"text": "naïve 🦊"}')) == "naïve 🦊"
            assert said(await servers.call(of("add"), '{"a": 1, "b": 2}')) == "3"
            assert said(await servers.call(of("person"), "")).count("Zoë") == 1  # not once more as structured content
            assert said(await servers.call(of("words"), '{"text": "a b"}')) == "ab"
            assert "Error executing tool fail" in error(await servers.call(of("fail"), '{"reason": "r"}'))
            assert "Input should be a valid integer" in error(await servers.call(of("add"), '{"a": "x", "b": 2}'))
            assert "Unknown tool" in error(await servers.call(of("missing"), "{}"))

            mixed = (await servers.call(of("mixed"), "{}")).part("call-1")
            assert mixed.call_id == "call-1"
            text, image, note, file, link, last = mixed.content
            assert (text, last) == (TextPart(text="first"), TextPart(text="last 🦊"))
            assert isinstance(image, ImagePart)
            assert (image.width, image.height, image.media_type) == (2, 3, "image/png")
            assert image.blob is not None
            assert kept[image.blob].startswith(b"\x89PNG")
            assert note == TextPart(text="[resource: note://a]\na note")
            assert isinstance(file, FilePart)
            assert (file.name, file.media_type, kept[file.blob or ""]) == ("report.pdf", "application/pdf", b"%PDF-")
            assert link == TextPart(text="[resource: more, note://b, another note]")

            await servers.call(of("grow"), "{}")
            await offering("late", servers)
            assert said(await servers.call(of("late"), '{"text": "x"}')) == "X"
            assert servers.troubles == ()
            assert len(notes.pids) == 1


@pytest.mark.parametrize(
    "arguments", ["[1]", '{"text": ', "null", '{"text": NaN}', '"\\ud800"', "\ud800", "[" * 99_999]
)
async def test_arguments_that_are_no_object_do_not_reach_the_server(
    arguments: str, program: Callable[..., ToolServer], notes: Notes
):
    async with opened(program("workshop", "stdio")) as servers:
        assert "no JSON object" in error(await servers.call(of("echo"), arguments))
        assert "there is no server other" in error(await servers.call(of("echo", "other"), "{}"))
    assert notes.pids == []


@pytest.mark.slow
async def test_a_server_that_hangs_costs_its_own_tools_and_its_time_limit_only(
    program: Callable[..., ToolServer], notes: Notes
):
    deaf = program("hostile", "deaf", name="deaf")
    slow = program("catalogue", "hang", name="slow")
    impatient = {name: QUICK.model_copy(update={"start_seconds": 2, "list_seconds": 0.5}) for name in ("deaf",)}
    impatient["slow"] = QUICK.model_copy(update={"list_seconds": 0.5})
    limits = QUICK.model_copy(update={"call_seconds": 0.5})
    with all_gone(notes):
        async with opened(deaf, slow, program("workshop", "stdio"), limits=limits, own_limits=impatient) as servers:
            offered = await servers.tools()
            assert {tool.server for tool in offered} == {"s"}
            problems = {trouble.server: trouble.problem for trouble in servers.troubles}
            assert "too long to start" in problems["deaf"]
            assert "too long to list its tools" in problems["slow"]
            assert "cannot be used now" in error(await servers.call(of("talk", "deaf"), "{}"))

            began = time.monotonic()
            late = error(await servers.call(of("wait"), '{"seconds": 600}'))
            assert time.monotonic() - began < 5
            assert "no result within 0.5 s" in late
            await notes.say("cancelled")
            assert said(await servers.call(of("echo"), '{"text": "still here"}')) == "still here"
    assert len(notes.pids) == 3  # `deaf` twice: the call tried it again; `catalogue` writes nothing down


async def test_cancelling_the_caller_tells_the_server_and_keeps_the_connection(
    program: Callable[..., ToolServer], notes: Notes
):
    async with opened(program("workshop", "stdio")) as servers:
        turn = asyncio.create_task(servers.call(of("wait"), '{"seconds": 600}'))
        beside = asyncio.create_task(servers.call(of("wait"), '{"seconds": 0.5}'))
        await notes.say("waiting")
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        await notes.say("cancelled")
        assert said(await beside) == "waited"
        assert said(await servers.call(of("echo"), '{"text": "on"}')) == "on"
    assert len(notes.pids) == 1


async def test_cancelling_a_caller_while_the_server_starts_leaves_the_start_to_others(
    program: Callable[..., ToolServer], notes: Notes
):
    async with opened(program("workshop", "stdio")) as servers:
        first = asyncio.create_task(servers.call(of("echo"), '{"text": "a"}'))
        second = asyncio.create_task(servers.call(of("echo"), '{"text": "b"}'))
        await notes.started()
        first.cancel()
        assert said(await second) == "b"
    assert len(notes.pids) == 1


@pytest.mark.slow
async def test_a_server_that_dies_is_started_again_and_at_last_given_up(
    program: Callable[..., ToolServer], notes: Notes
):
    limits = QUICK.model_copy(update={"restarts": 1})
    with all_gone(notes):
        async with opened(program("workshop", "stdio"), limits=limits) as servers:
            tools = await servers.tools()
            assert "ended during the call" in error(await servers.call(of("die"), '{"code": 3}'))
            assert await servers.tools() == tools
            assert said(await servers.call(of("echo"), '{"text": "back"}')) == "back"
            assert "the boiler burst" in servers.troubles[0].problem

            os.kill(notes.pids[-1], signal.SIGKILL)  # between two calls
            await asyncio.to_thread(wait_until_gone, notes.pids)
            await asyncio.sleep(0.1)
            assert said(await servers.call(of("echo"), '{"text": "again"}')) == "again"
            assert len(notes.pids) == 3

            error(await servers.call(of("die"), '{"code": 3}'))
            error(await servers.call(of("die"), '{"code": 3}'))
            assert "is gone: it failed 2 times in a row" in error(await servers.call(of("echo"), '{"text": "?"}'))
            assert await servers.tools() == ()
            assert len(notes.pids) == 4

            servers.forgive("s")
            assert said(await servers.call(of("echo"), '{"text": "forgiven"}')) == "forgiven"


async def test_a_result_of_five_megabytes_is_kept_whole_and_does_not_stop_the_loop(program: Callable[..., ToolServer]):
    size, longest = 5_000_000, 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - began)

    async with opened(program("workshop", "stdio")) as servers:
        await servers.call(of("large"), '{"size": 10}')
        watching = asyncio.create_task(watch())
        result = said(await servers.call(of("large"), f'{{"size": {size}}}'))
        watching.cancel()
        assert result == "é" + "x" * (size - 1)
        assert longest < 0.5


async def test_what_exceeds_the_caps_is_cut_or_dropped_and_its_size_said(program: Callable[..., ToolServer]):
    limits = QUICK.model_copy(update={"largest_result": 1_000, "largest_message": 1_000_000})
    workshop, hostile = program("workshop", "stdio"), program("hostile", "plain", name="h")
    async with opened(workshop, hostile, limits=limits) as servers:
        cut = said(await servers.call(of("large"), '{"size": 100000}'))
        assert len(cut) < 1_200
        assert cut.endswith("[cut: this text had 100,000 characters, and a result may have 1,000]")
        assert "more than 1,000,000 bytes" in error(await servers.call(of("large"), '{"size": 2000000}'))
        assert "more than 1,000,000 bytes" in error(await servers.call(of("talk", "h"), '{"how": "endless"}'))
        assert said(await servers.call(of("talk", "h"), "{}")) == "fine"
        assert {trouble.server for trouble in servers.troubles} == {"s", "h"}


async def test_rubbish_on_standard_output_and_broken_tools_are_left_out_and_said(program: Callable[..., ToolServer]):
    async with opened(program("hostile", "rude")) as servers:
        assert [tool.name for tool in await servers.tools()] == ["talk", "lax"]
        problems = "\n".join(trouble.problem for trouble in servers.troubles)
        assert "Welcome to the server!" in problems
        for broken in ("number 2", "number 3", "'no_schema'", "'takes_text'"):
            assert f"the tool {broken} is left out" in problems
        assert "'lax'" not in problems
        assert "log line" not in problems  # three lines of rubbish are enough
        assert said(await servers.call(of("talk"), "{}")) == "fine"
        assert said(await servers.call(of("lax"), "{}")) == "fine"
        assert said(await servers.call(of("talk"), '{"how": "half"}')) == "half a fox: \ufffd"
        assert "does not keep to the protocol" in error(await servers.call(of("talk"), '{"how": "nonsense"}'))
        assert "no message" in error(await servers.call(of("talk"), '{"how": "unreadable"}'))
        assert said(await servers.call(of("talk"), '{"how": "asks"}')) == "refused: True"
        assert said(await servers.call(of("talk"), '{"how": "grow"}')) == "grown"
        await offering("shout", servers)


async def test_a_list_of_pages_without_end_is_read_once(program: Callable[..., ToolServer]):
    async with opened(program("hostile", "loop")) as servers:
        assert [tool.name for tool in await servers.tools()] == ["talk"]
        assert [trouble.problem for trouble in servers.troubles] == [
            "the tool 'talk' is left out: another tool of this server has the same name"
        ]


async def test_three_hundred_tools_come_in_pages_and_those_no_model_could_use_are_left_out(
    program: Callable[..., ToolServer],
):
    async with opened(program("catalogue")) as servers:
        offered = [tool.name for tool in await servers.tools()]
        assert offered == [*(f"tool_{number}" for number in range(300)), "Übersetze 日本語 🦊"]
        problems = [trouble.problem for trouble in servers.troubles]
        assert len(problems) == 6
        for expected in ("same name", "no name", "cannot be shown", "256 characters", "properties.a.type", "pattern"):
            assert any(expected in problem for problem in problems), expected
        assert said(await servers.call(of("Übersetze 日本語 🦊"), "{}")) == "Übersetze 日本語 🦊 was called"


async def test_a_server_that_floods_standard_error_is_read_and_answers(program: Callable[..., ToolServer]):
    async with opened(program("workshop", "stdio")) as servers:
        assert said(await servers.call(of("shout"), '{"lines": 100000}')) == "quiet again"
        assert servers.troubles == ()


async def test_a_process_gets_what_is_configured_and_no_key_besides(program: Callable[..., ToolServer], notes: Notes):
    server = program("workshop", "stdio", env={"TOKEN": "Bearer ${OPENAI_API_KEY}"})
    async with opened(server) as servers:
        seen = said(await servers.call(of("environment"), "{}"))
    assert '"TOKEN": "Bearer sk-secret"' in seen
    assert '"HOME": "/nowhere"' in seen
    assert "OPENAI_API_KEY" not in seen
    assert seen.count("sk-secret") == 1


async def test_what_cannot_be_started_is_said(program: Callable[..., ToolServer], tmp_path: Path):
    missing = ToolServer(name="missing", command="no-such-program-anywhere")
    lost = program("workshop", "stdio", name="lost", cwd=str(tmp_path / "nowhere"))
    unset = program("workshop", "stdio", name="unset", env={"A": "${UNSET}"})
    broken = program("no_such_script", name="broken")
    nobody = ToolServer(name="nobody", url=f"http://127.0.0.1:{free_port()}/mcp", transport="http")
    off = program("workshop", "stdio", name="off", enabled=False)
    async with opened(missing, lost, unset, broken, nobody, off) as servers:
        assert await servers.tools() == ()
        problems = {trouble.server: trouble.problem for trouble in servers.troubles}
        assert "no-such-program-anywhere" in problems["missing"]
        assert "nowhere" in problems["lost"]
        assert "UNSET" in problems["unset"]
        assert "No such file" in problems["broken"]
        assert "cannot be reached" in problems["nobody"]
        assert "off" not in problems
        assert "there is no server off" in error(await servers.call(of("echo", "off"), "{}"))


async def test_servers_are_used_within_their_block(program: Callable[..., ToolServer]):
    with pytest.raises(InvalidConfiguration, match="async with"):
        await opened(program("workshop", "stdio")).tools()


async def test_without_the_extra_entering_names_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "quire.agent.connection", raising=False)
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtra, match=r"quire\[mcp\]"):
        await opened().__aenter__()
