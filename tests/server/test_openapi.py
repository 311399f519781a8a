"""OpenAPI is the contract: a change of it shows, every answer has a model, every event is in it.

`UPDATE_SNAPSHOTS=1 pytest tests/server/test_openapi.py` writes the document anew; look at what changed.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from contract_document import Operation, document, operations

from quire.model.entries import EntryKind
from quire.model.turns import TurnEvent
from quire.server.problems import code_of
from quire.server.stopping import EVENT

SNAPSHOT = Path(__file__).parent / "snapshots/openapi.json"
NO_JSON = {
    "get /api/blobs/{digest}",
    "get /api/conversations/{conversation}/events",
    "get /api/conversations/{conversation}/export",
    "get /metrics",
    "post /api/conversations/{conversation}/send",
    "post /v1/chat/completions",
    "get /v1/models",
}
"""Bytes, streams, and what others have laid down."""


def named(value: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", value).lower()


def references(value: Any) -> Iterator[str]:
    """Every schema that is referred to, anywhere inside."""
    match value:
        case dict():
            if isinstance(value.get("$ref"), str):
                yield value["$ref"]
            for each in value.values():
                yield from references(each)
        case list():
            for each in value:
                yield from references(each)
        case _:
            pass


def schema(name: str) -> dict[str, Any]:
    return document()["components"]["schemas"][name]


def test_the_contract_is_the_one_that_was_agreed_on():
    text = json.dumps(document(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(text)
    assert text == SNAPSHOT.read_text()


def test_whatever_is_referred_to_is_there():
    for reference in set(references(document())):
        assert reference.removeprefix("#/components/schemas/") in document()["components"]["schemas"]


def test_every_model_has_a_name_of_its_own():
    """Two classes of one name become long names, or one for input and one for output."""
    assert [
        name for name in document()["components"]["schemas"] if not re.fullmatch(r"[A-Za-z]+(_[A-Za-z]+_)?", name)
    ] == []


@pytest.mark.parametrize("operation", operations(), ids=str)
def test_every_answer_has_a_model_and_every_problem_is_one(operation: Operation):
    for status, answer in operation.about["responses"].items():
        content = answer.get("content", {})
        if not status.startswith("2"):
            problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
            assert content.get("application/problem+json") == problem, f"{status}: {content}"
        elif status != "204" and f"{operation.method} {operation.path}" not in NO_JSON:
            assert list(content) == ["application/json"]
            assert content["application/json"]["schema"].keys() & {"$ref", "anyOf", "oneOf"}


def test_what_every_event_holds_is_in_the_contract():
    kept = {named(kind.__name__) for kind in get_args(TurnEvent)}
    turn = schema("TurnEventShown")["discriminator"]
    live = schema("LiveEventShown")["discriminator"]
    assert turn["propertyName"] == live["propertyName"] == "event"
    assert set(turn["mapping"]) == kept
    assert set(live["mapping"]) == kept | {"changed"}
    for path, method, union in (("send", "post", "TurnEventShown"), ("events", "get", "LiveEventShown")):
        operation = document()["paths"][f"/api/conversations/{{conversation}}/{path}"][method]
        assert f"#/components/schemas/{union}" in set(references(operation["responses"]["200"]))
        assert EVENT in operation["description"]


def test_what_every_kind_of_entry_holds_is_in_the_contract():
    entry = schema("EntryShown")["discriminator"]
    assert entry["propertyName"] == "kind"
    assert set(entry["mapping"]) == set(get_args(EntryKind))
    for reference in entry["mapping"].values():
        shown = schema(reference.rpartition("/")[2])
        assert set(shown["required"]) == set(shown["properties"])
        assert "$ref" in shown["properties"]["body"]


def test_a_problem_s_code_is_its_error_s_name():
    from quire import errors

    assert code_of(errors.TurnUnderWay()) == "turn_under_way"
    assert code_of(errors.ConversationNotFound()) == "conversation_not_found"
