"""SqlStore contract for conversations as a whole: create, title, list, purge, export and import."""

import asyncio

import pytest

from infra.builders import export_lines, make_messages, make_turn
from quire.errors import (
    BlobNotFound,
    BranchNotFound,
    ConversationExists,
    ConversationNotFound,
    ImportFailed,
    InvalidEntry,
)
from quire.log import Blob
from quire.model import (
    Compaction,
    Draft,
    ImagePart,
    Message,
    Pin,
    Restore,
    Span,
    TextPart,
    TokenCount,
)
from quire.store import SqlStore

pytestmark = pytest.mark.every_database


async def test_a_conversation_is_created_once_and_found_again(store: SqlStore) -> None:
    created = await store.create_conversation("chat-1", title="First")
    assert await store.get_conversation("chat-1") == created
    assert created.title == "First"
    with pytest.raises(ConversationExists):
        await store.create_conversation("chat-1")
    with pytest.raises(ConversationNotFound):
        await store.get_conversation("chat-2")
    await store.rename_conversation("chat-1", "Renamed")
    assert (await store.get_conversation("chat-1")).title == "Renamed"
    with pytest.raises(ConversationNotFound):
        await store.rename_conversation("chat-2", "x")


async def test_several_that_open_a_new_conversation_at_once_get_the_same(store: SqlStore, database_url: str) -> None:
    async with SqlStore.open(database_url) as other:
        for number in range(5):
            opening = [
                each.open_conversation(f"chat-{number}", Message.system("Be brief.")) for each in (store, other) * 4
            ]
            assert len(set(await asyncio.gather(*opening))) == 1
            assert (await store.get_branch(f"chat-{number}")).head_seq == 1
        await store.create_conversation("empty")
        await other.open_conversation("empty", Message.system("Be brief."))
        assert (await store.get_branch("empty")).head_seq == 1
    assert len(await store.list_conversations()) == 6


@pytest.mark.parametrize("name", ["it's", "'; DROP TABLE quire_branches; --", "\\'", "%%(tenant)s %s", "$$ü\U0001f600"])
async def test_the_name_of_a_conversation_is_never_a_part_of_a_statement(store: SqlStore, name: str) -> None:
    await store.create_conversation(name)
    await store.append(name, Message.user("a"))
    branch = await store.get_branch(name)
    assert (branch.conversation, branch.head_seq) == (name, 1)
    with pytest.raises(BranchNotFound):
        await store.get_branch(name, 1)
    with pytest.raises(ConversationNotFound):
        await store.get_branch(f"{name}'")
    with pytest.raises(ConversationNotFound):
        await store.for_tenant(name).get_branch(name)


async def test_conversations_are_listed_newest_first_page_by_page(store: SqlStore) -> None:
    created = [await store.create_conversation() for _ in range(7)]
    assert len({conversation.id for conversation in created}) == 7
    first = await store.list_conversations(limit=4)
    rest = await store.list_conversations(limit=4, before=first[-1])
    assert [*first, *rest] == sorted(created, key=lambda each: (each.created_at, each.id), reverse=True)


async def test_the_conversation_that_was_used_last_comes_first(store: SqlStore) -> None:
    for name in ("early", "late"):
        await store.create_conversation(name)
    await asyncio.sleep(1.1)
    await store.append("early", Message.user("Are you there?"))
    assert [each.id for each in await store.list_conversations()] == ["early", "late"]


async def test_a_conversation_without_a_title_is_called_by_its_first_question(store: SqlStore) -> None:
    await store.create_conversation("named", title="Mills")
    for name in ("empty", "untitled", "long", "purged"):
        await store.create_conversation(name)
    await store.append("named", Message.user("Why do mills turn?"))
    await store.append("untitled", Message.system("Be brief."), Message.user("Why do\n\nmills  turn?"))
    await store.append("untitled", Message.assistant("Water."), Message.user("And in winter?"))
    await store.append("long", Message.user("wheel " * 50))
    [secret] = await store.append("purged", Message.user("My secret is 0451."))
    await store.purge("purged", [secret.seq])
    found = await store.fill_titles(
        *[await store.get_conversation(name) for name in ("named", "empty", "untitled", "purged")]
    )
    assert [each.title for each in found] == ["Mills", "", "Why do mills turn?", ""]
    [long] = await store.fill_titles(await store.get_conversation("long"))
    assert long.title == " ".join(["wheel"] * 13) + "…"
    assert (await store.get_conversation("long")).title == ""


async def test_tokens_of_conversations_are_added_up_over_all_branches(store: SqlStore) -> None:
    for name in ("a", "b", "empty"):
        await store.create_conversation(name)
    counted = Draft(body=Message.user("x"), tokens=TokenCount(7, "test"))
    await store.append("a", counted, Message.user("not counted"), Pin(message=1))
    branch = await store.fork("a", at=1)
    await store.append("a", counted, branch=branch.number)
    await store.append("b", counted)
    assert await store.sum_tokens(["a", "b", "empty", "unknown"]) == {"a": 14, "b": 7}
    assert await store.sum_tokens(["b"]) == {"b": 7}
    assert await store.sum_tokens([]) == {}


async def test_what_an_agent_puts_before_a_question_is_not_its_title(store: SqlStore) -> None:
    reminder = "<system-reminder>\nBe kind.\n</system-reminder>\n"
    environment = "<environment_context>\n  <cwd>/mill</cwd>\n</environment_context>"
    rules = "# AGENTS.md instructions for /mill\n\n<INSTRUCTIONS>\nNo haste.\n</INSTRUCTIONS>"
    question = Message.user("Why do mills turn?")
    lists = {
        "parts": [Message(role="user", parts=(TextPart(text=reminder), *question.parts))],
        "one part": [Message.user(f"{reminder}{reminder}{question.text}")],
        "messages": [Message.user(rules), Message.user(environment), question],
        "no question": [Message.user(reminder), Message.assistant("Fine.")],
        "about": [Message.user("What is a <system-reminder>?")],
    }
    for name, messages in lists.items():
        await store.create_conversation(name)
        await store.append(name, *messages)
    found = await store.fill_titles(*[await store.get_conversation(name) for name in lists])
    assert {each.id: each.title for each in found} == {
        "parts": "Why do mills turn?",
        "one part": "Why do mills turn?",
        "messages": "Why do mills turn?",
        "no question": "Be kind.",
        "about": "What is a <system-reminder>?",
    }


async def test_forking_a_conversation_is_using_it(store: SqlStore) -> None:
    for name in ("early", "late"):
        await store.create_conversation(name)
    fork = await store.fork("early", at=0)
    first, second = await store.list_conversations()
    assert (first.id, first.updated_at, second.id) == ("early", fork.updated_at, "late")


async def test_purge_erases_the_content_and_what_was_derived_from_it(store: SqlStore) -> None:
    await store.create_conversation("c")
    mine, shared = await store.put_blob(b"mine"), await store.put_blob(b"shared")
    pictures = (TextPart(text="secret"), ImagePart(blob=mine), ImagePart(blob=shared))
    await store.append("c", *make_messages(2), Message(role="user", parts=pictures))
    await store.append("c", Message(role="user", parts=(ImagePart(blob=shared),)), Pin(message=1))
    covering = Compaction(number=1, covers=Span(first=1, last=3), summary="about the secret")
    harmless = Compaction(number=2, covers=Span(first=1, last=2), summary="harmless", supersedes=6)
    await store.append("c", covering, harmless)
    purged = await store.purge("c", [3])
    assert [entry.seq for entry in purged] == [3, 6]
    assert "secret" not in "".join(await export_lines(store, "c"))
    assert "harmless" in "".join(await export_lines(store, "c"))
    with pytest.raises(BlobNotFound):
        await store.get_blob(mine)
    assert (await store.get_blob(shared)).data == b"shared"
    assert await store.verify_conversation("c") == []
    with pytest.raises(InvalidEntry):
        await store.purge("c", [5])


async def test_purge_reaches_summaries_on_other_branches_and_whole_conversations(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", *make_messages(4))
    for at in (4, 1):
        branch = await store.fork("c", at=at)
        await store.append("c", *make_messages(2, start=50), branch=branch.number)
        compaction = Compaction(number=1, covers=Span(first=1, last=2), summary="a summary")
        await store.append("c", compaction, branch=branch.number)
    purged = await store.purge("c", [2])
    assert [(entry.branch, entry.seq) for entry in purged] == [(0, 2), (1, 7)]
    await store.purge("c")
    assert "message" not in "".join(line for line in await export_lines(store, "c") if '"body"' in line).replace(
        '"kind":"message"', ""
    )
    assert await store.verify_conversation("c") == []
    assert await store.list_conversations() == []
    await store.append("c", Message.user("again"))
    assert [each.id for each in await store.list_conversations()] == ["c"]


async def test_export_import_export_is_identical(store: SqlStore) -> None:
    await store.create_conversation("c", title="Ünïcode")
    digest = await store.put_blob(b"\x00\xff", media_type="image/png")
    await store.append("c", *make_messages(4), Message(role="user", parts=(ImagePart(blob=digest),)), Pin(message=2))
    await store.append("c", Compaction(number=1, covers=Span(first=1, last=3), summary="s"))
    branch = await store.fork("c", at=7)
    await store.append("c", Restore(compaction=7), Message.user("elsewhere"), branch=branch.number)
    await store.purge("c", [4])
    await store.record_reply("c", make_turn(*make_messages(2), blobs=(Blob("text/plain", b"quoted"),)))
    lines = await export_lines(store, "c")
    copy = await store.import_conversation(lines, as_id="copy")
    assert copy.id == "copy"
    again = await export_lines(store, "copy")
    assert again[0] == lines[0].replace('"id":"c"', '"id":"copy"')
    assert again[1:] == [line.replace('"conversation":"c"', '"conversation":"copy"') for line in lines[1:]]
    assert await store.verify_conversation("copy") == []
    originals, copies = await store.list_manifests("c"), await store.list_manifests("copy")
    assert [seq for seq, _ in copies] == [seq for seq, _ in originals]
    assert {manifest.conversation for _, manifest in copies} == {"copy"}
    assert (await store.read_window("copy", branch=1)).messages[-1].message.text == "elsewhere"
    with pytest.raises(ConversationExists):
        await store.import_conversation(lines)


async def test_a_damaged_export_is_refused_whole_and_the_line_named(store: SqlStore) -> None:
    await store.create_conversation("c")
    digest = await store.put_blob(b"data")
    await store.append("c", *make_messages(3), Message(role="user", parts=(ImagePart(blob=digest),)))
    lines = await export_lines(store, "c")
    changed = [line.replace("message 2", "message X") for line in lines]
    other_blob = [line.replace("ZGF0YQ==", "b3RoZXI=") for line in lines]
    swapped = [*lines[:3], lines[4], lines[3], *lines[5:]]
    damaged = {
        "Line 5": changed,
        "Line 2": other_blob,
        "Line 4": swapped,
        "Line 3": [*lines[:2], "{", *lines[2:]],
        "is incomplete": lines[:-1],
        "Line 1": lines[1:],
        "Line 0": [],
        "Line 9": [*lines, lines[-1]],
        "a second conversation": [lines[0], lines[0]],
        "Line 8": [*lines[:-1], lines[-1].replace("4", "5")],
    }
    for expected, wrong in damaged.items():
        with pytest.raises(ImportFailed, match=rf"(?i){expected}\b"):
            await store.import_conversation(wrong, as_id="copy")
        with pytest.raises(ConversationNotFound):
            await store.get_conversation("copy")
