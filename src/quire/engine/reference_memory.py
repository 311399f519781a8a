"""Adds documents that keep being referenced to the agent's memory, so that later conversations know of them.

Off unless `remember_documents_after` is set. The memory has the document's path and summary, not its text; it cites the
message that reached the number, and is never added again after it was retired.
"""

from collections.abc import Iterable, Sequence

from quire.engine.context import EngineContext
from quire.engine.context_gatherer import memory_namespace
from quire.log.types import Citation
from quire.model import Entry
from quire.model.entry_metadata import DocumentReference

MAX_COMPARED_MEMORIES = 1_000
"""Newest memories, retired ones included, among which the document is searched before it is added."""
MAX_LINK_CHARS = 200
"""Characters of the link in a memory."""

_MEMORY_PREFIX = "The document "
"""Distinguishes these memories from facts that were remembered from the same document."""


class ReferenceMemory:
    """Counts document references on one branch."""

    def __init__(self, engine: EngineContext, conversation: str, branch: int) -> None:
        self._engine, self._conversation, self._branch = engine, conversation, branch

    async def update(self, entries: Sequence[Entry]) -> None:
        """Adds the documents of these new entries that have now been referenced often enough."""
        threshold = self._engine.settings.remember_documents_after
        if threshold is None or not self._engine.agent.memory.enabled:
            return
        for entry in entries:
            references = {each.path: each for each in _list_direct(entry)}
            if references:
                counts = await self._count_messages(references.keys())
                frequent = [references[path] for path, count in counts.items() if count >= threshold]
                await self._add(frequent, entry)

    async def _count_messages(self, paths: Iterable[str | None]) -> dict[str | None, int]:
        """Messages of the branch that name each document."""
        stored = await self._engine.store.list_referencing_entries(self._conversation, branch=self._branch)
        named = [{reference.path for reference in _list_direct(entry)} for entry in stored]
        return {path: sum(path in each for each in named) for path in paths}

    async def _add(self, references: Sequence[DocumentReference], entry: Entry) -> None:
        if not references:
            return
        store, namespace = self._engine.store, memory_namespace(self._engine.agent)
        memories = await store.memories.list(namespace, include_retired=True, limit=MAX_COMPARED_MEMORIES)
        known = {memory.source for memory in memories if memory.text.startswith(_MEMORY_PREFIX)}
        for each in references:
            if each.path not in known:
                citation = Citation(entry.conversation, entry.branch, entry.seq)
                await store.memories.add(namespace, _format_memory(each), citation=citation, source=each.path)


def _list_direct(entry: Entry) -> list[DocumentReference]:
    """References that a user's message names and that were found."""
    if entry.role != "user":
        return []
    return [each for each in entry.metadata.references or () if each.path is not None and each.kind == "direct"]


def _format_memory(reference: DocumentReference) -> str:
    summary = f": {reference.summary}" if reference.summary else "."
    text = f"{_MEMORY_PREFIX}{reference.link[:MAX_LINK_CHARS]} ({reference.path}) is often referred to{summary}"
    return " ".join(text.split())
