"""The turns that the agent of each framework runs, and the checks of what it sent and what the log has.

Run as a program, it runs turns of one framework until it is killed: `scripted_turns.py FRAMEWORK URL`.
"""

import asyncio
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from infra.sizes import IS_FULL_SIZE
from payload_oracle import count_payload
from quire.engine import Engine, open_engine
from quire.model import WireFormatName
from quire.wire import wire_format_for
from quire.wire.tokens import counter_for

TURNS = 200 if IS_FULL_SIZE else 20
TURNS_BEFORE_KILL = TURNS // 4
RESUMED_TURNS = TURNS - TURNS_BEFORE_KILL if IS_FULL_SIZE else 4
CONVERSATION = "harbour"
INSTRUCTIONS = "You are the harbour office of Gullhaven. Read the tide table before you answer."
OPTIONS: dict[str, Any] = {"model": "gpt-4o", "context_limit": 2_400, "reserved_response_tokens": 300}
MAX_INPUT_TOKENS = 2_400 - 300


class SentRequest(NamedTuple):
    """A request as the framework's model got it, in the wire format of a provider."""

    provider: WireFormatName
    payload: dict[str, Any]


def make_question(turn: int) -> str:
    return f"Question {turn}: when is high water at pier {turn}?"


def make_call_id(turn: int) -> str:
    return f"call_{turn}"


def make_result(pier: int) -> str:
    hours = " ".join(f"{(pier * 7 + hour) % 24:02}:{(pier + hour * 13) % 60:02}" for hour in range(150))
    return f"Pier {pier}, high water: {hours}"


def make_answer(turn: int) -> str:
    return f"Answer {turn}: the first high water is at {make_result(turn).split()[4]}."


async def check_history(url: str, turns: range) -> None:
    """The log has every turn in full and in order, a manifest for each reply, and far more than fits a window."""
    async with open_engine(url, **OPTIONS) as engine:
        latest = await engine.store.match_history((), conversation=CONVERSATION)
        assert latest is not None
        branch = latest.branch.number
        entries = await engine.store.read_range(CONVERSATION, branch=branch, kinds=["message"])
        texts = [(entry.role, _join(entry.message)) for entry in entries]
        expected = [
            each
            for turn in turns
            for each in (
                ("user", make_question(turn)),
                ("assistant", make_call_id(turn)),
                ("tool", make_result(turn)),
                ("assistant", make_answer(turn)),
            )
        ]
        assert texts == expected
        assert sum(entry.tokens or 0 for entry in entries) > 5 * OPTIONS["context_limit"]
        await check_manifests(engine, branch)


async def check_manifests(engine: Engine, branch: int) -> None:
    replies = await engine.store.read_range(CONVERSATION, branch=branch, kinds=["message"], roles=["assistant"])
    manifests = await engine.store.list_manifests(CONVERSATION, branch=branch)
    assert [seq for seq, _ in manifests] == [entry.seq for entry in replies]
    for _, manifest in manifests:
        assert manifest.total_tokens <= manifest.max_input_tokens <= MAX_INPUT_TOKENS
        assert sum(slot.used for slot in manifest.slots) == manifest.total_tokens
        kinds = {row.kind for row in manifest.decisions if row.included}
        assert {"instructions", "tool", "message"} <= kinds
    conversation = await engine.conversation(CONVERSATION, branch=branch)
    for entry in replies[:: max(1, len(replies) // 8)]:
        assert (await conversation.replay(entry.seq)).matches


def check_requests(requests: list[SentRequest]) -> None:
    """Each request is valid, within the budget, and has the question of its turn."""
    counter = counter_for("gpt-4o")
    for provider, payload in requests:
        wire_format = wire_format_for(provider, model="gpt-4o")
        assert wire_format.check(payload) == []
        assert count_payload(wire_format, payload, counter) <= MAX_INPUT_TOKENS
        assert payload["tools"][0]["type"] == "function"
        assert "Question" in str(payload)


def run_until_killed(framework: str, url: str) -> int:
    """Runs turns in another process, kills it in the middle of one, and returns the number of finished turns."""
    program = [sys.executable, __file__, framework, url]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        finished = 0
        for line in process.stdout:
            finished = int(line)
            if finished >= TURNS_BEFORE_KILL:
                break
        process.kill()
    assert finished >= TURNS_BEFORE_KILL, f"the turns of {framework} ended early"
    return finished


async def check_resumed(url: str, last: int) -> None:
    """The log has the answer to every question up to the last, and a manifest for each reply."""
    async with open_engine(url, **OPTIONS) as engine:
        latest = await engine.store.match_history((), conversation=CONVERSATION)
        assert latest is not None
        branch = latest.branch.number
        entries = await engine.store.read_range(CONVERSATION, branch=branch, kinds=["message"])
        answers = [text for entry in entries if (text := entry.message.text).startswith("Answer")]
        assert list(dict.fromkeys(answers)) == [make_answer(turn) for turn in range(1, last + 1)]
        await check_manifests(engine, branch)


def read_example(page: str) -> tuple[str, str]:
    """The first program of a page of the docs, and what it prints."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    code, printed = text.split("```python\n")[1].split("```\n\n```text\n")
    return code, printed.split("```")[0]


def _join(message: Any) -> str:
    calls = "".join(call.id for call in message.tool_calls)
    results = "".join(result.text for result in message.tool_results)
    return calls + results + (message.text if not calls else "")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    module = import_module(f"{sys.argv[1]}_run")
    asyncio.run(module.run_turns(sys.argv[2], range(1, TURNS + 1), on_turn=lambda turn: print(turn, flush=True)))
