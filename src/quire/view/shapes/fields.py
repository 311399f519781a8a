"""A provider's own fields on messages and parts, and the names and JSON that providers accept.

Unknown fields are kept under the name of the shape that read them, `{"openai": {...}}`, and are sent again only in that
shape, beside the keys that Quire writes and never in their place: providers refuse each other's fields.
"""

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from typing import Any, TypeGuard, cast

from pydantic import JsonValue
from pydantic_core import to_jsonable_python

from quire.model import TextPart, ToolDefinition
from quire.model.value import Foreign
from quire.view.shapes.base import Provider, Unit
from quire.view.tokens import Counter

_NAME_LIMIT = 64
_NAME = re.compile(rf"[a-zA-Z0-9_-]{{1,{_NAME_LIMIT}}}")
_REFUSED = re.compile(r"[^a-zA-Z0-9_-]")
_REFUSED_IN_SPEAKERS = re.compile(r"[\s<|\\/>]")
_NAME_KEY = 10


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def objects(value: object) -> list[dict[str, Any]]:
    """The objects in a list that came from outside; nothing for what is not a list."""
    if not isinstance(value, list):
        return []
    return [cast("dict[str, Any]", item) for item in cast("list[object]", value) if isinstance(item, dict)]


def object_in(raw: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """The first object under one of these keys, or an empty one."""
    for key in keys:
        if is_object(value := raw.get(key)):
            return value
    return {}


def text_in(raw: Mapping[str, Any], key: str) -> str | None:
    return value if isinstance(value := raw.get(key), str) else None


def valid_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def safe_name(name: str) -> str:
    """A name or id in the letters that providers accept. The same name gives the same one, different names differ."""
    if valid_name(name):
        return name
    key = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_NAME_KEY]
    return f"{_REFUSED.sub('_', name)[: _NAME_LIMIT - _NAME_KEY - 1]}_{key}"


def speaker_name(name: str) -> str:
    """A speaker's name without the signs and spaces that are refused in one."""
    return _REFUSED_IN_SPEAKERS.sub("_", name)[:_NAME_LIMIT]


def own_fields(provider: Foreign | None, name: Provider) -> Unit:
    """The fields that came from this provider, as far as they say something."""
    return _telling(_own(provider, name))


def _own(provider: Foreign | None, name: Provider) -> Unit:
    """All that came from this provider and JSON can carry: infinities and NaN are left out."""
    fields = (provider or {}).get(name)
    return cast(Unit, _finite(fields)) if isinstance(fields, dict) else {}


def _telling(fields: Mapping[str, Any]) -> Unit:
    """Without nulls and empty lists: they say nothing, and clients drop them or keep them as they please."""
    return {key: value for key, value in fields.items() if value is not None and value != []}


def with_fields(unit: Unit, fields: Unit) -> Unit:
    """The unit with fields beside its own, none in place of them."""
    return {**unit, **{key: value for key, value in fields.items() if key not in unit}}


def text_piece(part: TextPart, name: Provider) -> Unit:
    """A text; or the provider's own kind of piece, whole, which the text only stands for elsewhere."""
    fields = _own(part.provider, name)
    if fields.get("type", "text") != "text" and isinstance(fields["type"], str):
        return fields
    return with_fields({"type": "text", "text": part.text}, _telling(fields))


def schema(definition: ToolDefinition) -> Unit:
    """A tool's parameters as both providers demand them: an object's schema that names its properties."""
    parameters = cast(Unit, _finite(definition.parameters))
    return {"type": "object", "properties": {}, **parameters}


def _finite(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items() if not _endless(item)}
    if isinstance(value, list):
        return [_finite(item) for item in value if not _endless(item)]
    return value


def _endless(value: JsonValue) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def unknown_fields(raw: Mapping[str, Any], known: Collection[str], name: Provider) -> Foreign | None:
    """The fields that Quire does not read, to be kept."""
    fields = _telling({key: value for key, value in raw.items() if key not in known})
    return {name: fields} if fields else None


def plain(value: object) -> Any:
    """A response or message as plain JSON values, whether it came as such or as an SDK's object."""
    dump = getattr(value, "model_dump", None)
    return to_jsonable_python(dump() if callable(dump) else value, bytes_mode="base64", fallback=str)


def count_rest(unit: Mapping[str, Any], known: Iterable[str], counter: Counter) -> int:
    """Tokens of the fields that have no rule of their own: their JSON text. Nothing is sent uncounted."""
    rest = {key: value for key, value in unit.items() if key not in known}
    return counter.count(compact(rest)) if rest else 0
