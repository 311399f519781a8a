"""Resolves the document references of a message: `[[wikilinks]]` and `@paths`, each with the text that it refers to.

A broken reference is reported with its reason. A reference to a section has the text of that section only. The caller,
who knows the budget, decides whether a text is inlined or only listed.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from hashlib import sha256

from quire.context.file_imports import DEFAULT_IMPORT_LIMITS, ImportLimits, resolve_imports
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
    """A reference for the log with its text, or None if it is broken or not a text file."""

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
    documents: list[ReferencedDocument] = []
    if resolve_link is not None:
        documents += [_read_linked(link, resolve_link(link), root) for link in find_wikilinks(text)]
    imports = resolve_imports(text, root, limits=limits)
    for file in imports.imported:
        documents.append(ReferencedDocument(DocumentReference(link=file.link, path=file.path), file.text))
    for skipped in imports.skipped:
        reference = DocumentReference(link=skipped.link, path=skipped.path, snippet=skipped.message)
        documents.append(ReferencedDocument(reference))
    # Duplicates have the same text of the same file, or the same broken link.
    unique: dict[object, ReferencedDocument] = {}
    for document in documents:
        reference = document.reference
        name = reference.link.partition("|")[0].strip("![] ").casefold()
        unique.setdefault((reference.path, document.digest) if reference.path else name, document)
    return list(unique.values())


async def add_summaries(
    documents: Iterable[ReferencedDocument],
    summarize: SummarizeText,
    *,
    cache: MutableMapping[str, str],
    stored: Mapping[str, str],
) -> list[ReferencedDocument]:
    """Adds summaries to the documents. `stored` and `cache` map the digest of a text to its summary.

    A summary in `stored`, which a model may have written, comes first. `cache` is filled.
    """
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


def _read_linked(link: Wikilink, resolution: LinkResolution, root: Root) -> ReferencedDocument:
    match resolution:
        case BrokenLink(reason):
            return _unresolved(link.text, f"Not found: {reason}.")
        case AmbiguousLink(options):
            return _unresolved(
                link.text, f"Several notes have this name: {_format_options(options)}. Write the path of one."
            )
        case ResolvedLink(path, others):
            pass
    try:
        text = root.read(path).text
    except DocumentNotFound:
        return _unresolved(link.text, f"Not found: {path!r} was removed after the vault was scanned.")
    except PathRefused as refusal:
        return ReferencedDocument(DocumentReference(link=link.text, path=path, snippet=str(refusal)))
    # The section or block that the link names. If it is missing: the whole note, as in Obsidian, and a message.
    notes: list[str] = []
    if link.block_id is not None or link.headings:
        span = find_section(text, link.headings) if link.block_id is None else find_block(text, link.block_id)
        if span is not None:
            text = text[span.start : span.end].rstrip()
        elif link.block_id is not None:
            notes.append(f"The note has no block ^{link.block_id}; this is the whole note.")
        else:
            known = _format_options(heading.text for heading in find_headings(text)) or "none"
            missing = " > ".join(link.headings)
            notes.append(f"The note has no heading {missing!r}; this is the whole note. Its headings: {known}.")
    if others:
        notes.append(f"Other notes with this name: {_format_options(others)}.")
    reference = DocumentReference(link=link.text, path=path, snippet=" ".join(notes) or None)
    return ReferencedDocument(reference, text)


def _unresolved(link: str, snippet: str) -> ReferencedDocument:
    return ReferencedDocument(DocumentReference(link=link, snippet=snippet))


def _format_options(options: Iterable[str]) -> str:
    names = list(options)
    more = f" and {len(names) - MAX_LISTED_OPTIONS:,} more" if len(names) > MAX_LISTED_OPTIONS else ""
    return ", ".join(names[:MAX_LISTED_OPTIONS]) + more
