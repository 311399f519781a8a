"""Resolves the document references of a message: `[[wikilinks]]` and `@paths`, each with the text that it refers to.

A broken reference is reported with its reason; a reference to a section has the text of that section only. The caller,
who knows the budget, decides whether a text is inlined or only listed.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import assert_never

from quire.context.imports import DEFAULT_IMPORT_LIMITS, ImportedFile, ImportLimits, SkippedImport, resolve_imports
from quire.context.vault.paths import Root
from quire.context.vault.sections import find_block, find_headings, find_section
from quire.context.vault.wikilinks import (
    AmbiguousLink,
    BrokenLink,
    LinkResolution,
    ResolvedLink,
    Wikilink,
    find_wikilinks,
)
from quire.errors import DocumentNotFound, PathRefused
from quire.model.entry_metadata import DocumentReference

MAX_LISTED_OPTIONS = 10
"""Alternatives that a message about a link lists."""

ResolveLink = Callable[[Wikilink], LinkResolution]
SummarizeText = Callable[[str], Awaitable[str]]
"""Returns a summary of one or two lines for a document's text."""


@dataclass(frozen=True, slots=True)
class ReferencedDocument:
    """A reference for the log with its text; None if it is broken or not a text file."""

    reference: DocumentReference
    text: str | None = None

    @property
    def digest(self) -> str | None:
        """Digest under which an inlined text is stored."""
        return None if self.text is None else sha256(self.text.encode()).hexdigest()


def resolve_references(
    text: str,
    root: Root,
    *,
    resolve_link: ResolveLink | None = None,
    limits: ImportLimits = DEFAULT_IMPORT_LIMITS,
) -> list[ReferencedDocument]:
    """References of a message, wikilinks first, without duplicates. Without `resolve_link`, only `@paths`."""
    linked = (
        []
        if resolve_link is None
        else [_read_resolved(link, resolve_link(link), root) for link in find_wikilinks(text)]
    )
    imports = resolve_imports(text, root, limits=limits)
    mentioned = (*map(_from_import, imports.imported), *map(_from_skipped_import, imports.skipped))
    unique: dict[object, ReferencedDocument] = {}
    for document in (*linked, *mentioned):
        unique.setdefault(_dedup_key(document), document)
    return list(unique.values())


async def add_summaries(
    documents: Iterable[ReferencedDocument],
    summarize: SummarizeText,
    *,
    cache: MutableMapping[str, str],
    stored: Mapping[str, str],
) -> list[ReferencedDocument]:
    """Adds summaries to the documents. `stored` and `cache` map the digest of a text to its summary; those of `stored`,
    which a model may have written, come first, and `cache` is filled."""
    summarized: list[ReferencedDocument] = []
    for document in documents:
        if document.text is not None and document.digest is not None:
            summary = stored.get(document.digest)
            if not summary and document.digest not in cache:
                cache[document.digest] = await summarize(document.text)
            summary = summary or cache[document.digest] or None
            document = replace(document, reference=document.reference.model_copy(update={"summary": summary}))
        summarized.append(document)
    return summarized


def _dedup_key(document: ReferencedDocument) -> object:
    """References are duplicates if they have the same text of the same file, or the same broken link."""
    reference = document.reference
    if reference.path:
        return reference.path, document.digest
    return reference.link.partition("|")[0].strip("![] ").casefold()


def _read_resolved(link: Wikilink, resolution: LinkResolution, root: Root) -> ReferencedDocument:
    match resolution:
        case BrokenLink(reason):
            return _unresolved(link.text, f"Not found: {reason}.")
        case AmbiguousLink(options):
            return _unresolved(
                link.text, f"Several notes have this name: {_format_options(options)}. Write the path of one."
            )
        case ResolvedLink(path, others):
            note = f"Other notes with this name: {_format_options(others)}." if others else None
            return _read_document(link, path, root, note)
    assert_never(resolution)


def _read_document(link: Wikilink, path: str, root: Root, note: str | None) -> ReferencedDocument:
    try:
        text = root.read(path).text
    except DocumentNotFound:
        return _unresolved(link.text, f"Not found: {path!r} was removed after the vault was scanned.")
    except PathRefused as refusal:
        return ReferencedDocument(DocumentReference(link=link.text, path=path, snippet=str(refusal)))
    part, missing = _select_part(link, text)
    snippet = " ".join(filter(None, (missing, note))) or None
    return ReferencedDocument(DocumentReference(link=link.text, path=path, snippet=snippet), part)


def _select_part(link: Wikilink, text: str) -> tuple[str, str | None]:
    """The section or block that a link names. If it is missing: the whole note, as in Obsidian, and a message."""
    if link.block_id is not None:
        span = find_block(text, link.block_id)
        missing = f"The note has no block ^{link.block_id}; this is the whole note."
    elif link.headings:
        span = find_section(text, link.headings)
        missing = f"The note has no heading {' > '.join(link.headings)!r}; this is the whole note."
        if span is None:
            missing += f" Its headings: {_format_options(heading.text for heading in find_headings(text)) or 'none'}."
    else:
        return text, None
    return (text, missing) if span is None else (text[span.start : span.end].rstrip(), None)


def _from_import(file: ImportedFile) -> ReferencedDocument:
    return ReferencedDocument(DocumentReference(link=file.link, path=file.path), file.text)


def _from_skipped_import(skipped: SkippedImport) -> ReferencedDocument:
    return ReferencedDocument(DocumentReference(link=skipped.link, path=skipped.path, snippet=skipped.message))


def _unresolved(link: str, snippet: str) -> ReferencedDocument:
    return ReferencedDocument(DocumentReference(link=link, snippet=snippet))


def _format_options(options: Iterable[str]) -> str:
    names = list(options)
    more = f" and {len(names) - MAX_LISTED_OPTIONS:,} more" if len(names) > MAX_LISTED_OPTIONS else ""
    return ", ".join(names[:MAX_LISTED_OPTIONS]) + more
