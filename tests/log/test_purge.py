"""Purge removes content from every table, and from the SQLite files on disk."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from quire.log import (
    ENTRIES_PER_SEGMENT,
    Blob,
    Citation,
    IndexedDocument,
    Passage,
    ReplyRecord,
    SegmentRow,
    SqlStore,
    VaultDocument,
    conversation_scope,
    memory_scope,
    message_key,
)
from quire.model import (
    Compaction,
    DocumentReference,
    Draft,
    Entry,
    FilePart,
    Manifest,
    Message,
    Span,
    TextPart,
)
from quire.testing.builders import make_messages, make_turn

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


async def put_full_segment(store: SqlStore, conversation: str) -> None:
    """Stores a segment over all messages; its bytes contain their texts, as a real segment contains their words."""
    found = await store.read_range(conversation, kinds=["message"])
    passages = tuple(Passage(message_key(0, entry.seq), entry.message.text, at=entry.created_at) for entry in found)
    data = b" ".join(passage.text.encode() for passage in passages)
    purged = sum(entry.purged_at is not None for entry in await store.read_range(conversation))
    await store.put_segment(conversation, SegmentRow(0, 0, found[-1].seq, data, passages, purged))


async def write_secret(store: SqlStore) -> None:
    """Writes the secret in entry 3 and in everything that is derived from it."""
    for name in ("c", "elsewhere"):
        await store.create_conversation(name)
    file = FilePart(blob=await store.put_blob(f"a file about the {SECRET}".encode(), media_type="text/plain"))
    message = Message(role="user", parts=(TextPart(text=f"I play the {SECRET}"), file))
    reference = DocumentReference(link="[[x]]", path="x.md", summary=SECRET, snippet=f"…{SECRET}…")
    await store.append("c", *make_messages(2), Draft(body=message, references=(reference,)), *make_messages(2))
    await store.append("c", Compaction(number=1, covers=Span(first=1, last=4), summary=f"Ann and her {SECRET}"))
    old = await store.add_memory("agent", f"Ann has a {SECRET}", citation=Citation("c", 0, 3))
    await store.replace_memory(old.id, MEMORY, citation=Citation("c", 0, 3))
    await store.record_reply("c", build_reply_with_memory(f"- {MEMORY}\n- Ann likes tea"))
    await store.record_reply("elsewhere", build_reply_with_memory(MEMORY))
    await store.record_reply("c", build_reply_with_recall(3))
    await put_full_segment(store, "c")


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


def to_text(row: tuple[object, ...]) -> str:
    return " ".join(value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in row)


def find_tables_with(trace: str, admin_url: str) -> set[str]:
    """Names of the tables with this text in a row, without partition numbers."""
    sqlite = admin_url.startswith("sqlite")
    rows = read_sqlite_rows(Path(admin_url.removeprefix("sqlite:///"))) if sqlite else read_postgres_rows(admin_url)
    return {table.rstrip("_0123456789") for table, text in rows if trace in text.lower()}


TABLES_WITH_CONTENT = {"entries", "passages", "terms", "recall_segments", "memories", "blobs"}


@pytest.mark.every_backend
@pytest.mark.parametrize("seqs", [[3], None])
async def test_no_table_retains_a_purged_text(store: SqlStore, admin_url: str, seqs: list[int] | None):
    await write_secret(store)
    # Proves that the scan finds the secret in each of these tables.
    assert find_tables_with(SECRET_STEM, admin_url) == {f"quire_{table}" for table in TABLES_WITH_CONTENT}
    await store.purge("c", seqs)
    assert find_tables_with(SECRET_STEM, admin_url) == set()
    assert await store.verify_conversation("c") == []
    assert await store.search(SECRET, scopes=[conversation_scope("c"), memory_scope("agent")]) == []
    if seqs is not None:
        await put_full_segment(store, "c")
        assert find_tables_with(SECRET_STEM, admin_url) == set()
        assert len(await store.search("message", scopes=[conversation_scope("c")])) > 3


async def test_a_purge_does_not_touch_equal_text_elsewhere(store: SqlStore):
    """A document with the same words and the same message in another conversation remain."""
    await write_secret(store)
    note = IndexedDocument(VaultDocument("n.md", b"d", 1, 1), (Passage("n.md", f"On the {SECRET}"),))
    await store.put_documents("notes", [note])
    document = Blob("text/plain", MEMORY.encode() + b" is the title of a book")
    await store.record_reply("elsewhere", make_turn(*make_messages(2), blobs=(document,)))
    await store.append("elsewhere", Message.user(f"I play the {SECRET}"))
    await put_full_segment(store, "elsewhere")
    other = await store.add_memory("agent", f"Bob plays the {SECRET} too", citation=Citation("elsewhere", 0, 5))
    await store.purge("c", [3])
    hits = await store.search(SECRET, scopes=["vault:notes", conversation_scope("elsewhere"), memory_scope("agent")])
    assert sorted(hit.key for hit in hits) == sorted(["n.md", "0:5", other.id])
    [*_, (_, manifest)] = await store.list_manifests("elsewhere")
    assert await store.get_blob(manifest.decisions[0].blob) == document


async def test_no_file_of_a_sqlite_log_retains_a_purged_text(tmp_path: Path):
    async with SqlStore.open(f"sqlite:///{tmp_path}/quire.db") as store:
        await write_secret(store)
        await store.append("c", *make_messages(ENTRIES_PER_SEGMENT))
        assert any(SECRET_STEM.encode() in file.read_bytes() for file in tmp_path.iterdir())
        await store.purge("c", [3])
        assert not any(SECRET_STEM.encode() in file.read_bytes().lower() for file in tmp_path.iterdir())
        assert await store.verify_conversation("c") == []
