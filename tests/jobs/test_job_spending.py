"""Spending of background jobs: a summary is charged to the API key of its conversation, within the key's cap."""

import pytest
from job_harness import GOOD_SUMMARY, JobHarness, list_compactions

from quire.errors import SpendCapReached, UnknownPrice
from quire.jobs import Job
from quire.jobs.runner import RetryingRunner
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel

COMPACT_JOB = Job("compact", "default", "c")


def make_harness(store: SqlStore, model: str = "gpt-4o") -> JobHarness:
    return JobHarness(store, ScriptedModel(GOOD_SUMMARY, repeat=True, name=model))


async def test_a_background_summary_is_charged_to_the_key_of_its_conversation(store: SqlStore):
    harness = make_harness(store)
    key, _ = await store.keys.create("capped", ["chat"], max_spend=1.0)
    await harness.create_overfull()
    await store.spending.add_cost("c", 0.5, key_id=key.id)
    await harness.runner.run(COMPACT_JOB)
    assert len(await list_compactions(store)) == 1
    spent = (await store.spending.sum_by_key())[key.id]
    assert 0.5 < spent < 0.6
    assert await store.spending.get_cost("c") == pytest.approx(spent)


async def test_no_summary_is_written_for_a_key_that_has_spent_its_cap(store: SqlStore):
    harness = make_harness(store)
    key, _ = await store.keys.create("capped", ["chat"], max_spend=0.5)
    await harness.create_overfull()
    await store.spending.add_cost("c", 0.5, key_id=key.id)
    with pytest.raises(SpendCapReached, match="API key"):
        await harness.runner.run(COMPACT_JOB)
    assert not harness.model.prompts
    assert not await list_compactions(store)


async def test_a_summarizer_of_unknown_price_is_not_called_again_and_again(store: SqlStore):
    harness = make_harness(store, "up-7b")
    key, _ = await store.keys.create("capped", ["chat"], max_spend=1.0)
    await harness.create_overfull()
    await store.spending.add_cost("c", 0.5, key_id=key.id)
    with pytest.raises(UnknownPrice, match="up-7b"):
        await harness.runner.run(COMPACT_JOB)
    attempt = await RetryingRunner(harness.runner).attempt(COMPACT_JOB, 1)
    assert (attempt.retry_after_seconds, harness.model.prompts) == (None, [])
