"""Fixture: a database with a job queue, connected as the application role."""

import pytest

from quire.engine import message_index
from quire.jobs import queue_schema


@pytest.fixture
def queue_url(database_url: str, admin_url: str) -> str:
    queue_schema.upgrade(admin_url)
    queue_schema.grant(admin_url, "quire_app")
    return database_url


@pytest.fixture(autouse=True)
def no_indexing_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines index what is appended only when a test runs the job or waits for them."""
    monkeypatch.setattr(message_index, "DEBOUNCE_SECONDS", 60.0)
