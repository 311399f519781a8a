"""Agents of each framework with a real model: killed in the middle, resumed, every request valid and in its window."""

import json
import os
import subprocess
import sys
from pathlib import Path

import local_model_agents as agents
import pytest

from infra.llama import LocalModel, find_missing_packages
from infra.tool_calling_proxy import ToolCallingProxy, run_tool_calling_proxy
from quire.engine import Engine, open_engine
from quire.model import Entry
from quire.wire.chat.render import OpenAIChatFormat

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.real_model,
    pytest.mark.skipif(bool(find_missing_packages()), reason="the local model is not installed"),
]

TURNS = 200
MIN_WINDOWS = 5.0
"""How often the history fills the window."""


@pytest.mark.parametrize("framework", agents.FRAMEWORKS)
async def test_a_killed_agent_resumes_and_every_request_fits(framework: str, tmp_path: Path):
    url = f"sqlite:///{tmp_path}/quire.db"
    with (
        LocalModel(context=agents.WINDOW_TOKENS) as model,
        run_tool_calling_proxy(model.url, agents.choose_call) as proxy,
    ):
        answers = ask_in_process(framework, url, proxy.url, range(1, TURNS + 1), kill_after=TURNS // 2)
        assert len(answers) < TURNS, "the process was not killed"
        answers += ask_in_process(framework, url, proxy.url, range(len(answers) + 1, TURNS + 1))
    assert len(answers) == TURNS
    check_requests(proxy)
    async with open_engine(url, **agents.get_quire_options()) as engine:
        await check_history(engine, answers)


def ask_in_process(
    framework: str, url: str, model_url: str, turns: range, *, kill_after: int | None = None
) -> list[str]:
    """Returns the answers of another process, which is killed in the turn after the first `kill_after`."""
    program = [sys.executable, agents.__file__, framework, url, model_url, str(turns[0]), str(turns[-1])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    answers: list[str] = []
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        for line in process.stdout:
            printed = json.loads(line)
            assert printed["turn"] == turns[len(answers)]
            answers.append(printed["answer"])
            if len(answers) == kill_after:
                process.kill()
                break
    return answers


def check_requests(proxy: ToolCallingProxy) -> None:
    """The server took each request: it is valid, and its tokens, as the server counts them, are within the budget."""
    wire_format = OpenAIChatFormat()
    for request in proxy.requests:
        assert request.status == 200, request.response
        assert wire_format.check(request.body) == []
        assert "read_tide_table" in {tool["function"]["name"] for tool in request.body["tools"]}
    tokens = [each.response["usage"]["prompt_tokens"] for each in proxy.forwarded]
    assert max(tokens) <= agents.WINDOW_TOKENS - agents.RESERVED_TOKENS


async def check_history(engine: Engine, answers: list[str]) -> None:
    """The log has every turn in order, complete, and a manifest for each reply. The killed turn may be there twice."""
    latest = await engine.store.match_history((), conversation=agents.CONVERSATION)
    assert latest is not None
    branch = latest.branch.number
    entries = await engine.store.read_range(agents.CONVERSATION, branch=branch, kinds=["message"])
    turns = split_turns(entries)
    answered = [turn for turn in turns if turn[-1].role == "assistant" and not turn[-1].message.tool_calls]
    assert len(turns) - len(answered) <= 1
    by_question = {turn[0].message.text: turn for turn in answered}
    assert list(by_question) == [agents.make_question(turn) for turn in range(1, len(answers) + 1)]
    for number, (turn, answer) in enumerate(zip(by_question.values(), answers, strict=True), 1):
        assert [entry.role for entry in turn] == ["user", "assistant", "tool", "assistant"]
        assert turn[2].message.tool_results[0].text == agents.read_tide_table(number)
        assert turn[3].message.text == answer
    assert sum(entry.tokens or 0 for entry in entries) > MIN_WINDOWS * agents.WINDOW_TOKENS
    replies = [entry.seq for entry in entries if entry.role == "assistant"]
    manifests = await engine.store.list_manifests(agents.CONVERSATION, branch=branch)
    assert [seq for seq, _ in manifests] == replies
    assert all(manifest.total_tokens <= manifest.max_input_tokens for _, manifest in manifests)
    assert await engine.store.read_range(agents.CONVERSATION, branch=branch, kinds=["compaction"])


def split_turns(entries: list[Entry]) -> list[list[Entry]]:
    turns: list[list[Entry]] = []
    for entry in entries:
        if entry.role == "user":
            turns.append([])
        turns[-1].append(entry)
    return turns
