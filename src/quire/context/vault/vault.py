"""A vault: a folder of notes that link to each other. Combines scanning, link resolution and safe file access."""

import logging
import os
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from quire.context.file_imports import DEFAULT_IMPORT_LIMITS, ImportLimits
from quire.context.vault.paths import Root, TextFile
from quire.context.vault.references import ReferencedDocument, resolve_references
from quire.context.vault.scanner import KnownFile, ScanStep, scan_files
from quire.context.vault.wikilinks import (
    AmbiguityPolicy,
    BrokenLink,
    LinkIndex,
    LinkResolution,
    Wikilink,
    parse_wikilink,
)

_log = logging.getLogger(__name__)

PATH_DIGEST_CHARS = 32
"""Characters of the path's digest in the name of a vault: 128 bits."""


class _LinkSnapshot(NamedTuple):
    paths: list[str]
    aliases: dict[str, tuple[str, ...]]
    link_index: LinkIndex


class Vault:
    """Resolves links and reads notes as of the last `scan`. The first link triggers a scan if there was none.

        vault = Vault("~/notes")
        vault.resolve("[[Water mills#Wheels]]")     # ResolvedLink(path='places/Water mills.md')
        vault.find_references("How do [[Water mills]] compare with @data/wind.csv:1-20?")

    All methods block on disk I/O: call them in a thread from async code.
    """

    def __init__(
        self,
        root: Root | Path | str,
        *,
        name: str | None = None,
        on_ambiguous: AmbiguityPolicy = "list",
        limits: ImportLimits = DEFAULT_IMPORT_LIMITS,
    ) -> None:
        self.root = root if isinstance(root, Root) else Root(Path(root).expanduser(), must_exist=False)
        if self.is_missing:
            _log.warning(
                "The vault %s does not exist; links in messages are marked as broken until it does.", self.root.path
            )
        digest = sha256(os.fsencode(self.root.path)).hexdigest()[:PATH_DIGEST_CHARS]
        # A folder name may contain bytes that are not UTF-8; a database stores none.
        self.name = name or f"{self.root.path.name.encode(errors='replace').decode()}-{digest}"
        """Name of the search index in a store. By default it contains a digest of the resolved path, so that two
        folders of the same name have separate indexes. A folder that was moved is indexed again."""
        self._on_ambiguous: AmbiguityPolicy = on_ambiguous
        self._limits = limits
        self._known_files: dict[str, KnownFile] = {}
        self._link_snapshot: _LinkSnapshot | None = None

    def scan(self, known: Mapping[str, KnownFile] | None = None) -> Iterator[ScanStep]:
        """Lists the folder and reads the notes that changed since `known`, by default since the last scan.

        Links resolve by the new state once the iterator is exhausted. A missing folder changes nothing: it may be on a
        disk that is not mounted, and its notes need not be indexed again later.
        """
        if self.is_missing:
            return
        files = self.root.list_files()
        current = dict(self._known_files if known is None else known)
        for step in scan_files(self.root, current.copy(), files):
            if step.batch:
                for note in step.batch.notes:
                    current[note.path] = KnownFile(note.digest, note.size, note.modified, note.aliases)
                for file, stored in step.batch.touched:
                    current[file.path] = stored._replace(size=file.size, modified=file.modified)
                for path in step.batch.deleted:
                    current.pop(path, None)
            yield step
        self._known_files = current
        # Most changes are to the text of a note only; the link index depends on paths and aliases.
        paths = [file.path for file in files]
        aliases = {path: file.aliases for path, file in current.items() if file.aliases}
        if self._link_snapshot is None or (self._link_snapshot.paths, self._link_snapshot.aliases) != (paths, aliases):
            self._link_snapshot = _LinkSnapshot(paths, aliases, LinkIndex(paths, aliases=aliases))

    @property
    def known_files(self) -> Mapping[str, KnownFile]:
        """State of each note as of the last scan."""
        return self._known_files

    @property
    def is_missing(self) -> bool:
        """Whether there is no such folder now."""
        return self.root.is_missing

    @property
    def link_index(self) -> LinkIndex:
        if self._link_snapshot is None:
            for _ in self.scan():
                pass
        assert self._link_snapshot is not None
        return self._link_snapshot.link_index

    def resolve(self, link: Wikilink | str, *, source: str | None = None) -> LinkResolution:
        """Resolves a link, `[[with brackets]]` or without; `source` is the note that contains it."""
        wikilink = parse_wikilink(link) if isinstance(link, str) else link
        if wikilink is None:
            return BrokenLink("the link is empty")
        if self.is_missing:
            return BrokenLink("the vault's folder is missing")
        return self.link_index.resolve(wikilink, source=source, on_ambiguous=self._on_ambiguous)

    def read(self, path: str) -> TextFile:
        return self.root.read(path)

    def find_references(self, text: str) -> list[ReferencedDocument]:
        """Resolves the wikilinks and `@paths` of a message."""
        # Most messages have no link, and then they need not wait for a first scan.
        return resolve_references(
            text, self.root, resolve_link=self.resolve if "[[" in text else None, limits=self._limits
        )
