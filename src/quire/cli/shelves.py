"""Under which name an agent's memories are kept."""

from collections.abc import Mapping

from quire.cli.agents import agent_file
from quire.cli.running import About
from quire.errors import DocumentNotFound

DEFAULT_SHELF = "default"
"""The shelf of nobody in particular."""


def shelf_named(agent: str | None, target: About, environ: Mapping[str, str]) -> str:
    """The shelf of the agent with this name or file; a name that no agent has is a shelf's own."""
    from quire.cli.opening import as_options, settings_from
    from quire.context.agents import load_agent

    named = agent or settings_from(as_options(target.given)).settings.agent
    if named is None:
        return DEFAULT_SHELF
    try:
        found = load_agent(agent_file(named, environ))
    except DocumentNotFound:
        if agent is None or named.endswith(".toml"):
            raise
        return named
    return found.memory.shelf or found.name
