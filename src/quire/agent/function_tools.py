"""Python functions as tools: schema from signature and docstring, arguments validated by pydantic.

A call always returns a `ToolResult`. An exception, invalid arguments and a timeout become errors for the model to read;
only cancelling the caller cancels a call.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, overload

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_json

from quire.agent.function_calls import call_function
from quire.agent.function_schema import FunctionSignature, parse_docstring, parse_signature
from quire.agent.tool_results import ToolResult, make_tool_error, make_tool_result
from quire.errors import InvalidConfiguration
from quire.model import FilePart, ImagePart, TextPart, ToolDefinition
from quire.model.agents import AgentTool, IncludeMode
from quire.model.messages import ToolResultContent
from quire.model.text import replace_lone_surrogates

ApprovalRule = bool | Callable[[Mapping[str, Any]], bool]
"""Whether a call needs approval: always, never, or depending on its arguments."""

_MAX_LISTED_ERRORS = 5
"""Maximum validation errors listed in one error result."""
_MAX_ERROR_CHARS = 2_000
"""Maximum characters of an exception's description in an error result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool:
    function: Callable[..., Any]
    definition: ToolDefinition
    signature: FunctionSignature
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
            parsed = self.signature.parse_arguments(arguments)
        except ValidationError:
            return False
        try:
            return bool(self.needs_approval(parsed))
        except Exception:  # noqa: BLE001  if the rule fails, a person decides
            return True

    async def call(self, arguments: str) -> ToolResult:
        """Runs the function with arguments in JSON, as the model wrote them."""
        deadline = asyncio.timeout(self.timeout_seconds)
        try:
            return await self._validate_and_run(arguments, deadline)
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return self._make_exception_error(exc)
        except (Exception, SystemExit) as exc:  # noqa: BLE001  a tool may raise anything; the turn continues
            return self._make_timeout_error() if deadline.expired() else self._make_exception_error(exc)

    async def _validate_and_run(self, arguments: str, deadline: asyncio.Timeout) -> ToolResult:
        name = self.definition.name
        try:
            parsed = self.signature.parse_arguments(arguments)
        except ValidationError as exc:
            return make_tool_error(
                f"{name} was not called: {_describe_validation_error(exc)}. Correct the arguments and call it again."
            )
        async with deadline:
            result = await self._run_function(parsed)
        return _to_tool_result(name, result)

    def _make_exception_error(self, error: BaseException) -> ToolResult:
        return make_tool_error(f"{self.definition.name} failed: {_describe_exception(error)}")

    def _make_timeout_error(self) -> ToolResult:
        name, limit = self.definition.name, f"{self.timeout_seconds:g} s"
        return make_tool_error(f"{name} gave no result within {limit}; try a smaller call, or continue without it.")

    async def _run_function(self, arguments: Mapping[str, Any]) -> object:
        args, kwargs = self.signature.bind(arguments)
        return await call_function(self.function, *args, **kwargs)


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
        signature = parse_signature(function, name=tool_name, descriptions=docstring.parameters)
        definition = ToolDefinition(
            name=tool_name,
            description=docstring.description if description is None else description,
            parameters=signature.to_json_schema(),
        )
        return FunctionTool(
            function=function,
            definition=definition,
            signature=signature,
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


def _to_tool_result(name: str, result: object) -> ToolResult:
    match result:
        case ToolResult():
            return result
        case None:
            return ToolResult()
        case str():
            return make_tool_result([TextPart(text=replace_lone_surrogates(result))])
        case TextPart() | ImagePart() | FilePart():
            return make_tool_result([result])
        case _:
            parts = _as_result_parts(result)
            return make_tool_result(parts) if parts else _to_json_result(name, result)


def _as_result_parts(result: object) -> Sequence[ToolResultContent] | None:
    if not isinstance(result, list | tuple):
        return None
    items = cast("Sequence[object]", result)
    all_parts = all(isinstance(item, TextPart | ImagePart | FilePart) for item in items)
    return cast("Sequence[ToolResultContent]", items) if all_parts else None


def _to_json_result(name: str, result: object) -> ToolResult:
    try:
        text = to_json(result).decode()
    except (PydanticSerializationError, UnicodeDecodeError, RecursionError) as exc:
        return make_tool_error(
            f"{name} returned a {type(result).__name__}, which is neither text nor JSON: {_describe_exception(exc)}"
        )
    return make_tool_result([TextPart(text=text)])


def _describe_validation_error(error: ValidationError) -> str:
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    descriptions = [_describe_field_error(each["loc"], each["msg"]) for each in errors[:_MAX_LISTED_ERRORS]]
    more = len(errors) - len(descriptions)
    return "; ".join([*descriptions, f"and {more} more"] if more else descriptions)


def _describe_field_error(loc: Sequence[int | str], message: str) -> str:
    field = ".".join(str(step) for step in loc)
    return f"`{field}`: {message}" if field else message


def _describe_exception(error: BaseException) -> str:
    """Describes the exception by type and message. The traceback is of no use to the model."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")[:_MAX_ERROR_CHARS]
