"""Model servers on this machine: Ollama, LM Studio, llama.cpp and vLLM. Finds them, their models and their windows."""

import http.client
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

PROBE_TIMEOUT_SECONDS = 1.0
"""Timeout of one probe; a local server answers within a few milliseconds."""
MAX_RESPONSE_BYTES = 1_000_000
"""Bytes of a probe's response that are read."""
LOOPBACK = "127.0.0.1"
LOOPBACK_HOSTS = (LOOPBACK, "localhost", "::1")
OLLAMA_DEFAULT_WINDOW = 4_096
"""Context window of Ollama for a model that is not loaded. It cuts longer prompts without a word."""
_NON_CHAT_NAME_PARTS = ("embed", "bge-", "rerank", "whisper", "tts", "clip", "moderation", "guard")
"""A model with one of these in its name is no chat model."""
_WINDOW_FIELDS = ("max_model_len", "loaded_context_length", "context_length", "max_context_length")
"""Names of the window in the lists of vLLM, LM Studio and Ollama."""


class ServerAddress(NamedTuple):
    """URL of a local model server, and the program that listens there by default."""

    program: str
    url: str


DEFAULT_SERVER_ADDRESSES = tuple(
    ServerAddress(program, f"http://{LOOPBACK}:{port}/v1")
    for program, port in (("Ollama", 11434), ("LM Studio", 1234), ("llama.cpp", 8080), ("vLLM", 8000))
)


class LocalModelServer(NamedTuple):
    address: ServerAddress
    models: tuple[str, ...]
    """Chat models, by name."""
    window: int | None = None
    """Context window of the first model in tokens, if the server reports it."""


def is_local(url: str) -> bool:
    return urlsplit(url).hostname in LOOPBACK_HOSTS


def find_local_servers(
    addresses: Sequence[ServerAddress] = DEFAULT_SERVER_ADDRESSES, *, timeout: float = PROBE_TIMEOUT_SECONDS
) -> list[LocalModelServer]:
    """Probes the addresses in parallel; returns the servers that answer and have a chat model."""
    if not addresses:
        return []
    with ThreadPoolExecutor(len(addresses)) as threads:
        probed = threads.map(partial(probe_server, timeout=timeout), addresses)
        return [server for server in probed if server is not None]


def probe_server(
    address: ServerAddress, *, model: str | None = None, timeout: float = PROBE_TIMEOUT_SECONDS
) -> LocalModelServer | None:
    """Asks a server for its chat models, and for the window of one of them; None if it has none."""
    url = address.url.rstrip("/")
    root = url.removesuffix("/v1")
    listed = _list_windows(_fetch_json(f"{url}/models", timeout), "data", "id")
    chat_models = tuple(name for name in listed if not any(part in name.lower() for part in _NON_CHAT_NAME_PARTS))
    if not chat_models:
        return None
    name = model or chat_models[0]
    window = listed.get(name)
    if window is None:
        # llama.cpp has one model at a time.
        generation = _get_field(_fetch_json(f"{root}/props", timeout), "default_generation_settings")
        window = _to_positive_int(_get_field(generation, "n_ctx"))
    if window is None:
        window = _list_windows(_fetch_json(f"{root}/api/v0/models", timeout), "data", "id").get(name)
    if window is None and (loaded := _fetch_json(f"{root}/api/ps", timeout)) is not None:
        # Only Ollama answers this, with the models that are loaded.
        window = _list_windows(loaded, "models", "name").get(name) or OLLAMA_DEFAULT_WINDOW
    return LocalModelServer(address, chat_models, window)


def _list_windows(document: object, field: str, name_field: str) -> dict[str, int | None]:
    """Models of a list by name, with their windows as far as they are given."""
    data = _get_field(document, field)
    windows: dict[str, int | None] = {}
    for each in cast("list[object]", data) if isinstance(data, list) else ():
        name = _get_field(each, name_field)
        if isinstance(name, str) and name:
            found = (_to_positive_int(_get_field(each, window)) for window in _WINDOW_FIELDS)
            windows[name] = next((window for window in found if window is not None), None)
    return windows


def _fetch_json(url: str, timeout: float) -> object:
    """Fetches JSON, or None on any failure. Connects directly: proxy settings are for remote hosts."""
    parts = urlsplit(url)
    try:
        connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = connect(parts.hostname or "", parts.port, timeout=timeout)
        try:
            connection.request("GET", parts.path, headers={"accept": "application/json"})
            response = connection.getresponse()
            return json.loads(response.read(MAX_RESPONSE_BYTES)) if response.status == http.client.OK else None
        finally:
            connection.close()
    except (OSError, ValueError, RecursionError, http.client.HTTPException):
        return None


def _get_field(value: object, name: str) -> object:
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None


def _to_positive_int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
