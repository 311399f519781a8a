"""What a project and an agent remember, as a request carries it.

The project's files stand whole in the stable part, with what they import. Of an agent's entries those that were there
when the conversation began stand there too, so that the prefix holds; later ones come in where a message calls for
them. What a request recalls is never remembered anew.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from quire.context.imports import DEFAULT_LIMITS, ImportLimits, NotImported, expand
from quire.context.vault.paths import Root
from quire.errors import DocumentNotFound, InvalidRequest, PathRefused
from quire.log.found import Hit, Memory
from quire.model.manifest import Decision
from quire.view.material import Block

ENTRIES = "memories"
"""The name of the block in which an agent's entries stand."""


class ProjectMemory(NamedTuple):
    blocks: tuple[Block, ...] = ()
    decided: tuple[Decision, ...] = ()
    """What could not be brought in, by name."""


def project_memory(
    root: Root, files: Sequence[str], *, longest: int, limits: ImportLimits = DEFAULT_LIMITS
) -> ProjectMemory:
    """These files of the project, as far as they are there; one with more than `longest` characters is cut short."""
    blocks: dict[str, Block] = {}
    decided: dict[str, Decision] = {}
    for path in files:
        try:
            file = root.read(path)
        except DocumentNotFound:
            continue
        except PathRefused:
            decided[path] = _left_out(path)
            continue
        blocks[path] = _block(path, _cut(file.text, path, longest), imported=False)
        brought = expand(file.text, root, path=path, limits=limits)
        for each in brought.found:
            blocks.setdefault(each.path, _block(each.path, each.text, imported=True))
        decided |= {failed.link: _failed(failed) for failed in brought.failed}
    return ProjectMemory(tuple(blocks.values()), tuple(decided.values()))


def _block(path: str, text: str, *, imported: bool) -> Block:
    reason = "imported" if imported else "memory"
    return Block(slot="memory", what="memory", name=path, text=text, reason=reason, required=not imported)


def _cut(text: str, path: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:longest]}\n[… {len(text) - longest} of {len(text)} characters left out; read {path} …]"


def _left_out(name: str) -> Decision:
    return Decision(slot="memory", what="memory", included=False, reason="not_found", name=name)


def _failed(failed: NotImported) -> Decision:
    reason = "over_budget" if failed.reason in ("too_large", "too_many", "too_deep") else "not_found"
    return Decision(slot="memory", what="memory", included=False, reason=reason, name=failed.link)


def lasting(memories: Iterable[Memory]) -> tuple[Block, ...]:
    """An agent's entries in one block, oldest first."""
    lines = [_line(memory) for memory in sorted(memories, key=lambda each: each.id)]
    if not lines:
        return ()
    return (Block(slot="memory", what="memory", name=ENTRIES, text="\n".join(lines), reason="memory", required=False),)


def _line(memory: Memory) -> str:
    """On one line, so that no entry can pass for two."""
    source = f"#{memory.cites.seq}" if memory.cites is not None else memory.source
    return f"- {_flat(memory.text)} [{_flat(source or memory.id)}]"


def recalled(hits: Iterable[Hit], *, shown: Iterable[str] = ()) -> list[Block]:
    """Entries that a message calls for, but for those that are shown already; a memory goes by its id."""
    there = set(shown)
    return [
        Block(
            slot="recall",
            what="memory",
            name=hit.key,
            text=hit.text,
            reason="recalled",
            score=round(hit.score, 4),
            required=False,
        )
        for hit in hits
        if hit.key not in there
    ]


def check_new(text: str, *, known: Iterable[str], recalled: Iterable[str]) -> str:
    """The text as it may be remembered; refused if it is empty, known already, or only repeats what was recalled."""
    said = text.strip()
    bare = _bare(said)
    if not bare:
        raise InvalidRequest("There is nothing in the text to remember.")
    if any(_bare(each) == bare for each in known):
        raise InvalidRequest("This is remembered already; correct the entry if it has changed.")
    if any(bare in _bare(each) for each in recalled):
        raise InvalidRequest(
            "This only repeats what was recalled for the request, and recalled text is not remembered anew; "
            "remember what the user says now."
        )
    return said


def _bare(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def _flat(text: str) -> str:
    return " ".join(text.split())
