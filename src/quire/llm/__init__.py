"""Model access: a prompt in, a reply or a stream of chunks out, provider errors mapped to `ModelError` classes.

Nothing here needs the `llm` extra until `get_model` is called.
"""

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from quire.errors import MissingExtra, ModelRequestRejected
from quire.llm.protocol import Model, ModelChunk, Prompt, TextDelta, ThinkingDelta, ToolCallDelta
from quire.settings.schema import Settings, upstream_for
from quire.wire import PREFIX_FORMATS, Reply, WireFormatName, infer_wire_format

if TYPE_CHECKING:
    from quire.llm.http_model import HTTPModel

__all__ = [
    "Model",
    "ModelChunk",
    "Prompt",
    "Reply",
    "TextDelta",
    "ThinkingDelta",
    "ToolCallDelta",
    "get_model",
    "get_upstream_model",
]

_OPENAI_NAME = re.compile(r"gpt-(?!oss)|chatgpt-|o\d")


def get_model(
    name: str, *, base_url: str | None = None, api_key: str | None = None, wire_format: WireFormatName | None = None
) -> "HTTPModel":
    """Returns the model of this name: `gpt-4o`, `claude-sonnet-4-5`, or one of a provider such as `groq:…`.

    With `base_url`, any name on that server. The wire format is chat completions there, unless `wire_format` or a
    prefix of the name selects another one: `anthropic:`, `openai-responses:` or `google:`. Without `api_key`, a server
    at `base_url` gets none, and a provider the one in its environment variable. `async with` reuses connections between
    calls.
    """
    try:
        from quire.llm.http_model import HTTPModel
        from quire.llm.providers import PROVIDERS
    except ImportError as exc:
        raise MissingExtra(extra="llm", feature=f"Calling the model {name}") from exc
    wire_format = wire_format or infer_wire_format(name, () if base_url is None else ("chat",))
    prefix, colon, served_name = name.partition(":")
    if base_url is not None:
        if f"{prefix}:" not in (*PREFIX_FORMATS, "openai:"):
            served_name = name
        return HTTPModel(name, served_name, base_url=base_url, wire_format=wire_format, api_key=api_key)
    if not colon:
        prefix, served_name = "anthropic" if name.startswith("claude") else "openai", name
    provider_name = "openai" if prefix in ("openai-chat", "openai-responses") else prefix
    provider = PROVIDERS.get(provider_name)
    if provider is None or (not colon and prefix == "openai" and not _OPENAI_NAME.match(name)):
        raise ModelRequestRejected(
            f"Unknown model {name}: no provider is known for it. Set `base_url` to the URL of its server, or begin the "
            f"name with its provider: {', '.join(f'{each}:' for each in PROVIDERS)}."
        )
    variables = provider.key_variables
    api_key = api_key or next((key for each in variables if (key := os.environ.get(each, "").strip())), None)
    if variables and api_key is None:
        raise ModelRequestRejected(f"{variables[0]} is not set. It holds the API key for the model {name}.")
    base_url = os.environ.get(f"{provider_name.upper()}_BASE_URL") or provider.base_url
    return HTTPModel(name, served_name, base_url=base_url, wire_format=wire_format, api_key=api_key)


def get_upstream_model(name: str, settings: Settings, environ: Mapping[str, str]) -> "HTTPModel":
    """Returns the model at the upstream that serves it, with the operator's API key; without one, as `get_model`."""
    from quire.view.model_table import find_wire_format

    wire_format, upstream = find_wire_format(settings, name), upstream_for(settings, name)
    if upstream is None:
        return get_model(name, wire_format=wire_format)
    if upstream.credentials == "client":
        raise ModelRequestRejected(
            f"Only clients have credentials for {name}: Quire cannot call it. Set `summarizer` to another model, or to "
            "`extract`."
        )
    key = environ.get(upstream.api_key_env) if upstream.api_key_env is not None else None
    return get_model(upstream.model or name, base_url=upstream.base_url, api_key=key, wire_format=wire_format)
