"""JSON schemas in Google's form: types in capitals, `nullable`, and an order of properties."""

from typing import Any, cast

from quire.model.json_values import is_object

_DROPPED_FIELDS = frozenset({"propertyOrdering", "property_ordering", "nullable", "example"})
_RENAMED_FIELDS = {
    "any_of": "anyOf", "min_items": "minItems", "max_items": "maxItems", "min_length": "minLength",
    "max_length": "maxLength", "min_properties": "minProperties", "max_properties": "maxProperties",
    "additional_properties": "additionalProperties",
}  # fmt: skip
_NAMED_SCHEMAS = ("properties", "$defs", "definitions", "patternProperties")
"""Fields whose values are schemas by name."""
_COUNT_FIELDS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")


def to_json_schema(schema: object) -> dict[str, Any]:
    """Converts a schema of either form. One that is a JSON schema already stays as it is."""
    return cast("dict[str, Any]", _convert(schema)) if is_object(schema) else {}


def _convert(value: object) -> object:
    if isinstance(value, list):
        return [_convert(each) for each in cast("list[object]", value)]
    if not is_object(value):
        return value
    converted: dict[str, Any] = {}
    for field, inner in value.items():
        name = _RENAMED_FIELDS.get(field, field)
        if field in _DROPPED_FIELDS:
            continue
        if name == "type" and isinstance(inner, str):
            converted[name] = inner.lower()
        elif name in _COUNT_FIELDS and isinstance(inner, str) and inner.isdecimal():
            # Google writes 64-bit integers as texts.
            converted[name] = int(inner)
        elif name in _NAMED_SCHEMAS and is_object(inner):
            converted[name] = {key: _convert(each) for key, each in inner.items()}
        elif name in ("enum", "const", "default", "required"):
            converted[name] = inner
        else:
            converted[name] = _convert(inner)
    if value.get("nullable") is True and isinstance(converted.get("type"), str):
        converted["type"] = [converted["type"], "null"]
    return converted
