"""API keys: which texts are accepted, tenant isolation, and that only a digest of the secret is stored."""

import hmac
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, create_engine, text

from quire.access import keys
from quire.access.keys import KEY_SCOPES, ApiKey
from quire.db.store_part import read
from quire.errors import InvalidKey, InvalidRequest, KeyNotFound
from quire.model import ids
from quire.store import SqlStore

pytestmark = pytest.mark.every_database

DAY = 86_400_000_000


class Clock:
    """The log's clock; tests can move it forward."""

    def __init__(self) -> None:
        self.ahead = 0
        self._real = ids.now

    def now(self) -> int:
        return self._real() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(keys, "now", clock.now)
    return clock


async def test_a_key_is_verified_by_its_text_through_the_store_of_any_tenant(store: SqlStore):
    key, key_text = await store.for_tenant("a").keys.create("laptop", ["chat", "read"], requests_per_minute=7)
    assert (key.tenant, key.name, key.scopes, key.requests_per_minute) == ("a", "laptop", {"read", "chat"}, 7)
    for tenant in ("a", "b", "default"):
        assert await store.for_tenant(tenant).keys.verify(key_text) == key


def test_a_secret_has_256_random_bits():
    secrets = {ids.new_secret() for _ in range(200)}
    assert len(secrets) == 200
    assert all(re.fullmatch("[0-9A-Za-z]{43}", secret) for secret in secrets)
    assert 62**43 > 2**256


@given(st.integers(0, 2**256 - 1))
def test_every_value_of_a_secret_has_a_text_of_its_own(value: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids.secrets, "randbits", lambda bits: value if bits == 256 else 0)
        secret = ids.new_secret()
    alphabet = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    decoded = 0
    for char in secret:
        decoded = decoded * 62 + alphabet.index(char)
    assert (decoded, len(secret)) == (value, 43)


LAST_INDEX = 75


def replace_char(text: str, index: int) -> str:
    """The same text with another character at this index."""
    return text[:index] + ("a" if text[index] != "a" else "b") + text[index + 1 :]


WRONG: dict[str, Callable[[str], str]] = {
    "another secret": lambda key_text: replace_char(key_text, LAST_INDEX),
    "another beginning of the secret": lambda key_text: replace_char(key_text, 33),
    "another id": lambda key_text: replace_char(key_text, 20),
    "the id alone": lambda key_text: key_text[:32],
    "the secret alone": lambda key_text: key_text[33:],
    "without its end": lambda key_text: key_text[:-1],
    "with something after it": lambda key_text: key_text + "a",
    "with a line after it": lambda key_text: key_text + "\n",
    "with a space before it": lambda key_text: " " + key_text,
    "in capitals": lambda key_text: key_text.upper(),
    "another prefix": lambda key_text: key_text.replace("quire", "quirk"),
    "nothing": lambda _: "",
    "only underscores": lambda _: "quire__",
    "a quotation mark": lambda key_text: key_text[:20] + "'" + key_text[21:],
    "a percent sign": lambda key_text: key_text[:20] + "%" + key_text[21:],
    "a NUL": lambda key_text: key_text[:20] + "\x00" + key_text[21:],
    "digits of another script": lambda key_text: key_text[:-1] + "\u0664",
    "half a character": lambda key_text: key_text[:-1] + "\ud800",
    "very long": lambda key_text: key_text + "x" * 1_000_000,
    "a very long id": lambda key_text: "quire_" + "0" * 100_000 + key_text[32:],
}


async def test_texts_that_are_not_a_key_are_rejected(store: SqlStore):
    _, key_text = await store.keys.create("laptop", KEY_SCOPES)
    await store.keys.create("another", KEY_SCOPES)
    for what, wrong in WRONG.items():
        assert await store.keys.verify(wrong(key_text)) is None, what
    assert await store.keys.verify(key_text) is not None


@given(st.text())
async def test_any_text_can_be_presented(value: str):
    assert keys.parse_key(value) is None
    assert keys.parse_key(f"quire_{value}_{value}") is None


async def test_the_secret_of_one_key_is_rejected_for_another(store: SqlStore):
    _, one = await store.for_tenant("a").keys.create("one", KEY_SCOPES)
    _, other = await store.for_tenant("b").keys.create("other", KEY_SCOPES)
    assert await store.keys.verify(one[:32] + other[32:]) is None


async def test_a_revoked_key_is_rejected_and_stays_listed(store: SqlStore, clock: Clock):
    key, key_text = await store.keys.create("laptop", ["read"])
    revoked = await store.keys.revoke(key.id)
    assert revoked.revoked_at is not None
    assert revoked == key._replace(revoked_at=revoked.revoked_at)
    assert await store.keys.verify(key_text) is None
    clock.ahead = DAY
    assert await store.keys.revoke(key.id) == revoked
    assert await store.keys.list() == [revoked]


async def test_a_key_is_valid_until_it_expires(store: SqlStore, clock: Clock):
    key, key_text = await store.keys.create("guest", ["read"], expires_at=clock.now() + DAY)
    assert await store.keys.verify(key_text) == key
    clock.ahead = DAY
    assert await store.keys.verify(key_text) is None
    assert key.is_valid_at(key.expires_at - 1)
    assert not key.is_valid_at(key.expires_at)


@pytest.mark.parametrize(
    "arguments",
    [
        {"scopes": []},
        {"scopes": ["everything"]},
        {"scopes": ["read", "read write"]},
        {"name": ""},
        {"name": " \n"},
        {"name": "x" * 201},
        {"requests_per_minute": 0},
        {"requests_per_minute": -1},
        {"requests_per_minute": 2**31},
        {"expires_at": 0},
        {"expires_at": 2**63},
    ],
)
async def test_invalid_keys_are_not_created(store: SqlStore, arguments: dict[str, Any]):
    with pytest.raises(InvalidRequest):
        await store.keys.create(**{"name": "laptop", "scopes": ["read"], **arguments})
    assert await store.keys.list() == []


async def test_a_name_may_be_any_text(store: SqlStore):
    key, key_text = await store.keys.create("naïve \U0001f511 \x00'; --", ["read"])
    assert key.name == "naïve \U0001f511 \ufffd'; --"
    assert await store.keys.verify(key_text) == key


async def test_a_tenant_sees_and_revokes_its_own_keys_alone(store: SqlStore):
    mine, theirs = store.for_tenant("a"), store.for_tenant("b")
    key, key_text = await theirs.keys.create("theirs", ["read"])
    assert await mine.keys.list() == []
    with pytest.raises(KeyNotFound):
        await mine.keys.revoke(key.id)
    with pytest.raises(KeyNotFound):
        await mine.keys.revoke("no such key")
    assert await theirs.keys.list() == [key]
    assert await store.keys.verify(key_text) == key


async def test_keys_are_listed_newest_first_in_pages(store: SqlStore):
    created = [(await store.keys.create(f"key {number}", ["read"]))[0] for number in range(7)]
    found: list[ApiKey] = []
    while page := await store.keys.list(limit=3, before=found[-1] if found else None):
        found += page
    assert sorted(found) == sorted(created)
    assert [each.created_at for each in found] == sorted((each.created_at for each in found), reverse=True)


async def test_the_secret_is_nowhere_in_the_database(store: SqlStore, admin_url: str):
    _, key_text = await store.keys.create("laptop", KEY_SCOPES)
    secret = key_text[33:]
    engine = create_engine(admin_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        [row] = connection.execute(text("SELECT * FROM quire_api_keys"))
    engine.dispose()
    assert key_text[6:32] in row
    assert not any(secret in str(value) or secret.encode() in bytes(str(value), "utf-8") for value in row)


async def test_known_and_unknown_ids_go_through_one_constant_time_comparison(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    compared: list[tuple[bytes, bytes]] = []

    def recording(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    key, key_text = await store.keys.create("laptop", ["read"])
    revoked, revoked_text = await store.keys.create("gone", ["read"])
    await store.keys.revoke(revoked.id)
    monkeypatch.setattr(keys, "hmac", SimpleNamespace(compare_digest=recording))
    for presented, expected in [
        (key_text, key),
        (replace_char(key_text, LAST_INDEX), None),
        (replace_char(key_text, 20), None),
        (revoked_text, None),
    ]:
        compared.clear()
        assert await store.keys.verify(presented) == expected
        assert [tuple(map(len, pair)) for pair in compared] == [(32, 32)]
        assert presented[33:].encode() not in compared[0]


async def test_a_key_without_its_secret_does_not_say_whether_it_was_revoked_or_exists(store: SqlStore):
    key, key_text = await store.keys.create("laptop", ["read"])
    wrong = replace_char(key_text, LAST_INDEX)
    before = await store.keys.verify(wrong)
    await store.keys.revoke(key.id)
    assert await store.keys.verify(wrong) is before is None


VISIBLE_KEYS = "SELECT tenant, id FROM quire_api_keys ORDER BY tenant"


def execute_as(session: psycopg.Connection[Any], statement: str, *, tenant: str = "", key: str = "") -> Any:
    """Runs a statement that does not filter by tenant."""
    with session.transaction():
        settings = "SELECT set_config('quire.tenant', %s, true), set_config('quire.key_id', %s, true)"
        session.execute(settings, [tenant, key])
        cursor = session.execute(statement)
        return cursor.fetchall() if cursor.description else cursor.rowcount


def list_visible_keys(session: psycopg.Connection[Any], *, tenant: str = "", key: str = "") -> list[tuple[str, str]]:
    return execute_as(session, VISIBLE_KEYS, tenant=tenant, key=key)


@pytest.mark.every_postgres
async def test_a_query_that_forgets_the_tenant_sees_its_own_keys_and_the_presented_one(
    store: SqlStore, database_url: str
):
    mine, _ = await store.for_tenant("a").keys.create("mine", ["read"])
    theirs, _ = await store.for_tenant("b").keys.create("theirs", ["read"])
    other, _ = await store.for_tenant("b").keys.create("another of theirs", ["read"])
    with psycopg.connect(database_url, autocommit=True) as session:
        assert session.execute(VISIBLE_KEYS).fetchall() == []
        assert list_visible_keys(session) == []
        assert list_visible_keys(session, tenant="a") == [("a", mine.id)]
        assert list_visible_keys(session, key=theirs.id) == [("b", theirs.id)]
        assert list_visible_keys(session, tenant="a", key=other.id) == [("a", mine.id), ("b", other.id)]
        assert list_visible_keys(session, key="%") == list_visible_keys(session, key="no such key") == []
        # The settings end with the transaction.
        assert session.execute(VISIBLE_KEYS).fetchall() == []


@pytest.mark.every_postgres
async def test_only_its_tenant_can_change_a_presented_key(store: SqlStore, database_url: str, admin_url: str):
    theirs, key_text = await store.for_tenant("b").keys.create("theirs", ["read"])
    with psycopg.connect(database_url, autocommit=True) as session:
        for statement in ("UPDATE quire_api_keys SET scopes = 'admin'", "DELETE FROM quire_api_keys"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                execute_as(session, statement, tenant="b")
    # Even with the right to update and delete, a role finds only keys of its own tenant.
    with psycopg.connect(admin_url, autocommit=True) as owner:
        owner.execute("GRANT UPDATE, DELETE ON quire_api_keys TO quire_app")
    with psycopg.connect(database_url, autocommit=True) as session:
        for statement in (
            "UPDATE quire_api_keys SET revoked_at = 1",
            "UPDATE quire_api_keys SET name = 'mine now'",
            "UPDATE quire_api_keys SET tenant = 'a'",
            "UPDATE quire_api_keys SET scopes = 'admin'",
            "DELETE FROM quire_api_keys",
        ):
            assert execute_as(session, statement, tenant="a", key=theirs.id) == 0
    assert await store.keys.verify(key_text) == theirs


def select_without_tenant(connection: Connection, _tenant: str) -> list[Any]:
    return connection.execute(text(VISIBLE_KEYS)).all()


@pytest.mark.every_postgres
async def test_a_presented_key_is_not_visible_to_the_next_user_of_the_connection(store: SqlStore):
    _, key_text = await store.for_tenant("b").keys.create("theirs", ["read"])
    for _ in range(20):
        assert await store.keys.verify(key_text) is not None
        assert await store.for_tenant("a").run(read, select_without_tenant) == []


@pytest.mark.every_postgres
def test_the_policy_lets_a_tenants_own_keys_be_changed_and_one_other_be_seen(admin_url: str):
    with psycopg.connect(admin_url) as owner:
        policies = owner.execute("""
            SELECT polname, polcmd, pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid), polroles,
                relrowsecurity AND relforcerowsecurity
            FROM pg_policy JOIN pg_class ON pg_class.oid = polrelid WHERE relname = 'quire_api_keys' ORDER BY polname
        """).fetchall()
    own = "(tenant = NULLIF(current_setting('quire.tenant'::text, true), ''::text))"
    presented = "(id = NULLIF(current_setting('quire.key_id'::text, true), ''::text))"
    assert policies == [("own_rows", "*", own, own, [0], True), ("presented_key", "r", presented, None, [0], True)]


async def test_a_revocation_includes_all_keys_that_were_created_with_the_key(store: SqlStore):
    first, first_text = await store.keys.create("first", KEY_SCOPES)
    second, second_text = await store.keys.create("second", ["admin", "chat"], created_by=first.id)
    _, third_text = await store.keys.create("third", ["chat"], created_by=second.id)
    _, other_text = await store.keys.create("other", ["chat"], created_by=first.id)
    assert (second.created_by, (await store.keys.verify(second_text))) == (first.id, second)
    await store.keys.revoke(second.id)
    found = [await store.keys.verify(each) is not None for each in (first_text, second_text, third_text, other_text)]
    assert found == [True, False, False, True]
    with pytest.raises(InvalidKey):
        await store.keys.create("late", ["chat"], created_by=second.id)
    with pytest.raises(InvalidKey):
        await store.for_tenant("b").keys.create("theirs", ["chat"], created_by=first.id)
    await store.keys.revoke(first.id)
    assert await store.keys.verify(other_text) is None
