"""A conversation whose context an agent holds gets no compaction of Quire's own, until it is continued in Quire."""

import json

import pytest
from job_harness import SECOND_MICROSECONDS, JobHarness, append_turns, compaction_triggers, list_compactions

from quire.engine import Conversation
from quire.jobs import Job
from quire.log.types import ConversationOrigin
from quire.model import Message
from quire.store import SqlStore

RECORDED = ConversationOrigin(client="claude-code", session="s")
IMPORTED = ConversationOrigin(client="chatgpt")
NAMED = ConversationOrigin(client="my-app", session="s")


async def fill(harness: JobHarness, id: str, origin: ConversationOrigin) -> Conversation:
    await harness.store.create_conversation(id, origin=origin)
    conversation = await harness.engine().conversation(id)
    await append_turns(conversation, 12)
    return conversation


async def sweep(harness: JobHarness) -> None:
    """Runs the jobs that a sweep finds after a pause, and those that they ask for."""
    harness.clock.offset += 61 * SECOND_MICROSECONDS
    found: list[Job] = []

    async def defer(jobs: object) -> None:
        found.extend(jobs)  # pyright: ignore[reportArgumentType]

    await harness.sweeper.sweep(defer)
    for job in found:
        await harness.runner.run(job)


@pytest.mark.parametrize(("id", "origin"), [("c", RECORDED), ("chatgpt-0123456789", IMPORTED)])
async def test_what_an_agent_holds_is_not_compacted(store: SqlStore, id: str, origin: ConversationOrigin):
    harness = JobHarness(store)
    conversation = await fill(harness, id, origin)
    await sweep(harness)
    assert await conversation.compact(trigger="background") is None
    assert await list_compactions(store, id) == []
    assert harness.model.prompts == []
    assert (await store.get_conversation(id)).owner == origin.client


async def test_a_client_that_only_names_its_session_owns_nothing(store: SqlStore):
    harness = JobHarness(store)
    await fill(harness, "c", NAMED)
    await sweep(harness)
    assert compaction_triggers(await list_compactions(store)) == ["background"]


async def test_one_that_is_continued_in_quire_is_compacted_again(store: SqlStore):
    harness = JobHarness(store)
    conversation = await fill(harness, "c", RECORDED)
    await store.set_tags("c", ["river"])
    request = await conversation.prepare("and now?")
    assert (await store.get_conversation("c")).owner == "claude-code"
    await conversation.record("nothing", request=request)
    await harness.engine().wait_for_background()
    record = await store.get_conversation("c")
    assert (record.owner, record.tags) == (None, ("river",))
    await append_turns(conversation, 12)
    await sweep(harness)
    assert "background" in compaction_triggers(await list_compactions(store))
    await store.set_metadata("c", {"note": "a client's"})
    assert (await store.get_conversation("c")).owner is None
    assert await store.get_metadata("c") == {"note": "a client's"}


async def test_what_an_earlier_version_compacted_is_undone(store: SqlStore):
    """Its entries stay, as Quire's own; the agent's compaction below is active again."""
    harness = JobHarness(store)
    await harness.create_overfull()
    await harness.runner.run(Job("compact", "default", "c"))
    assert compaction_triggers(await list_compactions(store)) == ["background"]
    first, *others = [line async for line in store.export_conversation("c")]
    origin = json.dumps({**json.loads(first), "origin": {"client": "claude-code", "session": "s"}})
    await store.import_conversation([origin, *others], as_id="old")
    await sweep(harness)
    window = await store.read_window("old")
    assert window.compaction is None
    assert [entry.message for entry in window.messages][:1] == [Message.user("question 0: " + "why " * 40)]
    assert compaction_triggers(await list_compactions(store, "old")) == ["background"]
