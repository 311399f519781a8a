"""A note as an index keeps it: title, aliases, headings, blocks, passages and the links out of it. Pure."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from quire.context.front_matter import Front, front_matter
from quire.context.vault.links import Link, links
from quire.context.vault.passages import Passage, passages
from quire.context.vault.paths import File
from quire.context.vault.prose import masked
from quire.context.vault.sections import Heading, block_ids, headings


@dataclass(frozen=True, slots=True)
class Note:
    path: str
    title: str
    digest: str
    size: int
    modified: int
    front: Front
    headings: tuple[Heading, ...]
    blocks: tuple[str, ...]
    passages: tuple[Passage, ...]
    links: tuple[Link, ...]

    @property
    def aliases(self) -> tuple[str, ...]:
        return self.front.aliases


def note(file: File) -> Note:
    """A Markdown file, read into its parts."""
    front, body = front_matter(file.text)
    start = len(file.text) - len(body)
    prose = masked(file.text)
    found = headings(file.text, prose=prose, start=start)
    title = _title(file.path, front, found)
    return Note(
        path=file.path,
        title=title,
        digest=file.digest,
        size=file.size,
        modified=file.modified,
        front=front,
        headings=tuple(found),
        blocks=tuple(block_ids(prose)),
        passages=tuple(passages(file.text, title=title, headings=found, prose=prose, start=start)),
        links=tuple(links(file.text, prose=prose)),
    )


def _title(path: str, front: Front, found: list[Heading]) -> str:
    """What the front matter says, else a first heading of the first rank, else the file's name."""
    said = front.extra.get("title")
    if isinstance(said, str) and said.strip():
        return said.strip()
    if found and found[0].level == 1 and found[0].text:
        return found[0].text
    return PurePosixPath(path).stem
