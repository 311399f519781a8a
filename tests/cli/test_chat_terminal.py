"""Chat prompt: key bindings, typed into prompt_toolkit as a terminal sends them; and lines from a pipe."""

import asyncio
import io
import stat
from pathlib import Path

import pytest
from chat_harness import make_session, make_test_console, read_output, read_session_output
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from quire.agent.approvals import Allow, AllowAlways, ApprovalDecision, Deny
from quire.cli.chat.completion import CompletionItem, CompletionSources
from quire.cli.chat.input import InputEnded, InputInterrupted, PipeReader, is_continued
from quire.cli.chat.session import run_input_loop
from quire.cli.chat.terminal import TerminalReader, parse_verdict
from quire.model import ToolCallPart
from quire.store import SqlStore

CALL = ToolCallPart(id="1", name="delete", arguments="{}")
COMPLETIONS = CompletionSources(
    notes=[CompletionItem("Water mills")], commands=[CompletionItem("context"), CompletionItem("compact")]
)


async def read_typed(keys: str, *, history: Path | None = None) -> str:
    with create_pipe_input() as pipe:
        reader = TerminalReader(history=history, input=pipe, output=DummyOutput())
        pipe.send_text(keys)
        return await asyncio.wait_for(reader.read(COMPLETIONS), 10)


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ("hello\r", "hello"),
        ("one\x1b\rtwo\r", "one\ntwo"),
        ("one\\\rtwo\r", "one\ntwo"),
        ("one\\\\\r", "one\\\\"),
        ("\x1b[200~one\ntwo\x1b[201~\r", "one\ntwo"),
        ("wrong\x03right\r", "right"),
    ],
    ids=["enter", "alt-enter", "backslash", "two backslashes", "paste", "ctrl-c clears"],
)
async def test_what_is_typed_is_read(keys: str, line: str):
    assert await read_typed(keys) == line


async def test_ctrl_d_on_an_empty_line_leaves():
    with pytest.raises(InputEnded):
        await read_typed("\x04")


async def test_ctrl_c_on_an_empty_line_interrupts():
    with pytest.raises(InputInterrupted):
        await read_typed("\x03")


async def test_a_completion_is_taken_before_the_line_is_sent():
    """Tab takes the first; Enter then only ends the choice, and a second one sends."""
    with create_pipe_input() as pipe:
        reader = TerminalReader(input=pipe, output=DummyOutput())
        reading = asyncio.create_task(reader.read(COMPLETIONS))
        pipe.send_text("See [[wat")
        await asyncio.sleep(0.3)
        pipe.send_text("\t")
        await asyncio.sleep(0.3)
        pipe.send_text("\r")
        await asyncio.sleep(0.3)
        assert not reading.done()
        pipe.send_text("!\r")
        assert await asyncio.wait_for(reading, 10) == "See [[Water mills]]!"


async def test_what_was_written_is_there_again_next_time_for_its_owner_alone(tmp_path: Path):
    history = tmp_path / "quire" / "history"
    await read_typed("first\r", history=history)
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    with create_pipe_input() as pipe:
        reader = TerminalReader(history=history, input=pipe, output=DummyOutput())
        reading = asyncio.create_task(reader.read(COMPLETIONS))
        await asyncio.sleep(0.3)
        pipe.send_text("\x1b[A\r")
        assert await asyncio.wait_for(reading, 10) == "first"


async def test_a_history_that_cannot_be_written_is_done_without(tmp_path: Path):
    (tmp_path / "file").touch()
    assert await read_typed("hello\r", history=tmp_path / "file" / "history") == "hello"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("y", Allow()),
        (" Yes ", Allow()),
        ("a", AllowAlways()),
        ("always", AllowAlways()),
        ("", Deny()),
        ("n", Deny()),
        ("yeah, but not now", Deny("yeah, but not now")),
    ],
)
def test_only_what_is_clearly_a_yes_is_one(answer: str, expected: ApprovalDecision):
    assert parse_verdict(answer) == expected


async def ask_typed_approval(keys: str) -> ApprovalDecision:
    with create_pipe_input() as pipe:
        reader = TerminalReader(input=pipe, output=DummyOutput())
        pipe.send_text(keys)
        return await asyncio.wait_for(reader.ask_approval(CALL), 10)


async def test_leave_is_asked_for_at_the_prompt():
    assert [await ask_typed_approval("y\r"), await ask_typed_approval("\r"), await ask_typed_approval("a\r")] == [
        Allow(),
        Deny(),
        AllowAlways(),
    ]


@pytest.mark.parametrize("key", ["\x03", "\x04"])
async def test_whoever_will_not_say_stops_the_turn(key: str):
    with pytest.raises(InputInterrupted):
        await ask_typed_approval(key)


async def test_something_is_shown_while_a_line_is_typed():
    with create_pipe_input() as pipe:
        reader = TerminalReader(input=pipe, output=DummyOutput())
        seen: list[str] = []
        await reader.print_above_prompt(lambda: seen.append("before"))
        reading = asyncio.create_task(reader.read(COMPLETIONS))
        await asyncio.sleep(0.2)
        await reader.print_above_prompt(lambda: seen.append("meanwhile"))
        pipe.send_text("hello\r")
        assert await asyncio.wait_for(reading, 10) == "hello"
        assert seen == ["before", "meanwhile"]


async def test_a_pipe_is_read_line_by_line_and_echoed():
    on = make_test_console()
    reader = PipeReader(io.StringIO("one\r\ntwo \\\nthree\n"), on)
    assert [await reader.read(COMPLETIONS), await reader.read(COMPLETIONS)] == ["one", "two \nthree"]
    with pytest.raises(InputEnded):
        await reader.read(COMPLETIONS)
    assert read_output(on) == "› one\n› two\n… three"
    assert isinstance(await reader.ask_approval(CALL), Deny)


@given(st.text(alphabet="a\\", max_size=12))
def test_a_line_continues_after_an_odd_number_of_backslashes(line: str):
    trailing = len(line) - len(line.rstrip("\\"))
    assert is_continued(line) == bool(trailing % 2)


async def test_a_chat_continues_until_its_input_ends(store: SqlStore):
    session = await make_session(store, "Hello.")
    await run_input_loop(session, PipeReader(io.StringIO("Hi\n\n/bogus\n"), session.screen.console))
    assert "Hello." in read_session_output(session)
    assert "There is no command /bogus" in read_session_output(session)


async def test_a_chat_ends_with_quit_and_survives_ctrl_c(store: SqlStore):
    session = await make_session(store, "Hello.")
    with create_pipe_input() as pipe:
        reader = TerminalReader(input=pipe, output=DummyOutput())
        pipe.send_text("\x03Hi\r/quit\rnever read\r")
        await asyncio.wait_for(run_input_loop(session, reader), 10)
    lines = [line for line in read_session_output(session).splitlines() if line]
    assert lines[:2] == ["To quit, press Ctrl-D or type /quit.", "Hello."]
