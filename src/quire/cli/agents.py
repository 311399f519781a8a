"""Where agents are: a folder of the user's, one file or folder each, by name; or any TOML file, by path."""

from collections.abc import Mapping
from pathlib import Path

from quire.cli import places
from quire.errors import DocumentNotFound

AGENT_FILE = "agent.toml"


def agent_files(environ: Mapping[str, str]) -> dict[str, Path]:
    """The user's agents by name: `NAME/agent.toml`, with rules and references of its own beside it, or `NAME.toml`."""
    folder = places.agents_folder(environ)
    found = {file.stem: file for file in folder.glob("*.toml")}
    found |= {file.parent.name: file for file in folder.glob(f"*/{AGENT_FILE}")}
    return dict(sorted(found.items()))


def agent_file(name: str, environ: Mapping[str, str]) -> Path:
    """An agent's file by the name of the agent, or by its path."""
    known = agent_files(environ)
    if name in known:
        return known[name]
    path = Path(name).expanduser()
    if path.suffix == ".toml" and path.is_file():
        return path
    there = f"there are {', '.join(known)}" if known else "there is none yet"
    raise DocumentNotFound(f"There is no agent {name!r}; {there}. `quire agent new {name}` begins one.")
