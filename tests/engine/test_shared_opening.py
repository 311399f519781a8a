"""Processes that open the same new conversation at once all get it, with the items of the agent once."""

import asyncio
import subprocess
import sys
from contextlib import ExitStack, suppress

import pytest

from infra.sizes import IS_FULL_SIZE
from quire.store import SqlStore

PROCESSES, ROUNDS = 4 if IS_FULL_SIZE else 2, 5

PROGRAM = """
import asyncio, sys, quire
from quire.model.agents import Agent, Rule

async def run(url, rounds):
    agent = Agent(name="helper", rules=(Rule(name="Tone", text="Be brief.", include="always"),))
    async with quire.open(url, agent=agent, model="gpt-4o") as engine:
        for number in range(rounds):
            print(number, flush=True)
            sys.stdin.readline()
            await engine.conversation(f"round {number}")

asyncio.run(run(sys.argv[1], int(sys.argv[2])))
"""


def open_at_once(url: str, *, processes: int = PROCESSES, rounds: int = ROUNDS) -> list[int]:
    """Lets processes open a new conversation at the same moment, round by round. Returns their exit codes."""
    command = [sys.executable, "-c", PROGRAM, url, str(rounds)]
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
            )
            for _ in range(processes)
        ]
        for _ in range(rounds):
            for each in started:
                assert each.stdout is not None
                each.stdout.readline()
            for each in started:
                assert each.stdin is not None
                with suppress(BrokenPipeError):  # One that has failed.
                    each.stdin.write("\n")
        return [each.wait() for each in started]


@pytest.mark.every_database
@pytest.mark.slow
async def test_processes_that_open_a_new_conversation_at_once_all_get_it(store: SqlStore, database_url: str):
    assert await asyncio.to_thread(open_at_once, database_url) == [0] * PROCESSES
    for number in range(ROUNDS):
        [entry] = await store.read_range(f"round {number}")
        assert entry.kind == "context_change"
    assert len(await store.list_conversations()) == ROUNDS
