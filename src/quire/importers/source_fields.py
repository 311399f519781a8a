"""Reads single fields of other programs, which may have any type and any value: ids, titles, times, token counts,
models, images and files.
"""

from base64 import b64encode
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, cast

from quire.model import FilePart, ImagePart, Usage
from quire.model.base import replace_lone_surrogates
from quire.model.json_values import get_object
from quire.wire.media import build_data_url, read_image_size, split_data_url

MAX_ID_CHARS = 200
"""Longer ids are replaced by their digest: they are keys of an index."""
MAX_TITLE_CHARS = 500
MAX_TOKEN_COUNT = 10**9
"""Larger counts are errors of the program that wrote them."""
MAX_COST_USD = 10**6
"""Larger costs of one message are errors of the program that wrote them."""
MAX_SECONDS = 10**10
"""Latest time in seconds. A larger number is in milliseconds."""
MAX_MICROS = 253_402_300_799_000_000
"""The year 9999, the last that `datetime` can format."""
MAX_ATTACHMENT_BYTES = 20_000_000
"""Maximum size of one image or file. A larger one is dropped."""
MAX_NAME_CHARS = 200
_DEFAULT_MEDIA_TYPE = "application/octet-stream"
_MAGIC_NUMBERS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


def read_id(value: object) -> str | None:
    """An id as text, or None if it is empty or neither text nor a number."""
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        return None
    text = clean_text(str(value))
    return text if len(text) <= MAX_ID_CHARS else sha256(text.encode()).hexdigest()


def clean_text(text: str) -> str:
    """Text that every store accepts, without NUL and lone surrogates."""
    return replace_lone_surrogates(text.replace("\x00", "\ufffd"))


def read_title(value: object) -> str:
    if not isinstance(value, str):
        return ""
    return clean_text(" ".join(value[: 2 * MAX_TITLE_CHARS].split()))[:MAX_TITLE_CHARS]


def parse_time(value: object) -> int | None:
    """Microseconds of an ISO 8601 text, or of a number of seconds or milliseconds since 1970. None for anything else.

    A text without a time zone is in UTC.
    """
    match value:
        case bool():
            return None
        case int() | float():
            if not 0 <= value < MAX_SECONDS * 1_000:
                return None
            return round(value * 1_000_000 if value < MAX_SECONDS else value * 1_000)
        case str():
            try:
                time = datetime.fromisoformat(value)
            except ValueError:
                return None
            micros = round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1_000_000)
            return micros if 0 <= micros <= MAX_MICROS else None
        case _:
            return None


def read_count(value: object) -> int:
    """A number of tokens, or 0 for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 <= value <= MAX_TOKEN_COUNT else 0


def read_usage(fields: Mapping[str, Any], *, model: object) -> Usage | None:
    """Usage from the names that OpenAI, Anthropic and Ollama use. An estimate of nothing where only the model is known.

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


def add_usage(
    model: object,
    *,
    uncached: object,
    cache_read: object,
    cache_write: object = 0,
    output: object,
    reasoning: object = 0,
) -> Usage | None:
    """Usage of a program that stores cached tokens outside of its input, or None if all counts are 0.

    `reasoning` is not part of `output`.
    """
    read, written, thought = read_count(cache_read), read_count(cache_write), read_count(reasoning)
    sent, replied = read_count(uncached) + read + written, read_count(output) + thought
    if not sent and not replied:
        return None
    return Usage(
        model=model if isinstance(model, str) and model else None,
        input_tokens=sent,
        output_tokens=replied,
        cache_read_tokens=read,
        cache_write_tokens=written,
        provider_fields={"reasoning_tokens": thought} if thought else None,
    )


def read_cost(value: object) -> float | None:
    """A cost in dollars, or None for 0, which programs also write for a model whose price they do not know."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < MAX_COST_USD else None


def list_values(value: object) -> list[Any]:
    """Items of an untrusted list. Empty if it is not a list."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def retain_fields(raw: Mapping[str, Any], known: Collection[str], source: str) -> dict[str, Any] | None:
    """Fields of an item that Quire does not read, to be stored with the message under the name of the source."""
    fields = {key: value for key, value in raw.items() if key not in known and value not in (None, "", [], {})}
    return {source: fields} if fields else None


def _first_count(fields: Mapping[str, Any], *names: str) -> int:
    return next((count for name in names if (count := read_count(fields.get(name)))), 0)


def make_media_part(data: bytes, *, media_type: object = None, name: object = None) -> ImagePart | FilePart:
    """A part with these bytes. Their own first bytes say what they are; `media_type` is what the export says."""
    known = next((each for magic, each in _MAGIC_NUMBERS if data.startswith(magic)), None)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        known = "image/webp"
    elif known is None and isinstance(media_type, str):
        is_valid = len(media_type) <= MAX_NAME_CHARS and media_type.isascii() and not set(media_type) & set(" ;,")
        known = media_type if is_valid else None
    known = known or _DEFAULT_MEDIA_TYPE
    url = build_data_url(known, b64encode(data).decode())
    if known.startswith("image/"):
        width, height = read_image_size(data) or (None, None)
        return ImagePart(url=url, media_type=known, width=width, height=height)
    return FilePart(url=url, media_type=known, name=clip_name(name))


def make_url_part(url: object, *, name: object = None) -> ImagePart | FilePart | None:
    """A part for a data URL or a web address of an image, or None for a link that only the program can open."""
    if not isinstance(url, str) or len(url) > 2 * MAX_ATTACHMENT_BYTES:
        return None
    if split := split_data_url(url):
        media_type = split[0]
        if media_type.startswith("image/"):
            return ImagePart(url=url, media_type=media_type)
        return FilePart(url=url, media_type=media_type or _DEFAULT_MEDIA_TYPE, name=clip_name(name))
    return ImagePart(url=url) if url.startswith(("http://", "https://")) else None


def clip_name(name: object) -> str | None:
    return name[:MAX_NAME_CHARS] if isinstance(name, str) and name else None
