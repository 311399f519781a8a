"""Purge removes content from every table, and from the SQLite files on disk."""

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from infra.builders import export_lines, make_messages, make_turn
from infra.database_dump import contains_text, dump_database
from quire.engine import Document, Engine, EngineConfig, open_engine
from quire.engine.message_index import index_messages
from quire.engine.search import search_messages
from quire.errors import BlobNotFound
from quire.index.types import IndexedDocument, Passage, VaultDocument, memory_scope
from quire.log import Blob, Citation, ConversationOrigin, ReplyRecord
from quire.log.blobs import ORPHAN_BLOB_MICROS
from quire.model import (
    Compaction,
    ContextChange,
    ContextItem,
    DocumentReference,
    Draft,
    Entry,
    FilePart,
    Manifest,
    Message,
    Span,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    Topic,
    TopicIndex,
    Usage,
)
from quire.search.postings import ENTRIES_PER_SEGMENT
from quire.search.segment_codec import decode_segment
from quire.settings import Settings
from quire.store import SqlStore

SECRET = "xylophone"
# The part that all its forms share, the stem included.
SECRET_STEM = SECRET[:-1]
MEMORY = "Ann plays the xylophone"


def build_reply_with_memory(text: str) -> ReplyRecord:
    """A turn whose request contained a memory."""
    turn = make_turn(*make_messages(2), blobs=(Blob("text/plain", text.encode()),))

    def build_manifest(stored: Sequence[Entry]) -> Manifest:
        manifest = turn.build_manifest(stored)
        return manifest.model_copy(
            update={"decisions": tuple(row.model_copy(update={"kind": "memory"}) for row in manifest.decisions)}
        )

    return turn._replace(build_manifest=build_manifest)


def build_reply_with_recall(seq: int) -> ReplyRecord:
    """A turn whose request recalled a message and refers to it by its number."""
    turn = make_turn(*make_messages(2), blobs=(Blob("text/plain", b"something harmless"),))

    def build_manifest(stored: Sequence[Entry]) -> Manifest:
        manifest = turn.build_manifest(stored)
        recalled = {"kind": "message", "slot": "recall", "reason": "recalled", "span": Span(first=seq, last=seq)}
        return manifest.model_copy(
            update={"decisions": tuple(row.model_copy(update=recalled) for row in manifest.decisions)}
        )

    return turn._replace(build_manifest=build_manifest)


async def index_all(store: SqlStore) -> None:
    await index_messages(Engine(store, EngineConfig.create(Settings())))


async def find_messages(store: SqlStore, query: str) -> list[tuple[str, int]]:
    found = await search_messages(Engine(store, EngineConfig.create(Settings())), query)
    return [(hit.entry.conversation, hit.entry.seq) for hit in found.messages]


async def write_secret(store: SqlStore) -> None:
    """Writes the secret in entry 3 and in everything that is derived from it."""
    for name in ("c", "elsewhere"):
        await store.create_conversation(name)
    file = FilePart(blob=await store.put_blob(f"a file about the {SECRET}".encode(), media_type="text/plain"))
    message = Message(role="user", parts=(TextPart(text=f"I play the {SECRET}"), file))
    reference = DocumentReference(link="[[x]]", path="x.md", summary=SECRET, snippet=f"…{SECRET}…")
    await store.append("c", *make_messages(2), Draft(body=message, references=(reference,)), *make_messages(2))
    await store.append("c", Compaction(number=1, covers=Span(first=1, last=4), summary=f"Ann and her {SECRET}"))
    old = await store.memories.add("agent", f"Ann has a {SECRET}", citation=Citation("c", 0, 3))
    await store.memories.replace(old.id, MEMORY, citation=Citation("c", 0, 3))
    await store.record_reply("c", build_reply_with_memory(f"- {MEMORY}\n- Ann likes tea"))
    await store.record_reply("elsewhere", build_reply_with_memory(MEMORY))
    await store.record_reply("c", build_reply_with_recall(3))
    await index_all(store)


def read_sqlite_rows(path: Path) -> Iterator[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for row in connection.execute(f"SELECT * FROM {table}"):
                yield table, to_text(row)


def read_postgres_rows(url: str) -> Iterator[tuple[str, str]]:
    with psycopg.connect(url) as connection:
        tables = r"SELECT relname FROM pg_class WHERE relkind IN ('r', 'm') AND relname LIKE 'quire\_%'"
        for (table,) in connection.execute(tables).fetchall():
            for row in connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table))):
                yield table, to_text(row)


def age_uploads(admin_url: str, micros: int) -> None:
    """Makes every upload this much older."""
    url = make_url(admin_url)
    engine = create_engine(url.set(drivername="postgresql+psycopg") if url.get_backend_name() == "postgresql" else url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE quire_blobs SET uploaded_at = uploaded_at - :micros"), {"micros": micros})
    engine.dispose()


def to_text(row: tuple[object, ...]) -> str:
    return " ".join(value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in row)


def read_rows(admin_url: str) -> Iterator[tuple[str, str]]:
    """Each row in lower case with the name of its table, without partition numbers."""
    sqlite = admin_url.startswith("sqlite")
    rows = read_sqlite_rows(Path(admin_url.removeprefix("sqlite:///"))) if sqlite else read_postgres_rows(admin_url)
    return ((table.rstrip("_0123456789"), row_text.lower()) for table, row_text in rows)


def find_tables_with(trace: str, admin_url: str) -> set[str]:
    """Names of the tables with this text in a row."""
    return {table for table, row_text in read_rows(admin_url) if trace in row_text}


TABLES_WITH_CONTENT = {"entries", "passages", "terms", "memories", "blobs"}


@pytest.mark.every_database
@pytest.mark.parametrize("seqs", [[3], None])
async def test_no_table_retains_a_purged_text(store: SqlStore, admin_url: str, seqs: list[int] | None):
    await write_secret(store)
    # Proves that the scan finds the secret in each of these tables.
    assert find_tables_with(SECRET_STEM, admin_url) == {f"quire_{table}" for table in TABLES_WITH_CONTENT}
    await store.purge("c", seqs)
    assert find_tables_with(SECRET_STEM, admin_url) == set()
    assert await store.verify_conversation("c") == []
    assert await store.passages.search(SECRET, scopes=[memory_scope("agent")]) == []
    assert await find_messages(store, SECRET) == []
    if seqs is not None:
        await index_all(store)
        assert find_tables_with(SECRET_STEM, admin_url) == set()
        assert len(await find_messages(store, "message")) > 3


async def test_a_purge_does_not_touch_equal_text_elsewhere(store: SqlStore):
    """A document with the same words and the same message in another conversation remain."""
    await write_secret(store)
    note = IndexedDocument(VaultDocument("n.md", b"d", 1, 1), (Passage("n.md", f"On the {SECRET}"),))
    await store.documents.put("notes", [note])
    document = Blob("text/plain", MEMORY.encode() + b" is the title of a book")
    await store.record_reply("elsewhere", make_turn(*make_messages(2), blobs=(document,)))
    await store.append("elsewhere", Message.user(f"I play the {SECRET}"))
    await index_all(store)
    other = await store.memories.add("agent", f"Bob plays the {SECRET} too", citation=Citation("elsewhere", 0, 5))
    await store.purge("c", [3])
    hits = await store.passages.search(SECRET, scopes=["vault:notes", memory_scope("agent")])
    assert sorted(hit.key for hit in hits) == sorted(["n.md", other.id])
    assert await find_messages(store, SECRET) == [("elsewhere", 5)]
    [*_, (_, manifest)] = await store.list_manifests("elsewhere")
    assert await store.get_blob(manifest.decisions[0].blob) == document


CANARY = "quetzal"
CANARY_PLACES = {
    "question", "answer", "thinking", "argument", "toolname", "callid", "toolresult", "speaker", "provider", "filename",
    "brokenlink", "documentpath", "documenttext", "summary", "instructions", "branchname", "branchmessage",
    "title", "metadata", "memory", "attachment", "upload", "item", "itemserver", "usage", "branchsummary", "failure",
    "summaryusage", "topic", "givendocument", "givenname", "resultfile", "project", "agent", "parentagent",
}  # fmt: skip
"""Every place where a user, a model or a tool puts text into a conversation; each gets its own word."""


def canary(place: str) -> str:
    assert place in CANARY_PLACES
    return f"{CANARY}{place}"


async def plant_canaries(engine: Engine, vault: Path) -> None:
    """Writes a conversation `c` with a word of its own in each of `CANARY_PLACES`."""
    store = engine.store
    (vault / f"{canary('documentpath')}.md").write_text(f"# Notes\n\nOn the {canary('documenttext')}.\n")
    origin = ConversationOrigin(
        session="s", project=canary("project"), agent=canary("agent"), parent_agent=canary("parentagent")
    )
    await store.create_conversation("c", origin=origin)
    conversation = await engine.conversation("c")
    await store.rename_conversation("c", canary("title"))
    await store.set_metadata("c", {"topic": canary("metadata")})
    request = await conversation.prepare(
        f"{canary('question')} [[{canary('brokenlink')} of Bob]] [[{canary('documentpath')}]]"
    )
    await conversation.record(Message.assistant(canary("answer")), request=request)
    file = FilePart(blob=await store.put_blob(canary("attachment").encode()), name=canary("filename"))
    call = ToolCallPart(id=canary("callid"), name=canary("toolname"), arguments=f'{{"q":"{canary("argument")}"}}')
    result_file = FilePart(blob=await store.put_blob(canary("resultfile").encode()))
    parts = (ThinkingPart(text=canary("thinking")), call)
    await conversation.append(
        Message(role="user", parts=(file,), name=canary("speaker"), provider_fields={"x": canary("provider")}),
        Message(role="assistant", parts=parts),
        Message(
            role="tool",
            parts=(
                ToolResultPart(call_id=canary("callid"), content=(TextPart(text=canary("toolresult")), result_file)),
            ),
        ),
        *make_messages(40),
    )
    item = ContextItem(type="tool", name=canary("item"), server=canary("itemserver"))
    await store.append("c", ContextChange(action="add", item=item))
    usage = Usage(model="gpt-4o", provider_fields={"x": canary("usage")})
    await store.append("c", Draft(body=Message.assistant("Yes."), usage=usage))
    document = Document(name=canary("givenname"), text=canary("givendocument"))
    request = await conversation.prepare("And now?", documents=[document])
    await conversation.record(Message.assistant("Later."), request=request)
    assert await conversation.compact(instructions=f"Retain {canary('instructions')}")
    await conversation.edit_summary(canary("summary"))
    fork = await conversation.fork(4, name=canary("branchname"))
    await fork.append(canary("branchmessage"))
    summary_usage = Usage(provider_fields={"x": canary("summaryusage")})
    by_hand = Compaction(
        number=1,
        covers=Span(first=1, last=2),
        summary=canary("branchsummary"),
        failures=(canary("failure"),),
        usage=summary_usage,
    )
    await store.append("c", by_hand, branch=1)
    topic = Topic(kind="entity", label="Bird", text=canary("topic"), messages=(1, 6))
    await store.append("c", TopicIndex(covers=Span(first=1, last=8), topics=(topic,)))
    await store.memories.add("agent", canary("memory"), citation=Citation("c", 0, 1))
    await store.put_blob(canary("upload").encode())
    await engine.wait_for_background()


def find_canaries(admin_url: str) -> dict[str, set[str]]:
    """The words that the database still holds, each with its tables."""
    words = {place: f"{CANARY}{place}" for place in sorted(CANARY_PLACES)} | {"any": CANARY}
    rows = [row for row in read_rows(admin_url) if CANARY in row[1]]
    found = {place: {table for table, row_text in rows if word in row_text} for place, word in words.items()}
    return {place: tables for place, tables in found.items() if tables}


@pytest.mark.every_database
async def test_a_purged_conversation_leaves_no_text_in_any_table_or_file(
    database_url: str, admin_url: str, tmp_path: Path
):
    vault = tmp_path / "vault"
    vault.mkdir()
    async with open_engine(database_url, vault=vault, model="gpt-4o", context_limit=2_000) as engine:
        await plant_canaries(engine, vault)
        # Proves that the scans find the word of every place.
        assert find_canaries(admin_url).keys() == CANARY_PLACES | {"any"}
        dump = dump_database(admin_url)
        assert [place for place in CANARY_PLACES if not contains_text(dump, canary(place))] == []
        age_uploads(admin_url, ORPHAN_BLOB_MICROS + 1)
        await engine.store.purge("c")
        assert find_canaries(admin_url) == {}
        assert not contains_text(dump_database(admin_url), CANARY)
        # The bytes of segments are compressed, so that a scan proves nothing. The one with topics is built again.
        await index_all(engine.store)
        refs = await engine.store.message_index.list_segments("c")
        blobs = await engine.store.message_index.read_segments("c", refs)
        assert [len(decode_segment(*each)) for each in blobs] == [0] * len(refs) != []
        assert await engine.store.verify_conversation("c") == []
        lines = await export_lines(engine.store, "c")
        assert CANARY not in "".join(lines)
        await engine.store.import_conversation(lines, as_id="copy")
        assert await engine.store.verify_conversation("copy") == []
        assert [branch.name for branch in await engine.store.list_branches("c")] == ["main", "branch 1"]
        # The conversation can still be used.
        await (await engine.conversation("c")).prepare("And now?")


async def test_a_purged_message_takes_the_names_of_its_documents_from_manifests(
    database_url: str, admin_url: str, tmp_path: Path
):
    vault = tmp_path / "vault"
    vault.mkdir()
    async with open_engine(database_url, vault=vault, model="gpt-4o") as engine:
        conversation = await engine.conversation("c")
        for link in (canary("brokenlink"), "another"):
            request = await conversation.prepare(f"See [[{link}]]")
            await conversation.record(Message.assistant("I see"), request=request)
        assert "quire_manifests" in find_tables_with(CANARY, admin_url)
        await engine.store.purge("c", [1])
        assert find_canaries(admin_url) == {}
        [*_, (_, manifest)] = await engine.store.list_manifests("c")
        assert "[[another]]" in {decision.name for decision in manifest.decisions if decision.kind == "document"}


@pytest.mark.every_database
async def test_a_purge_collects_old_uploads_that_nothing_references(store: SqlStore, admin_url: str):
    await store.create_conversation("c")
    [orphan, used, later] = [await store.put_blob(data) for data in (b"orphan", b"used", b"later")]
    await store.append("c", *make_messages(2), Message(role="user", parts=(FilePart(blob=used),)))
    age_uploads(admin_url, ORPHAN_BLOB_MICROS + 1)
    # A repeated upload counts from the last one; a new one may still be attached to a message.
    await store.put_blob(b"later")
    new = await store.put_blob(b"new")
    await store.purge("c", [1])
    with pytest.raises(BlobNotFound):
        await store.get_blob(orphan)
    assert [(await store.get_blob(digest)).data for digest in (used, later, new)] == [b"used", b"later", b"new"]
    await store.purge("c", [3])
    with pytest.raises(BlobNotFound):
        await store.get_blob(used)


@pytest.mark.every_postgres
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE quire_conversations SET created_at = 0",
        "UPDATE quire_conversations SET session = ''",
        "UPDATE quire_branches SET lineage = '[]'",
        "UPDATE quire_manifests SET seq = 0",
        "UPDATE quire_manifests SET request_id = ''",
        "UPDATE quire_blobs SET digest = ''",
        "UPDATE quire_costs SET conversation = ''",
        "UPDATE quire_calibrations SET model = ''",
        "DELETE FROM quire_manifests",
        "DELETE FROM quire_branches",
    ],
)
def test_the_application_may_update_only_what_it_must(database_url: str, statement: str):
    with psycopg.connect(database_url) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement)


async def test_no_file_of_a_sqlite_log_retains_a_purged_text(tmp_path: Path):
    async with SqlStore.open(f"sqlite:///{tmp_path}/quire.db") as store:
        await write_secret(store)
        await store.append("c", *make_messages(ENTRIES_PER_SEGMENT))
        assert any(SECRET_STEM.encode() in file.read_bytes() for file in tmp_path.iterdir())
        await store.purge("c", [3])
        assert not any(SECRET_STEM.encode() in file.read_bytes().lower() for file in tmp_path.iterdir())
        assert await store.verify_conversation("c") == []


@contextmanager
def hold_snapshot(path: Path) -> Iterator[None]:
    """Reads in a transaction that stays open, as another process does; a checkpoint cannot complete meanwhile."""
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM quire_entries").fetchone()
        yield


def read_files(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


async def write_secret_message(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", Message.user(f"I play the {SECRET}"))


async def test_a_purge_waits_for_readers_that_keep_the_text_in_the_write_ahead_log(tmp_path: Path):
    path = tmp_path / "quire.db"
    async with SqlStore.open(f"sqlite:///{path}") as store:
        await write_secret_message(store)
        with hold_snapshot(path):
            purge = asyncio.create_task(store.purge("c"))
            while not (await store.get_entry("c", 1)).purged_at:  # noqa: ASYNC110 (the store has no event for it)
                await asyncio.sleep(0)
            # Other writes do not wait for the purge; each leaves time for an attempt at the checkpoint.
            for number in range(20):
                await store.create_conversation(f"other {number}")
            assert not purge.done()
            assert SECRET.encode() in read_files(tmp_path)
        await purge
        assert SECRET.encode() not in read_files(tmp_path)


async def test_a_reader_that_outlasts_the_purge_only_delays_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("quire.db.sqlite.CHECKPOINT_WAIT_SECONDS", 0)
    path = tmp_path / "quire.db"
    async with SqlStore.open(f"sqlite:///{path}") as store:
        await write_secret_message(store)
        with hold_snapshot(path):
            await store.purge("c")
            await store.create_conversation("d")
            assert SECRET.encode() in read_files(tmp_path)
        await store.create_conversation("e")
        assert SECRET.encode() not in read_files(tmp_path)
