"""What is purged is gone: from every table, and from the disk too where the application has a say in it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from quire.log import (
    SHELF,
    Blob,
    Citation,
    Document,
    IndexedDocument,
    Passage,
    Shelf,
    SqlStore,
    conversation_scope,
    memory_scope,
    message_key,
)
from quire.model import Compaction, DocumentReference, Draft, FilePart, Message, Span, TextPart
from quire.testing.given import answered, turns

SECRET = "xylophone"
# As far as every form of it goes, its stem too.
TRACE = SECRET[:-1]
MEMORY = "Ann plays the xylophone"


def showing_memory(text: str) -> object:
    """A turn whose request was shown a memory."""
    turn = answered(*turns(2), blobs=(Blob("text/plain", text.encode()),))

    def manifest(stored: object) -> object:
        made = turn.manifest(stored)
        return made.model_copy(
            update={"decisions": tuple(row.model_copy(update={"what": "memory"}) for row in made.decisions)}
        )

    return turn._replace(manifest=manifest)


def recalling(seq: int) -> object:
    """A turn whose request recalled a message, and quotes it by its number."""
    turn = answered(*turns(2), blobs=(Blob("text/plain", b"something harmless"),))

    def manifest(stored: object) -> object:
        made = turn.manifest(stored)
        recalled = {"what": "message", "slot": "recall", "reason": "recalled", "span": Span(first=seq, last=seq)}
        return made.model_copy(update={"decisions": tuple(row.model_copy(update=recalled) for row in made.decisions)})

    return turn._replace(manifest=manifest)


async def shelve(store: SqlStore, conversation: str) -> None:
    """A shelf over all messages, whose bytes hold their texts as a real one holds their words."""
    found = await store.range(conversation, kinds=["message"])
    passages = tuple(Passage(message_key(0, entry.seq), entry.message.text, at=entry.at) for entry in found)
    data = b" ".join(passage.text.encode() for passage in passages)
    purged = sum(entry.purged_at is not None for entry in await store.range(conversation))
    await store.put_shelf(conversation, Shelf(0, 0, found[-1].seq, data, passages, purged))


async def tell(store: SqlStore) -> None:
    """The secret in entry 3, and in whatever can be made of it."""
    for name in ("c", "elsewhere"):
        await store.create_conversation(name)
    file = FilePart(blob=await store.put_blob(f"a file about the {SECRET}".encode(), media_type="text/plain"))
    said = Message(role="user", parts=(TextPart(text=f"I play the {SECRET}"), file))
    reference = DocumentReference(link="[[x]]", path="x.md", summary=SECRET, snippet=f"…{SECRET}…")
    await store.append("c", *turns(2), Draft(body=said, references=(reference,)), *turns(2))
    await store.append("c", Compaction(number=1, covers=Span(first=1, last=4), summary=f"Ann and her {SECRET}"))
    old = await store.remember("agent", f"Ann has a {SECRET}", cites=Citation("c", 0, 3))
    await store.correct(old.id, MEMORY, cites=Citation("c", 0, 3))
    await store.record("c", showing_memory(f"- {MEMORY}\n- Ann likes tea"))
    await store.record("elsewhere", showing_memory(MEMORY))
    await store.record("c", recalling(3))
    await shelve(store, "c")


def texts_of_sqlite(path: Path) -> Iterator[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for row in connection.execute(f"SELECT * FROM {table}"):
                yield table, readable(row)


def texts_of_postgres(url: str) -> Iterator[tuple[str, str]]:
    with psycopg.connect(url) as connection:
        wanted = r"SELECT relname FROM pg_class WHERE relkind IN ('r', 'm') AND relname LIKE 'quire\_%'"
        for (table,) in connection.execute(wanted).fetchall():
            for row in connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table))):
                yield table, readable(row)


def readable(row: tuple[object, ...]) -> str:
    return " ".join(value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in row)


def tables_with(trace: str, admin_url: str) -> set[str]:
    """Without the number of a partition."""
    sqlite = admin_url.startswith("sqlite")
    found = texts_of_sqlite(Path(admin_url.removeprefix("sqlite:///"))) if sqlite else texts_of_postgres(admin_url)
    return {table.rstrip("_0123456789") for table, text in found if trace in text.lower()}


EVERYWHERE = {"entries", "passages", "terms", "shelves", "memories", "blobs"}


@pytest.mark.every_backend
@pytest.mark.parametrize("seqs", [[3], None])
async def test_no_table_keeps_a_purged_text(store: SqlStore, admin_url: str, seqs: list[int] | None):
    await tell(store)
    # So that the scan is known to find it wherever it can be.
    assert tables_with(TRACE, admin_url) == {f"quire_{table}" for table in EVERYWHERE}
    await store.purge("c", seqs)
    assert tables_with(TRACE, admin_url) == set()
    assert await store.verify("c") == []
    assert await store.search(SECRET, scopes=[conversation_scope("c"), memory_scope("agent")]) == []
    if seqs is not None:
        await shelve(store, "c")
        assert tables_with(TRACE, admin_url) == set()
        assert len(await store.search("message", scopes=[conversation_scope("c")])) > 3


async def test_a_purge_leaves_what_others_said_alike(store: SqlStore):
    """A document with the same words, and the same message in another conversation, are not what was purged."""
    await tell(store)
    note = IndexedDocument(Document("n.md", b"d", 1, 1), (Passage("n.md", f"On the {SECRET}"),))
    await store.put_documents("notes", [note])
    document = Blob("text/plain", MEMORY.encode() + b" is the title of a book")
    await store.record("elsewhere", answered(*turns(2), blobs=(document,)))
    await store.append("elsewhere", Message.user(f"I play the {SECRET}"))
    await shelve(store, "elsewhere")
    mine = await store.remember("agent", f"Bob plays the {SECRET} too", cites=Citation("elsewhere", 0, 5))
    await store.purge("c", [3])
    hits = await store.search(SECRET, scopes=["vault:notes", conversation_scope("elsewhere"), memory_scope("agent")])
    assert sorted(hit.key for hit in hits) == sorted(["n.md", "0:5", mine.id])
    [*_, (_, manifest)] = await store.manifests("elsewhere")
    assert await store.blob(manifest.decisions[0].blob) == document


async def test_no_file_of_a_sqlite_log_keeps_a_purged_text(tmp_path: Path):
    async with SqlStore.open(f"sqlite:///{tmp_path}/quire.db") as store:
        await tell(store)
        await store.append("c", *turns(SHELF))
        assert any(TRACE.encode() in file.read_bytes() for file in tmp_path.iterdir())
        await store.purge("c", [3])
        assert not any(TRACE.encode() in file.read_bytes().lower() for file in tmp_path.iterdir())
        assert await store.verify("c") == []
