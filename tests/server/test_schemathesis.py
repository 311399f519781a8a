"""Schemathesis over the whole API with valid and invalid requests: no response is a server error.

Runs against a real server on a real database, in a thread with its own event loop, since Schemathesis is synchronous.
"""

import asyncio
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis.errors import Unsatisfiable
from openapi_helpers import load_document
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance
from server_helpers import ScriptedAgent, create_key_for, serve_app

from infra.sizes import IS_FULL_SIZE
from quire.model import Message
from quire.server.app import create_app
from quire.server.state import ServerState
from quire.server.upstream_client import UpstreamClient
from quire.settings import Settings
from quire.store import SqlStore

pytestmark = pytest.mark.slow

MAX_EXAMPLES = 50 if IS_FULL_SIZE else 1
"""Valid requests of each operation, and as many invalid ones."""
ENDLESS_PATH = "/api/conversations/{conversation}/events"
KNOWN_PARAMETERS: dict[str, Any] = {"conversation": "c", "seq": 1, "type": "tool", "name": "guarded"}
"""IDs that exist; half of the examples use them."""
INVALID_HTTP = "Invalid HTTP request received."
"""Response of uvicorn to a request line over 64 kB, which never reaches the application."""
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]


@schemathesis.serializer("application/x-ndjson")
def _serialize_raw(_: schemathesis.SerializationContext, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


class TargetServer:
    """A server with some data, as target of the requests."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ready, self._stop = threading.Event(), threading.Event()
        self.address = self.key = ""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> "TargetServer":
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        agent = ScriptedAgent()
        agent.set_script("Well.", repeat=True)
        settings = Settings(model="gpt-4o", context_limit=8_000, requests_per_minute=None, trusted_tenants=("default",))
        async with SqlStore.open(self._url) as store, UpstreamClient() as http_client:
            state = ServerState(
                store, settings, http_client=http_client, agent=agent.agent, model_factory=agent.get_model
            )
            self.key = await create_key_for(store, "default")
            await store.create_conversation("c", title="Something")
            await store.append("c", Message.user("What of the tide?"), Message.assistant("It turns."))
            await store.fork("c", at=1)
            async with serve_app(create_app(state)) as self.address:
                self._ready.set()
                while not self._stop.is_set():  # noqa: ASYNC110 (set in another thread)
                    await asyncio.sleep(0.02)
            await state.turns.stop_all()
            await state.wait_for_background()


@pytest.fixture
def targets(database_url: str, sqlite_template: Path, tmp_path: Path) -> Iterator[list[TargetServer]]:
    """One server per database: generating a request takes longer than sending it twice."""
    sqlite = shutil.copy(sqlite_template, tmp_path / "sqlite.db")
    with TargetServer(database_url) as first, TargetServer(f"sqlite:///{sqlite}") as second:
        yield [first, second]


class Fuzzer:
    """Sends generated requests to one operation after the other and collects faulty responses."""

    def __init__(self, targets: list[TargetServer]) -> None:
        self._targets = [(target.address, _session(target)) for target in targets]
        self.request_counts: Counter[str] = Counter()
        self.faults: dict[str, str] = {}

    def fuzz(self, operation: APIOperation, mode: GenerationMode) -> None:
        known = {name: KNOWN_PARAMETERS[name] for name in _path_parameters(operation) if name in KNOWN_PARAMETERS}
        anything = operation.as_strategy(mode)
        cases = anything if not known else anything | operation.as_strategy(mode, path_parameters=known)

        @given(case=cases)
        @hypothesis_settings(
            max_examples=MAX_EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def send_case(case: schemathesis.Case) -> None:
            self._check(case)

        try:
            send_case()
        except Unsatisfiable:
            # An operation without parameters has no invalid requests.
            assert mode is GenerationMode.NEGATIVE

    def _check(self, case: schemathesis.Case) -> None:
        label = case.operation.label
        self.request_counts[label] += 1
        for address, session in self._targets:
            answer = case.call(base_url=address, session=session, timeout=20)
            if answer.status_code == 400 and answer.text == INVALID_HTTP:
                continue
            try:
                case.validate_response(answer, checks=CHECKS)
            except FailureGroup as failures:
                sent = f"{case.method} {case.formatted_path} {case.query} {case.body!r}"[:1_000]
                received = f"{answer.status_code} {answer.text[:500]}"
                self.faults.setdefault(label, f"{address} {sent}\n{received}\n{failures.exceptions}")


def _session(target: TargetServer) -> requests.Session:
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {target.key}"
    return session


def _path_parameters(operation: APIOperation) -> list[str]:
    return [each.name for each in operation.path_parameters]


@pytest.mark.every_postgres
def test_no_request_causes_a_server_error(targets: list[TargetServer]):
    fuzzer = Fuzzer(targets)
    schema = schemathesis.openapi.from_dict(load_document()).exclude(path=ENDLESS_PATH)
    operations = [each.ok() for each in schema.get_all_operations()]
    # Deletions come last, so that the data exists until then.
    runs = [(each, mode) for each in operations for mode in MODES]
    runs.sort(key=lambda run: run[0].method.lower() == "delete")
    for operation, mode in runs:
        fuzzer.fuzz(operation, mode)
    if fuzzer.faults:
        pytest.fail("\n\n".join(fuzzer.faults.values()))
    assert {each.label for each in operations} == set(fuzzer.request_counts)
    assert fuzzer.request_counts.total() > MAX_EXAMPLES * len(operations)
