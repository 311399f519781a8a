"""The whole contract asked with whatever it allows, and with what it does not: no answer is a fault of the server's.

A real server on a real database, in a thread with an event loop of its own, since Schemathesis asks from outside.
"""

import asyncio
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from calling import Teller, key_for, served
from contract_document import document
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from quire.log import SqlStore
from quire.model import Message
from quire.server.app import create_app
from quire.server.serving import Serving
from quire.settings import Settings

pytestmark = pytest.mark.slow

SECONDS = 55.0
"""For all of it; what is left of an operation's examples when its share is over is not asked."""
EXAMPLES = 20
ENDLESS = "/api/conversations/{conversation}/events"
KNOWN: dict[str, Any] = {"conversation": "c", "seq": 1, "type": "tool", "name": "guarded"}
"""What is there to be asked about; half of the examples name it."""
NO_HTTP = "Invalid HTTP request received."
"""What uvicorn says to a line of more than 64 kB, before the application hears of it."""
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]


class Over(Exception):
    """An operation has had its time."""


@schemathesis.serializer("application/x-ndjson")
def _as_it_is(_: schemathesis.SerializationContext, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


class Ground:
    """A server to be asked anything, with something in it to be found."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ready, self._over = threading.Event(), threading.Event()
        self.address = self.key = ""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> "Ground":
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        teller = Teller()
        teller.says("Well.", repeat=True)
        chosen = Settings(model="gpt-4o", context_limit=8_000, requests_per_minute=None)
        async with SqlStore.open(self._url) as store, httpx.AsyncClient() as outward:
            serving = Serving(store, chosen, client=outward, agent=teller.agent, model=teller.named)
            self.key = await key_for(store, "default")
            await store.create_conversation("c", title="Something")
            await store.append("c", Message.user("What of the tide?"), Message.assistant("It turns."))
            await store.fork("c", at=1)
            async with served(create_app(serving)) as self.address:
                self._ready.set()
                while not self._over.is_set():  # noqa: ASYNC110 (set in another thread)
                    await asyncio.sleep(0.02)
            await serving.turns.stop()
            await serving.settle()


@pytest.fixture
def grounds(database_url: str, sqlite_template: Path, tmp_path: Path) -> Iterator[list[Ground]]:
    """One on each database: to make up what is asked takes longer than to ask it twice."""
    beside = shutil.copy(sqlite_template, tmp_path / "beside.db")
    with Ground(database_url) as ground, Ground(f"sqlite:///{beside}") as other:
        yield [ground, other]


class Asking:
    """Asks one operation after the other, and notes what is wrong with the answers."""

    def __init__(self, grounds: list[Ground]) -> None:
        self._grounds = [(ground.address, _session(ground)) for ground in grounds]
        self.asked: Counter[str] = Counter()
        self.faults: dict[str, str] = {}

    def ask(self, operation: APIOperation, mode: GenerationMode, *, until: float) -> None:
        known = {name: KNOWN[name] for name in _path_parameters(operation) if name in KNOWN}
        anything = operation.as_strategy(mode)
        cases = anything if not known else anything | operation.as_strategy(mode, path_parameters=known)
        before = self.asked[operation.label]

        @given(case=cases)
        @hypothesis_settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def asked(case: schemathesis.Case) -> None:
            # However slow the machine, everything is asked something.
            if time.monotonic() > until and self.asked[operation.label] > before:
                raise Over
            self._check(case)

        try:
            asked()
        except Over:
            pass
        except Unsatisfiable:
            # There is nothing wrong to ask of what takes no parameters.
            assert mode is GenerationMode.NEGATIVE

    def _check(self, case: schemathesis.Case) -> None:
        label = case.operation.label
        self.asked[label] += 1
        for address, session in self._grounds:
            answer = case.call(base_url=address, session=session, timeout=20)
            if answer.status_code == 400 and answer.text == NO_HTTP:
                continue
            try:
                case.validate_response(answer, checks=CHECKS)
            except FailureGroup as failures:
                sent = f"{case.method} {case.formatted_path} {case.query} {case.body!r}"[:1_000]
                said = f"{answer.status_code} {answer.text[:500]}"
                self.faults.setdefault(label, f"{address} {sent}\n{said}\n{failures.exceptions}")


def _session(ground: Ground) -> requests.Session:
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {ground.key}"
    return session


def _path_parameters(operation: APIOperation) -> list[str]:
    return [each.name for each in operation.path_parameters]


@pytest.mark.parametrize("backend", ["postgres18"])
def test_nothing_that_is_asked_is_a_fault_of_the_server_s(grounds: list[Ground]):
    asking = Asking(grounds)
    schema = schemathesis.openapi.from_dict(document()).exclude(path=ENDLESS)
    found = [each.ok() for each in schema.get_all_operations()]
    # What removes comes last, so that there is something to ask about until then.
    runs = [(each, mode) for each in found for mode in MODES]
    runs.sort(key=lambda run: run[0].method.lower() == "delete")
    end = time.monotonic() + SECONDS
    for place, (operation, mode) in enumerate(runs):
        now = time.monotonic()
        asking.ask(operation, mode, until=now + (end - now) / (len(runs) - place))
    if asking.faults:
        pytest.fail("\n\n".join(asking.faults.values()))
    assert {each.label for each in found} == set(asking.asked)
    assert asking.asked.total() > 3 * len(found)
