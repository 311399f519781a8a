"""Finds what Google's Gemini API would reject in a finished payload."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from quire.model.json_values import filter_objects, get_object, is_object
from quire.wire.base import WireMessage
from quire.wire.fields import check_tool_names, is_valid_name

_DATA_FIELDS = frozenset(
    {"text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode", "codeExecutionResult"}
)
"""Fields of a part of which it has exactly one. A part of a newer kind has none of them."""


def find_problems(payload: Mapping[str, Any]) -> list[str]:
    contents = filter_objects(payload.get("contents"))
    problems = [f"contents[{index}]: {each}" for index, content in enumerate(contents) for each in _check(content)]
    if not contents:
        problems.append("contents: there are none")
    elif contents[0].get("role", "user") != "user":
        problems.append("contents[0]: the first must be the user's")
    if contents and contents[-1].get("role", "user") != "user":
        problems.append(f"contents[{len(contents) - 1}]: the last must be the user's")
    problems += _check_results(contents)
    tools = filter_objects(payload.get("tools"))
    names = [each.get("name") for tool in tools for each in filter_objects(tool.get("functionDeclarations"))]
    return [*problems, *check_tool_names(names)]


def _check(content: WireMessage) -> Iterator[str]:
    role, parts = content.get("role", "user"), filter_objects(content.get("parts"))
    if role not in ("user", "model", "function"):
        yield f"unknown role {role!r}"
    if not parts:
        yield "the list of parts is empty"
    for part in parts:
        fields = _DATA_FIELDS & part.keys()
        if len(fields) > 1:
            yield f"a part has more than one of {sorted(fields)}"
        if "functionCall" in part:
            call = get_object(part, "functionCall")
            if role != "model":
                yield "only the model's contents have calls"
            if not is_valid_name(call.get("name")):
                yield f"{call.get('name')!r} is no valid tool name"
            if not is_object(call.get("args", {})):
                yield "the arguments of a call are not an object"
        if "functionResponse" in part:
            result = get_object(part, "functionResponse")
            if role == "model":
                yield "only the user's contents have results"
            if not result.get("name") or not is_object(result.get("response")):
                yield "a result needs a name and an object as its response"


def _check_results(contents: Sequence[WireMessage]) -> Iterator[str]:
    """The content after calls has as many results, of the same functions and IDs."""
    pending: Counter[tuple[Any, Any]] = Counter()
    for _, run in groupby(enumerate(contents), key=lambda pair: pair[1].get("role", "user") == "model"):
        # Adjacent contents of one role are one.
        joined = list(run)
        index, parts = joined[0][0], [part for _, each in joined for part in filter_objects(each.get("parts"))]
        results = Counter(_identify(part["functionResponse"]) for part in parts if "functionResponse" in part)
        if results != pending:
            yield f"contents[{index}]: its results do not belong to the calls before it"
        pending = Counter(_identify(part["functionCall"]) for part in parts if "functionCall" in part)
    if pending:
        yield "contents: the last calls have no results"


def _identify(call: object) -> tuple[Any, Any]:
    return (call.get("name"), call.get("id")) if is_object(call) else (None, None)
