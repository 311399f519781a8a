"""Keys: what opens and what does not, whose they are, and that nothing but a digest is kept of them."""

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

from quire.errors import InvalidRequest, KeyNotFound
from quire.log import SCOPES, Key, SqlStore, fresh, keys

on_postgres = pytest.mark.parametrize("backend", ["postgres18", "postgres15"])

DAY = 86_400_000_000


class Clock:
    """The log's clock, which goes on by itself and can be set forward."""

    def __init__(self) -> None:
        self.ahead = 0
        self._real = fresh.now

    def now(self) -> int:
        return self._real() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(keys, "now", made.now)
    return made


@pytest.mark.every_backend
async def test_a_key_is_recognised_by_its_text_whichever_tenant_is_asked(store: SqlStore):
    made, shown = await store.for_tenant("a").create_key("laptop", ["chat", "read"], requests_per_minute=7)
    assert (made.tenant, made.name, made.scopes, made.requests_per_minute) == ("a", "laptop", {"read", "chat"}, 7)
    for tenant in ("a", "b", "default"):
        assert await store.for_tenant(tenant).key_shown(shown) == made


def test_a_text_has_an_id_that_is_public_and_256_bits_of_chance():
    secrets = {fresh.new_secret() for _ in range(200)}
    assert len(secrets) == 200
    assert all(re.fullmatch("[0-9A-Za-z]{43}", secret) for secret in secrets)
    assert 62**43 > 2**256


@given(st.integers(0, 2**256 - 1))
def test_every_value_of_a_secret_has_a_text_of_its_own(value: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fresh.secrets, "randbits", lambda bits: value if bits == 256 else 0)
        written = fresh.new_secret()
    signs = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    read = 0
    for sign in written:
        read = read * 62 + signs.index(sign)
    assert (read, len(written)) == (value, 43)


LAST = 75


def changed(shown: str, place: int) -> str:
    """The same text with another character at this place."""
    return shown[:place] + ("a" if shown[place] != "a" else "b") + shown[place + 1 :]


WRONG: dict[str, Callable[[str], str]] = {
    "another secret": lambda shown: changed(shown, LAST),
    "another beginning of the secret": lambda shown: changed(shown, 33),
    "another id": lambda shown: changed(shown, 20),
    "the id alone": lambda shown: shown[:32],
    "the secret alone": lambda shown: shown[33:],
    "without its end": lambda shown: shown[:-1],
    "with something after it": lambda shown: shown + "a",
    "with a line after it": lambda shown: shown + "\n",
    "with a space before it": lambda shown: " " + shown,
    "in capitals": lambda shown: shown.upper(),
    "another prefix": lambda shown: shown.replace("quire", "quirk"),
    "nothing": lambda _: "",
    "only underscores": lambda _: "quire__",
    "a quotation mark": lambda shown: shown[:20] + "'" + shown[21:],
    "a percent sign": lambda shown: shown[:20] + "%" + shown[21:],
    "a NUL": lambda shown: shown[:20] + "\x00" + shown[21:],
    "digits of another script": lambda shown: shown[:-1] + "\u0664",
    "half a character": lambda shown: shown[:-1] + "\ud800",
    "very long": lambda shown: shown + "x" * 1_000_000,
    "a very long id": lambda shown: "quire_" + "0" * 100_000 + shown[32:],
}


@pytest.mark.every_backend
async def test_what_is_not_the_text_of_a_key_opens_nothing(store: SqlStore):
    _, shown = await store.create_key("laptop", SCOPES)
    await store.create_key("another", SCOPES)
    for what, wrong in WRONG.items():
        assert await store.key_shown(wrong(shown)) is None, what
    assert await store.key_shown(shown) is not None


@given(st.text())
async def test_any_text_can_be_shown(given: str):
    assert keys.parse(given) is None
    assert keys.parse(f"quire_{given}_{given}") is None


async def test_one_keys_secret_does_not_open_another(store: SqlStore):
    _, one = await store.for_tenant("a").create_key("one", SCOPES)
    _, other = await store.for_tenant("b").create_key("other", SCOPES)
    assert await store.key_shown(one[:32] + other[32:]) is None


async def test_a_revoked_key_opens_nothing_and_stays_on_record(store: SqlStore, clock: Clock):
    made, shown = await store.create_key("laptop", ["read"])
    gone = await store.revoke_key(made.id)
    assert gone.revoked_at is not None
    assert gone == made._replace(revoked_at=gone.revoked_at)
    assert await store.key_shown(shown) is None
    clock.ahead = DAY
    assert await store.revoke_key(made.id) == gone
    assert await store.keys() == [gone]


async def test_a_key_opens_until_it_expires(store: SqlStore, clock: Clock):
    made, shown = await store.create_key("guest", ["read"], expires_at=clock.now() + DAY)
    assert await store.key_shown(shown) == made
    clock.ahead = DAY
    assert await store.key_shown(shown) is None
    assert made.opens_at(made.expires_at - 1)
    assert not made.opens_at(made.expires_at)


@pytest.mark.parametrize(
    "wanted",
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
async def test_a_key_that_would_be_of_no_use_is_not_made(store: SqlStore, wanted: dict[str, Any]):
    with pytest.raises(InvalidRequest):
        await store.create_key(**{"name": "laptop", "scopes": ["read"], **wanted})
    assert await store.keys() == []


async def test_a_name_may_be_any_text(store: SqlStore):
    made, shown = await store.create_key("naïve \U0001f511 \x00'; --", ["read"])
    assert made.name == "naïve \U0001f511 \ufffd'; --"
    assert await store.key_shown(shown) == made


@pytest.mark.every_backend
async def test_a_tenant_sees_and_revokes_its_own_keys_alone(store: SqlStore):
    mine, theirs = store.for_tenant("a"), store.for_tenant("b")
    made, shown = await theirs.create_key("theirs", ["read"])
    assert await mine.keys() == []
    with pytest.raises(KeyNotFound):
        await mine.revoke_key(made.id)
    with pytest.raises(KeyNotFound):
        await mine.revoke_key("no such key")
    assert await theirs.keys() == [made]
    assert await store.key_shown(shown) == made


async def test_keys_are_listed_newest_first_in_pages(store: SqlStore):
    made = [(await store.create_key(f"key {number}", ["read"]))[0] for number in range(7)]
    found: list[Key] = []
    while page := await store.keys(limit=3, before=found[-1] if found else None):
        found += page
    assert sorted(found) == sorted(made)
    assert [each.created_at for each in found] == sorted((each.created_at for each in found), reverse=True)


async def test_the_secret_is_nowhere_in_the_database(store: SqlStore, admin_url: str):
    _, shown = await store.create_key("laptop", SCOPES)
    secret = shown[33:]
    engine = create_engine(admin_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        [row] = connection.execute(text("SELECT * FROM quire_keys"))
    engine.dispose()
    assert shown[6:32] in row
    assert not any(secret in str(value) or secret.encode() in bytes(str(value), "utf-8") for value in row)


async def test_known_and_unknown_ids_take_the_same_way_through_one_constant_time_comparison(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    compared: list[tuple[bytes, bytes]] = []

    def watched(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    made, shown = await store.create_key("laptop", ["read"])
    revoked, gone = await store.create_key("gone", ["read"])
    await store.revoke_key(revoked.id)
    monkeypatch.setattr(keys, "hmac", SimpleNamespace(compare_digest=watched))
    for given_, opened in [(shown, made), (changed(shown, LAST), None), (changed(shown, 20), None), (gone, None)]:
        compared.clear()
        assert await store.key_shown(given_) == opened
        assert [tuple(map(len, pair)) for pair in compared] == [(32, 32)]
        assert given_[33:].encode() not in compared[0]


async def test_a_key_without_its_secret_does_not_say_whether_it_was_revoked_or_exists(store: SqlStore):
    made, shown = await store.create_key("laptop", ["read"])
    wrong = changed(shown, LAST)
    before = await store.key_shown(wrong)
    await store.revoke_key(made.id)
    assert await store.key_shown(wrong) is before is None


SEEN = "SELECT tenant, id FROM quire_keys ORDER BY tenant"


def executed(session: psycopg.Connection[Any], statement: str, *, tenant: str = "", key: str = "") -> Any:
    """What a statement does that forgets to say whose rows it means."""
    with session.transaction():
        session.execute("SELECT set_config('quire.tenant', %s, true), set_config('quire.key', %s, true)", [tenant, key])
        done = session.execute(statement)
        return done.fetchall() if done.description else done.rowcount


def seen(session: psycopg.Connection[Any], *, tenant: str = "", key: str = "") -> list[tuple[str, str]]:
    return executed(session, SEEN, tenant=tenant, key=key)


@on_postgres
async def test_a_query_that_forgets_the_tenant_sees_its_own_keys_and_the_one_that_is_shown(
    store: SqlStore, database_url: str
):
    mine, _ = await store.for_tenant("a").create_key("mine", ["read"])
    theirs, _ = await store.for_tenant("b").create_key("theirs", ["read"])
    other, _ = await store.for_tenant("b").create_key("another of theirs", ["read"])
    with psycopg.connect(database_url, autocommit=True) as session:
        assert session.execute(SEEN).fetchall() == []
        assert seen(session) == []
        assert seen(session, tenant="a") == [("a", mine.id)]
        assert seen(session, key=theirs.id) == [("b", theirs.id)]
        assert seen(session, tenant="a", key=other.id) == [("a", mine.id), ("b", other.id)]
        assert seen(session, key="%") == seen(session, key="no such key") == []
        # Nothing of it outlives the transaction.
        assert session.execute(SEEN).fetchall() == []


@on_postgres
async def test_a_key_that_is_shown_can_be_changed_by_its_tenant_alone(
    store: SqlStore, database_url: str, admin_url: str
):
    theirs, shown = await store.for_tenant("b").create_key("theirs", ["read"])
    with psycopg.connect(database_url, autocommit=True) as session:
        for statement in ("UPDATE quire_keys SET scopes = 'admin'", "DELETE FROM quire_keys"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                executed(session, statement, tenant="b")
    # Whoever may change every column, and delete, still finds no key that is not its own.
    with psycopg.connect(admin_url, autocommit=True) as owner:
        owner.execute("GRANT UPDATE, DELETE ON quire_keys TO quire_app")
    with psycopg.connect(database_url, autocommit=True) as session:
        for statement in (
            "UPDATE quire_keys SET revoked_at = 1",
            "UPDATE quire_keys SET name = 'mine now'",
            "UPDATE quire_keys SET tenant = 'a'",
            "UPDATE quire_keys SET scopes = 'admin'",
            "DELETE FROM quire_keys",
        ):
            assert executed(session, statement, tenant="a", key=theirs.id) == 0
    assert await store.key_shown(shown) == theirs


def forgetful(connection: Connection, _tenant: str) -> list[Any]:
    return connection.execute(text(SEEN)).all()


@on_postgres
async def test_a_key_that_was_shown_is_not_seen_by_who_gets_the_connection_next(store: SqlStore):
    _, shown = await store.for_tenant("b").create_key("theirs", ["read"])
    for _ in range(20):
        assert await store.key_shown(shown) is not None
        assert await store.for_tenant("a")._read(forgetful) == []


@on_postgres
def test_the_policy_lets_a_tenants_own_keys_be_changed_and_one_other_be_seen(admin_url: str):
    with psycopg.connect(admin_url) as owner:
        policies = owner.execute("""
            SELECT polname, polcmd, pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid), polroles,
                relrowsecurity AND relforcerowsecurity
            FROM pg_policy JOIN pg_class ON pg_class.oid = polrelid WHERE relname = 'quire_keys' ORDER BY polname
        """).fetchall()
    own = "(tenant = NULLIF(current_setting('quire.tenant'::text, true), ''::text))"
    shown = "(id = NULLIF(current_setting('quire.key'::text, true), ''::text))"
    assert policies == [("own_rows", "*", own, own, [0], True), ("shown", "r", shown, None, [0], True)]
