"""Finds `@path` mentions in a text and imports their files: their text, or the reason why an import was skipped.

    @README.md    @src/app.py:10-20    @docs/**/*.md    @"a name with blanks.md"

A mention is path-like if it has a slash, or a dot followed by letters; a bare `@word` may be a person and is ignored
unless it names a file. Mentions in code, links and addresses, and those after a backslash, are ignored. Nothing that a
user types raises an error: each mention that is missing, refused or too large gives a `SkippedImport`.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Literal

from quire.context.vault.markdown_mask import MASK_CHAR, mask_non_prose
from quire.context.vault.paths import Root, TextFile, split_path
from quire.context.vault.wikilinks import find_wikilinks, is_note
from quire.errors import DocumentNotFound, PathRefusalReason, PathRefused

ImportFailureReason = PathRefusalReason | Literal["missing", "too_many", "no_such_lines", "cycle", "too_deep"]


_PATH_TERMINATORS = rf"\s\"<>`|{MASK_CHAR}，。、；：！？（）「」『』《》“”…"
"""Characters that end an unquoted path."""
_MENTION = re.compile(
    r"(?<![A-Za-z0-9_.+\-/@\\%=&#?:~])@(?:"
    r'"(?P<quoted>[^"\n]{1,1000})"(?P<range>:\d+(?:-\d+)?|\#L\d+(?:-L?\d+)?)?'
    rf"|(?P<bare>[^@{_PATH_TERMINATORS}](?:\\ |[^{_PATH_TERMINATORS}]){{0,1000}}))"
)
_LINE_RANGE = re.compile(
    r"(?::(?P<first>\d{1,9})(?:-(?P<last>\d{1,9})|:\d{1,9})?|#L(?P<from>\d{1,9})(?:-L?(?P<to>\d{1,9}))?)\Z"
)
_EXTENSION = re.compile(r"\.(?=[A-Za-z0-9_]*[A-Za-z])[A-Za-z0-9_]{1,12}\Z")
_POSSESSIVE = re.compile(r"['’]s\Z")
_OPENING_BRACKETS = {")": "(", "]": "[", "}": "{"}
_WILDCARD = re.compile(r"[*?\[]")
_GLOBSTAR = "**"


@dataclass(frozen=True, slots=True)
class Mention:
    text: str
    """As written."""
    path: str
    line_range: tuple[int, int] | None
    """First and last line, from 1, both included, in ascending order."""
    is_path_like: bool
    """Whether it has the form of a path. Otherwise it is a path only if such a file exists."""
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportLimits:
    max_file_bytes: int = 200_000
    """About 50,000 tokens. A larger file is better read in parts."""
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
    """First and last line, from 1, or None for the whole file."""
    size: int = 0
    """Bytes of the text."""
    imported_by: str | None = None
    """The file that imports it, or None for the text itself."""


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
    resolver = _ImportResolver(root, limits)
    resolver.resolve(text, folder)
    return ImportResult(tuple(resolver.imported), tuple(resolver.skipped))


def resolve_nested_imports(
    text: str, root: Root, *, path: str = "", limits: ImportLimits = DEFAULT_IMPORT_LIMITS
) -> ImportResult:
    """Resolves the imports of the file at `path` and, recursively, of the Markdown files that it imports.

    Each import follows the file that names it.
    """
    resolver = _ImportResolver(root, limits)
    resolver.resolve(text, path.rpartition("/")[0], (path,))
    return ImportResult(tuple(resolver.imported), tuple(resolver.skipped))


@dataclass(slots=True)
class _ImportResolver:
    root: Root
    limits: ImportLimits
    total_bytes: int = 0
    imported: list[ImportedFile] = field(default_factory=list[ImportedFile])
    skipped: list[SkippedImport] = field(default_factory=list[SkippedImport])
    seen: set[tuple[str, tuple[int, int] | None]] = field(default_factory=set[tuple[str, tuple[int, int] | None]])

    def resolve(self, text: str, folder: str, chain: tuple[str, ...] = ()) -> None:
        """Collects the imports of a text. With `chain`, the files that led here, also the imports of imported notes."""
        for mention in find_mentions(text):
            try:
                file = self._read_file(mention, folder)
            except (DocumentNotFound, PathRefused) as error:
                if not mention.is_path_like and _names_no_file(error):
                    continue
                if isinstance(error, DocumentNotFound) and is_glob(mention.path):
                    outcomes = self._expand_glob(mention, folder, chain)
                else:
                    outcomes = [_to_skipped(mention, error)]
            else:
                outcomes = self._import_file(mention, file, chain)
            for outcome in outcomes:
                if isinstance(outcome, SkippedImport):
                    self.skipped.append(outcome)
                    continue
                self.imported.append(outcome)
                if chain and is_note(outcome.path):
                    self.resolve(outcome.text, outcome.path.rpartition("/")[0], (*chain, outcome.path))

    def _read_file(self, mention: Mention, folder: str) -> TextFile:
        # A mention may select a few lines of a large file; `_import_file` checks their size.
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
        """Imports the files that match a pattern in the folder or else in the root."""
        paths: list[str] = []
        is_truncated = False
        for start in dict.fromkeys((folder, "")):
            try:
                pattern = "/".join(split_path(mention.path, folder=start))
                listed = self.root.list_files(find_glob_base(pattern), limit=self.limits.max_scanned_files)
            except PathRefused:  # Relative to this folder the pattern is outside the root.
                continue
            is_truncated = is_truncated or len(listed) >= self.limits.max_scanned_files
            matches = compile_glob(pattern)
            if paths := [file.path for file in listed if matches(file.path)]:
                break
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

    def _import_file(
        self, mention: Mention, file: TextFile, chain: tuple[str, ...]
    ) -> Iterator[ImportedFile | SkippedImport]:
        def skip(reason: ImportFailureReason, message: str) -> SkippedImport:
            return SkippedImport(mention.text, reason, message, file.path)

        if file.path in chain:
            yield skip("cycle", f"{file.path!r} is in a cycle of imports; remove one of them.")
            return
        if (file.path, mention.line_range) in self.seen:
            return
        if len(chain) > self.limits.max_depth:
            yield skip("too_deep", f"{file.path!r} is nested more than {self.limits.max_depth} imports deep.")
            return
        text = file.text
        if mention.line_range is not None:
            first, last = mention.line_range
            lines = text.removesuffix("\n").split("\n") if text else []
            selected = lines[max(first, 1) - 1 : last]
            if not selected:
                message = f"{file.path!r} has {len(lines):,} lines, counted from 1; correct the line range."
                yield skip("no_such_lines", message)
                return
            text = "\n".join(selected)
        size = len(text.encode())
        if size > self.limits.max_file_bytes:
            limit = f"{self.limits.max_file_bytes:,}"
            yield skip("too_large", f"{mention.text} has {size:,} bytes, and {limit} are allowed; name fewer lines.")
        elif self.total_bytes + size > self.limits.max_total_bytes:
            limit = f"{self.limits.max_total_bytes:,}"
            message = f"With {file.path!r} ({size:,} bytes) all imports would exceed {limit} bytes; import fewer files."
            yield skip("too_large", message)
        else:
            self.total_bytes += size
            self.seen.add((file.path, mention.line_range))
            imported_by = (chain or ("",))[-1] or None
            yield ImportedFile(mention.text, file.path, text, mention.line_range, size, imported_by)


def _names_no_file(error: DocumentNotFound | PathRefused) -> bool:
    return not isinstance(error, PathRefused) or error.path is None


def _to_skipped(mention: Mention, error: DocumentNotFound | PathRefused) -> SkippedImport:
    if isinstance(error, PathRefused):
        return SkippedImport(mention.text, error.reason, str(error), error.path)
    return SkippedImport(mention.text, "missing", str(error))


def find_mentions(text: str) -> list[Mention]:
    """Finds all mentions of a Markdown text, in order."""
    if "@" not in text:
        return []
    masked_text = mask_non_prose(text)
    pieces: list[str] = []
    position = 0
    for link in find_wikilinks(text, masked_text=masked_text):
        pieces += (masked_text[position : link.start], MASK_CHAR * len(link.text))
        position = link.end
    mentions: list[Mention] = []
    for match in _MENTION.finditer("".join((*pieces, masked_text[position:]))):
        start = match.start()
        if match["quoted"] is not None:
            path = match["quoted"].strip()
            _, lines = _split_line_range(f"x{match['range'] or ''}")
            mention = Mention(text[start : match.end()], path, lines, True, start)
        else:
            bare = _trim_punctuation(match["bare"], before=text[start - 1 : start])
            path, lines = _split_line_range(bare)
            path = path.replace("\\ ", " ")
            is_path_like = "/" in path or "\\" in path or _EXTENSION.search(path) is not None
            mention = Mention(text[start : start + 1 + len(bare)], path, lines, is_path_like, start)
        if path:
            mentions.append(mention)
    return mentions


def _split_line_range(written: str) -> tuple[str, tuple[int, int] | None]:
    """Splits off the line range after a path."""
    line_range = _LINE_RANGE.search(written)
    if line_range is None:
        return written, None
    first = int(line_range["first"] or line_range["from"])
    last = int(line_range["last"] or line_range["to"] or first)
    return written[: line_range.start()], (min(first, last), max(first, last))


def _trim_punctuation(written: str, *, before: str) -> str:
    """Strips what belongs to the sentence: the full stop, a closing bracket, the asterisks of bold type."""
    while written:
        last = written[-1]
        opening = _OPENING_BRACKETS.get(last)
        closes_unopened = opening is not None and written.count(opening) < written.count(last)
        if last in ".,;:!?'’" or (last in "*_" and last == before) or closes_unopened:
            written = written[:-1]
        elif _POSSESSIVE.search(written):
            written = written[:-2]
        else:
            break
    return written


def is_glob(path: str) -> bool:
    return bool(_WILDCARD.search(path))


def find_glob_base(pattern: str) -> str:
    """The folder that contains all matches: the part before the first wildcard."""
    names: list[str] = []
    for name in pattern.split("/")[:-1]:
        if is_glob(name):
            break
        names.append(name)
    return "/".join(names)


def compile_glob(pattern: str) -> Callable[[str], bool]:
    """Compiles a glob into a predicate on full paths. `**` at the end matches all files below.

    Simulates an NFA over the names of the path, so that no pattern causes exponential backtracking.
    """
    steps = [
        None if name == _GLOBSTAR else re.compile(translate(name))
        for name in pattern.split("/")
        if name not in ("", ".")
    ]

    def matches(path: str) -> bool:
        states = _skip_globstars({0}, steps)
        for name in path.split("/"):
            following: set[int] = set()
            for state in states:
                step = steps[state] if state < len(steps) else None
                if step is not None and step.match(name):
                    following.add(state + 1)
                elif step is None and state < len(steps):
                    following.add(state)
            states = _skip_globstars(following, steps)
        return len(steps) in states

    return matches


def _skip_globstars(states: set[int], steps: list[re.Pattern[str] | None]) -> set[int]:
    """Adds the states after each `**`, which may match no folder at all."""
    for state in sorted(states):
        while state < len(steps) and steps[state] is None:
            state += 1
            states.add(state)
    return states
