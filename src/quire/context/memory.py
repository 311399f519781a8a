"""Memory blocks of a request: a project's memory files and an agent's memory entries.

Project files are in the stable part in full, with their imports. The agent's entries from before the conversation are
there too, for prefix stability, or a core of them if they are too many for their slot. The others are recalled where a
message needs them. Recalled text is never stored as a new memory.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from quire.context.file_imports import DEFAULT_IMPORT_LIMITS, ImportLimits, resolve_nested_imports
from quire.context.vault.paths import Root
from quire.errors import DocumentNotFound, InvalidRequest, PathRefused
from quire.index.types import SearchHit
from quire.log.types import Memory
from quire.model.manifest import Decision
from quire.view.inputs import ContextBlock

MEMORIES_BLOCK_NAME = "memories"
"""Name of the block with an agent's memory entries."""
CORE_NOTE = "Not all memories are listed here. Those that match a question come with it."
"""Ends the block of the core. It is constant, so that the prefix is stable."""
MAX_MEMORY_CHARS = 2_000
"""Maximum characters of a memory: one fact in a sentence or two."""
REPEATED_SHARE = 0.75
"""Share of a new memory's terms in a text from which on the memory repeats the text."""
_FRAME_TERMS = frozenset(("user",))
"""Terms that a model adds to every memory ("The user likes …"), and that say nothing about its source."""


class ProjectMemory(NamedTuple):
    blocks: tuple[ContextBlock, ...] = ()
    decisions: tuple[Decision, ...] = ()
    """One decision for each file or import that was excluded."""


def load_project_memory(
    root: Root, files: Sequence[str], *, max_chars: int, limits: ImportLimits = DEFAULT_IMPORT_LIMITS
) -> ProjectMemory:
    """Loads the project files that exist, with their imports. Each file is truncated to `max_chars` characters."""
    blocks: dict[str, ContextBlock] = {}
    decisions: dict[str, Decision] = {}
    for path in files:
        try:
            text = root.read(path).text
        except DocumentNotFound:
            continue
        except PathRefused:
            decisions[path] = Decision(slot="memory", kind="memory", included=False, reason="not_found", name=path)
            continue
        imports = resolve_nested_imports(text, root, path=path, limits=limits)
        if (omitted := len(text) - max_chars) > 0:
            text = f"{text[:max_chars]}\n[… {omitted} of {len(text)} characters left out; read {path} …]"
        blocks[path] = ContextBlock(slot="memory", kind="memory", name=path, text=text, reason="memory")
        for each in imports.imported:
            block = ContextBlock(
                slot="memory", kind="memory", name=each.path, text=each.text, reason="imported", is_required=False
            )
            blocks.setdefault(each.path, block)
        for skipped in imports.skipped:
            match skipped.reason:
                case "too_large" | "too_many" | "too_deep":
                    reason = "over_budget"
                case "cycle":
                    reason = "cycle"
                case _:
                    reason = "not_found"
            decision = Decision(slot="memory", kind="memory", included=False, reason=reason, name=skipped.link)
            decisions[skipped.link] = decision
    return ProjectMemory(tuple(blocks.values()), tuple(decisions.values()))


def select_core(memories: Sequence[Memory], *, max_tokens: int, count_tokens: Callable[[str], int]) -> Sequence[Memory]:
    """The first memories, as many as fit into `max_tokens`."""
    tokens = count_tokens(CORE_NOTE)
    for count, memory in enumerate(memories):
        tokens += count_tokens(format_entry(memory)) + 1
        if tokens > max_tokens:
            return memories[:count]
    return memories


def format_entry(memory: Memory) -> str:
    """One line, so that no entry can look like two. The id is for `remember`, which can replace the entry. The number
    of the cited message is left out, because it belongs to another conversation."""
    source = f", from {memory.source}" if memory.source is not None else ""
    return f"- {_to_single_line(memory.text)} [{memory.id}{_to_single_line(source)}]"


def build_memory_blocks(memories: Iterable[Memory], *, is_core: bool = False) -> tuple[ContextBlock, ...]:
    """One block with an agent's memory entries, oldest first; none without entries."""
    lines = [format_entry(memory) for memory in sorted(memories, key=lambda each: each.id)]
    if not lines:
        return ()
    if is_core:
        lines.append(CORE_NOTE)
    return (
        ContextBlock(
            slot="memory",
            kind="memory",
            name=MEMORIES_BLOCK_NAME,
            text="\n".join(lines),
            reason="memory",
            is_required=False,
        ),
    )


def build_recalled_blocks(hits: Iterable[SearchHit], *, included_ids: Iterable[str] = ()) -> list[ContextBlock]:
    """One block per recalled memory, named by its id, except those that the request already includes."""
    present = set(included_ids)
    return [
        ContextBlock(
            slot="recall",
            kind="memory",
            name=hit.key,
            text=hit.text,
            reason="recalled",
            score=round(hit.score, 4),
            is_required=False,
        )
        for hit in hits
        if hit.key not in present
    ]


def validate_new_memory(text: str, *, existing: Iterable[str]) -> str:
    """The stripped text. Raises `InvalidRequest` if it is empty, too long or a duplicate."""
    stripped = text.strip()
    normalized = _normalize(stripped)
    if not normalized:
        raise InvalidRequest("The text to remember is empty; write what to remember.")
    if len(stripped) > MAX_MEMORY_CHARS:
        raise InvalidRequest(
            f"The text to remember has {len(stripped):,} characters, and a memory may have {MAX_MEMORY_CHARS:,}; "
            "shorten it to one fact."
        )
    if any(_normalize(each) == normalized for each in existing):
        raise InvalidRequest("This is remembered already; correct the entry if it has changed.")
    return stripped


def measure_overlap(fact: str, text: str) -> float:
    """Share of the fact's terms that the text contains, from 0 to 1. Terms are stemmed words without stop words."""
    # Every request with memories imports this module, and the tokenizer's package imports numpy.
    from quire.search.tokenizer import tokenize

    terms = set(tokenize(fact)) - _FRAME_TERMS
    return len(terms.intersection(tokenize(text))) / len(terms) if terms else 0.0


def is_repeated_in(fact: str, text: str) -> bool:
    """Whether the text says the fact, perhaps in another order or with other small words."""
    return measure_overlap(fact, text) >= REPEATED_SHARE


def list_differing_words(text: str, other: str) -> tuple[list[str], list[str]]:
    """The words of each text whose terms the other does not contain, without stop words."""
    from quire.search.tokenizer import tokenize

    def list_missing(text: str, known: Collection[str]) -> list[str]:
        words = [(word, set(tokenize(word)) - _FRAME_TERMS) for word in re.findall(r"\w+", text)]
        return [word for word, terms in words if terms and terms.isdisjoint(known)]

    return list_missing(text, set(tokenize(other))), list_missing(other, set(tokenize(text)))


def differs_in_value(text: str, other: str) -> bool:
    """Whether the texts differ in a name or a number: then they state different facts, however similar they are."""
    return any(
        not word.islower() and not original.startswith(word)
        for words, original in zip(list_differing_words(text, other), (text, other), strict=True)
        for word in words
    )


def _normalize(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def _to_single_line(text: str) -> str:
    return " ".join(text.split())
