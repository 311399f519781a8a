"""SqlStore contract for the sessions of agents: origins of conversations, history matching, and response ids."""

import pytest

from infra.builders import export_lines, make_messages, make_turn
from quire.errors import ResponseNotFound
from quire.log import ConversationOrigin, ConversationRecord
from quire.log.ledger import MAX_RESPONSE_ID_CHARS
from quire.log.types import MAX_ORIGIN_CHARS
from quire.model import CHAIN_ROOT, Message, Pin, iter_paths
from quire.store import SqlStore

pytestmark = pytest.mark.every_database

ORIGIN = ConversationOrigin(
    client="claude-code",
    session="session-1",
    project="/home/ann/mill",
    agent="reviewer",
    parent_agent="planner",
    purpose="subagent",
)


def _compute_paths(*messages: Message) -> list[bytes]:
    return list(iter_paths(message.canonical_json().encode() for message in messages))


async def test_the_origin_of_a_conversation_reads_back(store: SqlStore) -> None:
    created = await store.create_conversation("c", title="Mills", origin=ORIGIN)
    assert created.origin == ORIGIN
    assert await store.get_conversation("c") == created
    await store.rename_conversation("c", "Wheels")
    assert (await store.get_conversation("c")).origin == ORIGIN
    assert await store.verify_conversation("c") == []
    turn = make_turn(*make_messages(2))
    opening = turn._replace(creates_conversation=ConversationRecord("opened", "", 5, 5, ORIGIN))
    await store.record_reply("opened", opening, after=CHAIN_ROOT)
    assert (await store.get_conversation("opened")).origin == ORIGIN
    await store.create_conversation("plain")
    assert (await store.get_conversation("plain")).origin is None


async def test_the_texts_of_an_origin_are_normalized(store: SqlStore) -> None:
    long = "x" * (MAX_ORIGIN_CHARS + 1)
    origin = ConversationOrigin(client="", session=long, project="a\x00b", agent="\ud800")
    await store.create_conversation("c", origin=origin)
    found = (await store.get_conversation("c")).origin
    assert found == ConversationOrigin(session=long[:-1], project="a\ufffdb", agent="\ufffd")
    assert [each.id for each in await store.list_session(long)] == ["c"]
    [entry] = await store.append("c", Message.user("Hello"))
    match = await store.match_history([entry.path], session=long)
    assert match is not None
    assert match.branch.conversation == "c"


async def test_conversations_are_listed_by_origin(store: SqlStore) -> None:
    await store.create_conversation("plain")
    await store.create_conversation("main", origin=ORIGIN.model_copy(update={"purpose": None}))
    await store.create_conversation("agent", origin=ORIGIN)
    await store.create_conversation("other", origin=ConversationOrigin(client="codex", session="session-2"))

    async def list_ids(origin: ConversationOrigin | None = None, *, main_only: bool = False) -> list[str]:
        return [each.id for each in await store.list_conversations(origin=origin, main_only=main_only)]

    assert await list_ids() == ["other", "agent", "main", "plain"]
    assert await list_ids(main_only=True) == ["other", "main", "plain"]
    assert await list_ids(ConversationOrigin(session="session-1")) == ["agent", "main"]
    assert await list_ids(ConversationOrigin(session="session-1"), main_only=True) == ["main"]
    assert await list_ids(ConversationOrigin(client="codex")) == ["other"]
    assert await list_ids(ConversationOrigin(project="/home/ann/mill", purpose="subagent")) == ["agent"]
    assert await list_ids(ConversationOrigin(client="codex", session="session-1")) == []
    [newest] = await store.list_conversations(limit=1, origin=ConversationOrigin(session="session-1"))
    [rest] = await store.list_conversations(before=newest, origin=ConversationOrigin(session="session-1"))
    assert (newest.id, rest.id) == ("agent", "main")


async def test_clients_and_projects_are_counted(store: SqlStore) -> None:
    main = ORIGIN.model_copy(update={"purpose": None})
    await store.create_conversation("plain")
    await store.create_conversation("one", origin=main)
    await store.create_conversation("two", origin=main)
    await store.create_conversation("agent", origin=ORIGIN)
    await store.create_conversation("other", origin=ConversationOrigin(client="codex"))
    counts = await store.list_origins()
    assert [(each.client, each.project, each.conversations) for each in counts] == [
        ("codex", None, 1),
        (main.client, main.project, 2),
    ]
    assert counts[1].updated_at == (await store.get_conversation("two")).updated_at
    assert await store.list_origins(limit=1) == counts[:1]
    await store.purge("other")
    assert await store.list_origins() == counts[1:]


async def test_a_session_lists_its_conversations_newest_first(store: SqlStore) -> None:
    for name in ("first", "second", "third"):
        await store.create_conversation(name, origin=ORIGIN)
    await store.fork("first", at=0)
    found = await store.list_session("session-1")
    assert [each.id for each in found] == ["first", "third", "second"]
    assert found[0] == await store.get_conversation("first")
    assert [each.id for each in await store.list_session("session-1", limit=2)] == ["first", "third"]
    assert await store.list_session("session-2") == await store.list_session("") == []
    await store.purge("third")
    assert [each.id for each in await store.list_session("session-1")] == ["first", "second"]


async def test_the_longest_stored_history_is_found_on_its_branch(store: SqlStore) -> None:
    await store.create_conversation("c")
    history = make_messages(6)
    await store.append("c", *history[:2], Pin(message=1), *history[2:])
    branch = await store.fork("c", at=3)
    [edited] = await store.append("c", Message.user("edited"), branch=branch.number)

    async def find(*messages: Message) -> tuple[int, int, int] | None:
        match = await store.match_history(_compute_paths(*messages))
        return match and (match.length, match.branch.number, match.seq)

    assert await find(*history[:4], Message.user("new")) == (4, 0, 5)
    assert await find(*history[:2], Message.user("edited"), Message.assistant("x")) == (3, branch.number, edited.seq)
    assert await find() is await find(Message.user("never said")) is await find(*history[1:]) is None
    assert await store.match_history(_compute_paths(*history), conversation="nowhere") is None


async def test_a_history_in_the_session_is_preferred_to_a_longer_one_elsewhere(store: SqlStore) -> None:
    history = make_messages(40)
    await store.create_conversation("a", origin=ORIGIN)
    await store.append("a", *history[:2])
    # Sorts after "a", so that without a session it is found first.
    await store.create_conversation("z")
    await store.append("z", *history)

    async def find(length: int, session: str | None) -> tuple[str, int] | None:
        match = await store.match_history(_compute_paths(*history[:length]), session=session)
        return match and (match.branch.conversation, match.length)

    for length in (2, 3, 17, 40):
        assert await find(length, None) == ("z", length)
        assert await find(length, "session-1") == ("a", 2)
        assert await find(length, "session-2") == ("z", length)
    unknown = _compute_paths(Message.user("never said"))
    assert await store.match_history(unknown, session="session-1") is None
    assert await store.match_history([], session="session-1") is None


async def test_of_a_session_the_longest_history_is_found(store: SqlStore) -> None:
    history = make_messages(20)
    lengths = {"early": 1, "longest": 18, "newest": 3}
    for name, length in lengths.items():
        await store.create_conversation(name, origin=ORIGIN)
        await store.append(name, *history[:length])
    await store.record_reply("longest", make_turn(*history[18:20]))
    paths = _compute_paths(*history, Message.user("And now?"))
    match = await store.match_history(paths, session="session-1")
    assert match is not None
    assert (match.branch, match.length, match.seq) == (await store.get_branch("longest"), 20, 20)
    assert match.manifest == (await store.get_manifest("longest", 20)).canonical_json()


async def test_a_named_conversation_comes_before_the_session(store: SqlStore) -> None:
    for name, origin in (("in session", ORIGIN), ("named", None)):
        await store.create_conversation(name, origin=origin)
        await store.append(name, *make_messages(2))
    paths = _compute_paths(*make_messages(2))
    match = await store.match_history(paths, conversation="named", session="session-1")
    assert match is not None
    assert (match.branch.conversation, match.length) == ("named", 2)
    unknown = _compute_paths(Message.user("never said"))
    match = await store.match_history(unknown, conversation="named", session="session-1")
    assert match is not None
    assert (match.branch.conversation, match.length) == ("named", 0)


async def test_the_origin_is_exported_and_imported(store: SqlStore) -> None:
    await store.create_conversation("c", origin=ORIGIN)
    await store.append("c", *make_messages(2))
    lines = await export_lines(store, "c")
    copy = await store.import_conversation(lines, as_id="copy")
    assert copy.origin == (await store.get_conversation("copy")).origin == ORIGIN
    assert (await export_lines(store, "copy"))[0] == lines[0].replace('"id":"c"', '"id":"copy"')
    assert await store.verify_conversation("copy") == []


async def test_a_purge_clears_the_texts_of_the_origin(store: SqlStore) -> None:
    await store.create_conversation("c", origin=ORIGIN)
    await store.append("c", *make_messages(2))
    await store.purge("c", [1])
    assert (await store.get_conversation("c")).origin == ORIGIN
    await store.purge("c")
    purged = ConversationOrigin(client="claude-code", session="session-1", purpose="subagent")
    assert (await store.get_conversation("c")).origin == purged
    assert await store.verify_conversation("c") == []


async def test_a_reply_is_found_by_its_response_id_until_it_is_forgotten(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.record_reply("c", make_turn(*make_messages(2))._replace(response_id="resp_1"))
    await store.record_reply("c", make_turn(*make_messages(2))._replace(request_id="r"))
    found = await store.find_response("resp_1")
    assert (found.conversation, found.branch, found.seq) == ("c", 0, 2)
    assert found.manifest == await store.get_manifest("c", 2)
    entries = await store.read_range("c")
    assert await store.forget_response("resp_1")
    with pytest.raises(ResponseNotFound, match="resp_1"):
        await store.find_response("resp_1")
    assert not await store.forget_response("resp_1")
    assert await store.read_range("c") == entries
    assert await store.get_manifest("c", 2) == found.manifest
    assert await store.verify_conversation("c") == []


async def test_of_a_repeated_response_id_the_newest_reply_is_found(store: SqlStore) -> None:
    turn = make_turn(*make_messages(2))._replace(response_id="resp_1")
    for name in ("z", "a", "m"):
        await store.create_conversation(name)
        await store.record_reply(name, turn)
    assert (await store.find_response("resp_1")).conversation == "m"
    await store.record_reply("a", turn)
    found = await store.find_response("resp_1")
    assert (found.conversation, found.seq) == ("a", 4)
    assert await store.forget_response("resp_1")
    with pytest.raises(ResponseNotFound):
        await store.find_response("resp_1")
    for name in ("z", "a", "m"):
        assert await store.verify_conversation(name) == []


async def test_a_reply_is_recorded_even_if_its_response_id_cannot_be_stored(store: SqlStore) -> None:
    await store.create_conversation("c")
    longest = "x" * MAX_RESPONSE_ID_CHARS
    for response_id in (longest, longest + "x", "a\x00b", "\ud800"):
        await store.record_reply("c", make_turn(*make_messages(2))._replace(response_id=response_id))
    assert (await store.find_response(longest)).seq == 2
    for response_id in (longest + "x", "a\x00b", "\ud800"):
        with pytest.raises(ResponseNotFound):
            await store.find_response(response_id)
    assert [seq for seq, _ in await store.list_manifests("c")] == [2, 4, 6, 8]
