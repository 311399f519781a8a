"""A short campaign of faults with one PostgreSQL and PgBouncer; `just bench faults` runs a long one under Patroni."""

from pathlib import Path

import pytest
from fault_campaign import list_supported_kinds, run_fleet
from fault_checks import check_clients
from fault_clients import GatewayClient, Turns

from infra.fault_database import SingleDatabase, start_pooler
from infra.fault_schedule import FaultKind, build_schedule
from infra.metered_upstream import MeteredCall, MeteredUpstream
from infra.pgbouncer import find_pgbouncer
from infra.postgres import Cluster, find_binaries
from infra.sizes import IS_FULL_SIZE
from quire.model import Message
from quire.store import SqlStore

SEED = 19
PUSH_KINDS = {
    FaultKind.KILL_NODE, FaultKind.KILL_WORKER, FaultKind.RESET_DATABASE, FaultKind.RESTART_POOLER,
    FaultKind.RESET_CLIENTS, FaultKind.CUT_REPLY,
}  # fmt: skip
"""One of each group; all are injected at full size."""


@pytest.mark.slow
@pytest.mark.skipif(find_binaries(18) is None, reason="PostgreSQL 18 is not installed")
@pytest.mark.skipif(find_pgbouncer() is None, reason="PgBouncer is not installed")
async def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path):
    with Cluster.start(18, fsync=True) as cluster, start_pooler(cluster.port) as pooler:
        database = SingleDatabase(cluster, pooler=pooler)
        kinds = list_supported_kinds(database) & (set(FaultKind) if IS_FULL_SIZE else PUSH_KINDS)
        async with run_fleet(database, tmp_path) as campaign:
            schedule = build_schedule(SEED, 30 if IS_FULL_SIZE else len(kinds), kinds=kinds)
            result = await campaign.run(schedule, **({} if IS_FULL_SIZE else {"clients": (2, 1)}))
    assert result.failures == []
    assert set(campaign.injected) | set(campaign.without_effect) == kinds
    assert sum(client.statuses.total() for client in campaign.clients) > result.acknowledged_turns, (
        "no fault was noticed"
    )


def test_a_schedule_is_repeatable_from_its_seed():
    schedule = build_schedule(1, 1_000, kinds=set(FaultKind))
    assert schedule == build_schedule(1, 1_000, kinds=set(FaultKind))
    assert schedule != build_schedule(2, 1_000, kinds=set(FaultKind))
    assert {fault.kind for fault in build_schedule(1, len(FaultKind), kinds=set(FaultKind))} == set(FaultKind)


TURNS: Turns = [("user", "one?"), ("assistant", "one."), ("user", "two?"), ("assistant", "two.")]


@pytest.mark.parametrize(
    ("stored", "spent", "failure"),
    [
        (TURNS, 0.0, None),
        ([*TURNS, ("user", "not acknowledged?")], 0.5, None),
        (TURNS[:2], 0.0, "2 of 4 are lost"),
        ([*TURNS[2:], *TURNS[:2]], 0.0, "message 0 is not in its place; 0 of 4 are lost"),
        ([*TURNS, *TURNS[2:]], 0.0, "stored more than once: 'two?'"),
        (TURNS, 2.0, "spent 2.0"),
    ],
)
async def test_the_checks_find_what_is_lost_doubled_or_unpaid(
    store: SqlStore, stored: Turns, spent: float, failure: str | None
):
    client = GatewayClient([], "", "g", acknowledged={"talk-g": TURNS})
    upstream = MeteredUpstream(calls={1: MeteredCall("talk-g", 0.5)})
    await store.create_conversation("talk-g")
    for role, text in stored:
        await store.append("talk-g", Message(role=role, parts=Message.user(text).parts))
    await store.spending.add_cost("talk-g", spent)
    failures = (await check_clients(store, upstream, [client])).failures
    assert not failures if failure is None else any(failure in each for each in failures), failures
