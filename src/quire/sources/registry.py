"""All sources that can be imported, by name: the entry points `quire.sources` of the installed packages."""

from quire.plugins import load_plugins
from quire.sources.base import Source

SOURCES: dict[str, Source] = {
    source.name: source for source in (load() for load in load_plugins("quire.sources").values())
}
