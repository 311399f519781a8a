"""The documents that a turn used: those that its question names, and those that tools read or found for it."""

from collections.abc import Iterable, Sequence

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from quire.cli.output import one_line, plain
from quire.model.notes import DocumentReference

LONGEST = 200


def joined(*noted: Iterable[DocumentReference]) -> tuple[DocumentReference, ...]:
    """Each document once, as it was named first."""
    once: dict[object, DocumentReference] = {}
    for references in noted:
        for each in references:
            once.setdefault(each.path or each.link, each)
    return tuple(once.values())


def documents(references: Sequence[DocumentReference]) -> Group:
    return Group(Text("Documents", style="bold dim"), *(Padding(_shown(each), (0, 0, 0, 2)) for each in references))


def _shown(reference: DocumentReference) -> Group:
    sign, colour = ("•", "cyan") if reference.path is not None else ("✗", "red")
    head = Text.assemble((f"{sign} {plain(reference.link)}", colour))
    if reference.path is not None:
        head.append(f" ({plain(reference.path)}{_how(reference)})", style="dim")
    said = _said(reference)
    return Group(head, *([Padding(Text(said, style="dim"), (0, 0, 0, 2))] if said else []))


def _how(reference: DocumentReference) -> str:
    if reference.kind == "search":
        return ", found by a tool"
    return "" if reference.injected else ", listed only"


def _said(reference: DocumentReference) -> str:
    """Its summary; of a broken one, what is wrong with it."""
    said = reference.summary if reference.path is not None and reference.summary else reference.snippet
    return one_line(said or "", LONGEST)
