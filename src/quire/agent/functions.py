"""Python functions as tools: told to the model by their signature and docstring, called with what it wrote.

A call always comes to an `Outcome`. An exception in the function, wrong arguments, or too long a wait are errors for
the model to read; only cancelling the caller cancels.
"""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, overload

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_json

from quire.agent.docstrings import read_docstring
from quire.agent.outcomes import Outcome, failure, outcome, storable
from quire.agent.signatures import Signature, read_signature
from quire.errors import InvalidConfiguration
from quire.model import FilePart, ImagePart, TextPart, ToolDefinition
from quire.model.agents import Include, OfferedTool
from quire.model.parts import ResultPart

Approval = bool | Callable[[Mapping[str, Any]], bool]
"""Whether somebody is asked before a call: always, never, or by its arguments."""

_MOST_FAULTS = 5
_LONGEST_MESSAGE = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool:
    function: Callable[..., Any]
    definition: ToolDefinition
    signature: Signature
    include: Include | None = None
    needs_approval: Approval = False
    seconds: float | None = 60.0

    @property
    def offered(self) -> OfferedTool:
        return OfferedTool(definition=self.definition, include=self.include)

    def asks(self, arguments: str) -> bool:
        """Whether this call needs approval. One whose arguments are wrong does not: nothing will be run."""
        if isinstance(self.needs_approval, bool):
            return self.needs_approval
        try:
            given = self.signature.read(arguments)
        except ValidationError:
            return False
        try:
            return bool(self.needs_approval(given))
        except Exception:  # noqa: BLE001  a question that cannot be answered is put to a person
            return True

    async def call(self, arguments: str) -> Outcome:
        """Runs the function with arguments as the model wrote them."""
        clock = asyncio.timeout(self.seconds)
        try:
            return await self._called(arguments, clock)
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return self._failed(exc)
        except (Exception, SystemExit) as exc:  # noqa: BLE001  a tool may raise what it will, and the turn goes on
            return self._slow() if clock.expired() else self._failed(exc)

    async def _called(self, arguments: str, clock: asyncio.Timeout) -> Outcome:
        name = self.definition.name
        try:
            given = self.signature.read(arguments)
        except ValidationError as exc:
            return failure(f"{name} was not called: {_faults(exc)}. Mend the arguments and call it again.")
        async with clock:
            result = await self._run(given)
        return _outcome(name, result)

    def _failed(self, error: BaseException) -> Outcome:
        return failure(f"{self.definition.name} failed: {_said(error)}")

    def _slow(self) -> Outcome:
        name, limit = self.definition.name, f"{self.seconds:g} s"
        return failure(f"{name} gave no result within {limit}; try something smaller, or do without it.")

    async def _run(self, given: Mapping[str, Any]) -> object:
        args, kwargs = self.signature.bind(given)
        if _is_async(self.function):
            return await self.function(*args, **kwargs)
        result = await _in_thread(lambda: self.function(*args, **kwargs))
        return await cast("Awaitable[object]", result) if inspect.isawaitable(result) else result


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    include: Include | None = None,
    needs_approval: Approval = False,
    seconds: float | None = 60.0,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    include: Include | None = None,
    needs_approval: Approval = False,
    seconds: float | None = 60.0,
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Makes a tool of a function, as `@tool` or `@tool(needs_approval=True)`.

    A blocking function runs in a thread of its own; after `seconds` nobody waits for it any more, but it runs on.
    """

    def make(function: Callable[..., Any]) -> FunctionTool:
        named = name or getattr(function, "__name__", "")
        if not named or named == "<lambda>":
            raise InvalidConfiguration(f"{function!r} has no name that a model could call it by; give one as `name`.")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidConfiguration(f"The tool {named!r} yields its results one by one; let it return them.")
        docs = read_docstring(inspect.getdoc(function))
        signature = read_signature(function, name=named, docs=docs.parameters)
        definition = ToolDefinition(
            name=named,
            description=docs.description if description is None else description,
            parameters=signature.schema(),
        )
        return FunctionTool(
            function=function,
            definition=definition,
            signature=signature,
            include=include,
            needs_approval=needs_approval,
            seconds=seconds,
        )

    return make if function is None else make(function)


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  what is asked is whether its call is a coroutine


async def _in_thread(run: Callable[[], object]) -> object:
    """In a thread of its own, not one of the pool: one that hangs would be missed there, and waited for at the end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: object, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((result, error))

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(run)
        except BaseException as exc:  # noqa: BLE001  handed on to the caller, to whom it belongs
            error = exc
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            return

    threading.Thread(target=work, name="tool", daemon=True).start()
    result, error = await done
    if error is not None:
        raise error
    return result


def _outcome(name: str, result: object) -> Outcome:
    match result:
        case Outcome():
            return result
        case None:
            return Outcome()
        case str():
            return outcome([TextPart(text=storable(result))])
        case TextPart() | ImagePart() | FilePart():
            return outcome([result])
        case _:
            parts = _parts(result)
            return outcome(parts) if parts else _as_json(name, result)


def _parts(result: object) -> Sequence[ResultPart] | None:
    if not isinstance(result, list | tuple):
        return None
    items = cast("Sequence[object]", result)
    whole = all(isinstance(item, TextPart | ImagePart | FilePart) for item in items)
    return cast("Sequence[ResultPart]", items) if whole else None


def _as_json(name: str, result: object) -> Outcome:
    try:
        text = to_json(result).decode()
    except (PydanticSerializationError, UnicodeDecodeError, RecursionError) as exc:
        return failure(f"{name} gave a {type(result).__name__}, which is no text and no JSON: {_said(exc)}")
    return outcome([TextPart(text=text)])


def _faults(error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    said = [_fault(fault["loc"], fault["msg"]) for fault in faults[:_MOST_FAULTS]]
    more = len(faults) - len(said)
    return "; ".join([*said, f"and {more} more"] if more else said)


def _fault(loc: Sequence[int | str], message: str) -> str:
    field = ".".join(str(step) for step in loc)
    return f"`{field}`: {message}" if field else message


def _said(error: BaseException) -> str:
    """The exception by name and message, without its trace: that is about the program, and not for the model."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")[:_LONGEST_MESSAGE]
