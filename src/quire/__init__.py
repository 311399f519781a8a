"""Quire stores every message, decides what the model sees within a token budget, and records why.

The exports load on first use, so that `import quire` is quick.
"""

TYPE_CHECKING = False
"""True for type checkers. Not imported, because `typing` alone would double the time of `quire --version`."""

if TYPE_CHECKING:
    from typing import Any

    from quire.agent.approvals import Deny
    from quire.agent.function_tools import tool
    from quire.engine import Conversation, Document, Engine, Request
    from quire.engine import open_engine as open  # noqa: A004 (quire.open is the entry point)
    from quire.engine.agent_loop import TurnResult
    from quire.engine.search import MessageFilter
    from quire.errors import ContextOverflow, QuireError
    from quire.model import (
        Compaction,
        Decision,
        Entry,
        FilePart,
        ImagePart,
        Manifest,
        Message,
        TextPart,
        ThinkingPart,
        ToolCallPart,
        ToolDefinition,
        ToolResultPart,
        Usage,
    )
    from quire.settings import Settings
    from quire.view.strategies import Strategy, register_strategy

try:
    from quire._version import __version__ as __version__
except ModuleNotFoundError:
    # The build writes that module; a source tree that was never installed has no version.
    __version__ = "0.0.0"

_EXPORTS = {
    "quire.agent.approvals": ("Deny",),
    "quire.agent.function_tools": ("tool",),
    "quire.engine": ("Conversation", "Document", "Engine", "Request"),
    "quire.engine.agent_loop": ("TurnResult",),
    "quire.engine.search": ("MessageFilter",),
    "quire.errors": ("ContextOverflow", "QuireError"),
    "quire.model": (
        "Compaction", "Decision", "Entry", "FilePart", "ImagePart", "Manifest", "Message", "TextPart", "ThinkingPart",
        "ToolCallPart", "ToolDefinition", "ToolResultPart", "Usage",
    ),
    "quire.settings": ("Settings",),
    "quire.view.strategies": ("Strategy", "register_strategy"),
}  # fmt: skip
_EXPORT_MODULES = {name: module for module, names in _EXPORTS.items() for name in names} | {"open": "quire.engine"}

__all__ = [
    "Compaction",
    "ContextOverflow",
    "Conversation",
    "Decision",
    "Deny",
    "Document",
    "Engine",
    "Entry",
    "FilePart",
    "ImagePart",
    "Manifest",
    "Message",
    "MessageFilter",
    "QuireError",
    "Request",
    "Settings",
    "Strategy",
    "TextPart",
    "ThinkingPart",
    "ToolCallPart",
    "ToolDefinition",
    "ToolResultPart",
    "TurnResult",
    "Usage",
    "open",
    "register_strategy",
    "tool",
]


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    try:
        module = import_module(_EXPORT_MODULES[name])
    except KeyError:
        raise AttributeError(f"module 'quire' has no attribute {name!r}") from None
    value = getattr(module, "open_engine" if name == "open" else name)
    globals()[name] = value
    return value
