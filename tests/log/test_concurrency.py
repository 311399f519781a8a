"""Many processes on one branch: no append is lost or duplicated, and no lock error reaches a writer."""

import time
from collections import defaultdict

import pytest
from writer_processes import start_writers

from infra.sizes import IS_FULL_SIZE
from quire.model import Compaction, Entry
from quire.store import SqlStore

pytestmark = [pytest.mark.every_database, pytest.mark.slow]

PROCESSES, APPENDS = (8, 1_000) if IS_FULL_SIZE else (2, 40)
COMPACTORS = 2
TIMEOUT_SECONDS = 240


async def test_several_processes_append_while_others_compact(
    store: SqlStore, database_url: str, backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await store.create_conversation("busy")
    seconds = run_with_compaction(database_url)
    with capsys.disabled():
        print(f"\n{backend}: {PROCESSES} x {APPENDS} appends during compaction in {seconds:.1f} s")
    assert seconds < TIMEOUT_SECONDS

    entries = await store.read_range("busy")
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert group_by_writer(entries) == {str(name): list(range(APPENDS)) for name in range(PROCESSES)}
    check_compactions(entries)
    assert await store.verify_conversation("busy") == []


def run_with_compaction(url: str) -> float:
    """Seconds that the appends took; fails if a writer or a compactor had an error."""
    appending = [("append", "busy", str(name), str(APPENDS)) for name in range(PROCESSES)]
    compacting = [("compact", "busy")] * COMPACTORS
    with start_writers(url, appending + compacting) as started:
        begin = time.monotonic()
        for writer in started[:PROCESSES]:
            _, errors = writer.communicate(timeout=TIMEOUT_SECONDS)
            assert (writer.returncode, errors) == (0, "")
        seconds = time.monotonic() - begin
        for compactor in started[PROCESSES:]:
            assert compactor.poll() is None, compactor.communicate()[1]
    return seconds


def group_by_writer(entries: list[Entry]) -> dict[str, list[int]]:
    """The numbers of each writer's messages, in log order."""
    numbers = defaultdict(list)
    for entry in entries:
        if entry.kind == "message":
            name, number = entry.message.text.split(":")
            numbers[name].append(int(number))
    return dict(numbers)


def check_compactions(entries: list[Entry]) -> None:
    """Checks that the compactions came between the messages and that each supersedes the previous one."""
    compactions = [(entry.seq, entry.body) for entry in entries if entry.kind == "compaction"]
    assert len(compactions) > 3, "the compactions came after the messages"
    previous = None
    for number, (seq, body) in enumerate(compactions, start=1):
        assert isinstance(body, Compaction)
        assert (body.number, body.supersedes) == (number, previous)
        assert body.covers.last < seq
        previous = seq


async def test_the_same_append_from_several_processes_is_one(store: SqlStore, database_url: str) -> None:
    await store.create_conversation("retried")
    times = 30
    with start_writers(database_url, [("append_idempotent", "retried", str(times))] * 2) as started:
        answers = [writer.communicate(timeout=TIMEOUT_SECONDS) for writer in started]
    assert [writer.returncode for writer in started] == [0, 0], answers
    entries = await store.read_range("retried")
    assert [entry.message.text for entry in entries] == [f"same:{number}" for number in range(times)]
    stored = [f"{entry.seq} {entry.digest.hex()}" for entry in entries]
    assert [output.splitlines() for output, _ in answers] == [stored, stored]
    assert await store.verify_conversation("retried") == []
