"""The usage roll-up equals a full recount of the log, after any operations, and a purge leaves nothing of a name."""

from collections import Counter
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from usage_workload import RecountKey, Workload, recount

from infra.builders import make_messages, make_turn, property_settings
from infra.database_dump import contains_text, dump_database
from infra.sizes import IS_FULL_SIZE
from quire.db.store_part import write
from quire.log import ConversationOrigin
from quire.model import Compaction, Decision, DocumentReference, Draft, Message, Span, Usage
from quire.model.entry_metadata import TurnTotals
from quire.model.messages import ToolCallPart
from quire.store import SqlStore
from quire.usage.contribution import DAY_MICROSECONDS, MAX_COST_NANOS, MAX_NAME_CHARS, MAX_TOKENS
from quire.usage.report import RollupReport

TENANT_NUMBERS = count(1)


def to_counters(report: RollupReport) -> dict[RecountKey, Counter[str]]:
    groups = {dimension: each for dimension, each in report.groups.items() if dimension != "day"}
    groups |= {"document": report.documents, "rule": report.rules, "reference": report.references}
    found = {
        (dimension, group.name): +Counter(group.counts._asdict())
        for dimension, each in groups.items()
        for group in each
    }
    return found | ({("all", ""): +Counter(report.totals._asdict())} if any(report.totals) else {})


async def count_everything(store: SqlStore) -> None:
    while await store.usage.count():
        pass


@pytest.mark.every_database
@settings(property_settings, max_examples=12 if IS_FULL_SIZE else 4)
@given(seed=st.integers(0, 2**32))
async def test_the_roll_up_equals_a_full_recount_after_any_operations(store: SqlStore, seed: int) -> None:
    tenant = store.for_tenant(f"tenant {next(TENANT_NUMBERS)}")
    await Workload(tenant, seed).run(12)
    await count_everything(tenant)
    report = await tenant.usage.read_report(limit=1_000)
    assert to_counters(report) == await recount(tenant)
    days = Counter[str]()
    for group in report.groups["day"]:
        days.update(group.counts._asdict())
    assert days == Counter(report.totals._asdict())
    assert report.pending_branches == 0
    assert (await tenant.usage.recount())[1:] == (0, 0)


def make_question(*documents: str) -> Draft:
    references = tuple(DocumentReference(link=name, path=name) for name in documents)
    return Draft(body=Message.user("a question"), references=references, created_at=DAY_MICROSECONDS)


def make_reply(tokens: int = 10, cost: float = 0.5) -> Draft:
    usage = Usage(model="m", input_tokens=tokens)
    turn = TurnTotals(steps=1, usage=usage, cost_usd=cost)
    return Draft(
        body=Message.assistant("an answer"), usage=usage, turn=turn, created_at=DAY_MICROSECONDS, cost_usd=cost
    )


@pytest.mark.every_database
async def test_a_purge_erases_names_from_the_roll_up_in_its_own_transaction(store: SqlStore, admin_url: str) -> None:
    await store.create_conversation("c", origin=ConversationOrigin(project="/home/xylophone"))
    await store.append("c", make_question("notes/xylophone.md", "b.md"), make_reply())
    await count_everything(store)
    assert [each.first for each in await store.usage.read_document_pairs()] == ["b.md"]
    assert contains_text(dump_database(admin_url), "xylophone")
    await store.purge("c")
    assert not contains_text(dump_database(admin_url), "xylophone")
    assert not any((await store.usage.read_report()).totals)
    await count_everything(store)
    report = await store.usage.read_report()
    assert (any(report.totals), report.turns, await store.usage.read_document_pairs()) == (False, [], [])


@pytest.mark.every_database
async def test_a_purge_by_value_erases_a_name_from_the_roll_up(store: SqlStore, admin_url: str) -> None:
    await store.create_conversation("c", origin=ConversationOrigin(project="/home/xylophone"))
    await store.append("c", make_question("b.md"), make_reply())
    await count_everything(store)
    result = await store.purge_value("xylophone")
    assert result.remaining == ()
    assert not contains_text(dump_database(admin_url), "xylophone")
    await count_everything(store)
    report = await store.usage.read_report()
    assert ([each.name for each in report.groups["project"]], report.totals.turns) == ([""], 1)


async def test_a_repeated_count_adds_nothing(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", make_question(), make_reply())
    assert await store.usage.has_uncounted()
    await count_everything(store)
    before = await store.usage.read_report()
    assert not await store.usage.has_uncounted()
    assert await store.usage.count() == 0
    assert await store.usage.read_report() == before
    assert before.totals.input_tokens == 10


async def test_an_imported_compaction_frees_nothing_if_only_the_tokens_before_it_are_known(store: SqlStore) -> None:
    for name, after in {"a": 300, "b": 0}.items():
        await store.create_conversation(name)
        await store.append(name, make_question(), Compaction(number=1, tokens_before=1_000, tokens_after=after))
    await count_everything(store)
    totals = (await store.usage.read_report()).totals
    assert (totals.compactions, totals.compacted_tokens) == (2, 700)


async def test_the_turns_that_cost_most_come_first(store: SqlStore) -> None:
    for name, cost in {"a": 0.1, "b": 0.3, "c": 0.2}.items():
        await store.create_conversation(name)
        await store.append(name, make_question(), make_reply(cost=cost))
    await count_everything(store)
    turns = (await store.usage.read_report(limit=2)).turns
    assert [(each.conversation, each.seq, each.cost_nanos) for each in turns] == [
        ("b", 2, 300_000_000),
        ("c", 2, 200_000_000),
    ]
    assert (await store.usage.read_report(since_day=2)).turns == []


def make_call(cost: float | None, **fields: Any) -> Draft:
    """A reply that calls a tool, so that the turn goes on."""
    usage = Usage(model="m", input_tokens=10, output_tokens=2)
    body = Message(role="assistant", parts=(ToolCallPart(id=f"call {cost}", name="search"),))
    return Draft(body=body, usage=usage, cost_usd=cost, created_at=DAY_MICROSECONDS, **fields)


@pytest.mark.parametrize("batch", [1, 2, 500])
async def test_a_turn_has_the_cost_of_all_its_calls_however_it_ends(store: SqlStore, batch: int) -> None:
    """The first turn ends by an interrupt, the second by a compaction, the third by an answer."""
    await store.create_conversation("c")
    compaction = Compaction(
        number=1, covers=Span(first=1, last=2), summary="s", usage=Usage(input_tokens=5), cost_usd=0.5
    )
    answer = Draft(body=Message.assistant("done"), cost_usd=0.0625, cost_incomplete=True, created_at=DAY_MICROSECONDS)
    for drafts in (
        [make_question(), make_call(0.125)],
        [make_call(0.25), make_question(), make_call(1.0)],
        [Draft(body=compaction, created_at=DAY_MICROSECONDS), make_question(), make_call(2.0), answer],
    ):
        await store.append("c", *drafts)
        while await store.usage.count(max_entries=batch):
            pass
    report = await store.usage.read_report()
    assert [(each.seq, each.cost_nanos / 1e9, each.unpriced_requests) for each in report.turns] == [
        (9, 2.0625, 1),
        (5, 1.5, 0),
        (3, 0.375, 0),
    ]
    assert report.totals.cost_nanos == 3_937_500_000
    assert (report.totals.turns, report.totals.requests, report.totals.unpriced_requests) == (1, 6, 1)
    assert (await store.usage.recount())[1:] == (0, 0)


async def test_a_call_without_a_recorded_cost_is_priced_by_the_list_of_its_day(store: SqlStore) -> None:
    await store.create_conversation("c")
    june_9, june_10 = (round(datetime(2025, 6, day, 12, tzinfo=UTC).timestamp() * 1e6) for day in (9, 10))
    usage = Usage(model="o3", input_tokens=1_000_000)
    unknown = Usage(model="nobody-lists-this", input_tokens=700, output_tokens=7)
    replies = [
        Draft(body=Message.assistant(f"{number}"), usage=each, created_at=at)
        for number, (each, at) in enumerate(
            [(usage, june_9), (usage, june_10), (unknown, june_10), (None, june_10), (Usage(model="o3"), june_10)]
        )
    ]
    await store.append("c", *replies)
    used = await store.usage.read_conversation("c")
    assert (used.cost_nanos, used.imported_nanos) == (12_000_000_000, 12_000_000_000)
    assert (used.requests, used.unpriced_requests, used.unpriced_tokens) == (5, 2, 707)


async def test_conversations_counted_by_older_rules_are_counted_again(store: SqlStore) -> None:
    for name in ("a", "b"):
        await store.create_conversation(name)
        await store.append(name, make_question(), make_call(0.25), make_reply())
    await count_everything(store)
    expected = await store.usage.read_report()
    changes = (
        "UPDATE quire_usage_contributions SET cost_nanos = 0, requests = 5",
        "UPDATE quire_usage_totals SET cost_nanos = 0, requests = 10",
        "DELETE FROM quire_usage_turns",
        "UPDATE quire_counted_branches SET rules = 1",
    )
    for change in changes:
        await store.run(write, lambda connection, _, sql: connection.execute(text(sql)), change)
    assert await store.usage.has_uncounted()
    assert (await store.usage.read_conversation("a")).cost_nanos == 750_000_000
    await count_everything(store)
    assert await store.usage.read_report() == expected
    assert not await store.usage.has_uncounted()


async def test_a_recount_corrects_changed_rows(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", make_question("a.md", "b.md"), make_reply())
    await count_everything(store)
    before = await store.usage.read_report(), await store.usage.read_document_pairs()
    changes = (
        "UPDATE quire_usage_totals SET turns = turns + 1 WHERE dimension = 'all'",
        "DELETE FROM quire_usage_contributions WHERE dimension = 'document'",
        "DELETE FROM quire_document_pairs",
    )
    for change in changes:
        await store.run(write, lambda connection, _, sql: connection.execute(text(sql)), change)
    result = await store.usage.recount()
    assert (result.conversations, result.corrected_conversations) == (1, 1)
    assert result.corrected_totals > 0
    assert (await store.usage.read_report(), await store.usage.read_document_pairs()) == before
    assert (await store.usage.recount())[1:] == (0, 0)


async def test_numbers_and_names_beyond_every_limit_are_cut(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", make_question("é" * 3_000), make_reply(tokens=10**30, cost=1e300))
    await count_everything(store)
    report = await store.usage.read_report()
    assert (report.totals.input_tokens, report.totals.cost_nanos) == (MAX_TOKENS, MAX_COST_NANOS)
    assert [len(each.name) for each in report.documents] == [MAX_NAME_CHARS]


async def test_only_tools_that_somebody_can_leave_out_are_unused(store: SqlStore) -> None:
    """An agent offers its own tools in each request. Those of its MCP servers, and a program's own, can be removed."""
    for name, body in {"agent": b"{}", "program": None}.items():
        turn = make_turn(*make_messages(2), body=body)
        tools = tuple(
            Decision(slot="tools", kind="tool", included=True, reason="always", name=tool, tokens=10)
            for tool in (f"{name}_read", f"mcp__{name}__find")
        )
        record = turn._replace(
            build_manifest=lambda stored, turn=turn, tools=tools: turn.build_manifest(stored).model_copy(
                update={"decisions": tools}
            )
        )
        await store.create_conversation(name)
        await store.record_reply(name, record)
    await count_everything(store)
    unused = {each.name for each in (await store.usage.read_report()).unused_tools}
    assert unused == {"mcp__agent__find", "program_read", "mcp__program__find"}
