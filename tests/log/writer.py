"""A process of its own that writes to the log, for tests to run beside others and to kill.

It says `ready`, begins when a line comes in, and says each text when its append was acknowledged.
"""

import asyncio
import sys
from itertools import count

from quire.errors import StaleCompaction, StoreUnavailable
from quire.log import Branch, SqlStore
from quire.model import ROOT, Compaction, Message, Span

PAUSE = 0.02


async def create(store: SqlStore, conversation: str) -> None:
    await store.create_conversation(conversation)


async def append(store: SqlStore, conversation: str, name: str, times: str) -> None:
    """So many single messages."""
    for number in range(int(times)):
        text = f"{name}:{number}"
        await store.append(conversation, Message.user(text))
        say(text)


async def append_pairs(store: SqlStore, conversation: str, name: str) -> None:
    """Two messages at a time, without end."""
    for number in count():
        text = f"{name}:{number}"
        await store.append(conversation, Message.user(text), Message.assistant(text))
        say(text)


async def append_same(store: SqlStore, conversation: str, times: str) -> None:
    """So many messages that others append as well, each after the one before."""
    head = ROOT
    for number in range(int(times)):
        [entry] = await store.append(conversation, Message.user(f"same:{number}"), after=head)
        head = entry.path
        say(f"{entry.seq} {entry.digest.hex()}")


async def append_surely(store: SqlStore, conversation: str, name: str) -> None:
    """Single messages without end, each after the one before, and again whenever the database went away."""
    head = ROOT
    for number in count():
        text = f"{name}:{number}"
        head = await append_until_kept(store, conversation, Message.user(text), head)
        say(text)


async def append_until_kept(store: SqlStore, conversation: str, message: Message, head: bytes) -> bytes:
    while True:
        try:
            [entry] = await store.append(conversation, message, after=head)
        except StoreUnavailable:
            say("again")
            await asyncio.sleep(PAUSE)
        else:
            return entry.path


async def compact(store: SqlStore, conversation: str) -> None:
    """Compacts all that is there, without end."""
    while True:
        branch = await store.branch(conversation)
        if branch.head_seq:
            try:
                await store.append(conversation, next_compaction(branch))
            except StaleCompaction:
                say("stale")
        await asyncio.sleep(PAUSE)


def next_compaction(branch: Branch) -> Compaction:
    active, made = branch.state.active, branch.state.compactions
    covers = Span(first=1, last=branch.head_seq)
    return Compaction(number=made + 1, covers=covers, summary="all", supersedes=active and active.seq)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main(task: str, url: str, *args: str) -> None:
    tasks = {each.__name__: each for each in (create, append, append_pairs, append_same, append_surely, compact)}
    say("ready")
    sys.stdin.readline()
    async with SqlStore.open(url) as store:
        await tasks[task](store, *args)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
