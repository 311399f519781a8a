"""Provider fields on messages and parts, and the names and JSON that providers accept.

Unknown fields are stored under the provider they came from, `{"chat": {...}}`, and are sent back only to that
provider, because providers reject each other's fields. They never overwrite keys that Quire writes.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, cast

from pydantic import JsonValue

from quire.model import TextPart, ToolDefinition
from quire.model.base import JsonObject
from quire.model.json_values import dump_json, filter_objects, get_text
from quire.model.policy import WireFormatName
from quire.wire.base import WireMessage
from quire.wire.tokens import TokenCounter

MADE_ID_PREFIX = "quire-call-"
"""Start of the ID of a call whose provider gave it none, in a format where IDs are optional."""
_MAX_NAME_CHARS = 64
_VALID_NAME = re.compile(rf"[a-zA-Z0-9_-]{{1,{_MAX_NAME_CHARS}}}")
_INVALID_NAME_CHARS = re.compile(r"[^a-zA-Z0-9_-]")
_INVALID_SPEAKER_CHARS = re.compile(r"[\s<|\\/>]")
_NAME_DIGEST_CHARS = 10


def is_valid_name(name: object) -> bool:
    return isinstance(name, str) and _VALID_NAME.fullmatch(name) is not None


def to_safe_name(name: str) -> str:
    """Returns a name or id that every provider accepts: unchanged if it is valid, else with a digest of itself."""
    return name if is_valid_name(name) else add_name_digest(name, key=name)


def add_name_digest(name: str, *, key: str) -> str:
    """Makes a valid name of any text: replaces invalid characters, shortens, and appends a digest of `key`.

    The digest distinguishes names that would otherwise become equal.
    """
    # `surrogatepass`, not replacement: keys that differ only in a lone surrogate must have different digests.
    digest = sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:_NAME_DIGEST_CHARS]
    return f"{_INVALID_NAME_CHARS.sub('_', name)[: _MAX_NAME_CHARS - _NAME_DIGEST_CHARS - 1]}_{digest}"


def check_tool_names(names: Iterable[object]) -> Iterator[str]:
    """Problems for which providers reject the names of a request's tools."""
    for name, times in Counter(names).items():
        if not is_valid_name(name):
            yield f"tools: {name!r} is no valid name"
        if times > 1:
            yield f"tools: two are named {name!r}"


def to_speaker_name(name: str) -> str:
    """Replaces characters that providers reject in the name of a speaker."""
    return _INVALID_SPEAKER_CHARS.sub("_", name)[:_MAX_NAME_CHARS]


def get_provider_fields(provider: JsonObject | None, name: WireFormatName) -> WireMessage:
    """Non-empty fields that came from this provider."""
    return _drop_empty(get_raw_provider_fields(provider, name))


def get_raw_provider_fields(provider: JsonObject | None, name: WireFormatName) -> WireMessage:
    """All fields that came from this provider, without infinities and NaN, which JSON cannot represent."""
    fields = (provider or {}).get(name)
    return cast(WireMessage, _drop_non_finite(fields)) if isinstance(fields, dict) else {}


def _drop_empty(fields: Mapping[str, Any]) -> WireMessage:
    """Drops nulls and empty lists: they carry no information, and clients handle them inconsistently."""
    return {key: value for key, value in fields.items() if value is not None and value != []}


def merge_fields(wire_message: WireMessage, fields: WireMessage) -> WireMessage:
    """Adds fields without overwriting existing ones."""
    return {**wire_message, **{key: value for key, value in fields.items() if key not in wire_message}}


def render_text_part(part: TextPart, name: WireFormatName) -> WireMessage:
    """Renders a text, or the provider's own content type for which the text is only a placeholder."""
    fields = get_raw_provider_fields(part.provider_fields, name)
    if fields.get("type", "text") != "text" and isinstance(fields["type"], str):
        return fields
    return merge_fields({"type": "text", "text": part.text}, _drop_empty(fields))


def build_parameters_schema(definition: ToolDefinition) -> WireMessage:
    """Parameters as both providers require them: an object schema with `properties`."""
    parameters = cast(WireMessage, _drop_non_finite(definition.parameters))
    return {"type": "object", "properties": {}, **parameters}


def _drop_non_finite(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _drop_non_finite(item) for key, item in value.items() if not _is_non_finite(item)}
    if isinstance(value, list):
        return [_drop_non_finite(item) for item in value if not _is_non_finite(item)]
    return value


def _is_non_finite(value: JsonValue) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def collect_unknown_fields(raw: Mapping[str, Any], known: Collection[str], name: WireFormatName) -> JsonObject | None:
    """Fields that Quire does not read, to be stored under the provider's name."""
    fields = _drop_empty({key: value for key, value in raw.items() if key not in known})
    return {name: fields} if fields else None


def join_content_texts(content: object) -> str:
    """The texts of a content, which is a string or a list of pieces, one per line."""
    if isinstance(content, str):
        return content
    return "\n".join(text for piece in filter_objects(content) if (text := get_text(piece, "text")))


def count_other_fields(wire_message: Mapping[str, Any], known: Iterable[str], counter: TokenCounter) -> int:
    """Counts fields that have no other rule by their JSON text, so that nothing is sent uncounted."""
    rest = {key: value for key, value in wire_message.items() if key not in known}
    return counter.count(dump_json(rest)) if rest else 0
