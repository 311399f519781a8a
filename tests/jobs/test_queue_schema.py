"""The queue's tables: made once, brought up to date from any earlier state, and left alone where they are others'."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from sqlalchemy.engine import make_url

from quire.errors import SchemaOutdated
from quire.jobs import Job, Queue, schema
from quire.testing.postgres import Server

pytestmark = pytest.mark.parametrize("backend", ["postgres18", "postgres15"])

SHAPE = """
    SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_name LIKE 'procrastinate%'
    UNION SELECT proname, pg_get_function_identity_arguments(oid), '' FROM pg_proc WHERE proname LIKE 'procrastinate%'
    UNION SELECT indexname, indexdef, '' FROM pg_indexes WHERE tablename LIKE 'procrastinate%'
"""


@pytest.fixture
def empty_url(admin_url: str) -> Iterator[str]:
    server, name = Server(make_url(admin_url).port or 0), f"empty_{uuid.uuid4().hex}"
    server.create_database(name)
    yield server.url(name)
    server.drop_database(name)


def shape(url: str) -> set[tuple[str, ...]]:
    with psycopg.connect(url) as owner:
        return set(owner.execute(SHAPE).fetchall())


def test_it_is_made_once_whoever_else_is_at_it(admin_url: str):
    assert not schema.is_there(admin_url)
    with pytest.raises(SchemaOutdated, match="`quire db upgrade`"):
        schema.check(admin_url)
    with ThreadPoolExecutor(3) as threads:
        assert len(set(threads.map(schema.upgrade, [admin_url] * 3))) == 1
    schema.check(admin_url)
    before = shape(admin_url)
    schema.upgrade(admin_url)
    assert shape(admin_url) == before


def test_an_older_one_gets_the_migrations_that_it_lacks(admin_url: str, empty_url: str):
    schema.upgrade(admin_url)
    older = schema.migrations()[:-4]
    assert len(older) > 20
    with psycopg.connect(empty_url, autocommit=True) as owner:
        owner.execute("CREATE TABLE quire_queue (migration text PRIMARY KEY)")
        for path in older:
            owner.execute(path.read_text())  # pyright: ignore[reportArgumentType, reportCallIssue]
            owner.execute("INSERT INTO quire_queue VALUES (%s)", [path.name])
    assert not schema.is_there(empty_url)
    assert schema.upgrade(empty_url) == schema.migrations()[-1].stem
    schema.check(empty_url)
    missing = shape(admin_url) - shape(empty_url)
    assert missing == set()


def test_tables_that_somebody_else_made_are_left_to_them(admin_url: str):
    from procrastinate.schema import SchemaManager

    with psycopg.connect(admin_url, autocommit=True) as owner:
        owner.execute(SchemaManager.get_schema())
    before = shape(admin_url)
    schema.upgrade(admin_url)
    assert shape(admin_url) == before
    assert schema.is_there(admin_url)


async def test_a_role_that_is_let_in_can_use_it(queue_url: str):
    schema.check(queue_url)
    async with Queue.opened(queue_url) as queue:
        await queue.defer([Job("compact", "default", "c")])
        worker = await queue.app.job_manager.register_worker()
        job = await queue.app.job_manager.fetch_job(queues=["quire"], worker_id=worker)
        assert job is not None


def test_sqlite_has_none(backend: str):
    assert not schema.is_there("sqlite:///x.db")
