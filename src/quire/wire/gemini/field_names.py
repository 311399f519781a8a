"""Spelling of field names: Google's API reads `systemInstruction` and `system_instruction` alike."""

from typing import Any

from quire.model.json_values import is_object

_SNAKE_CASE_NAMES = tuple(
    f'"{name}"'.encode()
    for name in (
        "system_instruction", "generation_config", "tool_config", "safety_settings", "cached_content",
        "generate_content_request", "function_declarations", "function_calling_config", "inline_data", "file_data",
        "function_call", "function_response", "mime_type", "thought_signature", "code_execution", "google_search",
        "parameters_json_schema", "thinking_config", "max_output_tokens", "response_mime_type", "response_schema",
        "response_json_schema", "stop_sequences", "top_p", "top_k",
    )
)  # fmt: skip
"""Names of which a body in this spelling has one, at least where the spelling matters. No text has them unescaped."""
_OPAQUE_FIELDS = frozenset(
    {
        "args", "response", "parameters", "parametersJsonSchema", "responseSchema", "responseJsonSchema", "labels",
        "partMetadata",
    }
)  # fmt: skip
"""Fields with names of the client's own."""


def to_camel_case(raw: bytes, body: dict[str, Any]) -> dict[str, Any]:
    """The body with the names of Google's documentation."""
    return _convert(body) if any(name in raw for name in _SNAKE_CASE_NAMES) else body


def _convert(value: Any) -> Any:
    if isinstance(value, list):
        return [_convert(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    if not is_object(value):
        return value
    converted: dict[str, Any] = {}
    for field, inner in value.items():
        first, *rest = field.split("_")
        name = first + "".join(map(str.capitalize, rest)) if first else field
        converted[name] = inner if name in _OPAQUE_FIELDS else _convert(inner)
    return converted
