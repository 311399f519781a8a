"""A process for tests to kill: for each database URL it reads, it forks a child that runs a turn with tools on it.

The child prints its process id, then each event with the sequence number of the recorded entry, or 0. Forking saves
each child the start of an interpreter.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, redirect_stdout, suppress
from io import StringIO

from turn_fixtures import (
    FakeToolRunner,
    FaultyModel,
    encode_events,
    make_approvals,
    make_conversation,
    make_tool_call_reply,
)

from quire.agent.turn import run_turn
from quire.concurrency import worker_threads
from quire.llm import ModelChunk, Prompt
from quire.model import Message
from quire.model.events import QuestionRecorded, ReplyRecorded, TurnEvent
from quire.model.messages import ToolCallPart
from quire.store import SqlStore

CONVERSATION_ID = "killed"
WINDOW = 3_000
CHUNK_PAUSE_SECONDS = 0.002
SCRIPT = (
    make_tool_call_reply("good:1", "guarded:2", "good:3", text="I look in three places at once, one of them guarded."),
    make_tool_call_reply("good:4", "bad:5", text="And now in two more."),
    "Nothing was found in any of these five places, so there is nothing to be found. " * 2,
)


class SlowModel(FaultyModel):
    async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelChunk, None]:
        async for chunk in super().stream(prompt):
            await asyncio.sleep(CHUNK_PAUSE_SECONDS)
            yield chunk


class SlowToolRunner(FakeToolRunner):
    async def run(self, call: ToolCallPart) -> Message:
        await asyncio.sleep(CHUNK_PAUSE_SECONDS * int(call.id))
        return await super().run(call)


async def run_turn_on(url: str) -> None:
    async with SqlStore.open(url) as store:
        conversation = await make_conversation(store, CONVERSATION_ID, context_limit=WINDOW)
        question = "Where is it? " * 20
        events = run_turn(
            conversation, question, model=SlowModel(*SCRIPT), runners=[SlowToolRunner()], approvals=make_approvals()
        )
        async with aclosing(events):
            async for event in events:
                write_line(f"{encode_events([event])} {get_entry_seq(event)}")


def get_entry_seq(event: TurnEvent) -> int:
    return event.entry.seq if isinstance(event, QuestionRecorded | ReplyRecorded) else 0


def write_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    for url in sys.stdin:
        child = os.fork()
        if child == 0:
            # The threads of the warm-up do not survive the fork; work given to them would wait for ever.
            worker_threads._executor = ThreadPoolExecutor(worker_threads.WORKER_THREADS)
            write_line(f"pid {os.getpid()}")
            with suppress(KeyboardInterrupt):
                asyncio.run(run_turn_on(url.strip()))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        write_line(f"gone {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    # The child must handle the SIGINT that a terminal would send to the process group.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Warm up: imports and caches at first use take longer than the turn.
    with redirect_stdout(StringIO()):
        asyncio.run(run_turn_on("sqlite://"))
    main()
