"""A folder of notes or a project: resolves the wikilinks and paths in messages. Start with `Vault`.

The exported names are imported lazily, so that importing `quire.context.vault.paths` loads no other module.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.context.vault.paths import Root, TextFile
    from quire.context.vault.references import ReferencedDocument, add_summaries
    from quire.context.vault.scanner import KnownFile, Note, ScanBatch, ScanStep
    from quire.context.vault.sections import NotePassage
    from quire.context.vault.vault import Vault
    from quire.context.vault.wikilinks import AmbiguousLink, BrokenLink, LinkResolution, ResolvedLink, Wikilink

_MODULE_EXPORTS = {
    "paths": ("Root", "TextFile"),
    "references": ("ReferencedDocument", "add_summaries"),
    "scanner": ("KnownFile", "Note", "ScanBatch", "ScanStep"),
    "sections": ("NotePassage",),
    "vault": ("Vault",),
    "wikilinks": ("AmbiguousLink", "BrokenLink", "LinkResolution", "ResolvedLink", "Wikilink"),
}
_MODULE_OF = {name: module for module, names in _MODULE_EXPORTS.items() for name in names}

__all__ = [
    "AmbiguousLink",
    "BrokenLink",
    "KnownFile",
    "LinkResolution",
    "Note",
    "NotePassage",
    "ReferencedDocument",
    "ResolvedLink",
    "Root",
    "ScanBatch",
    "ScanStep",
    "TextFile",
    "Vault",
    "Wikilink",
    "add_summaries",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    try:
        module = import_module(f"{__name__}.{_MODULE_OF[name]}")
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(module, name)
    globals()[name] = value
    return value
