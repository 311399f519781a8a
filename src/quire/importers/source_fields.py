"""Reads single fields of an export, which may have any type and any value: ids, titles, token counts, models."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from quire.model import Usage
from quire.model.text import replace_lone_surrogates
from quire.view.wire_formats.fields import get_object

MAX_ID_CHARS = 200
"""Longer ids are replaced by their digest: they are keys of an index."""
MAX_TITLE_CHARS = 500
MAX_TOKEN_COUNT = 10**9
"""Larger counts are errors of the program that wrote them."""


def read_id(value: object) -> str | None:
    """An id as text; None if it is empty or neither text nor a number."""
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        return None
    text = clean_text(str(value))
    return text if len(text) <= MAX_ID_CHARS else sha256(text.encode()).hexdigest()


def clean_text(text: str) -> str:
    """Text that every store accepts, without NUL and lone surrogates."""
    return replace_lone_surrogates(text.replace("\x00", "\ufffd"))


def read_title(value: object) -> str:
    return (
        clean_text(" ".join(value[: 2 * MAX_TITLE_CHARS].split()))[:MAX_TITLE_CHARS] if isinstance(value, str) else ""
    )


def read_count(value: object) -> int:
    """A number of tokens; 0 for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 <= value <= MAX_TOKEN_COUNT else 0


def read_usage(fields: Mapping[str, Any], *, model: object) -> Usage | None:
    """Usage from the names that OpenAI, Anthropic and Ollama use; an estimate of nothing where only the model is known.

    `input_tokens` is the whole prompt, including cached tokens.
    """
    name = model if isinstance(model, str) and model else None
    details = get_object(fields, "prompt_tokens_details", "input_tokens_details") or fields
    sent = _first_count(fields, "prompt_tokens", "input_tokens", "prompt_eval_count")
    written = _first_count(fields, "completion_tokens", "output_tokens", "eval_count")
    if not sent and not written:
        return Usage(model=name, estimated=True) if name else None
    return Usage(
        model=name,
        input_tokens=sent,
        output_tokens=written,
        cache_read_tokens=min(read_count(details.get("cached_tokens")), sent),
    )


def _first_count(fields: Mapping[str, Any], *names: str) -> int:
    return next((count for name in names if (count := read_count(fields.get(name)))), 0)
