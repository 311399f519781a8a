"""Every kind of job does the missing work once, and for its own tenant only."""

from pathlib import Path

import pytest
from job_harness import (
    DAY_MICROSECONDS,
    GOOD_SUMMARY,
    LIST_DOCUMENT,
    JobHarness,
    compaction_triggers,
    list_compactions,
    list_embedders,
)

from infra.builders import export_lines
from quire.engine import Conversation, Engine, EngineRuntime
from quire.engine.background_jobs import EngineJobKind, Work
from quire.jobs import Job
from quire.model import Message
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel

UNKNOWN_CONVERSATION_JOB = Job("compact", "default", "unknown")

PROSE = "The mill stands at kilometre twelve of the river, where the road from the harbour ends.\n"


@pytest.fixture
async def harness(store: SqlStore) -> JobHarness:
    return JobHarness(store)


@pytest.mark.every_database
async def test_a_conversation_over_the_mark_is_compacted_once(harness: JobHarness):
    await harness.create_overfull()
    outcome = await harness.runner.run(Job("compact", "default", "c"))
    assert outcome.item_count == 1
    assert outcome.follow_ups == ()
    calls = len(harness.model.prompts)
    assert await harness.runner.run(Job("compact", "default", "c")) == (0, ())
    assert compaction_triggers(await list_compactions(harness.store)) == ["background"]
    assert len(harness.model.prompts) == calls > 0


async def test_one_below_the_mark_is_left_alone(harness: JobHarness):
    conversation = await harness.engine().conversation("c")
    await conversation.append("short", Message.assistant("so it is"))
    assert await harness.runner.run(Job("compact", "default", "c")) == (0, ())
    assert await list_compactions(harness.store) == []


async def test_the_window_is_that_of_the_model_that_answered_last(store: SqlStore):
    """A history that is short for the default model may exceed the window of the one that a client chose."""
    models = {"tiny-*": {"window": 2_000, "tokenizer": "o200k_base"}}
    harness = JobHarness(store, context_limit=100_000, models=models)
    tiny = harness.engine().with_changes(model="tiny-1")
    conversation = await Engine(store, tiny.config, EngineRuntime(jobs=LostJobs())).conversation("c")
    for _ in range(14):
        request = await conversation.prepare("why " * 40)
        await conversation.record("so " * 40, request=request)
    assert (await harness.runner.run(Job("compact", "default", "c"))).item_count == 1
    await harness.create_overfull("usual")
    assert (await harness.runner.run(Job("compact", "default", "usual"))).item_count == 0


class LostJobs:
    """Loses every job."""

    def enqueue(
        self, kind: EngineJobKind, conversation: str, branch: int, work: Work, *, delay_seconds: float = 0.0
    ) -> None:
        pass

    async def wait(self) -> None:
        pass


async def test_archived_messages_are_indexed_and_embedded(harness: JobHarness):
    await harness.create_unindexed()
    assert await harness.store.message_index.list_segments("c") == []
    assert await harness.runner.run(Job("index_messages", "default")) == (25, ())
    assert await list_embedders(harness.store) == ["letters"]
    assert await harness.runner.run(Job("index_messages", "default")) == (0, ())


async def test_usage_is_counted_once(harness: JobHarness):
    await harness.create_unindexed()
    assert await harness.runner.run(Job("count_usage", "default")) == (1, ())
    counted = await harness.store.usage.read_report()
    assert counted.totals.requests > 0
    assert await harness.runner.run(Job("count_usage", "default")) == (0, ())
    assert await harness.store.usage.read_report() == counted


async def test_memories_get_vectors_too(harness: JobHarness):
    await harness.engine().conversation("c")
    await harness.store.memories.add("sailor", "the boat draws one metre eighty", source="by hand")
    assert (await harness.runner.run(Job("embed", "default"))).item_count == 1
    assert await harness.store.passages.list_unembedded("memory:sailor", embedder="letters") == []


async def test_a_vault_is_indexed_and_what_lacks_a_paragraph_is_summarized(store: SqlStore, tmp_path: Path):
    (tmp_path / "mill.md").write_text(f"# The mill\n\n{PROSE}")
    (tmp_path / "list.md").write_text(f"# Shopping\n\n{LIST_DOCUMENT}")
    harness = JobHarness(store, ScriptedModel("A shopping list for a long voyage.", repeat=True), vault=tmp_path)
    outcome = await harness.runner.run(Job("index_vault", "default"))
    assert outcome == (2, (Job("summarize_documents", "default"),))
    vault = harness.engine().vault
    assert vault is not None
    before = {each.path: each.summary for each in await store.documents.list(vault.name)}
    assert before["mill.md"] == PROSE.strip()
    assert (await harness.runner.run(Job("summarize_documents", "default"))).item_count == 1
    after = {each.path: each.summary for each in await store.documents.list(vault.name)}
    assert after == {"mill.md": PROSE.strip(), "list.md": "A shopping list for a long voyage."}
    assert len(harness.model.prompts) == 1
    # The index, vectors included, is unchanged, and the model is not called twice.
    assert await store.passages.list_unembedded(f"vault:{vault.name}", embedder="letters") == []
    assert [hit.key for hit in await store.passages.search("flour", scopes=[f"vault:{vault.name}"])] == ["list.md"]
    assert await harness.runner.run(Job("summarize_documents", "default")) == (0, ())
    assert await harness.runner.run(Job("index_vault", "default")) == (0, ())
    assert len(harness.model.prompts) == 1


async def test_a_model_without_a_sentence_is_not_called_for_the_whole_vault(store: SqlStore, tmp_path: Path):
    for number in range(6):
        (tmp_path / f"{number}.md").write_text(LIST_DOCUMENT)
    harness = JobHarness(store, ScriptedModel("", repeat=True), vault=tmp_path)
    await harness.runner.run(Job("index_vault", "default"))
    assert (await harness.runner.run(Job("summarize_documents", "default"))).item_count == 0
    assert len(harness.model.prompts) == 3


async def test_retention_purges_unused_conversations_and_their_titles(store: SqlStore):
    harness = JobHarness(store, retention_days=30)
    conversation = await harness.create_overfull()
    await store.rename_conversation("c", "About the mill")
    harness.clock.offset = 29 * DAY_MICROSECONDS
    assert await harness.runner.run(Job("purge", "default", "c")) == (0, ())
    harness.clock.offset = 31 * DAY_MICROSECONDS
    assert (await harness.runner.run(Job("purge", "default", "c"))).item_count == 24
    assert (await store.get_conversation("c")).title == ""
    assert all(entry.purged_at for entry in await conversation.messages())
    assert await store.verify_conversation("c") == []
    assert await harness.runner.run(Job("purge", "default", "c")) == (0, ())


@pytest.mark.every_database
@pytest.mark.parametrize("content_on", ["earlier messages", "a branch", "a branch name"])
async def test_retention_reaches_content_before_a_purged_message_and_on_branches(store: SqlStore, content_on: str):
    """The newest message of the main branch says nothing about the rest of an untitled conversation."""
    harness = JobHarness(store, retention_days=30)
    await store.create_conversation("c")
    await store.append("c", Message.user("secret 1"), Message.assistant("secret 2"))
    await store.purge("c", [2] if content_on == "earlier messages" else [1, 2])
    if content_on != "earlier messages":
        branch = await store.fork("c", at=0, name="secret plan")
        if content_on == "a branch":
            await store.append("c", Message.user("secret 3"), branch=branch.number)
    harness.clock.offset = 31 * DAY_MICROSECONDS
    await harness.runner.run(Job("purge", "default", "c"))
    assert "secret" not in "".join(await export_lines(store, "c"))
    assert await harness.runner.run(Job("purge", "default", "c")) == (0, ())
    # A later title and a later message are content again.
    await store.rename_conversation("c", "secret title")
    await harness.runner.run(Job("purge", "default", "c"))
    assert (await store.get_conversation("c")).title == ""
    await store.append("c", Message.user("secret 4"))
    assert (await harness.runner.run(Job("purge", "default", "c"))).item_count >= 1
    assert "secret" not in "".join(await export_lines(store, "c"))


async def test_what_was_used_meanwhile_is_not_purged(store: SqlStore):
    harness = JobHarness(store, retention_days=30)
    await harness.create_overfull()
    assert await harness.runner.run(Job("purge", "default", "c")) == (0, ())
    harness = JobHarness(store)
    harness.clock.offset = 1_000 * DAY_MICROSECONDS
    assert await harness.runner.run(Job("purge", "default", "c")) == (0, ())


@pytest.mark.parametrize("kind", ["compact", "index_messages", "index_topics", "count_usage", "embed", "purge"])
async def test_a_job_for_what_is_gone_does_nothing(store: SqlStore, kind: str):
    harness = JobHarness(store, retention_days=1, topic_index=True)
    assert await harness.runner.run(UNKNOWN_CONVERSATION_JOB._replace(kind=kind)) == (0, ())  # pyright: ignore[reportArgumentType]


@pytest.mark.every_database
@pytest.mark.parametrize("kind", ["compact", "index_messages", "index_topics", "embed", "purge"])
async def test_a_job_touches_its_own_tenant_alone(store: SqlStore, kind: str):
    """Both tenants have a conversation of the same name that needs the same work."""
    harness = JobHarness(store, retention_days=1)
    for tenant in ("a", "b"):
        conversation = await (harness.create_overfull if kind == "compact" else harness.create_unindexed)(tenant=tenant)
        if kind == "embed":
            await store.for_tenant(tenant).memories.add("sailor", "the boat draws one metre eighty", source="by hand")
        assert isinstance(conversation, Conversation)
    if kind == "index_topics":
        listed = '{"topics": [{"kind": "topic", "label": "rivers", "text": "a question why", "messages": [1, 3]}]}'
        harness = JobHarness(store, ScriptedModel(listed, repeat=True), topic_index=True)
    harness.clock.offset = 2 * DAY_MICROSECONDS
    before = await _dump_store(store.for_tenant("b"))
    outcome = await harness.runner.run(Job(kind, "a", "c"))  # pyright: ignore[reportArgumentType]
    assert outcome.item_count > 0
    assert all(job.tenant == "a" for job in outcome.follow_ups)
    assert await _dump_store(store.for_tenant("b")) == before
    assert await _dump_store(store.for_tenant("a")) != before


async def _dump_store(store: SqlStore) -> object:
    return (
        [line async for line in store.export_conversation("c") if '"created_at"' not in line and '"at"' not in line],
        [(entry.seq, entry.raw, entry.purged_at) for entry in await store.read_range("c")],
        [mark[:3] for mark in await store.message_index.list_segments("c")],
        await store.passages.list_unembedded("memory:sailor", embedder="letters"),
    )


async def test_the_summary_of_these_tests_passes_validation(harness: JobHarness):
    """Otherwise the tests above would use the extractive fallback."""
    await harness.create_overfull()
    await harness.runner.run(Job("compact", "default", "c"))
    [entry] = await list_compactions(harness.store)
    assert entry.body.summary == GOOD_SUMMARY
