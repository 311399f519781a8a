"""Which server answers for a model, and what that changes in the settings."""

from fnmatch import fnmatchcase
from typing import Any

from quire.settings.table import Settings, Upstream


def upstream_for(settings: Settings, model: str) -> Upstream | None:
    """The server that is named for the model, else the first whose pattern fits, else the usual one, if any."""
    named = settings.upstreams
    fitting = named.get(model) or next((each for pattern, each in named.items() if fnmatchcase(model, pattern)), None)
    if fitting is None and settings.base_url is not None:
        return Upstream(base_url=settings.base_url, context_limit=settings.context_limit)
    return fitting


def settings_for(settings: Settings, model: str) -> dict[str, Any]:
    """What another model changes: the window and the tokenizer of the usual one are not those of every other."""
    upstream = upstream_for(settings, model)
    if upstream is None:
        return {"model": model, "context_limit": None, "tokenizer": None}
    return {"model": model, "context_limit": upstream.context_limit, "tokenizer": upstream.tokenizer}
