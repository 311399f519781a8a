"""Quire keeps every message, decides what the model sees within a token budget, and records why."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.engine import Conversation, Document, Engine, Request
    from quire.engine import open_engine as open  # noqa: A004 (quire.open is the front door)
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

__version__ = "0.1.0.dev0"

_HOMES = {
    "quire.engine": ("Conversation", "Document", "Engine", "Request"),
    "quire.errors": ("ContextOverflow", "QuireError"),
    "quire.model": (
        "Compaction", "Decision", "Entry", "FilePart", "ImagePart", "Manifest", "Message", "TextPart", "ThinkingPart",
        "ToolCallPart", "ToolDefinition", "ToolResultPart", "Usage",
    ),
    "quire.settings": ("Settings",),
    "quire.view.strategies": ("Strategy", "register_strategy"),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names} | {"open": "quire.engine"}

__all__ = [
    "Compaction",
    "ContextOverflow",
    "Conversation",
    "Decision",
    "Document",
    "Engine",
    "Entry",
    "FilePart",
    "ImagePart",
    "Manifest",
    "Message",
    "QuireError",
    "Request",
    "Settings",
    "Strategy",
    "TextPart",
    "ThinkingPart",
    "ToolCallPart",
    "ToolDefinition",
    "ToolResultPart",
    "Usage",
    "open",
    "register_strategy",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    try:
        home = import_module(_HOME[name])
    except KeyError:
        raise AttributeError(f"module 'quire' has no attribute {name!r}") from None
    value = getattr(home, "open_engine" if name == "open" else name)
    globals()[name] = value
    return value
