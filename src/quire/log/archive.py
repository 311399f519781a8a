"""The part of the store that a search needs: passages, shelves, memories and documents."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from quire.errors import InvalidEntry
from quire.log import documents, memories, passages, search, shelves
from quire.log.found import (
    Citation,
    Document,
    DocumentMark,
    Embedded,
    Hit,
    IndexedDocument,
    Memory,
    Passage,
    Shelf,
    ShelfMark,
    Unembedded,
    conversation_scope,
    memory_scope,
)
from quire.log.records import MAIN
from quire.log.steps import SqlSteps, on_branch

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class SqlArchive(SqlSteps):
    """What can be found again, and what is remembered."""

    async def search(
        self,
        query: str,
        *,
        scopes: Sequence[str],
        limit: int = 20,
        vector: ArrayLike | None = None,
        embedder: str | None = None,
    ) -> list[Hit]:
        """The passages of these scopes that bear on the query, the best first; any text is a query.

        With a vector, and the name of the embedder that made it, also those that mean much the same."""
        return await self._read(search.search, query, scopes=scopes, limit=limit, vector=vector, embedder=embedder)

    async def put_passages(self, scope: str, given: Iterable[Passage], *, replacing: Collection[str] = ()) -> None:
        """Lets a search find these passages, in place of all that their keys, and those in `replacing`, had before."""
        _refuse_guarded(scope)
        await self._write(passages.put, scope, list(given), replacing=replacing)

    async def drop_passages(self, scope: str, keys: Collection[str]) -> None:
        """These keys can no longer be found."""
        await self._write(passages.drop, scope, keys)

    async def passages(self, scope: str, key: str) -> list[Passage]:
        """The passages under a key, in the order of their parts, without their vectors."""
        return await self._read(passages.get, scope, key)

    async def unembedded(self, scope: str, *, embedder: str, limit: int = 500) -> list[Unembedded]:
        """Passages that still lack a vector of this embedder: those without any first, then those of another."""
        return await self._read(passages.unembedded, scope, embedder=embedder, limit=limit)

    async def put_vectors(self, scope: str, embedded: Sequence[Embedded], *, embedder: str) -> None:
        """Gives passages their vectors, unless their text has changed or gone since it was read."""
        await self._write(passages.put_vectors, scope, embedded, embedder=embedder)

    async def shelves(self, conversation: str, *, branch: int = MAIN) -> list[ShelfMark]:
        """The shelves along a branch, oldest first, without their bytes."""
        return await self._read_briefly(on_branch(shelves.list_shelves), conversation, branch)

    async def read_shelves(self, conversation: str, marks: Sequence[ShelfMark]) -> list[bytes]:
        """The bytes of these shelves; `StaleShelf` if one was rewritten or removed since it was listed."""
        return await self._read(shelves.read_shelves, conversation, marks)

    async def put_shelf(self, conversation: str, shelf: Shelf) -> ShelfMark:
        """Stores a shelf and the passages of its messages; `StaleShelf` if one was purged since they were read."""
        return await self._write(shelves.put_shelf, conversation, shelf)

    async def remember(
        self, agent: str, text: str, *, cites: Citation | None = None, source: str | None = None
    ) -> Memory:
        """Adds to what an agent remembers, citing the message that it came from or naming its source."""
        return await self._write(memories.remember, agent, text, cites=cites, source=source)

    async def correct(
        self, memory: str, text: str, *, cites: Citation | None = None, source: str | None = None
    ) -> Memory:
        """Retires a memory and gives the one that takes its place."""
        return await self._write(memories.correct, memory, text, cites=cites, source=source)

    async def retire(self, memory: str) -> Memory:
        """Takes a memory out of use and out of search."""
        return await self._write(memories.retire, memory)

    async def memory(self, id: str) -> Memory:
        return await self._read_briefly(memories.get_memory, id)

    async def memories(
        self, agent: str, *, retired: bool = False, limit: int = 50, before: Memory | None = None
    ) -> list[Memory]:
        """What an agent remembers, the newest first; `before` is the last one of the page before."""
        return await self._read(memories.list_memories, agent, retired=retired, limit=limit, before=before)

    async def put_documents(self, vault: str, indexed: Sequence[IndexedDocument]) -> None:
        """Stores what the index knows of these files, with their passages, all of it or nothing."""
        await self._write(documents.put_documents, vault, indexed)

    async def touch_documents(self, vault: str, touched: Sequence[tuple[str, int, int]]) -> None:
        """Notes path, size and time of files that were written anew with the content that is indexed already."""
        await self._write(documents.touch_documents, vault, touched)

    async def drop_documents(self, vault: str, paths: Collection[str]) -> None:
        """Forgets files that are gone."""
        await self._write(documents.drop_documents, vault, paths)

    async def document_marks(self, vault: str) -> list[DocumentMark]:
        """Every indexed file of a vault, by path, with what shows whether it has changed."""
        return await self._read(documents.list_marks, vault)

    async def documents(self, vault: str, *, paths: Collection[str] | None = None) -> list[Document]:
        """What the index knows of a vault's files, or of those with these paths, by path."""
        return await self._read(documents.list_documents, vault, paths=paths)


def _refuse_guarded(scope: str) -> None:
    """A purged text must not come back by a way that does not look whether it was purged."""
    ways = {conversation_scope(""): "put_shelf", memory_scope(""): "remember"}
    for beginning, way in ways.items():
        if scope.startswith(beginning):
            raise InvalidEntry(f"The passages of {scope!r} come with `{way}`, which knows what was purged.")
