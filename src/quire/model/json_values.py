"""JSON values from outside: parse and read them without trust in their shape."""

import json
from collections.abc import Mapping
from typing import Any, TypeGuard, cast

from pydantic_core import to_jsonable_python


def dump_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def parse_object(text: str) -> dict[str, Any] | None:
    """Parses a JSON object, such as the arguments of a tool call, or None if the text is anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if is_object(value) else None


def filter_objects(value: object) -> list[dict[str, Any]]:
    """Objects in an untrusted list. Empty if it is not a list."""
    if not isinstance(value, list):
        return []
    return cast("list[dict[str, Any]]", [item for item in cast("list[object]", value) if isinstance(item, dict)])


def get_object(raw: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """First object under one of these keys, or an empty one."""
    for key in keys:
        if is_object(value := raw.get(key)):
            return value
    return {}


def get_text(raw: Mapping[str, Any], key: str) -> str | None:
    return value if isinstance(value := raw.get(key), str) else None


def to_plain_json(value: object) -> Any:
    """Converts a response or message, a dict or an object of an SDK, to plain JSON values."""
    dump = getattr(value, "model_dump", None)
    return to_jsonable_python(dump(by_alias=True) if callable(dump) else value, bytes_mode="base64", fallback=str)
