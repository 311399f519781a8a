"""Keeps the search index in step with a vault: what changed on disk is read, stored, and given vectors.

The store says what is known, so a run that is broken off goes on where it stopped, and one without changes reads no
note.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import NamedTuple

from quire.compaction.documents import document_summary
from quire.context.vault import Batch, Known, Note, Step, Vault
from quire.engine.core import Core
from quire.engine.embedding import embed_scope
from quire.log.found import Document, IndexedDocument, Passage, vault_scope


class Progress(NamedTuple):
    """How far a run has come: so many of the notes that had to be read."""

    done: int
    total: int
    path: str | None = None


async def index_vault(engine: Core, vault: Vault) -> AsyncGenerator[Progress]:
    """Brings the index up to date, and says after every note how far it is."""
    known = {
        document.path: Known(document.digest.hex(), document.size, document.modified, document.aliases)
        for document in await engine.store.documents(vault.name)
    }
    steps = vault.scan(known)
    while some := await asyncio.to_thread(_up_to_a_batch, steps):
        for step in some:
            if step.batch is not None:
                await _store(engine, vault, step.batch)
            yield Progress(step.done, step.total, step.path)
    await embed_scope(engine, vault_scope(vault.name))


def _up_to_a_batch(steps: Iterator[Step]) -> list[Step]:
    """Many notes in one hop to a thread."""
    some: list[Step] = []
    for step in steps:
        some.append(step)
        if step.batch is not None:
            break
    return some


async def _store(engine: Core, vault: Vault, batch: Batch) -> None:
    indexed = [await _indexed(note) for note in batch.notes]
    if indexed:
        await engine.store.put_documents(vault.name, indexed)
    if batch.touched:
        await engine.store.touch_documents(
            vault.name, [(file.path, file.size, file.modified) for file, _ in batch.touched]
        )
    if batch.gone:
        await engine.store.drop_documents(vault.name, batch.gone)


async def _indexed(note: Note) -> IndexedDocument:
    whole = "\n\n".join(passage.text for passage in note.passages)
    document = Document(
        path=note.path,
        digest=bytes.fromhex(note.digest),
        size=note.size,
        modified=note.modified,
        title=note.title,
        summary=await document_summary(whole, model=None),
        aliases=note.aliases,
        headings=tuple(heading.text for heading in note.headings),
    )
    passages = tuple(
        Passage(key=note.path, part=part, title=passage.title, text=passage.text, at=note.modified // 1_000)
        for part, passage in enumerate(note.passages)
    )
    return IndexedDocument(document, passages)
