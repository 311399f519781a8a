"""Fixture: a database with a job queue, connected as the application role."""

import pytest

from quire.jobs import queue_schema


@pytest.fixture
def queue_url(database_url: str, admin_url: str) -> str:
    queue_schema.upgrade(admin_url)
    queue_schema.grant(admin_url, "quire_app")
    return database_url
