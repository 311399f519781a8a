"""What hangs on by an entry point: sources, agents to resume in, commands, routes, jobs, checks, access policies.

Ours use the same groups as those of other packages, so that nothing of the core imports them.
"""

import logging
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

_logger = logging.getLogger(__name__)

PluginGroup = Literal[
    "quire.access",
    "quire.checks",
    "quire.commands",
    "quire.key_wrappers",
    "quire.resume",
    "quire.routes",
    "quire.sources",
]
OWN_DISTRIBUTION = "quire-core"


@cache
def find_plugins(group: PluginGroup) -> Mapping[str, EntryPoint]:
    """The entry points of a group by name, ours first. Another package adds to ours, and replaces none.

    Read once: the metadata of every installed package takes tens of milliseconds.
    """
    found: dict[str, EntryPoint] = {}
    points = entry_points(group=group)
    # A distribution parses its metadata at each access to its name, so each name is read once.
    own = {dist for dist in {point.dist for point in points} if dist is not None and dist.name == OWN_DISTRIBUTION}
    for point in sorted(points, key=lambda each: each.dist not in own):
        if point.name in found:
            _warn(point, f"the name is taken by {found[point.name].value}")
        else:
            found[point.name] = point
    return found


def load_plugins(group: PluginGroup) -> dict[str, Any]:
    """Imports all plugins of a group, without those that cannot be imported."""
    loaded = {name: load_plugin(point) for name, point in find_plugins(group).items()}
    return {name: plugin for name, plugin in loaded.items() if plugin is not None}


def load_plugin(point: EntryPoint) -> Any | None:
    """Imports a plugin. None, with a warning, if it is of another package and cannot be imported."""
    try:
        return point.load()
    except Exception as error:
        if _is_own(point):
            raise
        _warn(point, f"{type(error).__name__}: {error}")
        return None


def _is_own(point: EntryPoint) -> bool:
    return point.dist is not None and point.dist.name == OWN_DISTRIBUTION


def _warn(point: EntryPoint, reason: str) -> None:
    package = point.dist.name if point.dist is not None else "an unknown package"
    _logger.warning("%s %r of %s is left out: %s.", point.group, point.name, package, reason)
