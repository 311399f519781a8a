"""What the gateway asks of the store: places found by path, requests found by id, texts sent once, turns that open."""

import pytest
from gateway_parts import assistant, gateway, system, user

from quire.engine import Engine
from quire.errors import RequestNotFound, StaleHead
from quire.log import Blob, Conversation, SqlStore, Turn
from quire.model import ROOT, Message, path_of
from quire.server.gateway.lines import told_paths
from quire.settings import Settings
from quire.testing.given import answered, turns
from upstream import says, upstream


def paths(*messages: Message) -> list[bytes]:
    return list(path_of(message.canonical() for message in messages))


async def test_a_list_is_recognised_with_the_branch_and_the_record_of_its_last_reply(store: SqlStore):
    await store.create_conversation("c")
    await store.record("c", answered(*turns(2))._replace(request="r1"))
    told = paths(*turns(3))
    found = await store.recognise(told)
    assert found is not None
    assert (found.length, found.branch.conversation, found.branch.number, found.seq) == (2, "c", 0, 2)
    assert found.branch == await store.branch("c")
    assert found.manifest == (await store.manifest("c", 2)).canonical()
    assert await store.recognise(told, conversation="other") is None
    assert await store.recognise(paths(Message.user("else"))) is None


async def test_a_long_list_is_recognised_wherever_it_leaves_the_stored_line(store: SqlStore):
    await store.create_conversation("c")
    await store.append("c", *turns(40))
    for length in (1, 7, 23, 24, 25, 39, 40):
        told = paths(*turns(length), *(Message.user(f"new {number}") for number in range(60 - length)))
        found = await store.recognise(told)
        assert found is not None
        assert (found.length, found.seq, found.manifest) == (length, length, None)


async def test_of_a_named_conversation_the_branch_in_use_is_given(store: SqlStore):
    await store.create_conversation("c")
    await store.append("c", *turns(4))
    branch = (await store.fork("c", at=2)).number
    found = await store.recognise((), conversation="c")
    assert found is not None
    assert (found.length, found.branch.number, found.seq) == (0, branch, 2)
    assert await store.recognise(paths(Message.user("x")), conversation="nobody's") is None


async def test_a_request_is_found_by_its_id_and_by_its_own_tenant_alone(store: SqlStore):
    await store.create_conversation("c")
    await store.record("c", answered(*turns(2))._replace(request="r1"))
    found = await store.request("r1")
    assert (found.conversation, found.branch, found.seq) == ("c", 0, 2)
    assert found.manifest == await store.manifest("c", 2)
    with pytest.raises(RequestNotFound):
        await store.for_tenant("else").request("r1")


async def test_a_turn_may_open_its_conversation_once(store: SqlStore):
    def opening(*messages: Message) -> Turn:
        return answered(*messages)._replace(opens=Conversation("c", "", 5, 5))

    assert [entry.seq for entry in await store.record("c", opening(*turns(2)), after=ROOT)] == [1, 2]
    assert [entry.seq for entry in await store.record("c", opening(*turns(2)), after=ROOT)] == [1, 2]
    with pytest.raises(StaleHead):
        await store.record("c", opening(*turns(2, start=7)), after=ROOT)
    assert len(await store.range("c")) == 2
    assert (await store.conversation("c")).created_at == 5


async def test_a_reply_is_also_found_by_the_path_that_a_client_tells(store: SqlStore):
    await store.create_conversation("c")
    told = paths(Message.user("message 1"), Message.assistant("as the client has it"))
    await store.record("c", answered(*turns(2))._replace(told=told[-1]))
    found = await store.recognise(told)
    assert found is not None
    assert (found.length, found.seq) == (2, 2)
    assert await store.verify("c") == []


async def test_a_text_that_a_purge_took_is_stored_again_with_the_next_turn(store: SqlStore):
    document = Blob("text/plain", b"instructions")
    for name in ("one", "two"):
        await store.create_conversation(name)
    await store.record("one", answered(*turns(2), blobs=(document,)))
    elsewhere = store.for_tenant(store.tenant)
    await elsewhere.purge("one")
    stored = await store.record("two", answered(*turns(2), blobs=(document,)))
    digest = (await store.manifest("two", stored[-1].seq)).decisions[0].blob
    assert await store.blob(digest or "") == document


async def test_two_nodes_answer_one_conversation_in_turn(store: SqlStore):
    """What a node keeps at hand may be old: the log decides."""
    thinks = [says({"content": f"a{turn}", "reasoning_content": "hm"}) for turn in range(1, 7)]
    async with (
        upstream(*thinks) as up,
        gateway(store, up.url) as one,
        gateway(store.for_tenant(store.tenant), up.url) as other,
    ):
        history = [system("Be brief.")]
        for turn in range(1, 7):
            history.append(user(f"q{turn}"))
            answer = await (one if turn in (1, 2, 5) else other).ask(*history)
            history.append(assistant(f"a{turn}"))
        conversation = answer.headers["x-quire-conversation"]
        assert len(await store.branches(conversation)) == 1
        said = [text for _, text in await one.said(conversation)]
        assert said == [text for turn in range(1, 7) for text in (f"q{turn}", f"a{turn}")]
        assert await store.verify(conversation) == []


async def test_what_another_node_went_on_with_becomes_a_branch_here(store: SqlStore):
    async with (
        upstream(says("a1"), says("a2"), says("other")) as up,
        gateway(store, up.url) as one,
        gateway(store.for_tenant(store.tenant), up.url) as other,
    ):
        first = await one.ask(user("q1"))
        await other.ask(user("q1"), assistant("a1"), user("q2"))
        late = await one.ask(user("q1"), assistant("a1"), user("another q2"))
        conversation = first.headers["x-quire-conversation"]
        assert (late.headers["x-quire-conversation"], late.headers["x-quire-branch"]) == (conversation, "1")
        assert [text for _, text in await one.said(conversation)] == ["q1", "a1", "q2", "a2"]
        assert [text for _, text in await one.said(conversation, 1)] == ["q1", "a1", "another q2", "other"]


async def test_several_messages_are_prepared_at_once_and_kept_at_once(store: SqlStore):
    engine = Engine(store, settings=Settings(model="gpt-4o"))
    conversation = await engine.conversation("c")
    request = await conversation.prepare([Message.user("one"), Message.assistant("two"), Message.user("three")])
    assert [entry.message.text for entry in await conversation.messages()] == ["one", "two", "three"]
    assert [message["content"] for message in request.to_openai()["messages"]] == ["one", "two", "three"]
    reply = await conversation.record("four")
    assert (await conversation.replay(reply.seq)).matches


def test_a_client_path_of_no_lines_is_empty():
    assert told_paths([]) == []
