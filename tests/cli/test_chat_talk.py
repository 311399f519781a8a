"""A talk opened from settings: an agent's servers bring their tools, which are run when somebody allows it."""

import sys
from pathlib import Path

import pytest
from chatting import console, printed

from quire.agent.approvals import Allow, Deny, Verdict
from quire.cli.chat.loop import _Desk, _greet  # pyright: ignore[reportPrivateUsage]
from quire.cli.chat.reading import Interrupted
from quire.cli.chat.screen import Screen
from quire.cli.chat.session import Session
from quire.cli.chat.talk import Wanted, opened_talk, options_from
from quire.errors import DocumentNotFound
from quire.model import Message, ToolCallPart
from quire.model.turns import ToolAnswered, TurnEnded
from quire.testing.scripted import ScriptedModel

WORKSHOP = Path(__file__).parents[1] / "agent/servers/workshop.py"
DEAF = WORKSHOP.with_name("hostile.py")
AGENT = f"""\
instructions = "Add."

[servers.workshop]
command = {str(sys.executable)!r}
args = [{str(WORKSHOP)!r}, "stdio"]
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
    asked: list[ToolCallPart] = []

    async def ask(call: ToolCallPart) -> Verdict:
        asked.append(call)
        return Allow()

    script = ScriptedModel(lambda prompt: Message(role="assistant", parts=(_calling(prompt.tools),)), "Five.")
    async with opened_talk(
        options_from(["context_limit=16000"], agent="adder.toml"), Wanted(), ask=ask, make_model=lambda settings: script
    ) as talk:
        session = Session(talk, Screen(console()))
        await session.take("How much is 2 and 3?")
        results = [entry.message.tool_results for entry in await talk.conversation.messages()]
    assert [result.text for some in results for result in some] == ["5"]
    assert [call.arguments for call in asked] == [CALL.arguments]
    lines = [line for line in printed(session.screen.console).splitlines() if line]
    assert any(line.startswith("✓ ") and "add(a=2, b=3) 1 character" in line for line in lines)
    assert "Five." in lines


def _calling(tools: object) -> ToolCallPart:
    """The tool under the name by which the model was told of it."""
    [name] = [tool.name for tool in tools if tool.name.endswith("add")]  # type: ignore[attr-defined]
    return CALL.model_copy(update={"name": name})


async def test_a_server_that_does_not_start_is_said_and_the_chat_goes_on(home: Path):
    (home / "adder.toml").write_text('[servers.gone]\ncommand = "no-such-program"\n')
    script = ScriptedModel("Hello.")
    options = options_from((), agent="adder.toml")
    async with opened_talk(options, Wanted(), make_model=lambda settings: script) as talk:
        session = Session(talk, Screen(console()))
        await _greet(talk, session.screen)
        await session.take("Hi")
    shown = printed(session.screen.console)
    assert "The server gone: " in shown
    assert "Hello." in shown


async def _allow(call: ToolCallPart) -> Verdict:
    return Allow()


async def test_the_settings_say_how_many_replies_a_turn_may_have(home: Path):
    (home / "adder.toml").write_text(AGENT)
    script = ScriptedModel(lambda prompt: Message(role="assistant", parts=(_calling(prompt.tools),)), repeat=True)
    options = options_from(["context_limit=16000", "max_steps=2"], agent="adder.toml")
    async with opened_talk(options, Wanted(), ask=_allow, make_model=lambda settings: script) as talk:
        told = [event async for event in talk.turn("How much is 2 and 3?")]
    assert isinstance(told[-1], TurnEnded)
    assert (told[-1].reason, told[-1].steps) == ("steps", 2)


async def test_an_agents_own_settings_say_how_long_a_tool_may_take(home: Path):
    (home / "waiter.toml").write_text(f"{AGENT}\n[settings]\ntool_timeout = 0.4\n")
    call = ToolCallPart(id="1", name="workshop__wait", arguments='{"seconds": 60}')
    script = ScriptedModel(Message(role="assistant", parts=(call,)), "Too long.")
    options = options_from(["context_limit=16000"], agent="waiter.toml")
    async with opened_talk(options, Wanted(), ask=_allow, make_model=lambda settings: script) as talk:
        [result] = [event.result async for event in talk.turn("Wait.") if isinstance(event, ToolAnswered)]
    assert result.is_error
    assert "gave no result within 0.4 s" in result.text


async def test_the_settings_say_how_long_a_server_may_take_to_start(home: Path):
    (home / "slow.toml").write_text(
        f"[servers.slow]\ncommand = {str(sys.executable)!r}\nargs = [{str(DEAF)!r}, 'deaf']\n"
    )
    options = options_from(["server_timeout=0.5"], agent="slow.toml")
    async with opened_talk(options, Wanted(), make_model=lambda settings: ScriptedModel()) as talk:
        [trouble] = talk.troubles
    assert trouble.problem.startswith("it took too long to start: more than 0.5 s (`server_timeout`)")


async def test_the_settings_say_how_long_a_model_may_be_silent(home: Path):
    script = ScriptedModel("Hello.")
    async with opened_talk(options_from(["model_timeout=7"]), Wanted(), make_model=lambda settings: script) as talk:
        _ = [event async for event in talk.turn("Hi")]
    assert script.prompts[0].timeout == 7


def test_an_agent_by_a_name_that_nobody_has_is_an_error():
    with pytest.raises(DocumentNotFound):
        options_from((), agent="nobody")


class _Reader:
    def __init__(self, verdict: Verdict | None) -> None:
        self._verdict = verdict

    async def allow(self, call: ToolCallPart) -> Verdict:
        if self._verdict is None:
            raise Interrupted
        return self._verdict


class _Stoppable:
    stopped = False

    def stop(self) -> None:
        self.stopped = True


async def test_ctrl_c_when_leave_is_asked_for_stops_the_turn():
    desk, session = _Desk(), _Stoppable()
    desk.open(_Reader(Allow()), session)  # type: ignore[arg-type]
    assert (await desk.ask(CALL), session.stopped) == (Allow(), False)
    desk.open(_Reader(None), session)  # type: ignore[arg-type]
    assert (await desk.ask(CALL), session.stopped) == (Deny(), True)
