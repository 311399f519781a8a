"""A function's parameters as a pydantic model: its JSON schema is what a model is told, and it reads the arguments.

What a function takes is settled when the tool is made: one that cannot be called by name with JSON is refused there.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from quire.errors import InvalidConfiguration

_Parameter = inspect.Parameter


class _Schema(GenerateJsonSchema):
    """Without the titles that only repeat names, and without warnings of defaults that JSON cannot say."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  as pydantic declares it

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Signature:
    model: type[BaseModel]
    positional: tuple[str, ...]
    """Parameters that can only be given by place."""
    names: Mapping[str, str]
    """The parameters by the names of the model's fields."""

    def schema(self) -> dict[str, JsonValue]:
        schema = self.model.model_json_schema(schema_generator=_Schema)
        schema.pop("title", None)
        return {"type": "object", "properties": {}, **schema}

    def read(self, arguments: str) -> dict[str, Any]:
        """The arguments as the function takes them, those that were given and no others."""
        read = self.model.model_validate_json(arguments.strip() or "{}")
        given = {self.names[field]: getattr(read, field) for field in self.names if field in read.model_fields_set}
        return {**given, **(read.model_extra or {})}

    def bind(self, given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments by place and those by name."""
        by_place = [given[name] for name in self.positional if name in given]
        return by_place, {name: value for name, value in given.items() if name not in self.positional}


def read_signature(function: Callable[..., Any], *, name: str, docs: Mapping[str, str]) -> Signature:
    parameters = inspect.signature(function).parameters.values()
    hints = _hints(function, name)
    fields: dict[str, Any] = {}
    for place, parameter in enumerate(parameters):
        if parameter.kind is _Parameter.VAR_POSITIONAL:
            raise InvalidConfiguration(f"The tool {name!r} takes `*{parameter.name}`: name its parameters one by one.")
        if parameter.kind is not _Parameter.VAR_KEYWORD:
            # Names of our own, because pydantic keeps some of a function's for itself.
            fields[f"field_{place}"] = _field(parameter, hints.get(parameter.name, Any), docs.get(parameter.name))
    open_ended = any(parameter.kind is _Parameter.VAR_KEYWORD for parameter in parameters)
    config = ConfigDict(extra="allow" if open_ended else "forbid", arbitrary_types_allowed=False)
    try:
        model = create_model(name, __config__=config, **fields)
        signature = Signature(
            model=model,
            positional=tuple(each.name for each in parameters if each.kind is _Parameter.POSITIONAL_ONLY),
            names={field: str(info.alias) for field, info in model.model_fields.items()},
        )
        signature.schema()
    except PydanticUserError as exc:
        first = str(exc).partition("\n")[0]
        raise InvalidConfiguration(f"The tool {name!r} has a parameter that JSON cannot give: {first}") from exc
    return signature


def _field(parameter: inspect.Parameter, annotation: Any, description: str | None) -> tuple[Any, Any]:
    default: Any = ... if parameter.default is _Parameter.empty else parameter.default
    if description is None:
        return annotation, Field(default, alias=parameter.name)
    return annotation, Field(default, alias=parameter.name, description=description)


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    holder = function if inspect.isroutine(function) else getattr(function, "func", type(function).__call__)
    try:
        return get_type_hints(holder, include_extras=True)
    except NameError as exc:
        raise InvalidConfiguration(
            f"The tool {name!r} is annotated with a name that cannot be found: {exc}. Import it where the tool is made."
        ) from exc
