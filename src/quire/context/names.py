"""The names by which a model knows tools: unique across servers, in the letters that every provider takes.

A name depends on its tool and server alone, so it stays the same whatever else is offered, and a list of tools is read
back through `by_name`.
"""

import re
from collections.abc import Iterable
from hashlib import sha256

from quire.errors import InvalidConfiguration
from quire.model import ContextItem
from quire.view.shapes.fields import valid_name

SEPARATOR = "__"
_LONGEST = 64
_KEY = 10
_REFUSED = re.compile(r"[^a-zA-Z0-9_-]")


def sent_name(item: ContextItem) -> str:
    """`server__tool`, or the bare name of a tool without a server; with a key where that is no name of its own."""
    server, name = item.server or "", item.name
    joined = f"{server}{SEPARATOR}{name}" if server else name
    # The first separator must part server and tool, or `a__b` of `c` and `b__c` of `a` would be one.
    parted = joined.find(SEPARATOR) == (len(server) if server else -1)
    return joined if parted and valid_name(joined) else _keyed(joined, f"{server}\0{name}")


def _keyed(name: str, whole: str) -> str:
    key = sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_KEY]
    return f"{_REFUSED.sub('_', name)[: _LONGEST - _KEY - 1]}_{key}"


def by_name(items: Iterable[ContextItem]) -> dict[str, ContextItem]:
    """Whose name it is that a model calls."""
    named: dict[str, ContextItem] = {}
    for item in items:
        name = sent_name(item)
        if named.setdefault(name, item) != item:
            raise InvalidConfiguration(f"Two tools would be called {name!r}: {named[name]} and {item}; rename one.")
    return named
