"""Python functions as tools: schema from signature and docstring, arguments validated by pydantic.

A call always returns a `ToolResult`. An exception, invalid arguments and a timeout become errors for the model to read;
only cancelling the caller cancels a call.
"""

import asyncio
import contextvars
import inspect
import re
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, cast, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_json

from quire.agent.tool_results import ToolResult, describe_exception, make_tool_error, make_tool_result
from quire.context.items import wire_name
from quire.errors import InvalidConfiguration
from quire.model import FilePart, ImagePart, Message, TextPart, ToolCallPart, ToolDefinition
from quire.model.agents import AgentTool, IncludeMode
from quire.model.base import replace_lone_surrogates
from quire.model.messages import ToolResultContent

ApprovalRule = bool | Callable[[Mapping[str, Any]], bool]
"""Whether a call needs approval: always, never, or depending on its arguments."""

_MAX_LISTED_ERRORS = 5
"""Maximum validation errors listed in one error result."""

_ARGS_SECTION = re.compile(r"^(Args|Arguments|Parameters):[ \t]*$", re.MULTILINE)
_NEXT_SECTION = re.compile(r"^\S", re.MULTILINE)
_GOOGLE_PARAM = re.compile(r"^(?P<name>\*{0,2}\w+)[ \t]*+(?:\([^)\n]*\)[ \t]*+)?:[ \t]*(?P<text>.*)$")
_SPHINX_PARAM = re.compile(
    r"^:param[ \t](?P<declaration>[^:\n]*+):[ \t]*+(?P<text>.*+(?:\n[ \t]++\S.*+)*)\n?+", re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool:
    function: Callable[..., Any]
    definition: ToolDefinition
    arguments: type[BaseModel]
    """Model of the arguments. The alias of a field is the name of its parameter."""
    include: IncludeMode | None = None
    needs_approval: ApprovalRule = False
    timeout_seconds: float | None = 60.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function itself, as if it were not decorated."""
        return self.function(*args, **kwargs)

    @property
    def offered_tool(self) -> AgentTool:
        return AgentTool(definition=self.definition, include=self.include)

    def requires_approval(self, arguments: str) -> bool:
        """Whether this call needs approval. One with invalid arguments does not: nothing will run."""
        if isinstance(self.needs_approval, bool):
            return self.needs_approval
        try:
            parsed = self._parse_arguments(arguments)
        except ValidationError:
            return False
        try:
            return bool(self.needs_approval(parsed))
        except Exception:  # noqa: BLE001  if the rule fails, a person decides
            return True

    async def call(self, arguments: str) -> ToolResult:
        """Runs the function with arguments in JSON, as the model wrote them."""
        name, deadline = self.definition.name, asyncio.timeout(self.timeout_seconds)
        try:
            try:
                kwargs = self._parse_arguments(arguments)
            except ValidationError as exc:
                errors = exc.errors(include_url=False, include_context=False, include_input=False)
                problems: list[str] = []
                for each in errors[:_MAX_LISTED_ERRORS]:
                    field = ".".join(str(step) for step in each["loc"])
                    problems.append(f"`{field}`: {each['msg']}" if field else each["msg"])
                if len(errors) > _MAX_LISTED_ERRORS:
                    problems.append(f"and {len(errors) - _MAX_LISTED_ERRORS} more")
                return make_tool_error(
                    f"{name} was not called: {'; '.join(problems)}. Correct the arguments and call it again."
                )
            parameters = inspect.signature(self.function).parameters.values()
            positional_only = [each.name for each in parameters if each.kind is each.POSITIONAL_ONLY]
            args = [kwargs.pop(each) for each in positional_only if each in kwargs]
            async with deadline:
                result = await call_function(self.function, *args, **kwargs)
            return _to_tool_result(name, result)
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return make_tool_error(f"{name} failed: {describe_exception(exc)}")
        except (Exception, SystemExit) as exc:  # noqa: BLE001  a tool may raise anything; the turn continues
            if deadline.expired():
                limit = f"{self.timeout_seconds:g} s"
                return make_tool_error(
                    f"{name} gave no result within {limit}; try a smaller call, or continue without it."
                )
            return make_tool_error(f"{name} failed: {describe_exception(exc)}")

    def _parse_arguments(self, arguments: str) -> dict[str, Any]:
        """Validates JSON arguments. Omitted arguments stay omitted, so the function's own defaults apply."""
        values = self.arguments.model_validate_json(arguments.strip() or "{}")
        fields = self.arguments.model_fields
        declared = {
            str(fields[name].alias): getattr(values, name) for name in fields if name in values.model_fields_set
        }
        return {**declared, **(values.model_extra or {})}


class FunctionToolRunner:
    """Runs functions by the names that models call."""

    def __init__(self, tools: Sequence[FunctionTool]) -> None:
        self._tools = {wire_name(tool.offered_tool.item): tool for tool in tools}

    def handles(self, call: ToolCallPart) -> bool:
        return call.name in self._tools

    def needs_approval(self, call: ToolCallPart) -> bool:
        return self._tools[call.name].requires_approval(call.arguments)

    async def run(self, call: ToolCallPart) -> Message:
        result = await self._tools[call.name].call(call.arguments)
        return Message(role="tool", parts=(result.to_part(call.id),))


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    include: IncludeMode | None = None,
    needs_approval: ApprovalRule = False,
    timeout_seconds: float | None = 60.0,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    include: IncludeMode | None = None,
    needs_approval: ApprovalRule = False,
    timeout_seconds: float | None = 60.0,
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Decorator that makes a tool of a function: `@tool` or `@tool(needs_approval=True)`.

    A blocking function runs in its own thread; after `timeout_seconds` the call returns an error, but the thread runs
    to its end.

    Args:
        function: A function with type hints and a docstring.
        name: Name for the model. Default: the function's.
        description: Text for the model. Default: the docstring.
        include: Include mode in an agent: `always`, `manual` or `agent`.
        needs_approval: Whether a call needs approval, or a function of its arguments that says so.
        timeout_seconds: Time after which the model gets an error. None: no limit.
    """

    def make(function: Callable[..., Any]) -> FunctionTool:
        tool_name = name or getattr(function, "__name__", "")
        if not tool_name or tool_name == "<lambda>":
            raise InvalidConfiguration(f"{function!r} has no name; pass one as `name`.")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidConfiguration(
                f"The tool {tool_name!r} is a generator, which yields results one by one; return them instead."
            )
        docstring = parse_docstring(inspect.getdoc(function))
        arguments, schema = _build_arguments_model(function, name=tool_name, descriptions=docstring.parameters)
        return FunctionTool(
            function=function,
            definition=ToolDefinition(
                name=tool_name,
                description=docstring.description if description is None else description,
                parameters=schema,
            ),
            arguments=arguments,
            include=include,
            needs_approval=needs_approval,
            timeout_seconds=timeout_seconds,
        )

    return make if function is None else make(function)


def to_function_tools(tools: Sequence[FunctionTool | Callable[..., Any]]) -> list[FunctionTool]:
    """Makes tools of plain functions. Two tools of one name are refused: a call could not say which one it means."""
    made = [each if isinstance(each, FunctionTool) else tool(each) for each in tools]
    names = [each.definition.name for each in made]
    for name in names:
        if names.count(name) > 1:
            raise InvalidConfiguration(
                f"Two tools have the name {name!r}; pass `name=` to `quire.tool` for one of them."
            )
    return made


async def call_function(function: Callable[..., Any], *args: Any, **kwargs: Any) -> object:
    """Calls a function of the application, async or blocking, and returns its result.

    A blocking function runs in a new thread, not in the pool: one that hangs would occupy a pool thread and block
    shutdown.
    """
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004  the question is whether its `__call__` is async
        return await function(*args, **kwargs)
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def set_outcome(result: object, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((result, error))

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function, *args, **kwargs)
        except BaseException as exc:  # noqa: BLE001  raised again in the caller
            error = exc
        # If the loop is closed, no caller waits for the result.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(set_outcome, result, error)

    threading.Thread(target=work, name="tool", daemon=True).start()
    result, error = await done
    if error is not None:
        raise error
    return await cast("Awaitable[object]", result) if inspect.isawaitable(result) else result


class _SchemaGenerator(GenerateJsonSchema):
    """Generates schemas without titles, which only repeat names, and without warnings about non-JSON defaults."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  as pydantic declares it

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _build_arguments_model(
    function: Callable[..., Any], *, name: str, descriptions: Mapping[str, str]
) -> tuple[type[BaseModel], dict[str, JsonValue]]:
    """Returns a model of the function's arguments, and its JSON schema."""
    annotated = function if inspect.isroutine(function) else getattr(function, "func", type(function).__call__)
    try:
        hints = get_type_hints(annotated, include_extras=True)
    except NameError as exc:
        raise InvalidConfiguration(
            f"The tool {name!r} has an annotation that cannot be resolved: {exc}. Import it where the tool is defined."
        ) from exc
    fields: dict[str, Any] = {}
    accepts_extra = False
    for index, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise InvalidConfiguration(
                f"The tool {name!r} takes `*{parameter.name}`; declare its parameters one by one."
            )
        if parameter.kind is parameter.VAR_KEYWORD:
            accepts_extra = True
            continue
        options: dict[str, Any] = {"alias": parameter.name}
        if parameter.name in descriptions:
            options["description"] = descriptions[parameter.name]
        default = ... if parameter.default is parameter.empty else parameter.default
        # Generated field names, because pydantic reserves some names that a function may use.
        fields[f"field_{index}"] = hints.get(parameter.name, Any), Field(default, **options)
    config = ConfigDict(extra="allow" if accepts_extra else "forbid", arbitrary_types_allowed=False)
    try:
        model = create_model(name, __config__=config, **fields)
        schema = model.model_json_schema(schema_generator=_SchemaGenerator)
    except PydanticUserError as exc:
        reason = str(exc).partition("\n")[0]
        raise InvalidConfiguration(f"The tool {name!r} has a parameter that JSON cannot express: {reason}") from exc
    schema.pop("title", None)
    return model, {"type": "object", "properties": {}, **schema}


class ParsedDocstring(NamedTuple):
    description: str
    parameters: dict[str, str]


def parse_docstring(text: str | None) -> ParsedDocstring:
    """Reads the descriptions of parameters from a Google- or Sphinx-style docstring.

    A section that is not recognized stays in the description, where the model can read it.
    """
    clean = inspect.cleandoc(text or "")
    parameters: dict[str, str] = {}
    section = _ARGS_SECTION.search(clean)
    if section is not None:
        after = clean[section.end() :]
        end = _NEXT_SECTION.search(after)
        body, rest = (after, "") if end is None else (after[: end.start()], after[end.start() :])
        description = "\n\n".join(piece.strip() for piece in (clean[: section.start()], rest) if piece.strip())
        # Lines of the form `name (type): text`; indented lines continue the text.
        name = ""
        for line in inspect.cleandoc(body).splitlines():
            if (match := _GOOGLE_PARAM.match(line)) is not None:
                name = match["name"].lstrip("*")
                parameters[name] = match["text"]
            elif name:
                parameters[name] += f" {line}"
    else:
        # Lines of the form `:param type name: text`; indented lines continue the text.
        def take_parameter(match: re.Match[str]) -> str:
            words = match["declaration"].split()
            if not words or not words[-1].isidentifier():
                return match[0]
            parameters[words[-1]] = match["text"]
            return ""

        description = _SPHINX_PARAM.sub(take_parameter, clean).strip()
    return ParsedDocstring(description, {name: " ".join(text.split()) for name, text in parameters.items()})


def _to_tool_result(name: str, result: object) -> ToolResult:
    if isinstance(result, ToolResult):
        return result
    if result is None:
        return ToolResult()
    if isinstance(result, str):
        return make_tool_result([TextPart(text=replace_lone_surrogates(result))])
    type_name = type(result).__name__
    parts: Sequence[object] = cast("Sequence[object]", result) if isinstance(result, list | tuple) else [result]
    if parts and all(isinstance(part, TextPart | ImagePart | FilePart) for part in parts):
        return make_tool_result(cast("Sequence[ToolResultContent]", parts))
    try:
        text = to_json(result).decode()
    except (PydanticSerializationError, UnicodeDecodeError, RecursionError) as exc:
        return make_tool_error(
            f"{name} returned a {type_name}, which is neither text nor JSON: {describe_exception(exc)}"
        )
    return make_tool_result([TextPart(text=text)])
