"""Purging a body removes the text of every field: the test fills all fields of the models, also of later ones."""

import json
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel, JsonValue
from typing_extensions import TypeAliasType

from quire.engine import open_engine
from quire.model import Compaction, ContextChange, Message, Pin, Priority, Restore, ToolCallPart, Unpin
from quire.model.entry_bodies import Body, purge_body
from quire.model.messages import Part

CANARY = "quetzal"
NAMES_THAT_STAY = {
    ("Compaction", "strategy"): "name of a strategy in the configuration",
    ("Compaction", "model"): "name of the model that wrote the summary",
    ("Usage", "model"): "name of the model that was called",
    ("ListAnchor", "digest"): "digest of an item",
}
"""Fields with a text that a purge does not remove, and what it is."""


def fill_model(model: type[BaseModel]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        # The digest of a blob is no text.
        if name != "blob" and (model.__name__, name) not in NAMES_THAT_STAY:
            values[name] = fill(field.annotation)
    return values


def fill(annotation: Any) -> Any:
    """A value with the canary in every text, as JSON."""
    if isinstance(annotation, TypeAliasType):
        return {"x": CANARY} if annotation is JsonValue else fill(annotation.__value__)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return fill_model(annotation)
    arguments = get_args(annotation)
    match get_origin(annotation):
        case None:
            return {str: CANARY, int: 1, float: 1.0, bool: True}.get(annotation)
        case origin if origin is Literal:
            return arguments[0]
        case origin if origin in (Union, UnionType):
            return fill(arguments[0])
        case origin if origin is Annotated:
            return fill(arguments[0])
        case origin if origin is tuple:
            return [fill(arguments[0])]
        case origin if origin is dict:
            return {CANARY: CANARY}
        case origin:
            raise AssertionError(f"fill {origin} too")


def list_part_types() -> list[type[BaseModel]]:
    union = Part.__value__ if isinstance(Part, TypeAliasType) else Part
    if get_origin(union) is Annotated:
        union = get_args(union)[0]
    return list(get_args(union))


def contains_canary(body: Body) -> bool:
    return CANARY in body.canonical_json()


@pytest.mark.parametrize("part", list_part_types(), ids=lambda part: part.__name__)
def test_a_purged_part_has_no_text(part: type[BaseModel]):
    values = {"role": "assistant", "parts": [fill_model(part)], "name": CANARY, "provider_fields": {"x": CANARY}}
    message = Message.model_validate_json(json.dumps(values))
    assert contains_canary(message)
    assert not contains_canary(purge_body(message))
    assert purge_body(purge_body(message)) == purge_body(message)


@pytest.mark.parametrize("body_type", [Compaction, ContextChange], ids=lambda body: body.__name__)
def test_a_purged_control_entry_has_no_text(body_type: type[Compaction | ContextChange]):
    body = body_type.model_validate_json(json.dumps(fill_model(body_type)))
    assert contains_canary(body)
    assert not contains_canary(purge_body(body))
    assert purge_body(purge_body(body)) == purge_body(body)


@pytest.mark.parametrize("body_type", [Restore, Pin, Unpin, Priority], ids=lambda body: body.__name__)
def test_other_entries_hold_only_numbers(body_type: type[Restore | Pin | Unpin | Priority]):
    assert CANARY not in json.dumps(fill_model(body_type))


@pytest.mark.parametrize("seq", [2, 3])
async def test_a_purged_call_and_its_result_still_belong_together(seq: int):
    """Only one of the two was purged, so that their ids differ in the log."""
    call = ToolCallPart(id="call_1", name="search", arguments='{"q":"otters"}')
    async with open_engine("sqlite://", model="gpt-4o") as engine:
        conversation = await engine.conversation("c")
        await conversation.append(
            "Look.", Message(role="assistant", parts=(call,)), Message.tool("call_1", "Otters swim."), "Thanks."
        )
        await engine.store.purge("c", [seq])
        messages = (await conversation.prepare("And now?")).to_chat()["messages"]
    [sent_call] = [message for message in messages if message.get("tool_calls")]
    [result] = [message for message in messages if message["role"] == "tool"]
    assert result["tool_call_id"] == sent_call["tool_calls"][0]["id"]
    assert result["content"] == ("Otters swim." if seq == 2 else "[purged]")
    assert "call_1" not in json.dumps(messages) or seq == 3
