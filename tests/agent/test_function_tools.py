"""Python functions as tools: their schemas, and the results of calls."""

import asyncio
import contextvars
import functools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from quire.agent.function_tools import parse_docstring, tool
from quire.agent.tool_results import ToolResult, make_tool_error
from quire.errors import InvalidConfiguration
from quire.model import ImagePart, Message, TextPart


class Place(BaseModel):
    city: str
    zip: int | None = None


@tool
def forecast(place: Place, days: int = 3, unit: Literal["C", "F"] = "C", schema: str = "") -> str:
    """Says what the weather will be.

    Args:
        place: Where.
        days (int): How many days,
            from today on.
        unit: Celsius or Fahrenheit.

    Returns:
        A sentence.
    """
    return f"{place.city} {place.zip} {days} {unit} {schema}"


def test_the_schema_has_the_signature_and_the_docstring():
    definition = forecast.definition
    assert definition.name == "forecast"
    assert definition.description == "Says what the weather will be.\n\nReturns:\n    A sentence."
    properties: Any = definition.parameters["properties"]
    assert definition.parameters["required"] == ["place"]
    assert definition.parameters["additionalProperties"] is False
    assert properties["days"] == {"default": 3, "description": "How many days, from today on.", "type": "integer"}
    assert properties["unit"]["enum"] == ["C", "F"]
    assert properties["place"]["description"] == "Where."
    assert "schema" in properties  # a name that pydantic reserves
    assert forecast.offered_tool.item.server is None


async def test_arguments_reach_the_function_as_its_types():
    called = await forecast.call('{"place": {"city": "Bergen"}, "days": "5"}')
    assert called == ToolResult(content=(TextPart(text="Bergen None 5 C "),))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("{}", "`place`: Field required"),
        ('{"place": {"city": 3}}', "`place.city`: Input should be a valid string"),
        ('{"place": {"city": "x"}, "unit": "K"}', "`unit`: Input should be 'C' or 'F'"),
        ('{"place": {"city": "x"}, "dayz": 1}', "`dayz`: Extra inputs are not permitted"),
        ('{"place": ', "Invalid JSON"),
        ("[]", "Input should be an object"),
        ("\ud800", ""),
    ],
)
async def test_invalid_arguments_are_described_so_that_they_can_be_corrected(arguments: str, error: str):
    result = await forecast.call(arguments)
    assert result.is_error
    assert error in result.text
    assert "pydantic" not in result.text


@given(st.text(st.characters(exclude_categories=[])))
def test_no_arguments_raise(arguments: str):
    assert asyncio.run(forecast.call(arguments)).is_error


async def test_an_empty_text_means_no_arguments():
    @tool
    def ping() -> str:
        return "pong"

    assert (await ping.call("")).text == (await ping.call("{}")).text == "pong"
    assert ping.definition.parameters == {"type": "object", "properties": {}, "additionalProperties": False}


async def test_parameters_by_place_by_name_and_any_others():
    @tool
    def many(a: int, /, b: int, *, c: int = 3, **more: Any) -> list[Any]:
        return [a, b, c, more]

    assert (await many.call('{"b": 2, "a": 1, "x": [null]}')).text == '[1,2,3,{"x":[null]}]'
    assert (await many.call('{"b": 2, "a": 1, "c": 4}')).text == "[1,2,4,{}]"


@dataclass
class Row:
    day: date
    rain: float


@pytest.mark.parametrize(
    ("result", "content"),
    [
        ("text", (TextPart(text="text"),)),
        ("half \ud83e", (TextPart(text="half \ufffd"),)),
        (None, ()),
        (3, (TextPart(text="3"),)),
        ([], (TextPart(text="[]"),)),
        ({"a": ["ü", None]}, (TextPart(text='{"a":["ü",null]}'),)),
        (Row(date(2026, 1, 2), 0.5), (TextPart(text='{"day":"2026-01-02","rain":0.5}'),)),
        (Place(city="Oslo"), (TextPart(text='{"city":"Oslo","zip":null}'),)),
        (TextPart(text="part"), (TextPart(text="part"),)),
        ([TextPart(text="a"), ImagePart(url="u")], (TextPart(text="a"), ImagePart(url="u"))),
        (ToolResult(content=(TextPart(text="own"),)), (TextPart(text="own"),)),
    ],
)
async def test_results_become_content_for_the_log(result: Any, content: tuple[Any, ...]):
    called = await tool(name="give")(lambda: result).call("{}")
    assert called == ToolResult(content=content)
    Message.parse(Message(role="tool", parts=(called.to_part("1"),)).canonical_json())


@pytest.mark.parametrize("result", [object(), {1, object()}, b"\xff", threading.Lock()])
async def test_a_result_that_is_no_json_is_an_error(result: Any):
    called = await tool(name="give")(lambda: result).call("{}")
    assert called.is_error
    assert "neither text nor JSON" in called.text


async def test_a_tool_result_can_be_an_error():
    assert (await tool(name="give")(lambda: make_tool_error("not today")).call("{}")).is_error


def make_raising_function(error: BaseException) -> Callable[[], None]:
    def run() -> None:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("no such city"), "give failed: ValueError: no such city"),
        (KeyError("x"), "give failed: KeyError: 'x'"),
        (SystemExit(3), "give failed: SystemExit: 3"),
        (TimeoutError("mine"), "give failed: TimeoutError: mine"),
        (asyncio.CancelledError(), "give failed: CancelledError"),
    ],
)
async def test_an_exception_is_named_without_its_trace(error: BaseException, expected: str):
    blocking = await tool(name="give")(make_raising_function(error)).call("{}")
    assert (blocking.text, blocking.is_error) == (expected, True)

    async def waiting() -> None:
        raise error

    awaited = await tool(name="give")(waiting).call("{}")
    assert (awaited.text, awaited.is_error) == (expected, True)


async def test_a_blocking_function_runs_in_a_thread_with_the_callers_context():
    where = contextvars.ContextVar("where", default="nowhere")
    both = threading.Barrier(2, timeout=20)

    @tool
    def blocking() -> str:
        both.wait()
        return f"{where.get()} {threading.current_thread() is threading.main_thread()}"

    where.set("here")
    first, second = await asyncio.gather(blocking.call("{}"), blocking.call("{}"))
    assert first.text == second.text == "here False"


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_function_that_takes_too_long_is_an_error(blocking: bool):
    async def waiting() -> None:
        await asyncio.sleep(30)

    slow = tool(name="slow", timeout_seconds=0.05)((lambda: time.sleep(1)) if blocking else waiting)
    called = await slow.call("{}")
    assert called.is_error
    assert "no result within 0.05 s" in called.text


async def test_cancelling_the_caller_cancels_the_function():
    ended = asyncio.Event()

    @tool
    async def waiting() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    task = asyncio.create_task(waiting.call("{}"))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_approval_is_required_by_flag_or_by_arguments():
    def remove(path: str, force: bool = False) -> None: ...

    assert not tool(remove).requires_approval('{"path": "x"}')
    assert tool(needs_approval=True)(remove).requires_approval('{"path": "x"}')
    by_force = tool(needs_approval=lambda arguments: arguments.get("force", False))(remove)
    assert by_force.requires_approval('{"path": "x", "force": true}')
    assert not by_force.requires_approval('{"path": "x"}')
    assert not by_force.requires_approval("{}")  # nothing would run
    broken_rule = tool(needs_approval=lambda arguments: arguments["missing"])(remove)
    assert broken_rule.requires_approval('{"path": "x"}')


async def test_methods_partials_and_objects_are_functions_too():
    class Counter:
        """Counts."""

        def __init__(self) -> None:
            self.count = 0

        def add(self, by: int) -> int:
            self.count += by
            return self.count

        async def __call__(self, by: Annotated[int, Field(description="How far.", gt=0)]) -> int:
            return self.add(by)

    counter = Counter()
    assert (await tool(counter.add).call('{"by": 2}')).text == "2"
    called = tool(name="count")(counter)
    assert called.definition.parameters["properties"] == {
        "by": {"description": "How far.", "exclusiveMinimum": 0, "type": "integer"}
    }
    assert (await called.call('{"by": 1}')).text == "3"
    assert (await called.call('{"by": 0}')).is_error
    assert (await tool(name="two")(functools.partial(counter.add, by=2)).call("{}")).text == "5"


def generator_function() -> Iterator[int]:
    yield 1


def takes_any_number(*numbers: int) -> None: ...
def takes_a_function(function: Callable[[], int]) -> None: ...
def takes_the_unknown(it: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda: 1, "no name"),
        (functools.partial(print), "no name"),
        (generator_function, "one by one"),
        (takes_any_number, r"\*numbers"),
        (takes_a_function, "JSON cannot express"),
        (takes_the_unknown, "Nowhere"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_when_it_is_made(function: Callable[..., Any], reason: str):
    with pytest.raises(InvalidConfiguration, match=reason):
        tool(function)


def test_docstrings_of_both_kinds_are_read():
    google = parse_docstring("Does.\n\nArgs:\n  a: One\n     more: of it.\n  **b (str, optional): Two.\nNote: x")
    assert google == ("Does.\n\nNote: x", {"a": "One more: of it.", "b": "Two."})
    sphinx = parse_docstring("Does.\n\n:param a: One\n    more.\n:param str b: Two.\n:returns: it")
    assert sphinx == ("Does.\n\n:returns: it", {"a": "One more.", "b": "Two."})
    assert parse_docstring(None) == ("", {})


@given(st.text(st.sampled_from("Args:param \n\tab*():")))
def test_no_docstring_breaks_the_reading_of_it(text: str):
    parse_docstring(text)
