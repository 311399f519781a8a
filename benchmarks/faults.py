"""Injects faults into a fleet under load, and checks that nothing acknowledged is lost, doubled or out of order.

Real processes: three PostgreSQL under Patroni, two nodes (one of them through PgBouncer and HAProxy), two workers, an
upstream that misbehaves, and clients of the gateway and of `/send`. A seeded schedule kills, freezes and delays them
(tests/infra/fault_schedule.py); the same seed gives the same faults in the same order. Needs Debian's packages patroni,
etcd-server, haproxy, pgbouncer and postgresql-15; with faketime the clocks of nodes jump too. `--single` uses one
PostgreSQL without Patroni.

    just bench faults --seed 1 --faults 1000
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from fault_campaign import Campaign, list_supported_kinds, run_fleet
from fault_checks import CheckResult

from infra.fault_database import FaultDatabase, SingleDatabase, start_pooler
from infra.fault_schedule import FaultKind, build_schedule
from infra.postgres import Cluster
from patroni import PatroniCluster, ReplicatedDatabase


def open_database(stack: ExitStack, *, is_single: bool) -> FaultDatabase:
    if is_single:
        single = stack.enter_context(Cluster.start(18, fsync=True))
        return SingleDatabase(single, pooler=stack.enter_context(start_pooler(single.port)))
    cluster = stack.enter_context(PatroniCluster.start())
    return ReplicatedDatabase(cluster, pooler=stack.enter_context(start_pooler(cluster.primary_port)))


async def run_campaign(seed: int, count: int, *, is_single: bool, folder: Path) -> bool:
    """Returns whether everything held."""
    with ExitStack() as stack:
        database = open_database(stack, is_single=is_single)
        kinds = list_supported_kinds(database)
        skipped = sorted(set(FaultKind) - kinds)
        print(f"seed {seed}, {count} faults; not possible here: {', '.join(skipped) or 'none'}", flush=True)
        started = time.monotonic()
        async with run_fleet(database, folder) as campaign:
            result = await campaign.run(build_schedule(seed, count, kinds=kinds), report=_print_now)
        print_result(campaign, result, seconds=time.monotonic() - started)
        return not result.failures


def _print_now(line: str) -> None:
    print(line, flush=True)


def print_result(campaign: Campaign, result: CheckResult, *, seconds: float) -> None:
    statuses = sum((client.statuses for client in campaign.clients), Counter[str]())
    print(f"\n{campaign.injected.total()} faults injected in {seconds:.0f} s: {_format(campaign.injected)}")
    print(f"without effect, because the database was away: {_format(campaign.without_effect) or 'none'}")
    print(f"attempts of clients: {_format(statuses)}")
    print(f"longest attempt: {max(client.longest_seconds for client in campaign.clients):.1f} s")
    print(f"{result.acknowledged_turns} acknowledged turns in {result.conversations} conversations")
    print(
        f"spent ${result.spent_usd:.6f}; acknowledged ${result.acknowledged_usd:.6f}, delivered by the upstream "
        f"${result.delivered_usd:.6f}"
    )
    for failure in result.failures:
        print(f"FAILED {failure}")
    print("nothing lost, nothing doubled, verified" if not result.failures else f"{len(result.failures)} failures")


def _format(counts: Counter[str] | Counter[FaultKind]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=1_000)
    parser.add_argument("--single", action="store_true", help="one PostgreSQL without Patroni")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="quire-faults-"))
    print(f"logs of the processes: {folder}")
    has_held = asyncio.run(run_campaign(options.seed, options.faults, is_single=options.single, folder=folder))
    sys.exit(0 if has_held else 1)


if __name__ == "__main__":
    main()
