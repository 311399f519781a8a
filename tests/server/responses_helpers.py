"""Checks of responses and their events against the types of OpenAI's SDK and of Open Responses."""

import json
from typing import Any

import openresponses_types.types as open_responses
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

Json = dict[str, Any]

_EVENT = TypeAdapter[Any](ResponseStreamEvent)
_OPEN_EVENTS: dict[str, type[BaseModel]] = {
    next(iter(kind.model_fields["type"].annotation)).value: kind  # pyright: ignore
    for name, kind in vars(open_responses).items()
    if name.endswith("StreamingEvent")
}
_ENDINGS = ("response.completed", "response.incomplete", "response.failed")


def parse_events(stream: bytes) -> list[Json]:
    """Parses a stream, and checks that each event's name is its type."""
    events: list[Json] = []
    for block in stream.decode().split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def check_events(events: list[Json], *, is_open: bool = True) -> None:
    """Checks order, numbers and types. `is_open` is false where Open Responses lacks a kind of tool."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert [event["type"] for event in events if event["type"] in _ENDINGS] == [events[-1]["type"]]
    for event in events:
        _EVENT.validate_python(event)
        # Open Responses nests the fields of an error, OpenAI does not.
        if is_open and event["type"] != "error":
            _OPEN_EVENTS[event["type"]].model_validate(event)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    if events[-1]["type"] != "response.failed":
        assert sorted(done, key=lambda item: item["id"]) == sorted(
            events[-1]["response"]["output"], key=lambda item: item["id"]
        )


def check_response(response: Json, *, is_open: bool = True) -> None:
    Response.model_validate(response)
    if is_open:
        open_responses.ResponseResource.model_validate(response)
