"""Imports files that a text mentions as `@path`: their text, or the reason why an import was skipped.

Nothing that a user types raises an error: each mention that is missing, refused or too large gives a `SkippedImport`. A
word after an `@` that neither looks like a path nor names a file is ignored.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from quire.context.vault.mentions import Mention, compile_glob, find_glob_base, find_mentions, is_glob
from quire.context.vault.paths import Root, TextFile, split_path
from quire.context.vault.wikilinks import is_note
from quire.errors import DocumentNotFound, PathRefusalReason, PathRefused

ImportFailureReason = PathRefusalReason | Literal["missing", "too_many", "no_such_lines", "cycle", "too_deep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportLimits:
    max_file_bytes: int = 200_000
    """About 50,000 tokens; a larger file is better read in parts."""
    max_total_bytes: int = 1_000_000
    max_files: int = 50
    """Maximum files that one glob pattern may import."""
    max_scanned_files: int = 20_000
    """Maximum files that are scanned for one glob pattern."""
    max_depth: int = 5
    """Maximum depth of nested imports."""


@dataclass(frozen=True, slots=True)
class ImportedFile:
    link: str
    """The mention, as written."""
    path: str
    text: str
    line_range: tuple[int, int] | None = None
    """First and last line, from 1; None for the whole file."""
    size: int = 0
    """Bytes of the text."""
    imported_by: str | None = None
    """The file that imports it; None for the text itself."""


@dataclass(frozen=True, slots=True)
class SkippedImport:
    link: str
    reason: ImportFailureReason
    message: str
    """What happened, as a sentence for the user."""
    path: str | None = None
    """The file, if the mention resolves to one."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    imported: tuple[ImportedFile, ...] = ()
    skipped: tuple[SkippedImport, ...] = ()


DEFAULT_IMPORT_LIMITS = ImportLimits()


def resolve_imports(
    text: str, root: Root, *, folder: str = "", limits: ImportLimits = DEFAULT_IMPORT_LIMITS
) -> ImportResult:
    """Resolves the imports of a text in order, without duplicates. Paths are relative to `folder`, then to the root."""
    return _ImportResolver(root, limits).resolve(text, folder)


def resolve_nested_imports(
    text: str, root: Root, *, path: str = "", limits: ImportLimits = DEFAULT_IMPORT_LIMITS
) -> ImportResult:
    """Resolves the imports of the file at `path` and, recursively, of the Markdown files that it imports.

    Each import follows the file that names it.
    """
    resolver = _ImportResolver(root, limits)
    resolver.resolve_nested(text, (path,))
    return resolver.to_result()


@dataclass(slots=True)
class _ImportResolver:
    root: Root
    limits: ImportLimits
    total_bytes: int = 0
    imported: list[ImportedFile] = field(default_factory=list[ImportedFile])
    skipped: list[SkippedImport] = field(default_factory=list[SkippedImport])
    seen: set[tuple[str, tuple[int, int] | None]] = field(default_factory=set[tuple[str, tuple[int, int] | None]])

    def to_result(self) -> ImportResult:
        return ImportResult(tuple(self.imported), tuple(self.skipped))

    def resolve(self, text: str, folder: str) -> ImportResult:
        for mention in find_mentions(text):
            for outcome in self._resolve_mention(mention, folder):
                self._record(outcome)
        return self.to_result()

    def resolve_nested(self, text: str, chain: tuple[str, ...]) -> None:
        """As `resolve`, and recursively into imported notes; `chain` is the files that led here, to detect cycles."""
        folder = chain[-1].rpartition("/")[0]
        for mention in find_mentions(text):
            for outcome in self._resolve_mention(mention, folder, chain):
                self._record(outcome)
                if isinstance(outcome, ImportedFile) and is_note(outcome.path):
                    self.resolve_nested(outcome.text, (*chain, outcome.path))

    def _record(self, outcome: ImportedFile | SkippedImport) -> None:
        if isinstance(outcome, SkippedImport):
            self.skipped.append(outcome)
        else:
            self.imported.append(outcome)

    def _resolve_mention(
        self, mention: Mention, folder: str, chain: tuple[str, ...] = ()
    ) -> Iterator[ImportedFile | SkippedImport]:
        try:
            file = self._read_file(mention, folder)
        except (DocumentNotFound, PathRefused) as error:
            if not mention.is_path_like and _names_no_file(error):
                return
            if isinstance(error, DocumentNotFound) and is_glob(mention.path):
                yield from self._expand_glob(mention, folder, chain)
            else:
                yield _to_skipped(mention, error)
            return
        yield from self._import_file(mention, file, chain)

    def _read_file(self, mention: Mention, folder: str) -> TextFile:
        # A mention may select a few lines of a large file; `_check_limits` checks their size.
        limit = (
            max(self.root.max_file_bytes, self.limits.max_file_bytes)
            if mention.line_range
            else self.limits.max_file_bytes
        )
        try:
            return self.root.read(mention.path, folder=folder, max_bytes=limit)
        except DocumentNotFound as missing:
            if not folder:
                raise
            try:
                return self.root.read(mention.path, max_bytes=limit)
            except PathRefused as refusal:
                if _names_no_file(refusal):  # Relative to the root it is outside; relative to its folder it is not.
                    raise missing from None
                raise

    def _expand_glob(
        self, mention: Mention, folder: str, chain: tuple[str, ...]
    ) -> Iterator[ImportedFile | SkippedImport]:
        paths, is_truncated = self._list_matches(mention.path, folder)
        for path in paths[: self.limits.max_files]:
            try:
                file = self.root.read(path, max_bytes=self.limits.max_file_bytes)
            except (DocumentNotFound, PathRefused) as error:
                yield _to_skipped(mention, error)
            else:
                yield from self._import_file(mention, file, chain)
        if len(paths) > self.limits.max_files:
            message = f"{len(paths):,} files match {mention.path!r}; the first {self.limits.max_files:,} were imported."
            yield SkippedImport(mention.text, "too_many", message)
        elif is_truncated:
            scanned = f"{self.limits.max_scanned_files:,}"
            message = f"Only {scanned} files were searched for {mention.path!r}; add a folder to the pattern."
            yield SkippedImport(mention.text, "too_many", message)
        elif not paths:
            yield SkippedImport(mention.text, "missing", f"No file matches {mention.path!r}; check the pattern.")

    def _list_matches(self, pattern: str, folder: str) -> tuple[list[str], bool]:
        """Files that match a pattern in the folder or else in the root, and whether the scan was truncated."""
        is_truncated = False
        for start in dict.fromkeys((folder, "")):
            try:
                full_pattern = "/".join(split_path(pattern, folder=start))
                listed = self.root.list_files(find_glob_base(full_pattern), limit=self.limits.max_scanned_files)
            except PathRefused:  # Relative to this folder the pattern is outside the root.
                continue
            matches = compile_glob(full_pattern)
            is_truncated = is_truncated or len(listed) >= self.limits.max_scanned_files
            if paths := [file.path for file in listed if matches(file.path)]:
                return paths, is_truncated
        return [], is_truncated

    def _import_file(
        self, mention: Mention, file: TextFile, chain: tuple[str, ...]
    ) -> Iterator[ImportedFile | SkippedImport]:
        if file.path in chain:
            yield SkippedImport(
                mention.text, "cycle", f"{file.path!r} is in a cycle of imports; remove one of them.", file.path
            )
            return
        if (file.path, mention.line_range) in self.seen:
            return
        if len(chain) > self.limits.max_depth:
            message = f"{file.path!r} is nested more than {self.limits.max_depth} imports deep."
            yield SkippedImport(mention.text, "too_deep", message, file.path)
            return
        text = _slice_lines(file.text, mention.line_range)
        if text is None:
            message = f"{file.path!r} has {_count_lines(file.text):,} lines, counted from 1; correct the line range."
            yield SkippedImport(mention.text, "no_such_lines", message, file.path)
            return
        yield self._check_limits(mention, file, text, chain)

    def _check_limits(
        self, mention: Mention, file: TextFile, text: str, chain: tuple[str, ...]
    ) -> ImportedFile | SkippedImport:
        size = len(text.encode())
        if size > self.limits.max_file_bytes:
            limit = f"{self.limits.max_file_bytes:,}"
            message = f"{mention.text} has {size:,} bytes, and {limit} are allowed; name fewer lines."
            return SkippedImport(mention.text, "too_large", message, file.path)
        if self.total_bytes + size > self.limits.max_total_bytes:
            limit = f"{self.limits.max_total_bytes:,}"
            message = f"With {file.path!r} ({size:,} bytes) all imports would exceed {limit} bytes; import fewer files."
            return SkippedImport(mention.text, "too_large", message, file.path)
        self.total_bytes += size
        self.seen.add((file.path, mention.line_range))
        return ImportedFile(mention.text, file.path, text, mention.line_range, size, (chain or ("",))[-1] or None)


def _names_no_file(error: DocumentNotFound | PathRefused) -> bool:
    return not isinstance(error, PathRefused) or error.path is None


def _to_skipped(mention: Mention, error: DocumentNotFound | PathRefused) -> SkippedImport:
    if isinstance(error, PathRefused):
        return SkippedImport(mention.text, error.reason, str(error), error.path)
    return SkippedImport(mention.text, "missing", str(error))


def _split_lines(text: str) -> list[str]:
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _count_lines(text: str) -> int:
    return len(_split_lines(text))


def _slice_lines(text: str, line_range: tuple[int, int] | None) -> str | None:
    """Lines from the first to the last that exist; None if none do."""
    if line_range is None:
        return text
    first, last = line_range
    lines = _split_lines(text)[max(first, 1) - 1 : last]
    return "\n".join(lines) if lines else None
