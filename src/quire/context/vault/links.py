"""Wikilinks in a text: `[[Note]]`, `[[folder/Note#Heading|shown]]`, `![[Note#^block]]`.

Only their form is read here; what they lead to is another matter. Links in code, comments and math are none.
"""

from dataclasses import dataclass

from quire.context.vault.prose import WIKILINK, masked


@dataclass(frozen=True, slots=True)
class Link:
    text: str
    """As it was written, brackets and all."""
    target: str
    """The note's name or path; empty for a heading of the text that the link stands in."""
    headings: tuple[str, ...] = ()
    """From the outer heading to the inner."""
    block: str | None = None
    shown: str | None = None
    embed: bool = False
    start: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def links(text: str, *, prose: str | None = None) -> list[Link]:
    """All links of a Markdown text, in order; `prose` is the masked text, where it is at hand."""
    if "[[" not in text:
        return []
    prose = masked(text) if prose is None else prose
    found: list[Link] = []
    for match in WIKILINK.finditer(prose):
        start = match.start() - (prose[match.start() - 1 : match.start()] == "!")
        link = parsed(text[start : match.end()], start=start)
        if link is not None:
            found.append(link)
    return found


def parsed(written: str, *, start: int = 0) -> Link | None:
    """One link from its text, with or without brackets; None if it says nothing."""
    bare = written.strip()
    embed = bare.startswith("![[")
    bare = bare.removeprefix("!").removeprefix("[[").removesuffix("]]") if embed or bare.startswith("[[") else bare
    place, bar, shown = bare.partition("|")
    if bar:
        place = place.removesuffix("\\")  # In a table the bar itself is escaped.
    target, *inner = (step.strip() for step in place.split("#"))
    block = inner.pop()[1:].strip() if inner and inner[-1].startswith("^") else None
    headings = tuple(step for step in inner if step)
    if not (target or headings or block):
        return None
    return Link(written, target, headings, block or None, shown.strip() or None, embed, start)
