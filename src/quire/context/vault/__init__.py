"""A folder of notes or a project: links and paths in messages, and what they lead to. Begin with `Vault`.

What is named here is imported when it is first used, so that `quire.context.vault.paths` costs no more than itself.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.context.vault.catalogue import Batch, Known, Step
    from quire.context.vault.links import Link
    from quire.context.vault.notes import Note
    from quire.context.vault.passages import Passage
    from quire.context.vault.paths import File, Root
    from quire.context.vault.references import Referred, summarized
    from quire.context.vault.resolve import Ambiguous, Broken, Destination, Resolved
    from quire.context.vault.vault import Vault

_HOMES = {
    "catalogue": ("Batch", "Known", "Step"),
    "links": ("Link",),
    "notes": ("Note",),
    "passages": ("Passage",),
    "paths": ("File", "Root"),
    "references": ("Referred", "summarized"),
    "resolve": ("Ambiguous", "Broken", "Destination", "Resolved"),
    "vault": ("Vault",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Ambiguous",
    "Batch",
    "Broken",
    "Destination",
    "File",
    "Known",
    "Link",
    "Note",
    "Passage",
    "Referred",
    "Resolved",
    "Root",
    "Step",
    "Vault",
    "summarized",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    try:
        home = import_module(f"{__name__}.{_HOME[name]}")
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(home, name)
    globals()[name] = value
    return value
