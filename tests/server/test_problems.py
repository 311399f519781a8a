"""Problem documents do not disclose where the database is, on any of the surfaces that report an error."""

import json
from collections.abc import Callable

import pytest

from quire.errors import SchemaOutdated, StoreBusy, StoreError, StoreUnavailable
from quire.server.problems import error_to_problem, error_to_response
from quire.wire.codecs import CHAT

DRIVER_TEXT = 'connection to server at "10.0.0.7", port 5432 failed: no password for user "quire_app"'

SURFACES: dict[str, Callable[[StoreError], bytes]] = {
    "response": lambda error: bytes(error_to_response(error).body),
    "turn event": lambda error: error_to_problem(error).model_dump_json().encode(),
    "gateway response": lambda error: bytes(CHAT.to_error_response(error).body),
    "gateway stream": CHAT.to_error_event,
}


@pytest.mark.parametrize("kind", [StoreUnavailable, StoreBusy, StoreError])
@pytest.mark.parametrize("surface", SURFACES)
def test_a_database_error_is_reported_with_a_fixed_text(surface: str, kind: type[StoreError]):
    answer = SURFACES[surface](kind(f"{kind.__doc__} ({DRIVER_TEXT})"))
    assert not [detail for detail in (b"10.0.0.7", b"5432", b"quire_app") if detail in answer]
    assert json.dumps(kind.__doc__).encode() in answer


@pytest.mark.parametrize("surface", SURFACES)
def test_an_outdated_schema_is_reported_with_its_remedy(surface: str):
    assert b"quire db upgrade" in SURFACES[surface](SchemaOutdated("Version 1 is too old; run `quire db upgrade`."))
