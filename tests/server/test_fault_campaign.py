"""A short campaign of faults with one PostgreSQL; `just bench faults` runs a long one with three under Patroni."""

from pathlib import Path

import pytest
from fault_campaign import list_supported_kinds, run_fleet

from infra.fault_database import SingleDatabase
from infra.fault_schedule import FaultKind, build_schedule
from infra.postgres import Cluster, find_binaries

FAULT_COUNT = 30
SEED = 19


@pytest.mark.slow
@pytest.mark.skipif(find_binaries(18) is None, reason="PostgreSQL 18 is not installed")
async def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path):
    with Cluster.start(18, fsync=True) as cluster:
        database = SingleDatabase(cluster)
        kinds = list_supported_kinds(database)
        async with run_fleet(database, tmp_path) as campaign:
            result = await campaign.run(build_schedule(SEED, FAULT_COUNT, kinds=kinds))
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
