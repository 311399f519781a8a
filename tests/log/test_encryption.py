"""Encryption at rest: no text of an encrypted tenant is in the database, and all else works as without it."""

import asyncio
import base64
import logging
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Sized
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Text
from sqlalchemy.dialects import sqlite
from test_purge import CANARY, CANARY_PLACES, canary, index_all, plant_canaries

from infra.builders import export_lines, make_messages, make_turn, with_exchange
from infra.database_dump import contains_text, dump_database
from infra.postgres import PostgresServer, find_binaries
from quire.db import migrate, tenant_keys
from quire.db.column_types import Bytes, ChangedCiphertext, Sealed, SealedText, StaleKey, TenantCipher
from quire.db.database_url import is_postgres
from quire.db.schema import metadata
from quire.db.tenant_keys import TenantKeys
from quire.engine import open_engine
from quire.errors import InvalidConfiguration
from quire.index.types import memory_scope
from quire.log.exchanges import encode_answer
from quire.log.observations import FileVersion
from quire.log.transcripts import TranscriptKey, TranscriptLine
from quire.log.types import Citation, ConversationOrigin
from quire.model import Message
from quire.store import SqlStore
from quire.team.key_wrappers import KeyCommand, LocalKeys
from quire.team.store import TeamStore
from quire.turns.leases import LeaseGrant

PLACE = b"table.column"
UNBOUND_TEXT = "q1.CDWbEI+lmd8PEwlMFk2B1RV7ebTf/pzFHKJp4SrOBzNVuLZXhtfKXBx5eg=="
UNBOUND_FRAME = "0000002b08359b108fa56cfc6a7b0bb8e6060e4ac2e72b5e7b1a9ac854b441fef8843e469052048ff6b3384153188d"
"""A text and bytes as earlier versions encrypted them, which did not bind them to their column."""
KEY, OTHER_KEY = (base64.b64encode(bytes([byte] * 32)).decode() for byte in (1, 2))


def make_keys(*keys: str, tenants: tuple[str, ...] | None = None) -> TenantKeys:
    encoded = "\n".join(keys or (KEY,))
    return TenantKeys(LocalKeys(lambda: encoded, source="The test"), lambda each: tenants is None or each in tenants)


@pytest.fixture
async def encrypted(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore.open(database_url, keys=make_keys()) as store:
        yield store


BLOB_PLACES = {"attachment", "upload", "resultfile", "givendocument"}
"""Exports have blobs in base64."""


def find_absent(text: str) -> set[str]:
    return {place for place in CANARY_PLACES if canary(place) not in text}


async def plant_elsewhere(store: SqlStore) -> None:
    """Writes the canary where `plant_canaries` does not: into every other column that is encrypted."""
    origin = ConversationOrigin(session=f"project:{CANARY}", client="gemini-cli")
    await store.create_conversation("session", origin=origin)
    await store.set_tags("session", [CANARY])
    body = f'{{"text":"{CANARY}"}}'.encode()
    turn = await with_exchange(store, "session", make_turn(*make_messages(2), body=body), body)
    assert turn.exchange is not None
    row, end = turn.exchange
    end = end._replace(error=CANARY, response=encode_answer({"x": CANARY}, CANARY.encode()))
    await store.record_reply("session", turn._replace(exchange=(row, end)))
    key = TranscriptKey(f"-home-{CANARY}", f"{CANARY}-1", f"agents/{CANARY}")
    await store.transcripts.append(key, [TranscriptLine("1", CANARY)], fold_summary=lambda *_: CANARY)
    await store.memories.add(CANARY, CANARY, source=f"{CANARY}.md", citation=Citation("session", 0, 1))
    await store.turn_events.append("session", "turn", 0, f'["{CANARY}"]')
    grant = await store.leases.acquire("session", 0, owner="process")
    assert isinstance(grant, LeaseGrant)
    await store.leases.end(grant.lease, outcome=f'"{CANARY}"')  # pyright: ignore[reportArgumentType]
    await store.imports.record_files([FileVersion(b"file", 1, 1)], {"session": f'{{"seen":"{CANARY}"}}'})
    await TeamStore(store).audit.append("search", actor="ann", target={"q": CANARY}, address="10.0.0.1")
    while await store.usage.count():
        pass
    await index_all(store)


@pytest.mark.every_database
async def test_no_text_is_in_a_dump_or_a_log_line_and_everything_is_read_again(
    database_url: str, admin_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    vault = tmp_path / f"vault {CANARY}"
    vault.mkdir()
    caplog.set_level(logging.DEBUG)
    async with open_engine(
        database_url,
        vault=vault,
        model="gpt-4o",
        context_limit=2_000,
        encryption={"key_env": "KEY"},
        environ={"KEY": KEY},
    ) as engine:
        store = engine.store
        await plant_canaries(engine, vault)
        await plant_elsewhere(store)
        assert not contains_text(dump_database(admin_url), CANARY)
        assert CANARY not in caplog.text
        assert await store.verify_conversation("c") == await store.verify_conversation("session") == []
        assert await store.verify_tenant() == await TeamStore(store).audit.verify() == []
        assert find_absent("".join(await export_lines(store, "c"))) == {*BLOB_PLACES, "memory"}
        assert [each.id for each in await store.list_conversations(tag=CANARY)] == ["session"]
        assert await store.list_tags() == [CANARY]
        assert [each.id for each in await store.list_session(f"project:{CANARY}")] == ["session"]
        body = await store.get_request_body("session", 2)
        assert body == f'{{"text":"{CANARY}"}}'.encode()
        [hit] = await store.passages.search(CANARY, scopes=[memory_scope(CANARY)])
        assert hit.text == CANARY
        found = await engine.search(canary("toolresult"))
        assert any(canary("toolresult") in each.entry.raw for each in found.messages)
        report = await store.usage.read_report()
        assert canary("project") in {group.name for group in report.groups["project"]}
        # What was found and erased by value is gone for readers too.
        assert "entries" in await store.find_value(canary("question"))
        await store.purge_value(canary("question"))
        assert await store.find_value(canary("question")) == {}
        assert await store.verify_conversation("c") == []


EXCHANGE_COLUMNS = {"conversation", "exchange", "base", "road", "reason", "model", "outcome", "row_digest"}
READABLE_COLUMNS = {
    "conversations": {"conversation", "client", "purpose", "row_digest"},
    "branches": {"conversation", "lineage", "head_digest", "head_path", "row_digest"},
    "entries": {"conversation", "kind", "role", "author", "counter", "digest", "path", "content_digest"},
    "paths": {"path", "conversation"},
    "blobs": {"digest", "media_type", "object"},
    "archives": {"conversation", "object", "row_digest"},
    "archived_replies": {"response_id", "conversation"},
    "pending_objects": {"object"},
    "blob_uses": {"conversation", "digest"},
    "manifests": {"conversation", "request_id", "response_id", "row_digest"},
    "exchanges": EXCHANGE_COLUMNS,
    "imports": {"conversation", "item", "digest"},
    "imported_files": {"file"},
    "continued_sessions": {"imported", "conversation"},
    "counted_requests": {"request", "conversation"},
    "observations": {"conversation"},
    "transcripts": {"conversation", "row_digest"},
    "transcript_lines": {"uuid", "row_digest"},
    "calibrations": {"model", "calibration", "row_digest"},
    "costs": {"conversation", "key_id"},
    "spending": {"key_id"},
    "spend_reservations": {"reservation", "conversation", "key_id"},
    "turn_leases": {"conversation", "turn", "owner", "question_digest", "pending_call", "approval"},
    # Encrypted tenants have their vectors in `terms`.
    "passages": {"digest", "embedder", "vector"},
    "message_segments": {"conversation", "embedder"},
    "unindexed_branches": {"conversation"},
    "uncounted_branches": {"conversation"},
    "counted_branches": {"conversation"},
    "memories": {"memory", "conversation", "replaced_by", "row_digest"},
    "documents": {"digest", "row_digest"},
    "api_keys": {"id", "name", "digest", "scopes", "models", "row_digest", "created_by"},
    "turn_events": {"conversation", "turn"},
    "rate_limits": {"key_id"},
    "background_responses": {"response", "conversation"},
    "usage_contributions": {"conversation", "dimension"},
    "usage_totals": {"dimension"},
    "usage_turns": {"conversation", "model"},
    "users": {"id", "subject", "name", "email", "roles", "row_digest"},
    "sessions": {"digest", "user_id", "tokens"},
    "directory_users": {"id", "user_name", "row_digest"},
    "directory_groups": {"id", "display_name", "external_id", "row_digest"},
    "directory_members": {"group_id", "user_id", "row_digest"},
    "shares": {"owner", "conversation", "reader"},
    "audit": {"actor", "action", "address", "digest"},
    "audit_heads": {"digest"},
    "audit_exports": {"claim"},
    "tenant_keys": {"key_id", "wrapped"},
}
"""Columns of tenants that stay readable, as docs/encryption.md lists them."""


def test_a_column_is_encrypted_or_known_to_be_readable():
    readable: dict[str, set[str]] = {}
    for table in metadata.sorted_tables:
        for column in table.c if "tenant" in table.c else ():
            if isinstance(column.type, Text | Bytes) and not isinstance(column.type, Sealed):
                readable.setdefault(table.name.removeprefix("quire_"), set()).add(column.name)
    assert {name: columns - {"tenant"} for name, columns in readable.items() if columns != {"tenant"}} == (
        READABLE_COLUMNS
    )


def test_an_engine_without_encryption_converts_nothing():
    assert SealedText().bind_processor(sqlite.dialect()) is None
    assert SealedText().result_processor(sqlite.dialect(), None) is None


def restore_sqlite(source: Path, copy: Path) -> str:
    """A backup as in docs/encryption.md, without the keys."""
    with closing(sqlite3.connect(source)) as connection:
        connection.execute("VACUUM INTO ?", [str(copy)])
    with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
        connection.executescript("PRAGMA secure_delete = ON; DELETE FROM quire_tenant_keys; VACUUM")
    return f"sqlite:///{copy}"


def restore_postgres(admin_url: str, folder: Path) -> str:
    server = PostgresServer(int(admin_url.rpartition(":")[2].partition("/")[0]))
    binaries, file, copy = find_binaries(18), str(folder / "quire.dump"), f"copy_{uuid.uuid4().hex}"
    options = ["--format", "custom", "--file", file, "--exclude-table-data=quire_tenant_keys"]
    subprocess.run([f"{binaries}/pg_dump", *options, admin_url], check=True)
    server.create_database(copy)
    subprocess.run([f"{binaries}/pg_restore", "--exit-on-error", "--dbname", server.url(copy), file], check=True)
    return server.url(copy)


def read_keys(url: str) -> list[tuple[Any, ...]]:
    query = "SELECT tenant, key_id, wrapped, created_at FROM quire_tenant_keys"
    if is_postgres(url):
        with psycopg.connect(url) as connection:
            return connection.execute(query).fetchall()
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        return connection.execute(query).fetchall()


def write_keys(url: str, rows: list[tuple[Any, ...]]) -> None:
    if is_postgres(url):
        with psycopg.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.executemany("INSERT INTO quire_tenant_keys VALUES (%s, %s, %s, %s)", rows)
        return
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.executemany("INSERT INTO quire_tenant_keys VALUES (?, ?, ?, ?)", rows)


@pytest.mark.parametrize("backend", ["sqlite", "postgres18"])
async def test_a_backup_without_keys_is_read_with_the_live_keys_and_not_after_the_purge(
    database_url: str, admin_url: str, tmp_path: Path
):
    async with SqlStore.open(database_url, keys=make_keys()) as store:
        for tenant in ("leaving", "staying"):
            own = store.for_tenant(tenant)
            await own.create_conversation("c", title=CANARY)
            await own.append("c", Message.user(CANARY))
    path = Path(admin_url.removeprefix("sqlite:///"))
    copy = (
        restore_postgres(admin_url, tmp_path) if is_postgres(admin_url) else restore_sqlite(path, tmp_path / "copy.db")
    )
    async with SqlStore.open(admin_url, tenant="leaving") as owner:
        assert (await owner.purge_tenant()).conversations == 1
    live_keys = read_keys(admin_url)
    assert [row[0] for row in live_keys] == ["staying"]
    write_keys(copy, live_keys)
    async with SqlStore.open(copy, keys=make_keys()) as store:
        staying, leaving = store.for_tenant("staying"), store.for_tenant("leaving")
        assert (await staying.get_entry("c", 1)).message.text == CANARY
        assert await staying.verify_conversation("c") == []
        for read in (leaving.list_conversations(), leaving.get_entry("c", 1), leaving.verify_conversation("c")):
            with pytest.raises(InvalidConfiguration, match="destroyed"):
                await read
    assert not contains_text(dump_database(copy), CANARY)


@pytest.mark.every_database
async def test_keys_are_rewrapped_while_a_server_writes(database_url: str):
    async with SqlStore.open(database_url, keys=make_keys(KEY)) as server:
        for tenant in ("a", "b"):
            await server.for_tenant(tenant).create_conversation("c", title=CANARY)
        async with SqlStore.open(database_url, keys=make_keys(OTHER_KEY, KEY)) as operator:
            rewrapped, _ = await asyncio.gather(
                operator.rewrap_keys(), server.for_tenant("a").append("c", *make_messages(3))
            )
        assert rewrapped == ["a", "b"]
        await server.for_tenant("b").append("c", *make_messages(3))
    async with SqlStore.open(database_url, keys=make_keys(OTHER_KEY)) as store:
        for tenant in rewrapped:
            assert (await store.for_tenant(tenant).get_conversation("c")).title == CANARY
            assert await store.for_tenant(tenant).verify_conversation("c") == []
    async with SqlStore.open(database_url, keys=make_keys(KEY)) as store:
        with pytest.raises(InvalidConfiguration, match="unwraps the data key of the tenant a"):
            await store.for_tenant("a").list_conversations()


async def test_a_program_wraps_keys_for_each_tenant_by_itself(database_url: str, tmp_path: Path):
    script = tmp_path / "kms.py"
    script.write_text(
        "import base64, os, sys\n"
        "key = base64.b64decode(sys.stdin.read())\n"
        "mask = os.environ['QUIRE_TENANT'].encode() * 100\n"
        "if os.environ['QUIRE_TENANT'] == 'refused': sys.exit('no such key ' + key.hex())\n"
        "print(base64.b64encode(bytes(a ^ b for a, b in zip(key, mask))).decode())\n"
    )
    wrapper = KeyCommand([sys.executable, str(script)], {})
    async with SqlStore.open(database_url, keys=TenantKeys(wrapper, lambda _: True)) as store:
        await store.create_conversation("c", title=CANARY)
        with pytest.raises(InvalidConfiguration, match="did not wrap the data key of the tenant refused") as refusal:
            await store.for_tenant("refused").create_conversation("c")
        assert "no such key" not in str(refusal.value)
    async with SqlStore.open(database_url, keys=TenantKeys(wrapper, lambda _: True)) as store:
        assert (await store.get_conversation("c")).title == CANARY


async def test_a_process_without_the_key_neither_reads_nor_writes_the_tenant(encrypted: SqlStore, database_url: str):
    await encrypted.create_conversation("c", title=CANARY)
    async with SqlStore.open(database_url) as plain:
        for work in (plain.list_conversations(), plain.create_conversation("d")):
            with pytest.raises(InvalidConfiguration, match="is encrypted, and this process has no key"):
                await work
        await plain.for_tenant("other").create_conversation("c", title="readable")
    assert [each.id for each in await encrypted.list_conversations()] == ["c"]


async def test_conversations_stored_without_encryption_are_exported_and_imported_to_encrypt_them(
    database_url: str, admin_url: str
):
    async with SqlStore.open(database_url) as plain:
        await plain.create_conversation("c", title=CANARY)
        await plain.append("c", *make_messages(3))
        lines = await export_lines(plain, "c")
        async with SqlStore.open(database_url, keys=make_keys()) as store:
            for work in (store.list_conversations(), store.create_conversation("d")):
                with pytest.raises(InvalidConfiguration, match="export its conversations without"):
                    await work
            await plain.purge_tenant()
            await store.import_conversation(lines)
            assert not contains_text(dump_database(admin_url), CANARY)
            assert await store.verify_conversation("c") == []
            assert await export_lines(store, "c") == lines


async def test_tenants_without_rows_are_remembered_up_to_a_limit(database_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tenant_keys, "MAX_CACHED_KEYS", 10)
    async with SqlStore.open(database_url, keys=make_keys()) as store:
        for number in range(100):
            assert await store.for_tenant(f"t{number}").list_conversations() == []
        remembered = [each for each in vars(store.base.keys).values() if isinstance(each, Sized)]
        assert remembered
        assert max(map(len, remembered)) <= 10


async def test_a_server_takes_the_new_key_of_a_tenant_that_was_purged(database_url: str, admin_url: str):
    async with (
        SqlStore.open(database_url, keys=make_keys()) as first,
        SqlStore.open(database_url, keys=make_keys()) as second,
    ):
        for store in (first, second):
            await store.create_conversation(f"{store is first}", title=CANARY)
        async with SqlStore.open(admin_url, keys=make_keys()) as owner:
            await owner.purge_tenant()
        await first.create_conversation("new", title="by the first")
        assert (await second.get_conversation("new")).title == "by the first"
        await second.rename_conversation("new", "by the second")
        assert (await first.get_conversation("new")).title == "by the second"
        assert await first.verify_conversation("new") == []


async def test_a_ciphertext_of_another_tenant_is_refused_and_a_changed_one_is_named(
    encrypted: SqlStore, admin_url: str
):
    for tenant in ("a", "b"):
        store = encrypted.for_tenant(tenant)
        await store.create_conversation("c", title=f"title of {tenant}")
        await store.append("c", *make_messages(3))
    with closing(sqlite3.connect(admin_url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        [(stolen,)] = connection.execute("SELECT title FROM quire_conversations WHERE tenant = 'b'").fetchall()
        connection.execute("UPDATE quire_conversations SET title = ? WHERE tenant = 'a'", [stolen])
        connection.execute(
            "UPDATE quire_entries SET body = replace(body, 'q3.', 'q3.A') WHERE tenant = 'a' AND seq = 2"
        )
        connection.execute(
            "UPDATE quire_entries SET body = substr(body, 1, 40) || 'A' || substr(body, 42) "
            "WHERE tenant = 'b' AND seq = 3"
        )
    a, b = encrypted.for_tenant("a"), encrypted.for_tenant("b")
    with pytest.raises(StaleKey):
        await a.get_conversation("c")
    with pytest.raises(ChangedCiphertext):
        await b.get_entry("c", 3)
    assert [fault.seq for fault in await a.verify_conversation("c")] == [None, 2]
    assert [fault.seq for fault in await b.verify_conversation("c")] == [3]


async def test_a_ciphertext_in_another_column_is_refused(encrypted: SqlStore, admin_url: str):
    store = encrypted.for_tenant("a")
    await store.create_conversation("c", title="the title")
    await store.append("c", *make_messages(2))
    with migrate.connect(admin_url) as connection:
        for statement in (
            "UPDATE quire_conversations SET title = (SELECT body FROM quire_entries WHERE tenant = 'a' AND seq = 1)",
            "UPDATE quire_entries SET body = (SELECT state FROM quire_branches WHERE tenant = 'a') WHERE seq = 2",
        ):
            connection.exec_driver_sql(statement)
    with pytest.raises(ChangedCiphertext):
        await store.get_conversation("c")
    with pytest.raises(ChangedCiphertext):
        await store.get_entry("c", 2)
    assert (await store.get_entry("c", 1)).kind == "message"


def test_what_was_encrypted_before_it_was_bound_to_its_column_is_read():
    cipher = TenantCipher(bytes(range(96)))
    assert cipher.open_text(UNBOUND_TEXT, PLACE) == "of before"
    both = bytes.fromhex(UNBOUND_FRAME) + cipher.seal_bytes(b", and after", PLACE)
    assert cipher.open_bytes(both, PLACE) == b"of before, and after"
    with pytest.raises(ChangedCiphertext):
        cipher.open_bytes(both, b"table.other")


def test_a_wrapped_key_is_of_one_tenant():
    local = LocalKeys(lambda: KEY, source="The test")
    wrapped = local.wrap("a", bytes(96))
    assert local.unwrap("a", wrapped) == bytes(96)
    with pytest.raises(InvalidConfiguration):
        local.unwrap("b", wrapped)


@pytest.mark.parametrize("encoded", ["", "c2hvcnQ=", "not base64", f"{KEY} c2hvcnQ="])
def test_a_key_of_another_size_is_refused(encoded: str):
    with pytest.raises(InvalidConfiguration, match="openssl rand"):
        LocalKeys(lambda: encoded, source="The test")


def test_a_missing_key_file_is_named(tmp_path: Path):
    with pytest.raises(InvalidConfiguration, match="cannot be read: No such file"):
        LocalKeys((tmp_path / "key").read_text, source="The file")


@pytest.mark.parametrize("text", ["a", "é" * 1_000, '{"x":"\\ud800"}', "\ud800", "q1.", "\x00"])
def test_every_text_is_read_as_it_was_written(text: str):
    cipher = TenantCipher(bytes(range(96)))
    assert cipher.open_text(cipher.seal_text(text, PLACE), PLACE) == cipher.open_name(cipher.seal_name(text)) == text
    assert cipher.seal_text(text, PLACE) != cipher.seal_text(text, PLACE)
    assert cipher.seal_name(text) == cipher.seal_name(text)
    frames = b"".join(cipher.seal_bytes(part, PLACE) for part in (b"one", text.encode(errors="surrogatepass"), b""))
    assert cipher.open_bytes(frames, PLACE) == b"one" + text.encode(errors="surrogatepass")
    assert cipher.open_bytes(b"", PLACE) == b""
