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
from quire.testing.scripted import ScriptedModel

WORKSHOP = Path(__file__).parents[1] / "agent/servers/workshop.py"
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
