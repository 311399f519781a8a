"""Imports into the log: idempotent, incremental, with branches and compactions, and safe against a kill."""

import asyncio
import json
import os
import random
import signal
import sys
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from importers.transcript_files import (
    DATA,
    copy_transcripts,
    dump_store,
    import_path,
    read_lines,
    read_texts,
    write_lines,
)
from infra.sizes import IS_FULL_SIZE
from quire.engine import file_import
from quire.engine.file_import import ImportOptions
from quire.log import ConversationOrigin
from quire.log.imports import make_conversation_id
from quire.model import Compaction, ImagePart, Message, Usage
from quire.sources.base import SourceCompaction, SourceConversation, SourceError, SourceMessage
from quire.store import SqlStore

SOURCES = ("claude-code", "codex")
KILLS = 50 if IS_FULL_SIZE else 1
"""Moments at which the kill test ends an import."""


class ListSource:
    """A source whose one file holds the conversations that a test gives it."""

    name, title, reads = "list", "List", 1

    def __init__(self, *conversations: SourceConversation | SourceError) -> None:
        self.conversations = conversations

    def find_default_paths(self, env: Mapping[str, str]) -> list[Path]:
        return []

    def find_files(self, path: Path) -> Iterator[Path]:
        return iter([path])

    def read(self, path: Path, *, since: int | None = None) -> Iterator[SourceConversation | SourceError]:
        yield from self.conversations


def say(id_: str, parent: str | None, text: str = "", **fields: Any) -> SourceMessage:
    role = fields.pop("role", "user")
    message = Message.user(text or id_) if role == "user" else Message.assistant(text or id_)
    return SourceMessage(id_, parent, message, at=fields.pop("at", 1_000), **fields)


async def import_messages(store: SqlStore, *messages: SourceMessage | SourceError, **fields: Any) -> str:
    """Imports one conversation and returns its id."""
    await import_path(store, ListSource(SourceConversation("c", messages, **fields)), Path("list"))
    return make_conversation_id("list", "c")


@pytest.mark.every_database
@pytest.mark.parametrize("source", SOURCES)
async def test_the_transcripts_of_real_agents_are_imported_and_verify(store: SqlStore, source: str):
    report = await import_path(store, source, DATA / source.replace("-", "_"))
    assert (report.files, report.conversations, report.error_count) == (3, 3, 0)
    records = await store.list_conversations()
    assert len(records) == 3
    for record in records:
        assert await store.verify_conversation(record.id) == []
        assert record.origin is not None
        assert (record.origin.client, record.origin.project) == (source, "/home/dev/project")
    assert [record.origin.purpose for record in records if record.origin].count("subagent") == 1


@pytest.mark.parametrize("source", SOURCES)
async def test_a_second_import_adds_nothing(store: SqlStore, source: str):
    folder = DATA / source.replace("-", "_")
    first = await import_path(store, source, folder)
    before = await dump_store(store)
    second = await import_path(store, source, folder)
    assert (second.conversations, second.messages, second.known_messages) == (0, 0, first.messages)
    assert await dump_store(store) == before


@pytest.mark.parametrize("source", SOURCES)
async def test_export_and_import_give_the_same_bytes(store: SqlStore, source: str):
    await import_path(store, source, DATA / source.replace("-", "_"))
    exported = await dump_store(store)
    other = store.for_tenant("other")
    for lines in exported.values():
        await other.import_conversation(lines)
    assert await dump_store(other) == exported
    again = store.for_tenant("again")
    await import_path(again, source, DATA / source.replace("-", "_"))
    assert await dump_store(again) == exported


@pytest.mark.parametrize("source", SOURCES)
async def test_a_file_that_grows_line_by_line_gives_the_same_log(store: SqlStore, source: str, tmp_path: Path):
    folder = copy_transcripts(source, tmp_path / "whole")
    whole = store.for_tenant("whole")
    await import_path(whole, source, folder)
    written = sorted(list_writes(folder), key=lambda write: write[0])
    contents: dict[Path, list[dict[str, Any]]] = {path: [] for _, path, _ in written}
    for number, (_, path, lines) in enumerate(written):
        contents[path] += lines
        write_lines(path, contents[path], age_seconds=0)
        if number % 5 == 0:
            await import_path(store, source, folder)
    for path, lines in contents.items():
        write_lines(path, lines)
    await import_path(store, source, folder)
    assert await list_messages(store) == await list_messages(whole)


def list_writes(folder: Path) -> Iterator[tuple[str, Path, list[dict[str, Any]]]]:
    """The time and the lines of each write to a file; the files are emptied. Claude Code writes a reply at once."""
    for path in sorted(folder.rglob("*.jsonl")):
        time, lines = "", read_lines(path)
        path.unlink()
        for _, group in groupby(lines, lambda line: get_reply_id(line) or id(line)):
            written = list(group)
            time = max(time, *(line.get("timestamp") or "" for line in written), "")
            yield time, path, written


def get_reply_id(line: dict[str, Any]) -> str | None:
    return line["message"]["id"] if line["type"] == "assistant" else None


async def list_messages(store: SqlStore) -> dict[str, list[list[str]]]:
    """The bodies of all branches of all conversations."""
    return {
        record.id: [
            [entry.raw for entry in await store.read_range(record.id, branch=branch.number)]
            for branch in await store.list_branches(record.id)
        ]
        for record in await store.list_conversations(limit=1_000)
    }


async def test_times_usage_cost_and_what_is_dropped_are_stored(store: SqlStore):
    usage = Usage(model="m", input_tokens=5, output_tokens=2)
    conversation = await import_messages(
        store,
        say("a", None, at=2_000_000),
        say("b", "a", role="assistant", at=None, usage=usage, cost_usd=0.25, dropped=("toolUseResult",)),
        title="A title",
        origin=ConversationOrigin(client="list", project="/p"),
        created_at=1_000_000,
        dropped=("everything else",),
    )
    record = await store.get_conversation(conversation)
    assert (record.title, record.created_at, record.updated_at) == ("A title", 1_000_000, 2_000_000)
    first, second = await store.read_range(conversation)
    assert (first.created_at, second.created_at) == (2_000_000, 2_000_000)
    assert first.metadata.dropped == ("everything else",)
    assert (second.metadata.usage, second.metadata.cost_usd) == (usage, 0.25)
    assert second.metadata.dropped == ("toolUseResult",)
    assert (first.author, second.author) == ("user", "assistant")


async def test_a_tree_becomes_branches(store: SqlStore):
    conversation = await import_messages(
        store, say("a", None), say("b", "a"), say("c", "b"), say("d", "a"), say("e", "d"), say("f", None)
    )
    texts = [await read_texts(store, conversation, branch=number) for number in range(3)]
    assert texts == [["a", "b", "c"], ["a", "d", "e"], ["f"]]
    assert await store.verify_conversation(conversation) == []


async def test_branches_that_come_later_and_longer_ones_are_appended(store: SqlStore):
    await import_messages(store, say("a", None), say("b", "a"))
    await import_messages(store, say("a", None), say("b", "a"), say("c", "a"))
    conversation = await import_messages(
        store, say("a", None), say("b", "a"), say("x", "b"), say("c", "a"), say("y", "c")
    )
    texts = [await read_texts(store, conversation, branch=number) for number in range(2)]
    assert texts == [["a", "b", "x"], ["a", "c", "y"]]
    assert len(await store.list_branches(conversation)) == 2


async def test_a_changed_message_is_a_branch_and_the_old_one_stays(store: SqlStore):
    await import_messages(store, say("a", None), say("b", "a", "So f"), say("c", "b"))
    conversation = await import_messages(store, say("a", None), say("b", "a", "So far."), say("c", "b"))
    assert await read_texts(store, conversation) == ["a", "So f", "c"]
    assert await read_texts(store, conversation, branch=1) == ["a", "So far."]


async def test_a_rewritten_file_without_its_beginning_continues_after_the_compaction(store: SqlStore):
    summary = say("s", "b", "Summary.", compaction=SourceCompaction("Summary."))
    await import_messages(store, say("a", None), say("b", "a"), summary)
    alone = summary._replace(parent=None, compaction=None)
    conversation = await import_messages(store, alone, say("c", "s"))
    assert await read_texts(store, conversation) == ["a", "b", "c"]
    assert len(await store.list_branches(conversation)) == 1


async def test_a_compaction_covers_what_came_before_and_preserves_what_the_source_names(store: SqlStore):
    conversation = await import_messages(
        store,
        say("a", None), say("b", "a"),
        say("s", "b", "Sum.", compaction=SourceCompaction("Sum.", "manual", 900, 90, ("b", "unknown"))),
        say("c", "s"),
        say("t", "c", "More.", compaction=SourceCompaction("More."), usage=Usage(model="m")),
        say("d", "t"),
    )  # fmt: skip
    entries = await store.read_range(conversation)
    assert [entry.kind for entry in entries] == ["message", "message", "compaction", "message", "compaction", "message"]
    first, second = entries[2].body, entries[4].body
    assert isinstance(first, Compaction)
    assert isinstance(second, Compaction)
    assert first.covers is not None
    assert (first.covers.last, first.preserved, first.summary, first.trigger) == (2, (2,), "Sum.", "manual")
    assert (first.tokens_before, first.tokens_after, first.strategy) == (900, 90, "imported")
    assert (second.number, second.supersedes, second.model) == (2, 3, "m")
    window = await store.read_window(conversation)
    assert [entry.seq for entry in window.messages] == [6]
    assert await store.verify_conversation(conversation) == []


async def test_a_compaction_on_a_branch_covers_that_branch(store: SqlStore):
    conversation = await import_messages(
        store, say("a", None), say("b", "a"), say("c", "a"),
        say("s", "c", "Sum.", compaction=SourceCompaction("Sum.")), say("d", "s"),
    )  # fmt: skip
    assert await store.verify_conversation(conversation) == []
    assert (await store.get_branch(conversation, 0)).state.active_compaction is None
    window = await store.read_window(conversation, branch=1)
    assert [entry.message.text for entry in window.messages] == ["d"]


async def test_data_urls_become_blobs(store: SqlStore):
    image = ImagePart(url="data:image/png;base64," + b64encode(b"pixels").decode(), media_type="image/png")
    broken = ImagePart(url="data:image/png;base64,!!!")
    message = SourceMessage("a", None, Message(role="user", parts=(image, broken)), at=1)
    conversation = await import_messages(store, message)
    first, second = (await store.get_entry(conversation, 1)).message.parts
    assert isinstance(first, ImagePart)
    assert first.blob is not None
    assert (await store.get_blob(first.blob)).data == b"pixels"
    assert second == broken
    assert await store.verify_conversation(conversation) == []
    await store.purge(conversation)
    assert (await import_path(store, ListSource(SourceConversation("c", [message])), Path())).messages == 0


@pytest.mark.every_database
async def test_purged_messages_are_not_imported_again(store: SqlStore):
    conversation = await import_messages(store, say("a", None, "a secret"), say("b", "a"))
    await store.purge(conversation)
    await import_messages(store, say("a", None, "a secret"), say("b", "a"), say("c", "b", "later"))
    assert await read_texts(store, conversation) == ["[purged]", "[purged]", "later"]


async def test_a_dry_run_counts_and_writes_nothing(store: SqlStore):
    source = ListSource(SourceConversation("c", [say("a", None), say("b", "a")]))
    report = await import_path(store, source, Path(), ImportOptions(dry_run=True))
    assert (report.conversations, report.messages) == (1, 2)
    assert await store.list_conversations() == []


async def test_a_project_is_set_where_the_source_names_none(store: SqlStore):
    own = SourceConversation("own", [say("a", None)], origin=ConversationOrigin(client="list", project="/own"))
    source = ListSource(SourceConversation("c", [say("a", None)]), own)
    await import_path(store, source, Path(), ImportOptions(project="/given"))
    records = [await store.get_conversation(make_conversation_id("list", each)) for each in ("c", "own")]
    assert [record.origin and record.origin.project for record in records] == ["/given", "/own"]


async def test_errors_are_listed_up_to_a_bound_and_end_nothing(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_import, "MAX_LISTED_ERRORS", 3)

    class Failing(ListSource):
        def read(self, path: Path, *, since: int | None = None) -> Iterator[SourceConversation | SourceError]:
            yield from self.conversations
            raise RuntimeError("the file is broken")

    lone = say("lone", "a", "\ud800")
    source = Failing(
        *[SourceError(f"item {n}", "No.") for n in range(4)],
        SourceConversation("c", [say("a", None), SourceError("x", "No."), lone, say("b", "lone")]),
    )
    report = await import_path(store, source, Path("broken"))
    assert (report.error_count, len(report.errors), report.messages) == (6, 3, 3)
    assert await read_texts(store, make_conversation_id("list", "c")) == ["a", "\ufffd", "b"]


async def test_a_conversation_longer_than_a_batch_is_written_in_several(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(file_import, "BATCH_MESSAGES", 3)
    messages = [say(f"m{n}", f"m{n - 1}" if n else None) for n in range(10)]
    conversation = await import_messages(store, *messages, say("fork", "m1"))
    assert await read_texts(store, conversation) == [f"m{n}" for n in range(10)]
    assert await read_texts(store, conversation, branch=1) == ["m0", "m1", "fork"]


async def test_a_batch_ends_at_a_number_of_bytes(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_import, "MAX_BATCH_BYTES", 1_000)
    sizes: list[int] = []
    original = store.imports.append

    async def record_size(batches: Any) -> Any:
        sizes.append(sum(len(batch.items) for batch in batches))
        return await original(batches)

    monkeypatch.setattr(store.imports, "append", record_size)
    await import_messages(store, *[say(f"m{n}", f"m{n - 1}" if n else None, "x" * 600) for n in range(5)])
    assert sizes == [2, 2, 1]


async def test_other_processes_read_the_same_in_the_same_order(
    store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for number in range(4):
        copy_session(tmp_path, number)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    monkeypatch.setattr(file_import, "MIN_PARALLEL_BYTES", 0)
    # Some files are small enough to be read in another process, and some are not.
    monkeypatch.setattr(file_import, "GROUP_BYTES", sum(sizes) / len(sizes))
    report = await import_path(store, "claude-code", tmp_path, ImportOptions(processes=2))
    assert (report.files, report.error_count) == (8, 0)
    alone = store.for_tenant("alone")
    await import_path(alone, "claude-code", tmp_path)
    assert await dump_store(store) == await dump_store(alone)


@pytest.mark.every_database
async def test_imports_at_once_write_each_message_once(store: SqlStore):
    source = ListSource(*[SourceConversation(f"c{n}", [say("a", None), say("b", "a")]) for n in range(20)])
    await asyncio.gather(*(import_path(store, source, Path()) for _ in range(4)))
    records = await store.list_conversations()
    assert len(records) == 20
    for record in records:
        assert await read_texts(store, record.id) == ["a", "b"]
        assert len(await store.list_branches(record.id)) == 1


async def test_messages_added_in_quire_stay_on_their_branch(store: SqlStore):
    conversation = await import_messages(store, say("a", None), say("b", "a"))
    await store.append(conversation, Message.user("in Quire"))
    await import_messages(store, say("a", None), say("b", "a"), say("c", "b"))
    assert await read_texts(store, conversation) == ["a", "b", "in Quire"]
    assert await read_texts(store, conversation, branch=1) == ["a", "b", "c"]


async def test_hostile_ids_are_stored_as_digests(store: SqlStore):
    long, strange = "x" * 10_000, "a person's name\x00"
    conversation = await import_messages(store, say(long, None, "one"), say(strange, long, "two"))
    assert await read_texts(store, conversation) == ["one", "two"]
    ledger = (await store.imports.read_ledgers([conversation]))[conversation]
    assert {len(item) for item, _ in ledger} == {64}


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[int, int | None]]:
    """Messages with the number of their parent, each after it."""
    count = draw(st.integers(1, 12))
    return [(n, draw(st.none() | st.integers(0, n - 1)) if n else None) for n in range(count)]


@given(tree=trees(), cuts=st.lists(st.integers(0, 12), max_size=3), batch=st.integers(1, 4))
async def test_any_tree_in_any_pieces_has_every_path(
    store: SqlStore, tree: list[tuple[int, int | None]], cuts: list[int], batch: int
):
    """Property: whatever was imported before, each message is stored once, after the path from its root."""
    tenant = store.for_tenant(uuid4().hex)
    parents = dict(tree)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_import, "BATCH_MESSAGES", batch)
        for end in [*sorted(cuts), len(tree)]:
            messages = [say(f"m{n}", None if p is None else f"m{p}") for n, p in tree[:end]]
            await import_path(tenant, ListSource(SourceConversation("c", messages)), Path())
    conversation = make_conversation_id("list", "c")
    branches = await tenant.list_branches(conversation)
    stored = Counter[str]()
    for branch in branches:
        path = await read_texts(tenant, conversation, branch=branch.number)
        stored.update(path[branch.fork_seq :])
        for before, after in zip([None, *path], path, strict=False):
            parent = parents[int(after[1:])]
            assert before == (None if parent is None else f"m{parent}")
    assert stored == Counter({f"m{n}": 1 for n, _ in tree})
    assert await tenant.verify_conversation(conversation) == []


IMPORT_SCRIPT = """
import asyncio, os, signal, sys
from pathlib import Path
from quire.engine import file_import
from quire.engine.file_import import import_files
from quire.sources.registry import SOURCES
from importers.transcript_files import make_engine
from quire.store import SqlStore

file_import.BATCH_MESSAGES = 20

async def main(url, folder, tenant, batches="0"):
    async with SqlStore.open(url, tenant=tenant) as store:
        append, written = store.imports.append, []

        async def append_and_die(*arguments, **options):
            written.append(await append(*arguments, **options))
            if len(written) == int(batches):
                os.kill(os.getpid(), signal.SIGKILL)
            return written[-1]

        store.imports.append = append_and_die
        engine, source = make_engine(store), SOURCES["claude-code"]
        print("started", flush=True)
        await import_files(engine, source, list(source.find_files(Path(folder))))
        print("written", flush=True)
        await engine.runtime.jobs.wait()

asyncio.run(main(*sys.argv[1:]))
"""


async def run_import(
    url: str, folder: Path, *, tenant: str, kill_after: float | None = None, kill_after_batches: int = 0
) -> float:
    """Imports in another process. It is killed that many seconds after it began to, or once it wrote that many batches.

    Returns the seconds it wrote.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", IMPORT_SCRIPT, url, str(folder), tenant, str(kill_after_batches),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(DATA.parents[1]), *sys.path])},
    )  # fmt: skip
    assert process.stdout is not None
    assert await process.stdout.readline() == b"started\n"
    started = time.perf_counter()
    if kill_after is not None:
        await asyncio.sleep(kill_after)
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
    elif not kill_after_batches:
        assert await process.stdout.readline() == b"written\n"
    seconds = time.perf_counter() - started
    await process.wait()
    return seconds


@pytest.mark.every_database
async def test_a_killed_import_that_is_repeated_writes_each_message_once(
    database_url: str, store: SqlStore, tmp_path: Path
):
    folder = tmp_path / "projects"
    for number in range(12 if IS_FULL_SIZE else 5):
        copy_session(folder, number)
    seconds = await run_import(database_url, folder, tenant="whole")
    expected = await list_messages(store.for_tenant("whole"))
    generator, counts = random.Random(17), list[int]()
    for number in range(KILLS):
        tenant = store.for_tenant(f"killed {number}")
        kill = {"kill_after": generator.uniform(0, seconds)} if IS_FULL_SIZE else {"kill_after_batches": 3}
        await run_import(database_url, folder, tenant=tenant.tenant, **kill)
        records = await tenant.list_conversations(limit=1_000)
        for record in records:
            assert await tenant.verify_conversation(record.id) == []
        repeated = await import_path(tenant, "claude-code", folder)
        counts.append(repeated.known_messages)
        assert await list_messages(tenant) == expected
        assert (await import_path(tenant, "claude-code", folder)).messages == 0
    # At least one process was killed in the middle of the import.
    assert any(0 < count < sum(len(each) for [each] in expected.values()) for count in counts), counts


def copy_session(folder: Path, number: int) -> None:
    """The captured session under another id."""
    for path in (DATA / "claude_code").rglob("*.jsonl"):
        if path.parent.name != "subagents":
            name = f"{number:08}{path.stem[8:]}"
            lines = [json.loads(line) for line in path.read_text().replace(path.stem, name).splitlines()]
            write_lines(folder / f"{name}.jsonl", lines)
