"""What the sub-agents of a conversation cost: in all, and by the turn that called them."""

from random import Random

import pytest

from quire.cli.session_status import format_status_line
from quire.db.store_part import write
from quire.ledger.timeline import load_timeline
from quire.log import ConversationOrigin, ConversationRecord
from quire.log.conversations import insert_conversation
from quire.model import Draft, Message, Usage
from quire.model.messages import ToolCallPart
from quire.store import SqlStore
from quire.usage.report import NO_SUB_AGENTS, SubAgentCost

MAIN = ConversationOrigin(client="claude-code", session="s1", project="/home/ann/mill")
SECOND = 1_000_000


def question(at: int) -> Draft:
    return Draft(body=Message.user(f"question {at}"), created_at=at * SECOND)


def reply(at: int, cost: float | None, *, calls_agent: bool = False) -> Draft:
    call = (ToolCallPart(id=f"call{at}", name="Agent"),) if calls_agent else ()
    usage = Usage(model="nobody-lists-this", input_tokens=10)
    body = Message(role="assistant", parts=(*Message.assistant(f"reply {at}").parts, *call))
    return Draft(body=body, usage=usage, cost_usd=cost, created_at=at * SECOND)


async def create(store: SqlStore, name: str, origin: ConversationOrigin, at: int) -> ConversationRecord:
    record = ConversationRecord(name, "", at * SECOND, at * SECOND, origin)
    await store.run(write, insert_conversation, record)
    return record


async def add_sub_agent(store: SqlStore, name: str, *drafts: Draft, origin: ConversationOrigin = MAIN) -> None:
    at = (drafts[0].created_at or 0) // SECOND
    await create(store, name, origin.model_copy(update={"agent": name, "purpose": "subagent"}), at)
    await store.append(name, *drafts)


@pytest.mark.every_database
async def test_a_turn_has_the_sub_agents_that_ran_in_it(store: SqlStore) -> None:
    record = await create(store, "main", MAIN, 0)
    await store.append("main", question(10), reply(20, 1.0, calls_agent=True), reply(50, 1.0))
    await store.append("main", question(100), reply(110, 2.0, calls_agent=True), question(200), reply(210, 4.0))
    # Two in the first turn; one of them goes on in the third. One was running when the user interrupted the second
    # turn, and one of its calls has no known price.
    await add_sub_agent(store, "first", question(21), reply(30, 0.25), question(201), reply(205, 0.5))
    await add_sub_agent(store, "nested", question(25), reply(300, 0.125))
    await add_sub_agent(store, "interrupted", question(120), reply(130, 8.0), reply(131, None))
    title = MAIN.model_copy(update={"purpose": "side"})
    await create(store, "title", title, 22)
    await store.append("title", question(22), reply(23, 64.0))
    await add_sub_agent(store, "other session", question(21), reply(30, 64.0), origin=ConversationOrigin(session="s2"))
    costs = await store.usage.read_sub_agents(record)
    assert costs.total == SubAgentCost(3, 8.875, 1)
    assert dict(costs.turns) == {
        (0, 3): SubAgentCost(2, 0.375, 0),
        (0, 5): SubAgentCost(1, 8.0, 1),
        (0, 7): SubAgentCost(1, 0.5, 0),
    }
    timeline = await load_timeline(store, "main")
    assert [row.sub_agent_usd for row in timeline.rows] == [None, 0.375, 8.0, 0.5]
    assert timeline.sub_agents == costs.total
    line = await format_status_line(store, {"session_id": "s1"})
    assert "session at least $80.88 (sub-agents $8.88)" in line
    for name in ("first", "title"):
        assert await store.usage.read_sub_agents(await store.get_conversation(name)) == (NO_SUB_AGENTS, {})


async def test_a_sub_agent_belongs_to_the_main_conversation_of_its_time(store: SqlStore) -> None:
    records = [await create(store, f"main {at}", MAIN, at) for at in (100, 200, 300)]
    for at in (100, 200, 300):
        await store.append(f"main {at}", question(at + 1), reply(at + 90, 1.0))
    random = Random(7)
    expected = {100: 0, 200: 0, 300: 0}
    for number in range(30):
        at = random.randint(50, 399)
        await add_sub_agent(store, f"sub {number}", question(at), reply(at + 5, 0.5))
        expected[max(100, at // 100 * 100)] += 1
    costs = [await store.usage.read_sub_agents(each) for each in records]
    assert [each.total.sub_agents for each in costs] == list(expected.values())
    assert [sum(turn.cost_usd for turn in each.turns.values()) for each in costs] == [
        count * 0.5 for count in expected.values()
    ]


async def test_a_fork_has_the_sub_agents_of_the_turns_that_it_shares(store: SqlStore) -> None:
    await create(store, "main", MAIN, 0)
    await store.append("main", question(10), reply(20, 1.0), question(100), reply(110, 1.0))
    fork = await store.fork("main", at=2)
    await store.append("main", question(300), reply(310, 1.0), branch=fork.number)
    await add_sub_agent(store, "shared", question(11), reply(12, 0.25))
    await add_sub_agent(store, "before", question(101), reply(102, 0.5))
    await add_sub_agent(store, "after", question(301), reply(302, 2.0))
    timelines = [await load_timeline(store, "main", branch=branch) for branch in (0, fork.number)]
    assert [[row.sub_agent_usd for row in each.rows] for each in timelines] == [[0.25, 0.5], [0.25, 2.0]]
