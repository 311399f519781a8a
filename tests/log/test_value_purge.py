"""A purge by value leaves the value in no table and no file, and every conversation verifiable."""

import json
from pathlib import Path

import pytest
import test_purge
from test_purge import CANARY_PLACES, find_canaries, find_tables_with, plant_canaries, read_files

from infra.database_dump import contains_text, dump_database
from quire.engine import open_engine
from quire.errors import InvalidRequest
from quire.model import FilePart, Message, ToolCallPart
from quire.store import SqlStore
from quire.store.purge import MAX_VALUE_CHARS, MIN_VALUE_CHARS, list_written_forms

VALUE = 'ghp_0123456789 "quoted"/é\n!'


@pytest.mark.every_database
async def test_a_value_is_erased_from_every_table(
    database_url: str, admin_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    value = "quetzalcoatl"
    monkeypatch.setattr(test_purge, "CANARY", value)
    vault = tmp_path / "vault"
    vault.mkdir()
    async with open_engine(database_url, vault=vault, model="gpt-4o", context_limit=2_000) as engine:
        await plant_canaries(engine, vault)
        await engine.store.create_conversation("d")
        await engine.store.append("d", Message.user("Nothing here."), Message.user(f"In the middle: x{value}x."))
        assert find_canaries(admin_url).keys() == CANARY_PLACES | {"any"}
        found = await engine.store.find_value(value)
        assert {"entries", "conversations", "branches", "manifests", "memories", "passages", "blobs"} <= found.keys()
        purged = await engine.store.purge_value(value)
        assert purged.remaining == ()
        assert ("d", 0, 2) in purged.entries
        assert ("d", 0, 1) not in purged.entries
        assert find_canaries(admin_url) == {}
        assert not contains_text(dump_database(admin_url), value)
        assert await engine.store.find_value(value) == {}
        for conversation in ("c", "d"):
            assert await engine.store.verify_conversation(conversation) == []
        assert await engine.store.verify_tenant() == []
        assert (await engine.store.get_entry("d", 1)).message.text == "Nothing here."
        assert [branch.name for branch in await engine.store.list_branches("c")] == ["main", "branch 1"]
        await (await engine.conversation("c")).prepare("And now?")


async def test_a_value_is_found_in_escaped_json(store: SqlStore, admin_url: str):
    await store.create_conversation("c")
    once = json.dumps({"command": VALUE})
    texts = [
        once,
        json.dumps({"input": once}),
        json.dumps({"x": json.dumps(VALUE, ensure_ascii=False)}),
        once.replace("/", "\\/"),
    ]
    calls = [ToolCallPart(id=str(number), name="bash", arguments=text) for number, text in enumerate(texts)]
    await store.append("c", Message.user("before"), *(Message(role="assistant", parts=(call,)) for call in calls))
    await store.append("c", Message(role="user", parts=(FilePart(blob=await store.put_blob(VALUE.encode())),)))
    purged = await store.purge_value(VALUE)
    assert [seq for _, _, seq in purged.entries] == [2, 3, 4, 5, 6]
    assert purged.remaining == ()
    assert find_tables_with("ghp_0123456789", admin_url) == set()
    assert await store.verify_conversation("c") == []


async def test_an_entry_is_purged_once_and_on_its_own_branch(store: SqlStore):
    await store.create_conversation("c")
    await store.append("c", Message.user("shared"), Message.user(f"main {CODE}"))
    fork = await store.fork("c", at=1)
    await store.append("c", Message.user(f"fork {CODE}"), branch=fork.number)
    assert (await store.purge_value(CODE)).entries == (("c", 0, 2), ("c", 1, 2))
    assert (await store.purge_value(CODE)).entries == ()


CODE = "a-leaked-password"


async def test_a_value_in_an_id_is_reported(store: SqlStore):
    """An id cannot be changed: entries refer to it."""
    await store.create_conversation(f"id {CODE}", title=f"On {CODE}")
    purged = await store.purge_value(CODE)
    assert purged.rows == {"conversations": 1, "branches": 1}
    assert "conversations" in purged.remaining
    assert (await store.get_conversation(f"id {CODE}")).title == ""


@pytest.mark.parametrize("length", [0, MIN_VALUE_CHARS - 1, MAX_VALUE_CHARS + 1])
async def test_a_value_has_bounds(store: SqlStore, length: int):
    with pytest.raises(InvalidRequest):
        await store.purge_value("x" * length)


def test_an_ordinary_key_has_one_written_form():
    assert list_written_forms("ghp_0123456789") == ["ghp_0123456789"]


async def test_no_file_of_a_sqlite_log_retains_the_value(tmp_path: Path):
    async with SqlStore.open(f"sqlite:///{tmp_path}/quire.db") as store:
        await store.create_conversation("c")
        await store.append("c", Message.user(CODE), Message.user("Thanks."))
        assert CODE.encode() in read_files(tmp_path)
        await store.purge_value(CODE)
        assert CODE.encode() not in read_files(tmp_path)
