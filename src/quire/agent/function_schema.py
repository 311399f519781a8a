"""JSON schema of a function's parameters, from its signature and its Google- or Sphinx-style docstring.

A docstring section that is not recognized stays in the description, where the model can read it.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from quire.errors import InvalidConfiguration

_ARGS_SECTION = re.compile(r"^(Args|Arguments|Parameters):[ \t]*$", re.MULTILINE)
_NEXT_SECTION = re.compile(r"^\S", re.MULTILINE)
_GOOGLE_PARAM = re.compile(r"^(?P<name>\*{0,2}\w+)[ \t]*+(?:\([^)\n]*\)[ \t]*+)?:[ \t]*(?P<text>.*)$")
_SPHINX_PARAM = re.compile(
    r"^:param[ \t](?P<declaration>[^:\n]*+):[ \t]*+(?P<text>.*+(?:\n[ \t]++\S.*+)*+)\n?+", re.MULTILINE
)

_Parameter = inspect.Parameter


class ParsedDocstring(NamedTuple):
    description: str
    parameters: dict[str, str]


def parse_docstring(text: str | None) -> ParsedDocstring:
    clean = inspect.cleandoc(text or "")
    section = _ARGS_SECTION.search(clean)
    if section is None:
        return _parse_sphinx_params(clean)
    after = clean[section.end() :]
    end = _NEXT_SECTION.search(after)
    body, rest = (after, "") if end is None else (after[: end.start()], after[end.start() :])
    description = "\n\n".join(piece.strip() for piece in (clean[: section.start()], rest) if piece.strip())
    return ParsedDocstring(description, _parse_google_params(inspect.cleandoc(body)))


def _parse_sphinx_params(clean: str) -> ParsedDocstring:
    """Parses lines of the form `:param type name: text`; indented lines continue the text."""
    parameters: dict[str, str] = {}

    def take_parameter(match: re.Match[str]) -> str:
        words = match["declaration"].split()
        if not words or not words[-1].isidentifier():
            return match[0]
        parameters[words[-1]] = _collapse_whitespace(match["text"])
        return ""

    description = _SPHINX_PARAM.sub(take_parameter, clean).strip()
    return ParsedDocstring(description, parameters)


def _parse_google_params(body: str) -> dict[str, str]:
    """Parses lines of the form `name (type): text`; indented lines continue the text."""
    parameters: dict[str, str] = {}
    name = ""
    for line in body.splitlines():
        match = _GOOGLE_PARAM.match(line)
        if match is not None:
            name = match["name"].lstrip("*")
            parameters[name] = match["text"]
        elif name:
            parameters[name] += f" {line}"
    return {name: _collapse_whitespace(text) for name, text in parameters.items()}


def _collapse_whitespace(text: str) -> str:
    return " ".join(text.split())


class _SchemaGenerator(GenerateJsonSchema):
    """Generates schemas without titles, which only repeat names, and without warnings about non-JSON defaults."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  as pydantic declares it

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class FunctionSignature:
    model: type[BaseModel]
    positional_only: tuple[str, ...]
    """Names of positional-only parameters."""
    parameter_names: Mapping[str, str]
    """Parameter names, keyed by the field names of `model`."""

    def to_json_schema(self) -> dict[str, JsonValue]:
        schema = self.model.model_json_schema(schema_generator=_SchemaGenerator)
        schema.pop("title", None)
        return {"type": "object", "properties": {}, **schema}

    def parse_arguments(self, arguments: str) -> dict[str, Any]:
        """Validates JSON arguments. Omitted arguments stay omitted, so the function's own defaults apply."""
        values = self.model.model_validate_json(arguments.strip() or "{}")
        declared = {
            self.parameter_names[field]: getattr(values, field)
            for field in self.parameter_names
            if field in values.model_fields_set
        }
        return {**declared, **(values.model_extra or {})}

    def bind(self, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Splits arguments into positional and keyword arguments."""
        positional = [arguments[name] for name in self.positional_only if name in arguments]
        return positional, {name: value for name, value in arguments.items() if name not in self.positional_only}


def parse_signature(function: Callable[..., Any], *, name: str, descriptions: Mapping[str, str]) -> FunctionSignature:
    parameters = inspect.signature(function).parameters.values()
    hints = _get_type_hints(function, name)
    fields: dict[str, Any] = {}
    for index, parameter in enumerate(parameters):
        if parameter.kind is _Parameter.VAR_POSITIONAL:
            raise InvalidConfiguration(
                f"The tool {name!r} takes `*{parameter.name}`; declare its parameters one by one."
            )
        if parameter.kind is not _Parameter.VAR_KEYWORD:
            # Generated field names, because pydantic reserves some names that a function may use.
            fields[f"field_{index}"] = _to_field(
                parameter, hints.get(parameter.name, Any), descriptions.get(parameter.name)
            )
    accepts_extra = any(parameter.kind is _Parameter.VAR_KEYWORD for parameter in parameters)
    config = ConfigDict(extra="allow" if accepts_extra else "forbid", arbitrary_types_allowed=False)
    try:
        model = create_model(name, __config__=config, **fields)
        signature = FunctionSignature(
            model=model,
            positional_only=tuple(each.name for each in parameters if each.kind is _Parameter.POSITIONAL_ONLY),
            parameter_names={field: str(info.alias) for field, info in model.model_fields.items()},
        )
        signature.to_json_schema()
    except PydanticUserError as exc:
        reason = str(exc).partition("\n")[0]
        raise InvalidConfiguration(f"The tool {name!r} has a parameter that JSON cannot express: {reason}") from exc
    return signature


def _to_field(parameter: inspect.Parameter, annotation: Any, description: str | None) -> tuple[Any, Any]:
    default: Any = ... if parameter.default is _Parameter.empty else parameter.default
    if description is None:
        return annotation, Field(default, alias=parameter.name)
    return annotation, Field(default, alias=parameter.name, description=description)


def _get_type_hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    annotated = function if inspect.isroutine(function) else getattr(function, "func", type(function).__call__)
    try:
        return get_type_hints(annotated, include_extras=True)
    except NameError as exc:
        raise InvalidConfiguration(
            f"The tool {name!r} has an annotation that cannot be resolved: {exc}. Import it where the tool is defined."
        ) from exc
