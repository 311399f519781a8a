"""A session is one conversation, whatever of it passed through the gateway and in whichever file it goes on."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import AsyncMock

import pytest
from gateway_fixtures import run_gateway
from test_compaction_recognition import AGENTS, Agent, run_provider

from infra.scripted_provider import ScriptedReply
from proxy.client_lists import make_answer, make_question
from quire.log import ConversationOrigin
from quire.log.imports import ContinuedSession, make_conversation_id
from quire.model import Compaction, Entry, Message
from quire.model.ids import now
from quire.proxy.recognition import HeadCache
from quire.store import SqlStore

pytestmark = pytest.mark.every_database

AGENT_NAMES = {"claude": "claude-code", "codex": "codex"}
TEXTS = {
    "claude": ("When is the ebb at the quay of Harlingen?", "The ebb begins at six, and the quay is dry at nine."),
    "codex": ("Which lanterns hang at the mole of Harlingen?", "Brass lanterns hang there, and one of them is broken."),
}


@pytest.fixture(params=["cached", "looked up"], autouse=True)
def head(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request is recognized by what the last one left in memory, or as after a start of the server."""
    if request.param == "looked up":
        monkeypatch.setattr(HeadCache, "find", lambda *_: None)


@asynccontextmanager
async def run_agent(store: SqlStore, kind: str, session: str) -> AsyncIterator[Agent]:
    replies: list[ScriptedReply] = []
    with run_provider(replies) as provider:
        upstreams = {"*": {"base_url": provider.openai_url, "speaks": [AGENTS[kind]]}}
        async with run_gateway(store, provider.openai_url, upstreams=upstreams) as harness:
            yield Agent(kind, session, random.Random(kind), harness, replies)
            await harness.server_state.wait_for_background()


async def read_entries(store: SqlStore) -> list[list[Entry]]:
    """The entries of each branch of the only conversation."""
    [record] = await store.list_conversations()
    assert await store.verify_conversation(record.id) == []
    return [
        await store.read_range(record.id, branch=branch.number, first=branch.fork_seq + 1)
        for branch in await store.list_branches(record.id)
    ]


def list_said(entries: list[Entry], agent: Agent) -> list[str]:
    """What of the agent's questions and answers the entries have, in order."""
    said = {*agent.texts, *(f"Question {number}." for number in range(9))}
    texts = [each.message.text for each in entries if each.kind == "message"]
    return [text for text in texts if text in said]


@pytest.mark.parametrize("turns_after", [0, 1])
@pytest.mark.parametrize("kind", AGENT_NAMES)
async def test_a_compaction_that_did_not_pass_through_the_gateway_is_an_entry(
    store: SqlStore, kind: str, turns_after: int
):
    async with run_agent(store, kind, "s") as agent:
        await agent.take_turn("Question 0.")
        await agent.take_turn("Question 1.")
        through_gateway, agent.send = agent.send, AsyncMock()
        await agent.compact()
        for number in range(turns_after):
            await agent.take_turn(f"Question {2 + number}.")
        agent.send = through_gateway
        for number in range(2 + turns_after, 4 + turns_after):
            await agent.take_turn(f"Question {number}.")
    [entries] = await read_entries(store)
    [compaction] = [each for each in entries if isinstance(each.body, Compaction)]
    assert isinstance(compaction.body, Compaction)
    assert compaction.body.trigger == "client"
    assert str(agent.summary[-1]).count(str((compaction.body.summary or "")[-40:-30])) >= 1
    before = [each for each in entries if each.seq < compaction.seq]
    assert list_said(before, agent) == ["Question 0.", agent.texts[0], "Question 1.", agent.texts[1]]
    assert len(list_said(entries, agent)) == 2 * len(agent.texts)


@pytest.mark.parametrize("origin", [ConversationOrigin(client="cursor", session="first"), None])
@pytest.mark.parametrize("kind", AGENT_NAMES)
async def test_a_session_that_quire_wrote_goes_on_in_its_conversation(
    store: SqlStore, kind: str, origin: ConversationOrigin | None
):
    await store.create_conversation("tides", origin=origin)
    [(question, answer), (other, reply)] = TEXTS.values()
    await store.append(
        "tides",
        *(Message.user(question), Message.assistant(answer)),
        # The file of a session has no messages of the system's.
        *(Message(role="system", parts=Message.user("Be brief.").parts), Message.user(other), Message.assistant(reply)),
    )
    continued = ContinuedSession("tides", 0, 5, now())
    await store.imports.record_continued(make_conversation_id(AGENT_NAMES[kind], "written"), continued)
    async with run_agent(store, kind, "written") as agent:
        for each, said in TEXTS.values():
            agent.items += [*make_question(agent.wire, each), *make_answer(agent.wire, said, "")]
        for number in range(2):
            await agent.take_turn(f"Question {number}.")
        [entries] = await read_entries(store)
        assert [each.message.text for each in entries].count(answer) == 1
        assert list_said(entries, agent) == ["Question 0.", agent.texts[0], "Question 1.", agent.texts[1]]
        await agent.compact()
        await agent.take_turn("Question 2.")
        branches = await read_entries(store)
        # The request for the summary is a branch of its own.
        assert sum(isinstance(each.body, Compaction) for entries in branches for each in entries) == 1
        assert list_said(branches[0], agent)[-2:] == ["Question 2.", agent.texts[2]]
        # The session is found by either id.
        assert [each.id for each in await store.list_session("written")] == ["tides"]


async def test_a_written_session_is_a_branch_where_its_original_went_on(store: SqlStore):
    await store.create_conversation("tides", origin=ConversationOrigin(client="claude-code", session="first"))
    [(question, answer), (other, reply)] = TEXTS.values()
    await store.append("tides", Message.user(question), Message.assistant(answer))
    continued = ContinuedSession("tides", 0, 2, now())
    await store.imports.record_continued(make_conversation_id("claude-code", "written"), continued)
    await store.append("tides", Message.user(other), Message.assistant(reply))
    async with run_agent(store, "claude", "written") as agent:
        agent.items += [*make_question("messages", question), *make_answer("messages", answer, "")]
        for number in range(2):
            await agent.take_turn(f"Question {number}.")
    main, branch = await read_entries(store)
    assert [each.message.text for each in main] == [question, answer, other, reply]
    assert list_said(branch, agent) == ["Question 0.", agent.texts[0], "Question 1.", agent.texts[1]]
