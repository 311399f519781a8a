"""Files that a text brings in with `@path`: their text, or why there is none.

Nothing that a person types raises an error: what is missing, refused or too large is said, mention by mention. A word
behind an `@` that neither looks like a path nor names a file is left alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from quire.context.vault.catalogue import is_note
from quire.context.vault.globs import fixed_folder, is_pattern, matcher
from quire.context.vault.mentions import Mention, mentions
from quire.context.vault.paths import File, Root, place
from quire.errors import DocumentNotFound, PathRefused, Refusal

Failure = Refusal | Literal["missing", "too_many", "no_such_lines", "circle", "too_deep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportLimits:
    file_bytes: int = 200_000
    """About 50,000 tokens; what is larger is better read in parts."""
    total_bytes: int = 1_000_000
    files: int = 50
    """How many files one pattern may bring."""
    looked_at: int = 20_000
    """How many files are looked at for one pattern."""
    depth: int = 5
    """How many files deep an imported file's own imports are followed."""


@dataclass(frozen=True, slots=True)
class Import:
    link: str
    """The mention, as it was written."""
    path: str
    text: str
    lines: tuple[int, int] | None = None
    """Which lines of the file, counted from 1; all of them if None."""
    size: int = 0
    """Bytes of the text."""
    by: str | None = None
    """The file that imports it; None for the text at hand."""


@dataclass(frozen=True, slots=True)
class NotImported:
    link: str
    reason: Failure
    said: str
    """What happened, in a sentence."""
    path: str | None = None
    """The file, where there is one."""


@dataclass(frozen=True, slots=True)
class Imports:
    found: tuple[Import, ...] = ()
    failed: tuple[NotImported, ...] = ()


DEFAULT_LIMITS = ImportLimits()


def imports(text: str, root: Root, *, folder: str = "", limits: ImportLimits = DEFAULT_LIMITS) -> Imports:
    """What a text imports, in order, each file or part of one once. Paths start in `folder`, else at the root."""
    return _Importing(root, limits).of(text, folder)


def expand(text: str, root: Root, *, path: str = "", limits: ImportLimits = DEFAULT_LIMITS) -> Imports:
    """What the file at `path` imports, and what the Markdown files among that import in turn; each follows the file
    that names it.
    """
    importing = _Importing(root, limits)
    importing.follow(text, (path,))
    return importing.result()


@dataclass(slots=True)
class _Importing:
    root: Root
    limits: ImportLimits
    total: int = 0
    found: list[Import] = field(default_factory=list[Import])
    failed: list[NotImported] = field(default_factory=list[NotImported])
    seen: set[tuple[str, tuple[int, int] | None]] = field(default_factory=set[tuple[str, tuple[int, int] | None]])

    def result(self) -> Imports:
        return Imports(tuple(self.found), tuple(self.failed))

    def of(self, text: str, folder: str) -> Imports:
        for mention in mentions(text):
            for outcome in self._outcomes(mention, folder):
                self._keep(outcome)
        return self.result()

    def follow(self, text: str, chain: tuple[str, ...]) -> None:
        """As `of`, and on into what was found; `chain` is the files that led here."""
        folder = chain[-1].rpartition("/")[0]
        for mention in mentions(text):
            for outcome in self._outcomes(mention, folder, chain):
                self._keep(outcome)
                if isinstance(outcome, Import) and is_note(outcome.path):
                    self.follow(outcome.text, (*chain, outcome.path))

    def _keep(self, outcome: Import | NotImported) -> None:
        if isinstance(outcome, NotImported):
            self.failed.append(outcome)
        else:
            self.found.append(outcome)

    def _outcomes(self, mention: Mention, folder: str, chain: tuple[str, ...] = ()) -> Iterator[Import | NotImported]:
        try:
            file = self._file(mention, folder)
        except (DocumentNotFound, PathRefused) as error:
            if not mention.sure and _names_no_file(error):
                return
            if isinstance(error, DocumentNotFound) and is_pattern(mention.path):
                yield from self._matching(mention, folder, chain)
            else:
                yield _failure(mention, error)
            return
        yield from self._one(mention, file, chain)

    def _file(self, mention: Mention, folder: str) -> File:
        # Of a large file some lines may be wanted; how much they are is looked at when they are cut out.
        limit = max(self.root.limit_bytes, self.limits.file_bytes) if mention.lines else self.limits.file_bytes
        try:
            return self.root.read(mention.path, folder=folder, limit_bytes=limit)
        except DocumentNotFound as missing:
            if not folder:
                raise
            try:
                return self.root.read(mention.path, limit_bytes=limit)
            except PathRefused as refusal:
                if _names_no_file(refusal):  # From the root it would lead outside; from its folder it does not.
                    raise missing from None
                raise

    def _matching(self, mention: Mention, folder: str, chain: tuple[str, ...]) -> Iterator[Import | NotImported]:
        paths, cut = self._paths(mention.path, folder)
        for path in paths[: self.limits.files]:
            try:
                file = self.root.read(path, limit_bytes=self.limits.file_bytes)
            except (DocumentNotFound, PathRefused) as error:
                yield _failure(mention, error)
            else:
                yield from self._one(mention, file, chain)
        if len(paths) > self.limits.files:
            left = f"{len(paths):,} files are named like {mention.path!r}; the first {self.limits.files:,} were taken."
            yield NotImported(mention.text, "too_many", left)
        elif cut:
            unseen = f"Only {self.limits.looked_at:,} files were looked at for {mention.path!r}; name a folder in it."
            yield NotImported(mention.text, "too_many", unseen)
        elif not paths:
            yield NotImported(mention.text, "missing", f"No file is named like {mention.path!r}.")

    def _paths(self, pattern: str, folder: str) -> tuple[list[str], bool]:
        """The files that a pattern stands for, and whether there may be more; from the folder, else from the root."""
        cut = False
        for start in dict.fromkeys((folder, "")):
            try:
                whole = "/".join(place(pattern, folder=start))
                listed = self.root.files(fixed_folder(whole), most=self.limits.looked_at)
            except PathRefused:  # From here it would lead outside.
                continue
            matches = matcher(whole)
            cut = cut or len(listed) >= self.limits.looked_at
            if paths := [file.path for file in listed if matches(file.path)]:
                return paths, cut
        return [], cut

    def _one(self, mention: Mention, file: File, chain: tuple[str, ...]) -> Iterator[Import | NotImported]:
        if file.path in chain:
            yield NotImported(mention.text, "circle", f"{file.path!r} is what imports it.", file.path)
            return
        if (file.path, mention.lines) in self.seen:
            return
        if len(chain) > self.limits.depth:
            said = f"{file.path!r} is more than {self.limits.depth} imports deep."
            yield NotImported(mention.text, "too_deep", said, file.path)
            return
        text = _chosen(file.text, mention.lines)
        if text is None:
            said = f"{file.path!r} has {_count(file.text):,} lines, counted from 1."
            yield NotImported(mention.text, "no_such_lines", said, file.path)
            return
        yield self._within_limits(mention, file, text, chain)

    def _within_limits(self, mention: Mention, file: File, text: str, chain: tuple[str, ...]) -> Import | NotImported:
        size = len(text.encode())
        if size > self.limits.file_bytes:
            said = f"{mention.text} has {size:,} bytes, and {self.limits.file_bytes:,} are allowed; name fewer lines."
            return NotImported(mention.text, "too_large", said, file.path)
        if self.total + size > self.limits.total_bytes:
            said = f"{file.path!r} ({size:,} bytes) would bring all imports over {self.limits.total_bytes:,} bytes."
            return NotImported(mention.text, "too_large", said, file.path)
        self.total += size
        self.seen.add((file.path, mention.lines))
        return Import(mention.text, file.path, text, mention.lines, size, (chain or ("",))[-1] or None)


def _names_no_file(error: DocumentNotFound | PathRefused) -> bool:
    return not isinstance(error, PathRefused) or error.path is None


def _failure(mention: Mention, error: DocumentNotFound | PathRefused) -> NotImported:
    if isinstance(error, PathRefused):
        return NotImported(mention.text, error.reason, str(error), error.path)
    return NotImported(mention.text, "missing", str(error))


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _count(text: str) -> int:
    return len(_lines(text))


def _chosen(text: str, lines: tuple[int, int] | None) -> str | None:
    """The lines from the first to the last, as far as there are any; None if there are none."""
    if lines is None:
        return text
    first, last = lines
    chosen = _lines(text)[max(first, 1) - 1 : last]
    return "\n".join(chosen) if chosen else None
