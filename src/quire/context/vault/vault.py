"""A vault: a folder of notes that link to each other. Joins what its neighbours do; all is read through its root."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from quire.context.imports import DEFAULT_LIMITS, ImportLimits
from quire.context.vault.catalogue import Batch, Known, Step, index
from quire.context.vault.links import Link, parsed
from quire.context.vault.paths import File, Root
from quire.context.vault.references import Referred, references
from quire.context.vault.resolve import Ambiguity, Broken, Destination, Names


class _Named(NamedTuple):
    paths: list[str]
    aliases: dict[str, tuple[str, ...]]
    names: Names


class Vault:
    """Resolves links and reads notes as of the last `scan`; the first link scans, if nobody did before.

        vault = Vault("~/notes")
        vault.resolve("[[Water mills#Wheels]]")     # Resolved(path='places/Water mills.md')
        vault.references("How do [[Water mills]] compare with @data/wind.csv:1-20?")

    Everything here blocks for as long as the disk does: call it in a thread from async code.
    """

    def __init__(
        self,
        root: Root | Path | str,
        *,
        name: str | None = None,
        ambiguous: Ambiguity = "list",
        limits: ImportLimits = DEFAULT_LIMITS,
    ) -> None:
        self.root = root if isinstance(root, Root) else Root(Path(root).expanduser())
        self.name = name or self.root.path.name
        self._ambiguous: Ambiguity = ambiguous
        self._limits = limits
        self._known: dict[str, Known] = {}
        self._named: _Named | None = None

    def scan(self, known: Mapping[str, Known] | None = None) -> Iterator[Step]:
        """Lists the folder and reads what changed since `known`, a step at a time; by itself, since the last scan.

        Links resolve by what a scan found as soon as it has ended.
        """
        found = self.root.files()
        current = dict(self._known if known is None else known)
        for step in index(self.root, current.copy(), found):
            if step.batch:
                _take_in(current, step.batch)
            yield step
        self._known = current
        self._name([file.path for file in found])

    def _name(self, paths: list[str]) -> None:
        """Prepares the names, unless they are as they were: most changes are to what a note says."""
        aliases = {path: kept.aliases for path, kept in self._known.items() if kept.aliases}
        if self._named is None or (self._named.paths, self._named.aliases) != (paths, aliases):
            self._named = _Named(paths, aliases, Names(paths, aliases=aliases))

    @property
    def known(self) -> Mapping[str, Known]:
        """What the last scan knew of each note."""
        return self._known

    @property
    def names(self) -> Names:
        if self._named is None:
            for _ in self.scan():
                pass
        assert self._named is not None
        return self._named.names

    def resolve(self, link: Link | str, *, source: str | None = None) -> Destination:
        """Where a link leads, `[[with brackets]]` or without; `source` is the note that it stands in."""
        read = parsed(link) if isinstance(link, str) else link
        if read is None:
            return Broken("the link is empty")
        return self.names.resolve(read, source=source, ambiguous=self._ambiguous)

    def read(self, path: str) -> File:
        return self.root.read(path)

    def references(self, text: str) -> list[Referred]:
        """What a message refers to, by links and by `@paths` in this folder."""
        # Most messages have no link, and then nobody waits for a first scan.
        names = self.names if "[[" in text else None
        return references(text, self.root, names=names, ambiguous=self._ambiguous, limits=self._limits)


def _take_in(known: dict[str, Known], batch: Batch) -> None:
    for note in batch.notes:
        known[note.path] = Known(note.digest, note.size, note.modified, note.aliases)
    for file, stored in batch.touched:
        known[file.path] = stored._replace(size=file.size, modified=file.modified)
    for path in batch.gone:
        known.pop(path, None)
