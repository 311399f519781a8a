"""Many processes on one branch: nothing is lost, nothing is there twice, and nobody sees a lock."""

import time
from collections import defaultdict

import pytest
from writers import writers

from quire.log import SqlStore
from quire.model import Compaction, Entry

pytestmark = pytest.mark.slow

PROCESSES = 8
APPENDS = 1_000
COMPACTORS = 2
SECONDS = 240


async def test_eight_processes_append_while_others_compact(
    store: SqlStore, database_url: str, backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await store.create_conversation("busy")
    took = run_beside_compaction(database_url)
    with capsys.disabled():
        print(f"\n{backend}: {PROCESSES} x {APPENDS} appends beside compaction in {took:.1f} s")
    assert took < SECONDS

    entries = await store.range("busy")
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert by_writer(entries) == {str(name): list(range(APPENDS)) for name in range(PROCESSES)}
    check_compactions(entries)
    assert await store.verify("busy") == []


def run_beside_compaction(url: str) -> float:
    """How long the appends took; fails if one of the writers, or of those who compact, met an error."""
    appending = [("append", "busy", str(name), str(APPENDS)) for name in range(PROCESSES)]
    compacting = [("compact", "busy")] * COMPACTORS
    with writers(url, appending + compacting) as started:
        begin = time.monotonic()
        for writer in started[:PROCESSES]:
            _, errors = writer.communicate(timeout=SECONDS)
            assert (writer.returncode, errors) == (0, "")
        took = time.monotonic() - begin
        for compactor in started[PROCESSES:]:
            assert compactor.poll() is None, compactor.communicate()[1]
    return took


def by_writer(entries: list[Entry]) -> dict[str, list[int]]:
    """The numbers of each writer's messages, in the log's order."""
    found = defaultdict(list)
    for entry in entries:
        if entry.kind == "message":
            name, number = entry.message.text.split(":")
            found[name].append(int(number))
    return dict(found)


def check_compactions(entries: list[Entry]) -> None:
    """They came between the messages, each on top of the one before."""
    made = [(entry.seq, entry.body) for entry in entries if entry.kind == "compaction"]
    assert len(made) > 10, "the compactions came too late to be among the messages"
    beneath = None
    for number, (seq, body) in enumerate(made, start=1):
        assert isinstance(body, Compaction)
        assert (body.number, body.supersedes) == (number, beneath)
        assert body.covers.last < seq
        beneath = seq


async def test_the_same_append_from_several_processes_is_one(store: SqlStore, database_url: str) -> None:
    await store.create_conversation("retried")
    times = 100
    with writers(database_url, [("append_same", "retried", str(times))] * 2) as started:
        answers = [writer.communicate(timeout=SECONDS) for writer in started]
    assert [writer.returncode for writer in started] == [0, 0], answers
    entries = await store.range("retried")
    assert [entry.message.text for entry in entries] == [f"same:{number}" for number in range(times)]
    stored = [f"{entry.seq} {entry.digest.hex()}" for entry in entries]
    assert [said.splitlines() for said, _ in answers] == [stored, stored]
    assert await store.verify("retried") == []
