"""A process that writes to the log, for tests to run in parallel and to kill.

It prints `ready`, starts when it reads a line, and prints each text once its append was acknowledged.
"""

import asyncio
import os
import sys
from itertools import count

from quire.errors import StaleCompaction, StoreBusy, StoreUnavailable
from quire.log import Branch
from quire.model import CHAIN_ROOT, Compaction, Entry, Message, Span
from quire.store import SqlStore

PAUSE_SECONDS = 0.02
OBJECT_STORAGE_VARIABLE = "OBJECT_STORAGE_OF_WRITERS"


async def create(store: SqlStore, conversation: str) -> None:
    await store.create_conversation(conversation)


async def append_when_free(
    store: SqlStore, conversation: str, *items: Message | Compaction, after: bytes | None = None
) -> Entry:
    """Appends, and tries again if a lock was not free in time, which stores nothing; returns the last entry."""
    while True:
        try:
            return (await store.append(conversation, *items, after=after))[-1]
        except StoreBusy:
            continue


async def append(store: SqlStore, conversation: str, name: str, times: str) -> None:
    """Appends this number of single messages."""
    for number in range(int(times)):
        text = f"{name}:{number}"
        await append_when_free(store, conversation, Message.user(text))
        print_line(text)


async def append_pairs(store: SqlStore, conversation: str, name: str) -> None:
    """Appends two messages at a time, forever."""
    for number in count():
        text = f"{name}:{number}"
        await append_when_free(store, conversation, Message.user(text), Message.assistant(text))
        print_line(text)


async def append_idempotent(store: SqlStore, conversation: str, times: str) -> None:
    """Appends messages that other processes append too, each after the previous one (`after` makes it idempotent)."""
    head = CHAIN_ROOT
    for number in range(int(times)):
        entry = await append_when_free(store, conversation, Message.user(f"same:{number}"), after=head)
        head = entry.path
        print_line(f"{entry.seq} {entry.digest.hex()}")


async def append_with_retries(store: SqlStore, conversation: str, name: str) -> None:
    """Appends single messages forever, each after the previous one, with a retry when the database is unavailable."""
    head = CHAIN_ROOT
    for number in count():
        text = f"{name}:{number}"
        head = await append_until_acknowledged(store, conversation, Message.user(text), head)
        print_line(text)


async def append_until_acknowledged(store: SqlStore, conversation: str, message: Message, head: bytes) -> bytes:
    while True:
        try:
            [entry] = await store.append(conversation, message, after=head)
        except (StoreUnavailable, StoreBusy):
            print_line("retry")
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            return entry.path


async def compact(store: SqlStore, conversation: str) -> None:
    """Compacts the whole branch, forever."""
    while True:
        branch = await store.get_branch(conversation)
        if branch.head_seq:
            try:
                await append_when_free(store, conversation, next_compaction(branch))
            except StaleCompaction:
                print_line("stale")
        await asyncio.sleep(PAUSE_SECONDS)


async def move(store: SqlStore, conversation: str) -> None:
    """Moves a conversation to the object storage and back, forever."""
    while True:
        await store.offloading.offload(conversation)
        print_line("there")
        await store.get_branch(conversation)
        print_line("back")


def next_compaction(branch: Branch) -> Compaction:
    active = branch.state.active_compaction
    covers = Span(first=1, last=branch.head_seq)
    return Compaction(
        number=branch.state.compaction_count + 1, covers=covers, summary="all", supersedes=active and active.seq
    )


def print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main(task: str, url: str, *args: str) -> None:
    tasks = {
        each.__name__: each
        for each in (create, append, append_pairs, append_idempotent, append_with_retries, compact, move)
    }
    print_line("ready")
    sys.stdin.readline()
    async with SqlStore.open(url, object_storage=os.environ.get(OBJECT_STORAGE_VARIABLE)) as store:
        await tasks[task](store, *args)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
