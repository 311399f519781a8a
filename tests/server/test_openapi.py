"""The OpenAPI document is the contract: changes show in a snapshot; every response and event has a schema.

`UPDATE_SNAPSHOTS=1 pytest tests/server/test_openapi.py` rewrites the snapshot; review the diff.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from openapi_helpers import Operation, list_operations, load_document

from quire.model.entry_bodies import EntryKind
from quire.model.events import TurnEvent
from quire.server.lifecycle import SHUTDOWN_EVENT_NAME
from quire.wire.http_errors import error_code

SNAPSHOT = Path(__file__).parent / "snapshots/openapi.json"
NON_JSON_OPERATIONS = {
    "get /api/blobs/{digest}",
    "get /api/conversations/{conversation}/events",
    "get /api/conversations/{conversation}/export",
    "get /api/conversations/{conversation}/requests/{seq}/body",
    "get /api/conversations/{conversation}/transcript",
    "get /metrics",
    "post /api/conversations/{conversation}/send",
}
"""Bytes and streams. Responses under `/v1` and `/v1beta` are in the formats of providers."""


def is_foreign(operation: Operation) -> bool:
    return (
        operation.path.startswith(("/v1/", "/v1beta/")) or f"{operation.method} {operation.path}" in NON_JSON_OPERATIONS
    )


def snake_case(value: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", value).lower()


def iter_references(value: Any) -> Iterator[str]:
    """Yields every schema reference, at any depth."""
    match value:
        case dict():
            if isinstance(value.get("$ref"), str):
                yield value["$ref"]
            for each in value.values():
                yield from iter_references(each)
        case list():
            for each in value:
                yield from iter_references(each)
        case _:
            pass


def get_schema(name: str) -> dict[str, Any]:
    return load_document()["components"]["schemas"][name]


def test_the_contract_is_the_one_that_was_agreed_on():
    text = json.dumps(load_document(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(text)
    assert text == SNAPSHOT.read_text()


def test_whatever_is_referred_to_is_there():
    for reference in set(iter_references(load_document())):
        assert reference.removeprefix("#/components/schemas/") in load_document()["components"]["schemas"]


def test_every_model_has_a_name_of_its_own():
    """FastAPI gives two classes of one name long names, and splits schemas for input and output."""
    assert [
        name for name in load_document()["components"]["schemas"] if not re.fullmatch(r"[A-Za-z]+(_[A-Za-z]+_)?", name)
    ] == []


@pytest.mark.parametrize("operation", list_operations(), ids=str)
def test_every_answer_has_a_model_and_every_problem_is_one(operation: Operation):
    for status, answer in operation.spec["responses"].items():
        content = answer.get("content", {})
        if not status.startswith("2"):
            problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
            assert content.get("application/problem+json") == problem, f"{status}: {content}"
        elif status != "204" and not is_foreign(operation):
            assert list(content) == ["application/json"]
            assert content["application/json"]["schema"].keys() & {"$ref", "anyOf", "oneOf"}


def test_what_every_event_holds_is_in_the_contract():
    names = {snake_case(kind.__name__).removesuffix("_chunk") for kind in get_args(TurnEvent)}
    turn = get_schema("TurnEventSchema")["discriminator"]
    live = get_schema("LiveEventSchema")["discriminator"]
    assert turn["propertyName"] == live["propertyName"] == "event"
    assert set(turn["mapping"]) == names
    assert set(live["mapping"]) == names | {"branch_changed"}
    for path, method, union in (("send", "post", "TurnEventSchema"), ("events", "get", "LiveEventSchema")):
        operation = load_document()["paths"][f"/api/conversations/{{conversation}}/{path}"][method]
        assert f"#/components/schemas/{union}" in set(iter_references(operation["responses"]["200"]))
        assert SHUTDOWN_EVENT_NAME in operation["description"]


def test_what_every_kind_of_entry_holds_is_in_the_contract():
    entry = get_schema("EntrySchema")["discriminator"]
    assert entry["propertyName"] == "kind"
    assert set(entry["mapping"]) == set(get_args(EntryKind))
    for reference in entry["mapping"].values():
        schema = get_schema(reference.rpartition("/")[2])
        assert set(schema["required"]) == set(schema["properties"])
        assert "$ref" in schema["properties"]["body"]


def test_a_problem_s_code_is_its_error_s_name():
    from quire import errors

    assert error_code(errors.TurnInProgress()) == "turn_in_progress"
    assert error_code(errors.ConversationNotFound()) == "conversation_not_found"
