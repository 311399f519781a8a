"""A process that forks one child for each line it reads, in which a turn with tools runs on the log at that address.

For tests to kill: the child says its process id, then each event when it has happened, with the number under which
something was kept, if it was. Forking spares each child the start of an interpreter.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, redirect_stdout, suppress
from io import StringIO

from staging import Props, StagedModel, approvals, calling, conversation_on, letters

from quire.agent.loop import turn
from quire.llm import Chunk, Prompt
from quire.log import SqlStore
from quire.model import Message
from quire.model.parts import ToolCallPart
from quire.model.turns import QuestionKept, ReplyKept, TurnEvent

CONVERSATION = "killed"
WINDOW = 3_000
PAUSE = 0.002
SCRIPT = (
    calling("good:1", "guarded:2", "good:3", text="I look in three places at once, one of them guarded."),
    calling("good:4", "bad:5", text="And now in two more."),
    "Nothing was found in any of these five places, so there is nothing to be found. " * 2,
)


class Unhurried(StagedModel):
    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().stream(prompt):
            await asyncio.sleep(PAUSE)
            yield chunk


class UnhurriedProps(Props):
    async def run(self, call: ToolCallPart) -> Message:
        await asyncio.sleep(PAUSE * int(call.id))
        return await super().run(call)


async def tell(url: str) -> None:
    async with SqlStore.open(url) as store:
        conversation = await conversation_on(store, CONVERSATION, context_limit=WINDOW)
        question = "Where is it? " * 20
        events = turn(
            conversation, question, model=Unhurried(*SCRIPT), runners=[UnhurriedProps()], approvals=approvals()
        )
        async with aclosing(events):
            async for event in events:
                say(f"{letters([event])} {number(event)}")


def number(event: TurnEvent) -> int:
    return event.entry.seq if isinstance(event, QuestionKept | ReplyKept) else 0


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    for url in sys.stdin:
        child = os.fork()
        if child == 0:
            say(f"pid {os.getpid()}")
            with suppress(KeyboardInterrupt):
                asyncio.run(tell(url.strip()))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        say(f"gone {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    # What a terminal sends to a group of processes is for the child.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # What is imported and loaded at first use takes longer than the turn.
    with redirect_stdout(StringIO()):
        asyncio.run(tell("sqlite://"))
    main()
