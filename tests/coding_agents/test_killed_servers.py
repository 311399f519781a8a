"""The real agents outlive Quire's server: it is killed in the middle of their requests, and they go on, recorded."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from test_quire_run import QUIRE, TIMEOUT_SECONDS, UserHome

from infra.processes import find_children
from infra.real_agents import CLAUDE_MODEL, CODEX_MODEL, SMALL_PROMPT_FLAGS, find_claude, find_codex
from infra.scripted_provider import (
    ProviderRequest,
    ScriptedCall,
    ScriptedReply,
    WireFormatName,
    run_scripted_provider,
)
from infra.sizes import IS_FULL_SIZE
from quire.model import Message
from quire.store import SqlStore

pytestmark = pytest.mark.slow

CALLS, KILLS = (40, 5) if IS_FULL_SIZE else (5, 2)
CLAUDE_FLAGS = [flag for flag in SMALL_PROMPT_FLAGS if flag != "--bare"]
KILLED_AT = {CALLS * number // (KILLS + 1) + number % 2 for number in range(1, KILLS + 1)}


class Crashes:
    """Answers a session of tool calls, and kills the run's server at some of them, once each."""

    run: "subprocess.Popen[str]"

    def __init__(self, tool: str, argument: str, result_type: bytes) -> None:
        self._tool, self._argument, self._result_type = tool, argument, result_type
        self.killed: list[int] = []

    def __call__(self, request: ProviderRequest) -> ScriptedReply:
        if self._tool not in request.tool_names:
            return ScriptedReply("A title.")
        step = request.raw.count(self._result_type)
        if step in KILLED_AT and step not in self.killed:
            self.killed.append(step)
            children = [(pid, Path(f"/proc/{pid}/cmdline").read_bytes()) for pid in find_children(self.run.pid)]
            [server] = [pid for pid, words in children if b"run_host" in words]
            os.kill(server, signal.SIGKILL)
        if step == CALLS:
            return ScriptedReply("All steps are done.")
        return ScriptedReply(calls=(ScriptedCall(self._tool, {self._argument: f"echo step-{step:02}"}),))


async def read_steps(home: UserHome) -> tuple[list[str], int]:
    """The commands of all recorded tool calls in their order, and the number of their results."""
    async with SqlStore.open(f"sqlite:///{home.folder}/.local/share/quire/quire.db") as store:
        records = [each for each in await store.list_conversations(limit=10) if each.is_main]
        assert len(records) == 1, "one session is one conversation"
        bodies = [entry.body for entry in await store.read_range(records[0].id)]
    messages = [each for each in bodies if isinstance(each, Message)]
    calls = [call for each in messages for call in each.tool_calls]
    steps = [word for each in calls for word in str(each.arguments).replace('"', " ").replace("'", " ").split()]
    return [each for each in steps if each.startswith("step-")], sum(len(each.tool_results) for each in messages)


@pytest.mark.parametrize(
    ("speaks", "words", "crashes"),
    [
        pytest.param(
            "messages",
            (
                "claude",
                "-p",
                "Do all steps.",
                "--model",
                CLAUDE_MODEL,
                "--allowed-tools",
                "Bash(echo:*)",
                *CLAUDE_FLAGS,
            ),
            Crashes("Bash", "command", b'"tool_result"'),
            marks=pytest.mark.skipif(find_claude() is None, reason="CLAUDE CODE IS NOT INSTALLED"),
            id="claude",
        ),
        pytest.param(
            "responses",
            ("codex", "exec", "--skip-git-repo-check", "--model", CODEX_MODEL, "Do all steps."),
            Crashes("exec_command", "cmd", b'"function_call_output"'),
            marks=pytest.mark.skipif(find_codex() is None, reason="CODEX IS NOT INSTALLED"),
            id="codex",
        ),
    ],
)
async def test_a_session_goes_on_with_the_next_server(
    tmp_path: Path, speaks: WireFormatName, words: Sequence[str], crashes: Crashes
):
    home = UserHome(tmp_path)
    with run_scripted_provider(crashes) as provider:
        home.configure(provider, speaks)
        environ = home.make_environment(ANTHROPIC_API_KEY="sk-test", OPENAI_API_KEY="sk-test", IS_SANDBOX="1")
        login = "codex login --with-api-key" if words[0] == "codex" else "true"
        subprocess.run(login.split(), input="sk-test", text=True, env=environ, check=True, capture_output=True)  # noqa: ASYNC221
        crashes.run = subprocess.Popen(  # noqa: ASYNC220
            [QUIRE, "run", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environ,
        )
        output, errors = crashes.run.communicate(timeout=TIMEOUT_SECONDS)
    assert crashes.run.returncode == 0, output + errors
    assert "All steps are done." in output
    assert sorted(crashes.killed) == sorted(KILLED_AT)
    assert "Quire recorded" in errors
    steps, results = await read_steps(home)
    assert steps == [f"step-{number:02}" for number in range(CALLS)]
    assert results == CALLS
