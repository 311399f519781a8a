"""`quire context show --messages`: a long turn fits a screen, with its question, its failures and its answer."""

import asyncio

import pytest
from cli_fixtures import TIDES_ID, CliHome, invoke_cli, run_json

from quire.cli.context_messages import DEFAULT_ENTRY_LIMIT
from quire.cli.tool_calls import MAX_CALL_LINES
from quire.engine import open_engine
from quire.model import Draft, Message, ToolCallPart, ToolResultPart
from quire.model.messages import TextPart
from quire.store import SqlStore

CALLS = 60
FAILED_CALL = 41
SCREEN_LINES = 40


async def append_long_turn(url: str, *, words_between: bool = False) -> None:
    async with open_engine(url, model="gpt-4o") as engine:
        conversation = await engine.conversation("audit")
        await conversation.append(Message.user("Hello."), Message.assistant("Hello to you."))
        await conversation.append(Message.user("Which module is the oldest?"))
        for number in range(CALLS):
            call = ToolCallPart(id=f"c{number}", name="read_module", arguments=f'{{"path": "m{number}.py"}}')
            result = ToolResultPart(
                call_id=call.id, content=(TextPart(text=f"text of m{number}"),), is_error=number == FAILED_CALL
            )
            words = (TextPart(text=f"Next is m{number}."),) if words_between else ()
            step = Message(role="assistant", parts=(*words, call))
            await conversation.append(step, Message(role="tool", parts=(result,)))
        await conversation.append(Message.assistant("The oldest is m7.py."))


def test_a_turn_with_sixty_calls_fits_a_screen(home: CliHome):
    asyncio.run(append_long_turn(home.url))
    lines = invoke_cli("context", "show", "--messages", "audit").stdout.splitlines()
    assert len(lines) < SCREEN_LINES
    assert "Which module is the oldest?" in lines
    assert "The oldest is m7.py." in lines
    assert sum("✓ read_module" in line for line in lines) == MAX_CALL_LINES
    [failure] = [line for line in lines if "✗ read_module" in line]
    assert "text of m41" in failure
    folds = [line for line in lines if line.startswith("… ")]
    assert folds == [
        "… 33 more calls, #21 to #85: read_module 33",
        "… 18 more calls, #89 to #123: read_module 18",
    ]
    assert lines[-1] == "Print the folded calls with --full."


@pytest.mark.parametrize("width", [80, 120])
def test_a_turn_with_words_between_its_calls_fits_a_screen(home: CliHome, monkeypatch: pytest.MonkeyPatch, width: int):
    asyncio.run(append_long_turn(home.url, words_between=True))
    monkeypatch.setenv("COLUMNS", str(width))
    lines = invoke_cli("context", "show", "--messages", "audit").stdout.splitlines()
    assert len(lines) <= SCREEN_LINES
    assert max(map(len, lines)) <= width
    assert "Which module is the oldest?" in lines
    assert "The oldest is m7.py." in lines
    assert [line for line in lines if line.startswith("… ")] == [
        "… 37 more calls and 38 messages, #13 to #85: read_module 37",
        "… 18 more calls and 18 messages, #89 to #123: read_module 18",
    ]


async def append_parallel_calls(url: str) -> None:
    async with open_engine(url, model="gpt-4o") as engine:
        conversation = await engine.conversation("parallel")
        calls = [ToolCallPart(id=f"c{number}", name="read_module", arguments="{}") for number in range(2)]
        results = [ToolResultPart(call_id=call.id, content=(TextPart(text="text"),)) for call in calls]
        await conversation.append(Message.user("Read both."), Message(role="assistant", parts=tuple(calls)))
        await conversation.append(Message(role="tool", parts=tuple(results)), Message.assistant("Done."))


def test_calls_of_one_message_have_its_number_once(home: CliHome, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("quire.cli.context_messages.MAX_CALL_LINES", 0)
    asyncio.run(append_parallel_calls(home.url))
    lines = invoke_cli("context", "show", "--messages", "parallel").stdout.splitlines()
    assert [line for line in lines if line.startswith("… ")] == ["… 2 more calls, #3: read_module 2"]


def test_a_single_call_between_failures_keeps_its_line(home: CliHome, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("quire.cli.context_messages.MAX_CALL_LINES", FAILED_CALL - 1)
    asyncio.run(append_long_turn(home.url))
    lines = invoke_cli("context", "show", "--messages", "audit").stdout.splitlines()
    assert '#85 ✓ read_module(path="m40.py") 11 characters' in lines


def test_the_whole_turn_opens_on_demand(home: CliHome):
    asyncio.run(append_long_turn(home.url))
    text = invoke_cli("context", "show", "--messages", "audit", "--full").stdout
    assert all(f"text of m{number}\n" in text for number in range(CALLS))
    part = invoke_cli("context", "show", "--messages", "audit", "--first", "10").stdout
    assert f"up to #124; continue with --first {10 + DEFAULT_ENTRY_LIMIT}" in part
    newest = run_json("context", "show", "--messages", "audit", "--limit", "3")["entries"]
    assert [entry["seq"] for entry in newest] == [122, 123, 124]


def test_commands_use_the_branch_that_was_used_last(home: CliHome):
    """After a stream that broke off, an agent goes on in a branch of its own."""

    async def append() -> None:
        async with SqlStore.open(home.url) as store:
            await store.append(TIDES_ID, Draft(body=Message.user("And on the other branch?")), branch=1)

    asyncio.run(append())
    assert run_json("context", "show", "--messages")["branch"] == 1
    assert run_json("context", "show")["manifest"]["branch"] == 1
    assert run_json("context", "show", "--messages", "--branch", "0")["branch"] == 0


def test_titles_in_the_list_have_room_on_a_terminal_of_80_columns(home: CliHome, monkeypatch: pytest.MonkeyPatch):
    async def create() -> None:
        async with SqlStore.open(home.url) as store:
            await store.create_conversation("claude-code-57e2b312946024b06ab1", title="Why does the relay not start?")

    asyncio.run(create())
    monkeypatch.setenv("COLUMNS", "80")
    narrow = invoke_cli("conversation", "list").stdout
    assert "claude-code-57e2b312946024b06ab1   Why does the relay not" in narrow
    assert max(map(len, narrow.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "120")
    assert "branches" in invoke_cli("conversation", "list").stdout
