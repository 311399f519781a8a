"""A database with a queue, reached as the application reaches it."""

import pytest

from quire.jobs import schema


@pytest.fixture
def queue_url(database_url: str, admin_url: str) -> str:
    schema.upgrade(admin_url)
    schema.grant(admin_url, "quire_app")
    return database_url
