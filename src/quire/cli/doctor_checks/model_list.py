"""Fetches the list of models of an OpenAI-compatible server, with the context windows that it reports."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

TIMEOUT_SECONDS = 5.0
MAX_RESPONSE_BYTES = 4_000_000
_WINDOW_FIELDS = ("max_model_len", "context_length", "context_window", "loaded_context_length", "n_ctx")
"""Names of the window in the lists of vLLM, OpenRouter, Groq, LM Studio and llama.cpp."""


class ModelList(NamedTuple):
    """The answer of a server; without models if it has no list."""

    status: int
    windows: Mapping[str, int | None]
    """Context window of each model by name; None where the server does not report it."""


def fetch_model_list(base_url: str, headers: Mapping[str, str]) -> ModelList:
    """Raises `OSError` if the server does not answer, and `ValueError` for a URL that cannot be fetched."""
    if urlsplit(base_url).scheme not in ("http", "https"):
        raise ValueError(f"{base_url!r} is no HTTP address")
    status, document = _fetch(f"{base_url.rstrip('/')}/models", headers)
    windows = dict(_parse_windows(document))
    if len(windows) == 1 and None in windows.values():
        # llama.cpp serves one model, and reports the window that it was started with elsewhere.
        _, properties = _fetch(f"{base_url.rstrip('/').removesuffix('/v1')}/props", headers)
        window = _find_window(_get_object(_get_object(properties).get("default_generation_settings")))
        windows = dict.fromkeys(windows, window)
    return ModelList(status, windows)


def _fetch(url: str, headers: Mapping[str, str]) -> tuple[int, object]:
    request = Request(url, headers={"accept": "application/json", **headers})  # noqa: S310 (the scheme is checked)
    try:
        with urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310 (the scheme is checked)
            content, status = response.read(MAX_RESPONSE_BYTES), response.status
    except HTTPError as error:
        with error:
            return error.code, None
    try:
        return status, json.loads(content)
    except (ValueError, RecursionError):
        return status, None


def _parse_windows(document: object) -> Iterator[tuple[str, int | None]]:
    data = _get_object(document).get("data")
    for each in map(_get_object, cast("list[object]", data) if isinstance(data, list) else []):
        if isinstance(each.get("id"), str):
            yield each["id"], _find_window(each)


def _find_window(fields: Mapping[str, Any]) -> int | None:
    values = (fields.get(name) for name in _WINDOW_FIELDS)
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def _get_object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
