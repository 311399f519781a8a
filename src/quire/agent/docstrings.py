"""What a docstring says of a function and of its parameters, in Google's or Sphinx's way of writing it.

A section that is not understood stays in the description: a model can read it as well as a person.
"""

import inspect
import re
from typing import NamedTuple

_SECTION = re.compile(r"^(Args|Arguments|Parameters):[ \t]*$", re.MULTILINE)
_NEXT_SECTION = re.compile(r"^\S", re.MULTILINE)
_GOOGLE = re.compile(r"^(?P<name>\*{0,2}\w+)[ \t]*(?:\([^)\n]*\))?[ \t]*:[ \t]*(?P<text>.*)$")
_SPHINX = re.compile(
    r"^:param[ \t]+(?:[^:\n]*[ \t])?(?P<name>\w+):[ \t]*(?P<text>(?:.*(?:\n[ \t]+\S.*)*))\n?", re.MULTILINE
)


class Docs(NamedTuple):
    description: str
    parameters: dict[str, str]


def read_docstring(text: str | None) -> Docs:
    clean = inspect.cleandoc(text or "")
    section = _SECTION.search(clean)
    if section is None:
        found = {match["name"]: _one_line(match["text"]) for match in _SPHINX.finditer(clean)}
        return Docs(_SPHINX.sub("", clean).strip(), found)
    after = clean[section.end() :]
    end = _NEXT_SECTION.search(after)
    body, rest = (after, "") if end is None else (after[: end.start()], after[end.start() :])
    described = "\n\n".join(piece.strip() for piece in (clean[: section.start()], rest) if piece.strip())
    return Docs(described, _entries(inspect.cleandoc(body)))


def _entries(body: str) -> dict[str, str]:
    """`name (type): text`, with what is indented below belonging to it."""
    found: dict[str, str] = {}
    name = ""
    for line in body.splitlines():
        match = _GOOGLE.match(line)
        if match is not None:
            name = match["name"].lstrip("*")
            found[name] = match["text"]
        elif name:
            found[name] += f" {line}"
    return {name: _one_line(text) for name, text in found.items()}


def _one_line(text: str) -> str:
    return " ".join(text.split())
