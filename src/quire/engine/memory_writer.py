"""Adds memories: those that a model stores with the tool `remember`, and documents that are often referred to.

Each memory cites the message, or the document quoted in it, that states the fact. A statement that only repeats an
existing memory, or text that was recalled for the request, is refused: memories must not multiply.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from quire.concurrency.worker_threads import run_in_worker
from quire.engine.context_gatherer import memory_namespace
from quire.engine.search import search_memories, search_messages
from quire.engine.state import EngineState
from quire.errors import BlobNotFound, InvalidRequest, MemoryNotFound, ModelError
from quire.index.types import SearchHit
from quire.llm.embeddings import embed_texts
from quire.log.types import Citation, Memory
from quire.model import Entry
from quire.model.entry_metadata import DocumentReference
from quire.view.recalled_messages import to_searchable_text

MAX_COMPARED_MEMORIES = 1_000
"""Newest memories that a new one is compared with."""
MAX_SOURCE_MESSAGES = 100
"""Newest messages of the user and of tools among which the source of a memory is searched."""
MAX_FOUND_SOURCES = 5
"""Older messages, found by search, among which the source of a memory is searched."""
MAX_SOURCE_DOCUMENTS = 20
"""Documents quoted in these messages among which the source of a memory is searched."""
MAX_SOURCE_CHARS = 20_000
"""Characters of each of these texts that are compared with a memory."""


MAX_NEAR_MEMORIES = 30
"""Memories, found by search, among which paraphrases are looked for."""
PARAPHRASE_SIMILARITY = 0.75
"""Similarity of two texts from which on one may paraphrase the other."""
PARAPHRASE_WORD_SIMILARITY = 0.12
"""Similarity that the differing words of a paraphrase must have: `lives` is closer to `home` than to `works`."""
CLOSE_SIMILARITY = 0.6
"""Similarity of texts, and share of common terms, from which on a memory is named as close to another."""

MAX_LINK_CHARS = 200
"""Characters of the link in the memory of a document."""
_DOCUMENT_PREFIX = "The document "
"""Distinguishes memories of documents from facts that were remembered from the same document."""


class MemorySource(NamedTuple):
    """A text that may state a fact: a message, or a document that it quotes."""

    entry: Entry
    text: str
    document: str | None = None
    """Path of the document."""

    @property
    def description(self) -> str:
        kind = "tool result" if self.entry.role == "tool" else "message"
        quoted = f"the document {self.document} in " if self.document is not None else ""
        return f"{quoted}{kind} #{self.entry.seq}"


class MemoryWriter:
    """Writes the memories of an agent, from what one branch says."""

    def __init__(self, engine: EngineState, conversation: str, branch: int) -> None:
        self._engine, self._conversation, self._branch = engine, conversation, branch

    async def remember(self, text: str, *, replaces: str | None, recalled_texts: Iterable[str]) -> str:
        """Stores a memory, or the correction of the memory `replaces`. Returns the answer for the model."""
        from quire.context.memory import validate_new_memory

        engine, namespace = self._engine, memory_namespace(self._engine.agent)
        if not engine.agent.memory.enabled:
            raise InvalidRequest("This agent has no memory; enable it in the agent's configuration.")
        memories = await engine.store.memories.list(namespace, limit=MAX_COMPARED_MEMORIES)
        fact = validate_new_memory(text, existing=[each.text for each in memories])
        if replaces is not None:
            # Memories of other agents are refused as if there were none.
            try:
                replaced = await engine.store.memories.get(replaces)
            except MemoryNotFound:
                replaced = None
            if replaced is None or replaced.namespace != namespace:
                raise InvalidRequest(f"There is no memory {replaces!r}; the id of each memory is in brackets after it.")
        branch = await engine.store.get_branch(self._conversation, self._branch)
        # Texts that may state the fact: new messages, older ones that a search finds, and the documents they quote.
        store = engine.store
        entries = await store.read_tail(
            self._conversation, MAX_SOURCE_MESSAGES, branch=self._branch, kinds=["message"], roles=["user", "tool"]
        )
        if not any(entry.role == "user" for entry in entries):
            entries += await store.read_tail(
                self._conversation, 1, branch=self._branch, kinds=["message"], roles=["user"]
            )
        found = await search_messages(self._engine, fact, branch=branch, limit=MAX_FOUND_SOURCES)
        present = {entry.seq for entry in entries}
        entries += [hit.entry for hit in found.messages if hit.entry.seq not in present]
        entries = [each for each in entries if each.role in ("user", "tool") and each.purged_at is None]
        if not any(entry.role == "user" for entry in entries):
            raise InvalidRequest("There is no user message yet that a memory could cite.")
        messages = [MemorySource(entry, to_searchable_text(entry.message)[:MAX_SOURCE_CHARS]) for entry in entries]
        sources = [*messages, *await self._load_documents(entries)]
        source = await run_in_worker(_choose_source, fact, sources)
        await run_in_worker(_check_repetition, fact, memories, replaces=replaces)
        if replaces is None:
            # The newest question, and what tools returned since.
            question = max(each.entry.seq for each in sources if each.entry.role == "user")
            new_texts = [each.text for each in sources if each.entry.seq >= question]
            await run_in_worker(_check_recalled, fact, new_texts, recalled_texts)
        citation = Citation(source.entry.conversation, source.entry.branch, source.entry.seq)
        if replaces is None:
            near = await find_near_memories(engine, fact)
            if near.same:
                raise _refuse_repetition(near.same[0].key, near.same[0].text)
            memory = await engine.store.memories.add(namespace, fact, citation=citation, source=source.document)
            return f"Remembered as {memory.id}, from {source.description}.{near.describe_close()}"
        corrected = await correct_memory(engine, replaces, fact, citation=citation, source=source.document)
        others = "".join(f", and of {each.key}, which said the same" for each in corrected.near.same)
        answer = f"Remembered as {corrected.memory.id} in place of {replaces}{others}, from {source.description}."
        return f"{answer}{corrected.near.describe_close()}"

    async def _load_documents(self, entries: Sequence[Entry]) -> list[MemorySource]:
        """The newest documents whose text is included in these messages."""
        quoted = [
            (entry, reference)
            for entry in sorted(entries, key=lambda entry: -entry.seq)
            for reference in entry.metadata.references or ()
            if reference.injected and reference.blob is not None
        ]
        documents: list[MemorySource] = []
        for entry, reference in quoted[:MAX_SOURCE_DOCUMENTS]:
            try:
                blob = await self._engine.store.get_blob(reference.blob or "")
            except BlobNotFound:
                continue
            text = blob.data.decode(errors="replace")[:MAX_SOURCE_CHARS]
            documents.append(MemorySource(entry, text, reference.path or reference.link))
        return documents


class NearMemories(NamedTuple):
    """Memories that are near a text."""

    same: list[SearchHit]
    """Paraphrases: they state the same fact."""
    close: list[SearchHit]
    """They may state the same fact or a related one. Neither words nor vectors decide that."""

    def describe_close(self) -> str:
        named = "; ".join(f"{each.key} ({each.text})" for each in self.close)
        return f" It is close to {named}. If it replaces one, call remember with its id as replaces." if named else ""


async def find_near_memories(engine: EngineState, text: str, *, exclude: Collection[str] = ()) -> NearMemories:
    """Compares the text with the memories that a search finds, by words, and with an embedder by meaning.

    A paraphrase has the same names and numbers, and either the same terms, or a similar meaning with differing words
    that are similar too. Two facts about one subject are often more similar than two paraphrases.
    """
    from quire.context.memory import differs_in_value, is_repeated_in, list_differing_words, measure_overlap

    hits = await search_memories(engine, text, limit=MAX_NEAR_MEMORIES)
    hits = [hit for hit in hits if hit.key not in exclude]
    differing = [[" ".join(words) for words in list_differing_words(text, hit.text)] for hit in hits]
    similarities: list[tuple[float, float]] = [(0.0, 0.0)] * len(hits)
    if engine.embedder is not None and hits:
        texts = [text, *[each for hit, words in zip(hits, differing, strict=True) for each in (hit.text, *words)]]
        try:
            whole, *rows = await embed_texts(engine.embedder, texts)
        except ModelError:
            rows = []
        else:
            similarities = [
                (float(whole @ rows[3 * n]), float(rows[3 * n + 1] @ rows[3 * n + 2])) for n in range(len(hits))
            ]
    near = NearMemories([], [])
    for hit, words, (similarity, word_similarity) in zip(hits, differing, similarities, strict=True):
        has_same_terms = is_repeated_in(text, hit.text) and is_repeated_in(hit.text, text)
        has_same_meaning = (
            similarity >= PARAPHRASE_SIMILARITY and all(words) and word_similarity >= PARAPHRASE_WORD_SIMILARITY
        )
        common = min(measure_overlap(text, hit.text), measure_overlap(hit.text, text))
        if (has_same_terms or has_same_meaning) and not differs_in_value(text, hit.text):
            near.same.append(hit)
        elif max(similarity, common) >= CLOSE_SIMILARITY:
            near.close.append(hit)
    return near


class CorrectedMemory(NamedTuple):
    memory: Memory
    near: NearMemories
    """Memories near the corrected one: those that said the same are replaced with it."""


async def correct_memory(
    engine: EngineState, id: str, text: str, *, citation: Citation | None = None, source: str | None = None
) -> CorrectedMemory:
    """Replaces a memory and its paraphrases, which would contradict the correction. What lacks a term that the
    correction removes is no paraphrase of what was wrong, and stays."""
    from quire.context.memory import list_differing_words

    old = await engine.store.memories.get(id)
    removed, _ = list_differing_words(old.text, text)
    near = await find_near_memories(engine, old.text, exclude=[id])

    def says_removed(hit: SearchHit) -> bool:
        missing, _ = list_differing_words(old.text, hit.text)
        return set(removed).isdisjoint(missing)

    near = NearMemories(list(filter(says_removed, near.same)), list(filter(says_removed, near.close)))
    memory = await engine.store.memories.replace(
        id, text, also=[each.key for each in near.same], citation=citation, source=source
    )
    return CorrectedMemory(memory, near)


async def write_cited_memory(engine: EngineState, text: str, *, citation: Citation) -> Memory:
    """Stores a memory that cites a given message. Refuses a text that repeats a memory, or of which the message says
    nothing."""
    from quire.context.memory import is_repeated_in, measure_overlap, validate_new_memory

    namespace = memory_namespace(engine.agent)
    memories = await engine.store.memories.list(namespace, limit=MAX_COMPARED_MEMORIES)
    fact = validate_new_memory(text, existing=[each.text for each in memories])
    entry = await engine.store.get_entry(citation.conversation, citation.seq, branch=citation.branch)
    stated = to_searchable_text(entry.message)[:MAX_SOURCE_CHARS] if entry.kind == "message" else ""
    if not await run_in_worker(measure_overlap, fact, stated):
        raise InvalidRequest(f"#{citation.seq} says nothing of this; cite the message that states it.")
    for memory in memories:
        if is_repeated_in(fact, memory.text):
            raise InvalidRequest(f"The memory {memory.id} says nearly the same: {memory.text!r}.")
    return await engine.store.memories.add(namespace, fact, citation=citation)


def _choose_source(fact: str, sources: Sequence[MemorySource]) -> MemorySource:
    """The text that shares most terms with the fact; in case of a tie, the newest of the user's own.

    Tool results and documents are candidates, because one of them may have dictated the memory.
    """
    from quire.context.memory import measure_overlap

    def rank(source: MemorySource) -> tuple[float, bool, int]:
        is_own = source.entry.role == "user" and source.document is None
        return measure_overlap(fact, source.text), is_own, source.entry.seq

    return max(sources, key=rank)


def _check_repetition(fact: str, memories: Iterable[Memory], *, replaces: str | None) -> None:
    """Refuses what an existing memory says in other words, unless it replaces that memory. A correction may resemble
    the paraphrases of what it replaces, except for a name or a number."""
    from quire.context.memory import differs_in_value, is_repeated_in

    for memory in memories:
        if memory.id == replaces or not is_repeated_in(fact, memory.text):
            continue
        if replaces is None or not differs_in_value(fact, memory.text):
            raise _refuse_repetition(memory.id, memory.text)


def _refuse_repetition(id: str, text: str) -> InvalidRequest:
    return InvalidRequest(
        f"The memory {id} says nearly the same: {text!r}. To correct or extend it, call remember with the complete "
        f"statement and replaces={id!r}."
    )


def _check_recalled(fact: str, new_texts: Iterable[str], recalled_texts: Iterable[str]) -> None:
    """Refuses what is only in text recalled for the request, not in what was said or read since the question."""
    from quire.context.memory import is_repeated_in, measure_overlap

    new = max((measure_overlap(fact, text) for text in new_texts), default=0.0)
    if any(is_repeated_in(fact, text) and measure_overlap(fact, text) > new for text in recalled_texts):
        raise InvalidRequest(
            "This only repeats text that was recalled for the request, and recalled text is not stored again; "
            "remember what the user says now."
        )


async def remember_frequent_documents(
    engine: EngineState, conversation: str, branch: int, entries: Sequence[Entry]
) -> None:
    """Adds documents that the user keeps referring to, so that later conversations know of them.

    Off unless `remember_documents_after` is set. `entries` are new. The memory has the document's path and summary, not
    its text. It cites the message that reached the number, and is never added again after it was retired.
    """
    threshold = engine.settings.remember_documents_after
    if threshold is None or not engine.agent.memory.enabled:
        return
    store, namespace = engine.store, memory_namespace(engine.agent)
    for entry in entries:
        references = {each.path: each for each in _list_direct(entry)}
        if not references:
            continue
        stored = await store.list_referencing_entries(conversation, branch=branch)
        named = [{reference.path for reference in _list_direct(each)} for each in stored]
        frequent = [
            reference for path, reference in references.items() if sum(path in each for each in named) >= threshold
        ]
        if not frequent:
            continue
        memories = await store.memories.list(namespace, include_retired=True, limit=MAX_COMPARED_MEMORIES)
        known = {memory.source for memory in memories if memory.text.startswith(_DOCUMENT_PREFIX)}
        for each in frequent:
            if each.path in known:
                continue
            summary = f": {each.summary}" if each.summary else "."
            text = f"{_DOCUMENT_PREFIX}{each.link[:MAX_LINK_CHARS]} ({each.path}) is often referred to{summary}"
            citation = Citation(entry.conversation, entry.branch, entry.seq)
            await store.memories.add(namespace, " ".join(text.split()), citation=citation, source=each.path)


def _list_direct(entry: Entry) -> list[DocumentReference]:
    """References that a user's message names and that were found."""
    if entry.role != "user":
        return []
    return [each for each in entry.metadata.references or () if each.path is not None and each.kind == "direct"]
