"""Quire's hooks in a real agent's home: the program, and the process in the background that handles events."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra.real_agents import Claude, Codex
from quire.model import Entry
from quire.store import SqlStore

QUIRE = Path(sys.executable).with_name("quire")
WAIT_SECONDS = 30.0


@contextmanager
def make_runtime_folder() -> Iterator[Path]:
    """A short path, because the path of a socket has at most 108 bytes. Services end with it."""
    folder = Path(tempfile.mkdtemp(prefix="q"))
    yield folder
    for pid in find_services(folder):
        os.kill(pid, 15)
    shutil.rmtree(folder, ignore_errors=True)


def find_services(runtime: Path) -> list[int]:
    """Ids of the hook services whose socket is in this folder."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if "quire.cli.hook_service" in words and any(word.startswith(str(runtime)) for word in words):
            found.append(int(process.name))
    return found


def run_quire(agent: Claude | Codex, *words: str, input: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(QUIRE), *words],
        env=agent.make_environment(),
        cwd=agent.work,
        input=input,
        capture_output=True,
        text=True,
        check=True,
    )


async def wait_for_entries(
    agent: Claude | Codex, session: str, is_complete: Callable[[list[Entry]], bool]
) -> list[Entry]:
    """The entries of the session's main conversation, as soon as they are complete."""
    database = agent.home / ".local/share/quire/quire.db"
    deadline = time.monotonic() + WAIT_SECONDS
    entries: list[Entry] = []
    while time.monotonic() < deadline:
        if database.exists():
            async with SqlStore.open(f"sqlite:///{database}") as store:
                for record in await store.list_session(session):
                    for branch in await store.list_branches(record.id):
                        entries = await store.read_range(record.id, branch=branch.number)
                        if is_complete(entries):
                            return entries
        await asyncio.sleep(0.3)
    log = agent.home / ".local/share/quire/hook.log"
    pytest.fail(f"{[entry.raw[:80] for entry in entries]}; {log.read_text() if log.exists() else 'no log'}")


def has_text(entries: list[Entry], text: str) -> bool:
    return any(text in entry.raw for entry in entries)
