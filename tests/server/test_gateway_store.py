"""Store operations of the gateway: matching by path, requests by ID, blobs, turns that create conversations."""

import pytest
from gateway_fixtures import assistant_message, run_gateway, system_message, user_message

from fake_upstream import respond_with_text, run_fake_upstream
from infra.builders import make_messages, make_turn
from quire.engine import Engine, EngineConfig
from quire.errors import RequestNotFound, StaleHead
from quire.log import Blob, ConversationRecord, ReplyRecord
from quire.model import CHAIN_ROOT, Message, iter_paths
from quire.proxy.recognition import compute_client_paths
from quire.settings import Settings
from quire.store import SqlStore

pytestmark = pytest.mark.every_database


def compute_paths(*messages: Message) -> list[bytes]:
    return list(iter_paths(message.canonical_json().encode() for message in messages))


async def test_a_list_is_recognised_with_the_branch_and_the_record_of_its_last_reply(store: SqlStore):
    await store.create_conversation("c")
    await store.record_reply("c", make_turn(*make_messages(2))._replace(request_id="r1"))
    client_paths = compute_paths(*make_messages(3))
    match = await store.match_history(client_paths)
    assert match is not None
    assert (match.length, match.branch.conversation, match.branch.number, match.seq) == (2, "c", 0, 2)
    assert match.branch == await store.get_branch("c")
    assert match.manifest == (await store.get_manifest("c", 2)).canonical_json()
    assert await store.match_history(client_paths, conversation="other") is None
    assert await store.match_history(compute_paths(Message.user("else"))) is None


async def test_a_long_list_is_recognised_wherever_it_leaves_the_stored_line(store: SqlStore):
    await store.create_conversation("c")
    await store.append("c", *make_messages(40))
    for length in (1, 7, 23, 24, 25, 39, 40):
        client_paths = compute_paths(
            *make_messages(length), *(Message.user(f"new {number}") for number in range(60 - length))
        )
        match = await store.match_history(client_paths)
        assert match is not None
        assert (match.length, match.seq, match.manifest) == (length, length, None)


async def test_of_a_named_conversation_the_branch_in_use_is_given(store: SqlStore):
    await store.create_conversation("c")
    await store.append("c", *make_messages(4))
    branch = (await store.fork("c", at=2)).number
    match = await store.match_history((), conversation="c")
    assert match is not None
    assert (match.length, match.branch.number, match.seq) == (0, branch, 2)
    assert await store.match_history(compute_paths(Message.user("x")), conversation="unknown") is None


async def test_a_request_is_found_by_its_id_and_by_its_own_tenant_alone(store: SqlStore):
    await store.create_conversation("c")
    await store.record_reply("c", make_turn(*make_messages(2))._replace(request_id="r1"))
    recorded = await store.get_request("r1")
    assert (recorded.conversation, recorded.branch, recorded.seq) == ("c", 0, 2)
    assert recorded.manifest == await store.get_manifest("c", 2)
    with pytest.raises(RequestNotFound):
        await store.for_tenant("else").get_request("r1")


async def test_a_turn_may_open_its_conversation_once(store: SqlStore):
    def opening(*messages: Message) -> ReplyRecord:
        return make_turn(*messages)._replace(creates_conversation=ConversationRecord("c", "", 5, 5))

    assert [entry.seq for entry in await store.record_reply("c", opening(*make_messages(2)), after=CHAIN_ROOT)] == [
        1,
        2,
    ]
    assert [entry.seq for entry in await store.record_reply("c", opening(*make_messages(2)), after=CHAIN_ROOT)] == [
        1,
        2,
    ]
    with pytest.raises(StaleHead):
        await store.record_reply("c", opening(*make_messages(2, start=7)), after=CHAIN_ROOT)
    assert len(await store.read_range("c")) == 2
    assert (await store.get_conversation("c")).created_at == 5


async def test_a_reply_is_also_found_by_its_client_path(store: SqlStore):
    await store.create_conversation("c")
    client_paths = compute_paths(Message.user("message 1"), Message.assistant("as the client has it"))
    await store.record_reply("c", make_turn(*make_messages(2))._replace(client_path=client_paths[-1]))
    match = await store.match_history(client_paths)
    assert match is not None
    assert (match.length, match.seq) == (2, 2)
    assert await store.verify_conversation("c") == []


async def test_a_text_that_a_purge_took_is_stored_again_with_the_next_turn(store: SqlStore):
    document = Blob("text/plain", b"instructions")
    for name in ("one", "two"):
        await store.create_conversation(name)
    await store.record_reply("one", make_turn(*make_messages(2), blobs=(document,)))
    elsewhere = store.for_tenant(store.tenant)
    await elsewhere.purge("one")
    stored = await store.record_reply("two", make_turn(*make_messages(2), blobs=(document,)))
    digest = (await store.get_manifest("two", stored[-1].seq)).decisions[0].blob
    assert await store.get_blob(digest or "") == document


async def test_two_nodes_answer_one_conversation_in_turn(store: SqlStore):
    """A node's head cache may be stale: the log decides."""
    thinks = [respond_with_text({"content": f"a{turn}", "reasoning_content": "hm"}) for turn in range(1, 7)]
    async with (
        run_fake_upstream(*thinks) as up,
        run_gateway(store, up.url) as one,
        run_gateway(store.for_tenant(store.tenant), up.url) as other,
    ):
        history = [system_message("Be brief.")]
        for turn in range(1, 7):
            history.append(user_message(f"q{turn}"))
            answer = await (one if turn in (1, 2, 5) else other).ask(*history)
            history.append(assistant_message(f"a{turn}"))
        conversation = answer.headers["x-quire-conversation"]
        assert len(await store.list_branches(conversation)) == 1
        texts = [text for _, text in await one.load_messages(conversation)]
        assert texts == [text for turn in range(1, 7) for text in (f"q{turn}", f"a{turn}")]
        assert await store.verify_conversation(conversation) == []


async def test_what_another_node_went_on_with_becomes_a_branch_here(store: SqlStore):
    async with (
        run_fake_upstream(respond_with_text("a1"), respond_with_text("a2"), respond_with_text("other")) as up,
        run_gateway(store, up.url) as one,
        run_gateway(store.for_tenant(store.tenant), up.url) as other,
    ):
        first = await one.ask(user_message("q1"))
        await other.ask(user_message("q1"), assistant_message("a1"), user_message("q2"))
        late = await one.ask(user_message("q1"), assistant_message("a1"), user_message("another q2"))
        conversation = first.headers["x-quire-conversation"]
        assert (late.headers["x-quire-conversation"], late.headers["x-quire-branch"]) == (conversation, "1")
        assert [text for _, text in await one.load_messages(conversation)] == ["q1", "a1", "q2", "a2"]
        assert [text for _, text in await one.load_messages(conversation, 1)] == ["q1", "a1", "another q2", "other"]


async def test_several_messages_are_prepared_and_recorded_at_once(store: SqlStore):
    engine = Engine(store, EngineConfig.create(Settings(model="gpt-4o")))
    conversation = await engine.conversation("c")
    request = await conversation.prepare([Message.user("one"), Message.assistant("two"), Message.user("three")])
    assert [entry.message.text for entry in await conversation.messages()] == ["one", "two", "three"]
    assert [message["content"] for message in request.to_chat()["messages"]] == ["one", "two", "three"]
    reply = await conversation.record("four", request=request)
    assert (await conversation.replay(reply.seq)).matches


def test_a_client_path_of_no_lines_is_empty():
    assert compute_client_paths([]) == []
