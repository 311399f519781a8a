"""Chat runtime opened from settings: tools of the agent's MCP servers run after the user's approval."""

import sys
from functools import partial
from pathlib import Path

import pytest
from chat_harness import make_test_console, read_output

from quire.agent.approvals import Allow, ApprovalDecision, Deny
from quire.agent.limits import MCPLimits
from quire.cli.chat.input import InputInterrupted
from quire.cli.chat.runtime import ChatOptions, build_overrides, open_chat
from quire.cli.chat.screen import Screen
from quire.cli.chat.session import ApprovalPrompt, ChatSession, show_greeting
from quire.errors import DocumentNotFound
from quire.log import ConversationOrigin
from quire.model import Message, ToolCallPart
from quire.model.events import ToolCompleted, TurnEnded
from quire.testing.scripted_model import ScriptedModel

WORKSHOP_SERVER = Path(__file__).parents[1] / "agent/servers/sdk_server.py"
HOSTILE_SERVER = WORKSHOP_SERVER.with_name("misbehaving_server.py")
AGENT = f"""\
instructions = "Add."

[servers.workshop]
command = {str(sys.executable)!r}
args = [{str(WORKSHOP_SERVER)!r}, "stdio"]
"""
CALL = ToolCallPart(id="1", name="workshop__add", arguments='{"a": 2, "b": 3}')


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("QUIRE_CONFIG", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "QUIRE_DATABASE_URL", "QUIRE_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_the_tools_of_an_agents_server_are_offered_asked_about_and_run(home: Path):
    (home / "adder.toml").write_text(AGENT)
    approval_calls: list[ToolCallPart] = []

    async def ask(call: ToolCallPart) -> ApprovalDecision:
        approval_calls.append(call)
        return Allow()

    script = ScriptedModel(lambda prompt: Message(role="assistant", parts=(_make_call(prompt.tools),)), "Five.")
    async with open_chat(
        build_overrides(["context_limit=16000"], agent="adder.toml"),
        ChatOptions(),
        ask=ask,
        make_model=lambda settings: script,
    ) as runtime:
        session = ChatSession(runtime, Screen(make_test_console()))
        await session.handle_line("How much is 2 and 3?")
        results = [entry.message.tool_results for entry in await runtime.conversation.messages()]
    assert [result.text for some in results for result in some] == ["5"]
    assert [call.arguments for call in approval_calls] == [CALL.arguments]
    lines = [line for line in read_output(session.screen.console).splitlines() if line]
    assert any(line.startswith("✓ ") and "add(a=2, b=3) 1 character" in line for line in lines)
    assert "Five." in lines


def _make_call(tools: object) -> ToolCallPart:
    """Calls the tool under the name that the model knows."""
    [name] = [tool.name for tool in tools if tool.name.endswith("add")]  # type: ignore[attr-defined]
    return CALL.model_copy(update={"name": name})


async def test_a_server_that_does_not_start_is_said_and_the_chat_goes_on(home: Path):
    (home / "adder.toml").write_text('[servers.gone]\ncommand = "no-such-program"\n')
    script = ScriptedModel("Hello.")
    options = build_overrides((), agent="adder.toml")
    async with open_chat(options, ChatOptions(), make_model=lambda settings: script) as runtime:
        session = ChatSession(runtime, Screen(make_test_console()))
        await show_greeting(runtime, session.screen)
        await session.handle_line("Hi")
    output = read_output(session.screen.console)
    assert "The server gone: " in output
    assert "Hello." in output


async def _allow(call: ToolCallPart) -> ApprovalDecision:
    return Allow()


async def test_the_settings_say_how_many_replies_a_turn_may_have(home: Path):
    (home / "adder.toml").write_text(AGENT)
    script = ScriptedModel(lambda prompt: Message(role="assistant", parts=(_make_call(prompt.tools),)), repeat=True)
    options = build_overrides(["context_limit=16000", "max_steps=2"], agent="adder.toml")
    async with open_chat(options, ChatOptions(), ask=_allow, make_model=lambda settings: script) as runtime:
        events = [event async for event in runtime.run_turn("How much is 2 and 3?")]
    assert isinstance(events[-1], TurnEnded)
    assert (events[-1].reason, events[-1].steps) == ("max_steps", 2)


async def test_an_agents_own_settings_say_how_long_a_tool_may_take(home: Path):
    (home / "waiter.toml").write_text(f"{AGENT}\n[settings]\ntool_timeout = 0.4\n")
    call = ToolCallPart(id="1", name="workshop__wait", arguments='{"seconds": 60}')
    script = ScriptedModel(Message(role="assistant", parts=(call,)), "Too long.")
    options = build_overrides(["context_limit=16000"], agent="waiter.toml")
    async with open_chat(options, ChatOptions(), ask=_allow, make_model=lambda settings: script) as runtime:
        [result] = [event.result async for event in runtime.run_turn("Wait.") if isinstance(event, ToolCompleted)]
    assert result.is_error
    assert "gave no result within 0.4 s" in result.text


async def test_a_server_that_does_not_start_is_named(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("quire.agent.limits.MCPLimits", partial(MCPLimits, start_seconds=0.5))
    (home / "slow.toml").write_text(
        f"[servers.slow]\ncommand = {str(sys.executable)!r}\nargs = [{str(HOSTILE_SERVER)!r}, 'deaf']\n"
    )
    options = build_overrides(agent="slow.toml")
    async with open_chat(options, ChatOptions(), make_model=lambda settings: ScriptedModel()) as runtime:
        [trouble] = runtime.server_problems
    assert trouble.message.startswith("it took too long to start: more than 0.5 s")


async def test_the_settings_say_how_long_a_model_may_be_silent(home: Path):
    script = ScriptedModel("Hello.")
    async with open_chat(
        build_overrides(["model_timeout=7"]), ChatOptions(), make_model=lambda settings: script
    ) as runtime:
        _ = [event async for event in runtime.run_turn("Hi")]
    assert script.prompts[0].timeout == 7


def test_an_agent_by_a_name_that_nobody_has_is_an_error():
    with pytest.raises(DocumentNotFound):
        build_overrides((), agent="nobody")


class _ReaderStub:
    def __init__(self, verdict: ApprovalDecision | None) -> None:
        self._verdict = verdict

    async def ask_approval(self, call: ToolCallPart) -> ApprovalDecision:
        if self._verdict is None:
            raise InputInterrupted
        return self._verdict


class _SessionStub:
    stopped = False

    def stop(self) -> None:
        self.stopped = True


async def test_ctrl_c_when_leave_is_asked_for_stops_the_turn():
    desk, session = ApprovalPrompt(), _SessionStub()
    desk.attach(_ReaderStub(Allow()), session)  # type: ignore[arg-type]
    assert (await desk.ask(CALL), session.stopped) == (Allow(), False)
    desk.attach(_ReaderStub(None), session)  # type: ignore[arg-type]
    assert (await desk.ask(CALL), session.stopped) == (Deny(), True)


async def test_a_chat_does_not_resume_the_session_of_an_agent(home: Path):
    async with open_chat(build_overrides([]), ChatOptions()) as runtime:
        own = runtime.conversation.id
        await runtime.conversation.append("Good morning.")
        origin = ConversationOrigin(client="claude-code", session="s1")
        await runtime.conversation.engine.store.create_conversation("of-an-agent", origin=origin)
    async with open_chat(build_overrides([]), ChatOptions(resume=True)) as runtime:
        assert runtime.conversation.id == own
    async with open_chat(build_overrides([]), ChatOptions(conversation="of-an-agent")) as runtime:
        assert runtime.conversation.id == "of-an-agent"
