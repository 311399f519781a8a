"""Whom a job asks for an engine."""

from collections.abc import Callable

from quire.engine import Engine

Engines = Callable[[str, str | None], Engine]
"""Gives the engine of a tenant, for its usual model (None) or for another."""
