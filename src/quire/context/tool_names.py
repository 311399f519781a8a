"""Wire names of tools: unique across servers, in the characters that every provider accepts.

A wire name depends on its tool and server alone, so it is stable whatever other tools a request has.
`index_by_wire_name` maps the names back to tools.
"""

from collections.abc import Iterable

from quire.errors import InvalidConfiguration
from quire.model import ContextItem
from quire.view.wire_formats.fields import add_name_digest, is_valid_name

SERVER_SEPARATOR = "__"


def wire_name(item: ContextItem) -> str:
    """`server__tool`, or the bare name of a tool without a server; with a digest where that is invalid or ambiguous."""
    server, name = item.server or "", item.name
    joined = f"{server}{SERVER_SEPARATOR}{name}" if server else name
    # The first separator must split server and tool, or `a__b` of `c` and `b__c` of `a` would collide.
    unambiguous = joined.find(SERVER_SEPARATOR) == (len(server) if server else -1)
    return joined if unambiguous and is_valid_name(joined) else add_name_digest(joined, key=f"{server}\0{name}")


def index_by_wire_name(items: Iterable[ContextItem]) -> dict[str, ContextItem]:
    """Maps each wire name to its tool; raises `InvalidConfiguration` where two collide."""
    tools: dict[str, ContextItem] = {}
    for item in items:
        name = wire_name(item)
        if tools.setdefault(name, item) != item:
            raise InvalidConfiguration(f"Two tools would be called {name!r}: {tools[name]} and {item}; rename one.")
    return tools
