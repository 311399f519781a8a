"""What a user's message refers to, as the model reads it: documents in full behind the words, the others in a list.

What was decided when the message was asked stays on it, so that later requests repeat its bytes.
"""

from collections.abc import Callable, Iterable, Sequence

from quire.model import Message, TextPart
from quire.model.notes import DocumentReference
from quire.view.labels import labelled

TextOf = Callable[[str], str | None]
"""The text of a document by its digest; None where it is gone."""


def as_read(message: Message, references: Sequence[DocumentReference], text_of: TextOf) -> Message:
    """The message with what it refers to behind its own words; only users refer."""
    if message.role != "user" or not references:
        return message
    shown = [*_documents(references, text_of), *_list(references, text_of)]
    return _followed_by(message, "\n\n".join(shown)) if shown else message


def _documents(references: Iterable[DocumentReference], text_of: TextOf) -> list[str]:
    return [
        labelled("document", text, name=reference.path, link=reference.link)
        for reference in references
        if (text := _injected(reference, text_of)) is not None
    ]


def _list(references: Iterable[DocumentReference], text_of: TextOf) -> list[str]:
    lines = [_line(reference) for reference in references if _injected(reference, text_of) is None]
    return [labelled("references", "\n".join(lines))] if lines else []


def _injected(reference: DocumentReference, text_of: TextOf) -> str | None:
    return text_of(reference.blob) if reference.injected and reference.blob is not None else None


def _line(reference: DocumentReference) -> str:
    """On one line each, so that no summary can pass for another document."""
    if reference.path is None:
        told = f": {reference.snippet}" if reference.snippet else ": not found"
        return f"- {_flat(reference.link)}{_flat(told)}"
    told = f": {reference.summary}" if reference.summary else ""
    return _flat(f"- {reference.link} ({reference.path}){told}")


def _flat(text: str) -> str:
    return " ".join(text.split())


def _followed_by(message: Message, text: str) -> Message:
    """One text stays one text: that is what every server takes."""
    *others, last = message.parts or (TextPart(text=""),)
    if isinstance(last, TextPart) and last.provider is None:
        joined = f"{last.text}\n\n{text}" if last.text else text
        return message.model_copy(update={"parts": (*others, TextPart(text=joined))})
    return message.model_copy(update={"parts": (*message.parts, TextPart(text=text))})
