"""Every kind of job does what the log says is missing, once, and for its own tenant alone."""

from pathlib import Path

import pytest
from jobbing import DAY, GOOD, LISTS, Shop, compactions, triggers, without_vectors

from quire.engine import Conversation
from quire.jobs import Job
from quire.log import SqlStore
from quire.model import Message
from quire.testing.scripted import ScriptedModel

NOBODY = Job("compact", "default", "nobody's")

PROSE = "The mill stands at kilometre twelve of the river, where the road from the harbour ends.\n"


@pytest.fixture
async def shop(store: SqlStore) -> Shop:
    return Shop(store)


async def test_a_conversation_over_the_mark_is_compacted_once(shop: Shop):
    await shop.overfull()
    done = await shop.workshop.do(Job("compact", "default", "c"))
    assert done.done == 1
    assert done.then == (Job("embed", "default", "c"),)
    assert await shop.workshop.do(Job("compact", "default", "c")) == (0, ())
    assert triggers(await compactions(shop.store)) == ["background"]
    assert len(shop.model.prompts) == 1


async def test_one_below_the_mark_is_left_alone(shop: Shop):
    conversation = await shop.engine().conversation("c")
    await conversation.append("short", Message.assistant("so it is"))
    assert await shop.workshop.do(Job("compact", "default", "c")) == (0, ())
    assert await compactions(shop.store) == []


async def test_the_window_is_that_of_the_model_that_answered_last(store: SqlStore):
    """What is little to the usual model may be much to the one that a client chose."""
    shop = Shop(store, context_limit=100_000, upstreams={"tiny-*": {"base_url": "http://x/v1", "context_limit": 2_000}})
    tiny = shop.engine().like(model="tiny-1", context_limit=2_000, tokenizer="o200k_base")
    tiny.deferrer = _refuse
    conversation = await tiny.conversation("c")
    for _ in range(14):
        await conversation.prepare("why " * 40)
        await conversation.record("so " * 40)
    assert (await shop.workshop.do(Job("compact", "default", "c"))).done == 1
    await shop.overfull("usual")
    assert (await shop.workshop.do(Job("compact", "default", "usual"))).done == 0


async def _refuse(kind: str, conversation: str, branch: int) -> None:
    """Loses every job."""


async def test_archived_messages_are_shelved_and_given_vectors(shop: Shop):
    await shop.unshelved()
    assert await shop.store.shelves("c") == []
    done = await shop.workshop.do(Job("shelve", "default", "c"))
    assert done == (1, (Job("embed", "default", "c"),))
    assert await without_vectors(shop.store) == 24
    assert (await shop.workshop.do(Job("embed", "default", "c"))).done == 24
    assert await without_vectors(shop.store) == 0
    assert await shop.workshop.do(Job("shelve", "default", "c")) == (0, ())
    assert await shop.workshop.do(Job("embed", "default", "c")) == (0, ())


async def test_memories_get_vectors_too(shop: Shop):
    await shop.engine().conversation("c")
    await shop.store.remember("sailor", "the boat draws one metre eighty", source="by hand")
    assert (await shop.workshop.do(Job("embed", "default", "c"))).done == 1
    assert await shop.store.unembedded("memory:sailor", embedder="letters") == []


async def test_a_vault_is_indexed_and_what_lacks_a_paragraph_is_described(store: SqlStore, tmp_path: Path):
    (tmp_path / "mill.md").write_text(f"# The mill\n\n{PROSE}")
    (tmp_path / "list.md").write_text(f"# Shopping\n\n{LISTS}")
    shop = Shop(store, ScriptedModel("A shopping list for a long voyage.", repeat=True), vault=tmp_path)
    done = await shop.workshop.do(Job("index", "default"))
    assert done == (2, (Job("describe", "default"),))
    vault = shop.engine().vault
    assert vault is not None
    before = {each.path: each.summary for each in await store.documents(vault.name)}
    assert before["mill.md"] == PROSE.strip()
    assert (await shop.workshop.do(Job("describe", "default"))).done == 1
    after = {each.path: each.summary for each in await store.documents(vault.name)}
    assert after == {"mill.md": PROSE.strip(), "list.md": "A shopping list for a long voyage."}
    assert len(shop.model.prompts) == 1
    # The index, vectors included, is as it was, and nothing is asked twice.
    assert await store.unembedded(f"vault:{vault.name}", embedder="letters") == []
    assert [hit.key for hit in await store.search("flour", scopes=[f"vault:{vault.name}"])] == ["list.md"]
    assert await shop.workshop.do(Job("describe", "default")) == (0, ())
    assert await shop.workshop.do(Job("index", "default")) == (0, ())
    assert len(shop.model.prompts) == 1


async def test_a_model_that_has_no_sentence_is_not_asked_for_the_whole_vault(store: SqlStore, tmp_path: Path):
    for number in range(6):
        (tmp_path / f"{number}.md").write_text(LISTS)
    shop = Shop(store, ScriptedModel("", repeat=True), vault=tmp_path)
    await shop.workshop.do(Job("index", "default"))
    assert (await shop.workshop.do(Job("describe", "default"))).done == 0
    assert len(shop.model.prompts) == 3


async def test_retention_purges_what_nobody_used_and_its_title(store: SqlStore):
    shop = Shop(store, retention_days=30)
    conversation = await shop.overfull()
    await store.rename("c", "About the mill")
    shop.clock.ahead = 29 * DAY
    assert await shop.workshop.do(Job("purge", "default", "c")) == (0, ())
    shop.clock.ahead = 31 * DAY
    assert (await shop.workshop.do(Job("purge", "default", "c"))).done == 24
    assert (await store.conversation("c")).title == ""
    assert all(entry.purged_at for entry in await conversation.messages())
    assert await store.verify("c") == []
    assert await shop.workshop.do(Job("purge", "default", "c")) == (0, ())


async def test_what_was_used_meanwhile_is_not_purged(store: SqlStore):
    shop = Shop(store, retention_days=30)
    await shop.overfull()
    assert await shop.workshop.do(Job("purge", "default", "c")) == (0, ())
    shop = Shop(store)
    shop.clock.ahead = 1_000 * DAY
    assert await shop.workshop.do(Job("purge", "default", "c")) == (0, ())


@pytest.mark.parametrize("kind", ["compact", "shelve", "embed", "purge"])
async def test_a_job_for_what_is_gone_does_nothing(store: SqlStore, kind: str):
    shop = Shop(store, retention_days=1)
    assert await shop.workshop.do(NOBODY._replace(kind=kind)) == (0, ())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", ["compact", "shelve", "embed", "purge"])
async def test_a_job_touches_its_own_tenant_alone(store: SqlStore, kind: str):
    """Both have a conversation of the same name with the same work left in it."""
    shop = Shop(store, retention_days=1)
    for tenant in ("a", "b"):
        conversation = await (shop.overfull if kind == "compact" else shop.unshelved)(tenant=tenant)
        if kind == "embed":
            await shop.engine(tenant).recaller.archives.fill(await shop.engine(tenant).store.branch("c"))
        assert isinstance(conversation, Conversation)
    shop.clock.ahead = 2 * DAY
    before = await _everything(store.for_tenant("b"))
    done = await shop.workshop.do(Job(kind, "a", "c"))  # pyright: ignore[reportArgumentType]
    assert done.done > 0
    assert all(job.tenant == "a" for job in done.then)
    assert await _everything(store.for_tenant("b")) == before
    assert await _everything(store.for_tenant("a")) != before


async def _everything(store: SqlStore) -> object:
    return (
        [line async for line in store.export("c") if '"created_at"' not in line and '"at"' not in line],
        [(entry.seq, entry.raw, entry.purged_at) for entry in await store.range("c")],
        [mark[:3] for mark in await store.shelves("c")],
        await without_vectors(store),
    )


async def test_a_summary_is_good_enough_to_stand(shop: Shop):
    """So that the tests above compact with the model, not for want of it."""
    await shop.overfull()
    await shop.workshop.do(Job("compact", "default", "c"))
    [entry] = await compactions(shop.store)
    assert entry.body.summary == GOOD
