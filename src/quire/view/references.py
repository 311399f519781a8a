"""Documents that a user message references: injected in full after its text, or listed with their summaries.

The decision is stored with the message when it is sent, so that later requests repeat its bytes (prefix stability).
"""

from collections.abc import Callable, Iterable, Sequence

from quire.model import Message, TextPart
from quire.model.entry_metadata import DocumentReference
from quire.wire.labels import label_text

READ_INSTRUCTION = (
    "The text of these documents is not included. Before you rely on one, read it with the tool read_document by its "
    "path in parentheses; without that tool, say that you have not read it."
)
"""Precedes a list of documents. It stays outside their label, which marks what it contains as data."""
TextLoader = Callable[[str], str | None]
"""Loads the text of a document by its digest; None if it no longer exists."""


def inline_documents(message: Message, references: Sequence[DocumentReference], load_text: TextLoader) -> Message:
    """Appends the referenced documents to a user message; other roles have no references."""
    if message.role != "user" or not references:
        return message
    sections = [*_render_documents(references, load_text), *_render_list(references, load_text)]
    return _append_text(message, "\n\n".join(sections)) if sections else message


def _render_documents(references: Iterable[DocumentReference], load_text: TextLoader) -> list[str]:
    return [
        label_text("document", text, name=reference.path, link=reference.link)
        for reference in references
        if (text := _load_injected(reference, load_text)) is not None
    ]


def _render_list(references: Iterable[DocumentReference], load_text: TextLoader) -> list[str]:
    listed = [reference for reference in references if _load_injected(reference, load_text) is None]
    if not listed:
        return []
    text = label_text("references", "\n".join(map(_format_reference, listed)))
    is_readable = any(reference.path is not None for reference in listed)
    return [f"{READ_INSTRUCTION}\n{text}" if is_readable else text]


def _load_injected(reference: DocumentReference, load_text: TextLoader) -> str | None:
    return load_text(reference.blob) if reference.injected and reference.blob is not None else None


def _format_reference(reference: DocumentReference) -> str:
    """One line for each reference, so that no summary can pass for another document."""
    if reference.path is None:
        note = f": {reference.snippet}" if reference.snippet else ": not found"
        return f"- {_collapse_whitespace(reference.link)}{_collapse_whitespace(note)}"
    note = f": {reference.summary}" if reference.summary else ""
    return _collapse_whitespace(f"- {reference.link} ({reference.path}){note}")


def _collapse_whitespace(text: str) -> str:
    return " ".join(text.split())


def _append_text(message: Message, text: str) -> Message:
    """Appends to the last text part, because every server accepts a message with a single text."""
    *others, last = message.parts or (TextPart(text=""),)
    if isinstance(last, TextPart) and last.provider_fields is None:
        joined = f"{last.text}\n\n{text}" if last.text else text
        return message.model_copy(update={"parts": (*others, TextPart(text=joined))})
    return message.model_copy(update={"parts": (*message.parts, TextPart(text=text))})
