"""The documents that a message names: `[[wikilinks]]` and `@paths`, each with the text that it stands for.

What leads nowhere is kept and says so; what can be read in parts refers to that part only. Whether a text is injected
or merely listed is decided by whoever knows the budget.
"""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import assert_never

from quire.context.imports import DEFAULT_LIMITS, Import, ImportLimits, NotImported, imports
from quire.context.vault.links import Link, links
from quire.context.vault.paths import Root
from quire.context.vault.resolve import Ambiguity, Ambiguous, Broken, Names, Resolved
from quire.context.vault.sections import block, headings, section
from quire.errors import DocumentNotFound, PathRefused
from quire.model.notes import DocumentReference

SHOWN_OPTIONS = 10

Summarize = Callable[[str], Awaitable[str]]
"""A document's text in, a line or two about it out."""


@dataclass(frozen=True, slots=True)
class Referred:
    """A reference for the log, and the text behind it; None if it is broken or no text."""

    reference: DocumentReference
    text: str | None = None

    @property
    def digest(self) -> str | None:
        """What the text is kept under, once it is injected."""
        return None if self.text is None else sha256(self.text.encode()).hexdigest()


def references(
    text: str,
    root: Root,
    *,
    names: Names | None = None,
    ambiguous: Ambiguity = "list",
    limits: ImportLimits = DEFAULT_LIMITS,
) -> list[Referred]:
    """What a message refers to, wikilinks first, each document or part of one once. Without names, `@paths` alone."""
    linked = [] if names is None else [_linked(link, root, names, ambiguous) for link in links(text)]
    brought = imports(text, root, limits=limits)
    mentioned = (*map(_imported, brought.found), *map(_not_imported, brought.failed))
    once: dict[object, Referred] = {}
    for referred in (*linked, *mentioned):
        once.setdefault(_place(referred), referred)
    return list(once.values())


async def summarized(
    found: Iterable[Referred], summarize: Summarize, *, kept: MutableMapping[str, str]
) -> list[Referred]:
    """The same with summaries; `kept` holds them by the digest of the text, and is added to."""
    done: list[Referred] = []
    for referred in found:
        if referred.text is not None and referred.digest is not None:
            if referred.digest not in kept:
                kept[referred.digest] = await summarize(referred.text)
            summary = kept[referred.digest] or None
            referred = replace(referred, reference=referred.reference.model_copy(update={"summary": summary}))
        done.append(referred)
    return done


def _place(referred: Referred) -> object:
    """Two references are one if they stand for the same text of the same file, or are broken in the same way."""
    reference = referred.reference
    if reference.path:
        return reference.path, referred.digest
    return reference.link.partition("|")[0].strip("![] ").casefold()


def _linked(link: Link, root: Root, names: Names, ambiguous: Ambiguity) -> Referred:
    destination = names.resolve(link, ambiguous=ambiguous)
    match destination:
        case Broken(reason):
            return _said(link.text, f"Not found: {reason}.")
        case Ambiguous(options):
            return _said(link.text, f"Several notes have this name: {_listed(options)}. Write the path of one.")
        case Resolved(path, others):
            also = f"Also called so: {_listed(others)}." if others else None
            return _resolved(link, path, root, also)
    assert_never(destination)


def _resolved(link: Link, path: str, root: Root, also: str | None) -> Referred:
    try:
        text = root.read(path).text
    except DocumentNotFound:
        return _said(link.text, f"Not found: {path!r} has gone since the vault was scanned.")
    except PathRefused as refusal:
        return Referred(DocumentReference(link=link.text, path=path, snippet=str(refusal)))
    part, missing = _part(link, text)
    snippet = " ".join(filter(None, (missing, also))) or None
    return Referred(DocumentReference(link=link.text, path=path, snippet=snippet), part)


def _part(link: Link, text: str) -> tuple[str, str | None]:
    """What a link means of a note; the whole note where it has no such part, as in Obsidian, and that is said."""
    if link.block is not None:
        found = block(text, link.block)
        missing = f"The note has no block ^{link.block}; this is the whole note."
    elif link.headings:
        found = section(text, link.headings)
        missing = f"The note has no heading {' > '.join(link.headings)!r}; this is the whole note."
        if found is None:
            missing += f" Its headings: {_listed(heading.text for heading in headings(text)) or 'none'}."
    else:
        return text, None
    return (text, missing) if found is None else (text[found.start : found.end].rstrip(), None)


def _imported(found: Import) -> Referred:
    return Referred(DocumentReference(link=found.link, path=found.path), found.text)


def _not_imported(failed: NotImported) -> Referred:
    return Referred(DocumentReference(link=failed.link, path=failed.path, snippet=failed.said))


def _said(link: str, snippet: str) -> Referred:
    return Referred(DocumentReference(link=link, snippet=snippet))


def _listed(options: Iterable[str]) -> str:
    all_ = list(options)
    more = f" and {len(all_) - SHOWN_OPTIONS:,} more" if len(all_) > SHOWN_OPTIONS else ""
    return ", ".join(all_[:SHOWN_OPTIONS]) + more
