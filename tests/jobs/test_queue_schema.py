"""The queue's schema: created once, migrated from any earlier state, not migrated if another application owns it."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from sqlalchemy.engine import make_url

from infra.postgres import PostgresServer
from quire.errors import SchemaOutdated
from quire.jobs import Job, JobQueue, queue_schema

pytestmark = pytest.mark.every_postgres

SCHEMA_QUERY = """
    SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_name LIKE 'procrastinate%'
    UNION SELECT proname, pg_get_function_identity_arguments(oid), '' FROM pg_proc WHERE proname LIKE 'procrastinate%'
    UNION SELECT indexname, indexdef, '' FROM pg_indexes WHERE tablename LIKE 'procrastinate%'
"""


@pytest.fixture
def empty_url(admin_url: str) -> Iterator[str]:
    server, name = PostgresServer(make_url(admin_url).port or 0), f"empty_{uuid.uuid4().hex}"
    server.create_database(name)
    yield server.url(name)
    server.drop_database(name)


def read_schema(url: str) -> set[tuple[str, ...]]:
    with psycopg.connect(url) as owner:
        return set(owner.execute(SCHEMA_QUERY).fetchall())


def test_concurrent_upgrades_create_it_once(admin_url: str):
    assert not queue_schema.has_queue(admin_url)
    with pytest.raises(SchemaOutdated, match="`quire db upgrade`"):
        queue_schema.check_queue(admin_url)
    with ThreadPoolExecutor(3) as threads:
        assert len(set(threads.map(queue_schema.upgrade, [admin_url] * 3))) == 1
    queue_schema.check_queue(admin_url)
    before = read_schema(admin_url)
    queue_schema.upgrade(admin_url)
    assert read_schema(admin_url) == before


def test_an_older_one_gets_the_migrations_that_it_lacks(admin_url: str, empty_url: str):
    queue_schema.upgrade(admin_url)
    older = queue_schema.list_migrations()[:-4]
    assert len(older) > 20
    with psycopg.connect(empty_url, autocommit=True) as owner:
        owner.execute("CREATE TABLE quire_queue_migrations (migration text PRIMARY KEY)")
        for path in older:
            owner.execute(path.read_text())  # pyright: ignore[reportArgumentType, reportCallIssue]
            owner.execute("INSERT INTO quire_queue_migrations VALUES (%s)", [path.name])
    assert not queue_schema.has_queue(empty_url)
    assert queue_schema.upgrade(empty_url) == queue_schema.list_migrations()[-1].stem
    queue_schema.check_queue(empty_url)
    missing = read_schema(admin_url) - read_schema(empty_url)
    assert missing == set()


def test_tables_of_another_application_are_not_migrated(admin_url: str):
    from procrastinate.schema import SchemaManager

    with psycopg.connect(admin_url, autocommit=True) as owner:
        owner.execute(SchemaManager.get_schema())
    before = read_schema(admin_url)
    queue_schema.upgrade(admin_url)
    assert read_schema(admin_url) == before
    assert queue_schema.has_queue(admin_url)


async def test_a_role_that_is_let_in_can_use_it(queue_url: str):
    queue_schema.check_queue(queue_url)
    async with JobQueue.open(queue_url) as queue:
        await queue.defer([Job("compact", "default", "c")])
        worker = await queue.app.job_manager.register_worker()
        job = await queue.app.job_manager.fetch_job(queues=["quire"], worker_id=worker)
        assert job is not None


def test_sqlite_has_none():
    assert not queue_schema.has_queue("sqlite:///x.db")
