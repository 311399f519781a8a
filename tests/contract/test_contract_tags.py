"""Tags of conversations: set, listed, filtered, exported, and erased with the conversation."""

import json

import pytest

from quire.errors import InvalidRequest
from quire.log.conversations import MAX_TAG_CHARS, MAX_TAGS
from quire.store import SqlStore

pytestmark = pytest.mark.every_database


async def test_tags_are_stored_once_each_in_lower_case_and_filter_the_list(store: SqlStore) -> None:
    for name in ("a", "b", "c"):
        await store.create_conversation(name)
    assert await store.set_tags("a", ["Mill", " mill ", "50 %_/", "", 'say "hi"']) == ("mill", "50 %_/", 'say "hi"')
    await store.set_tags("b", ["millstone"])
    # A client's notes cannot pretend to be tags, nor does replacing them lose the tags.
    await store.set_metadata("b", {"quire_tags": ",mill,", "note": '"quire_tags": ",mill,'})
    await store.set_metadata("c", {"note": '"quire_tags": ",mill,'})

    assert [each.id for each in await store.list_conversations(tag="MILL")] == ["a"]
    assert [each.id for each in await store.list_conversations(tag="50 %_/")] == ["a"]
    assert [each.id for each in await store.list_conversations(tag='say "hi"')] == ["a"]
    assert await store.list_conversations(tag="50 xx/") == []
    assert await store.list_conversations(tag="ill") == []
    assert (await store.get_conversation("b")).tags == ("millstone",)
    assert await store.get_metadata("b") == {"note": '"quire_tags": ",mill,'}
    assert await store.list_tags() == ["50 %_/", "mill", "millstone", 'say "hi"']

    await store.set_tags("b", [])
    assert (await store.get_conversation("b")).tags == ()
    assert await store.get_metadata("b") == {"note": '"quire_tags": ",mill,'}
    await store.purge("a")
    assert await store.list_tags() == []
    assert await store.verify_conversation("b") == []


async def test_tags_beyond_their_limits_are_refused(store: SqlStore) -> None:
    await store.create_conversation("c")
    for tags in (["x" * (MAX_TAG_CHARS + 1)], ["a,b"], [str(number) for number in range(MAX_TAGS + 1)]):
        with pytest.raises(InvalidRequest):
            await store.set_tags("c", tags)
    await store.set_tags("c", [f"{number:0{MAX_TAG_CHARS}}" for number in range(MAX_TAGS)])
    assert len((await store.get_conversation("c")).tags) == MAX_TAGS


async def test_an_export_has_tags_and_notes(store: SqlStore) -> None:
    await store.create_conversation("c", title="Mill")
    await store.set_metadata("c", {"topic": "wheels"})
    await store.set_tags("c", ["mill", "release"])
    lines = [line async for line in store.export_conversation("c")]
    assert json.loads(lines[0])["tags"] == ["mill", "release"]
    imported = await store.import_conversation(lines, as_id="copy")
    assert imported.tags == (await store.get_conversation("copy")).tags == ("mill", "release")
    assert await store.get_metadata("copy") == {"topic": "wheels"}
    again = [line async for line in store.export_conversation("copy")]
    assert again[0] == lines[0].replace('"id":"c"', '"id":"copy"')
