"""Updates the search index of a vault incrementally: reads changed notes, stores their passages, embeds them.

The store records what is indexed, so an interrupted run resumes, and a run without changes reads no note.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import NamedTuple

from quire.compaction.document_summaries import summarize_document
from quire.context.vault import KnownFile, Note, ScanStep, Vault
from quire.engine.embeddings import embed_scope
from quire.engine.state import EngineState
from quire.index.types import IndexedDocument, Passage, VaultDocument, vault_scope


class IndexProgress(NamedTuple):
    """Progress of a run: `done` of `total` changed notes."""

    done: int
    total: int
    path: str | None = None


async def index_vault(engine: EngineState, vault: Vault) -> AsyncGenerator[IndexProgress]:
    """Updates the index, and yields the progress after every note."""
    indexed = {
        document.path: KnownFile(document.digest.hex(), document.size, document.modified_ns, document.aliases)
        for document in await engine.store.documents.list(vault.name)
    }
    steps = vault.scan(indexed)
    while batch := await asyncio.to_thread(_take_batch, steps):
        for step in batch:
            if (changed := step.batch) is not None:
                documents = [await _to_indexed_document(note) for note in changed.notes]
                touched = [(file.path, file.size, file.modified) for file, _ in changed.touched]
                if documents:
                    await engine.store.documents.put(vault.name, documents)
                if touched:
                    await engine.store.documents.touch(vault.name, touched)
                if changed.deleted:
                    await engine.store.documents.delete(vault.name, changed.deleted)
            yield IndexProgress(step.done, step.total, step.path)
    await embed_scope(engine, vault_scope(vault.name))


def _take_batch(steps: Iterator[ScanStep]) -> list[ScanStep]:
    """Takes the steps up to the next batch of notes, so that one thread call reads many notes."""
    taken: list[ScanStep] = []
    for step in steps:
        taken.append(step)
        if step.batch is not None:
            break
    return taken


async def _to_indexed_document(note: Note) -> IndexedDocument:
    text = "\n\n".join(passage.text for passage in note.passages)
    document = VaultDocument(
        path=note.path,
        digest=bytes.fromhex(note.digest),
        size=note.size,
        modified_ns=note.modified,
        title=note.title,
        summary=await summarize_document(text, model=None),
        aliases=note.aliases,
        headings=tuple(heading.text for heading in note.headings),
    )
    passages = tuple(
        Passage(key=note.path, part=part, title=passage.title, text=passage.text, at=note.modified // 1_000)
        for part, passage in enumerate(note.passages)
    )
    return IndexedDocument(document, passages)
