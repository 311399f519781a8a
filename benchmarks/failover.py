"""Measures fail-over through HTTP nodes: three PostgreSQL under Patroni with synchronous replication, two nodes.

Clients of the gateway run turns while the primary is killed five times, switched over twice, and frozen once. A bare
connection that commits every tenth of a second measures Patroni's own gap. Needs Debian's packages patroni,
etcd-server, haproxy and postgresql-15.

    just bench failover
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import psycopg
from fault_campaign import Campaign, run_fleet
from fault_checks import check_clients
from fault_clients import GatewayClient

from patroni import PatroniCluster, ReplicatedDatabase
from quire.store import SqlStore
from support import Report

CLIENT_COUNT = 8
PROBE_SECONDS = 0.1
MAX_PROBE_SECONDS = 2.0
FREEZE_SECONDS = 20.0
"""Time that the old primary stays frozen after the new one is there."""


class Event(NamedTuple):
    name: str
    gap_seconds: float
    """Longest time without an acknowledged turn."""
    patroni_gap_seconds: float
    """Longest time in which a bare connection could not commit."""
    longest_attempt_seconds: float
    ready_seconds: float
    """Time from the new primary until both nodes are ready."""


class FailoverRun:
    def __init__(self, cluster: PatroniCluster, campaign: Campaign) -> None:
        self._cluster, self._campaign = cluster, campaign
        self._frozen_member: int | None = None
        self.commits: list[float] = []
        ports = [proxy.port for proxy in campaign.node_proxies]
        campaign.clients += [GatewayClient(ports, campaign.key, f"f{number}") for number in range(CLIENT_COUNT)]

    @property
    def turn_count(self) -> int:
        return sum(client.turn_count for client in self._campaign.clients)

    async def probe(self) -> None:
        """Commits on a bare connection again and again, and notes when it succeeded."""
        while True:
            with suppress(psycopg.Error, TimeoutError, OSError):
                async with asyncio.timeout(MAX_PROBE_SECONDS * 3):
                    await self._commit_repeatedly()
            await asyncio.sleep(PROBE_SECONDS)

    async def _commit_repeatedly(self) -> None:
        conninfo = self._campaign.database.admin_conninfo
        connection = await psycopg.AsyncConnection.connect(conninfo, connect_timeout=2, autocommit=True)
        try:
            while True:
                async with asyncio.timeout(MAX_PROBE_SECONDS):
                    await connection.execute("SELECT pg_logical_emit_message(true, 'probe', '')")
                self.commits.append(time.monotonic())
                await asyncio.sleep(PROBE_SECONDS)
        finally:
            # A graceful close would wait for a frozen server.
            connection.pgconn.finish()

    async def wait_for_turns(self, count: int) -> None:
        while self.turn_count < count:  # noqa: ASYNC110 (several clients)
            await asyncio.sleep(0.05)

    async def observe(self, name: str, fault: Callable[[], float]) -> Event:
        """Injects a fault, which returns when the new primary was there, and measures until the cluster is healthy."""
        for client in self._campaign.clients:
            client.longest_seconds = 0.0
        started = time.monotonic()
        promoted_at = await asyncio.to_thread(fault)
        await self._campaign.wait_ready()
        ready_at = time.monotonic()
        if self._frozen_member is not None:
            # Nodes have to stay on the new primary while the old one still accepts connections.
            await asyncio.sleep(FREEZE_SECONDS)
            self._cluster.thaw_member(self._frozen_member)
            self._frozen_member = None
        await asyncio.to_thread(self._cluster.wait_healthy)
        await self.wait_for_turns(self.turn_count + 5 * CLIENT_COUNT)
        acknowledged = sorted(at for client in self._campaign.clients for at in client.acknowledged_at)
        longest = max(client.longest_seconds for client in self._campaign.clients)
        return Event(
            name,
            _find_longest_gap(acknowledged, since=started),
            _find_longest_gap(self.commits, since=started),
            longest,
            max(0.0, ready_at - promoted_at),
        )

    def kill_primary(self) -> float:
        primary = self._cluster.get_primary()
        self._cluster.kill_member(primary)
        self._cluster.get_primary(other_than=primary)
        promoted_at = time.monotonic()
        self._cluster.start_member(primary)
        return promoted_at

    def switch_over(self) -> float:
        self._cluster.switchover()
        self._cluster.get_primary()
        return time.monotonic()

    def freeze_primary(self) -> float:
        primary = self._cluster.get_primary()
        self._cluster.freeze_member(primary)
        self._frozen_member = primary
        self._cluster.get_primary(other_than=primary)
        return time.monotonic()


def _find_longest_gap(times: Sequence[float], *, since: float) -> float:
    return max((later - earlier for earlier, later in pairwise(times) if later >= since), default=0.0)


async def measure(run: FailoverRun, *, kills: int, turns: int) -> list[Event]:
    await run.wait_for_turns(10 * CLIENT_COUNT)
    faults: list[tuple[str, Callable[[], float]]] = [
        *((f"kill {number + 1}", run.kill_primary) for number in range(kills)),
        ("switchover 1", run.switch_over),
        ("switchover 2", run.switch_over),
        ("frozen primary", run.freeze_primary),
    ]
    events: list[Event] = []
    for number, (name, fault) in enumerate(faults, start=1):
        events.append(await run.observe(name, fault))
        print(f"{run.turn_count} turns acknowledged; {events[-1]}", flush=True)
        if number <= kills:
            await run.wait_for_turns(turns * number // kills)
    return events


async def run_benchmark(kills: int, turns: int) -> Report:
    report = Report("failover")
    folder = Path(tempfile.mkdtemp(prefix="quire-failover-"))
    with PatroniCluster.start() as cluster:
        database = ReplicatedDatabase(cluster)
        async with run_fleet(database, folder, has_fake_clocks=False) as campaign:
            run = FailoverRun(cluster, campaign)
            ending = asyncio.Event()
            probing = asyncio.create_task(run.probe())
            running = [asyncio.create_task(client.run(ending, turns_after=1)) for client in campaign.clients]
            events = await measure(run, kills=kills, turns=turns)
            ending.set()
            await _finish(probing, running)
            async with SqlStore.open(database.url()) as store:
                result = await check_clients(store, campaign.upstream, campaign.clients)
    report.print_table("events, in seconds", Event._fields, [tuple(event) for event in events])
    print(f"\n{result.acknowledged_turns} turns acknowledged; failures: {result.failures or 'none'}")
    report.require_at_most("lost_or_doubled", len(result.failures), 0)
    report.require_at_most("turns_short_of_goal", max(0, turns - result.acknowledged_turns), 0)
    for event in events:
        if event.name.startswith("kill"):
            report.require_at_most(
                f"{event.name}, gap after patroni's", event.gap_seconds - event.patroni_gap_seconds, 2
            )
        if event.name.startswith("switchover"):
            report.require_at_most(f"{event.name}, gap", event.gap_seconds, 4)
    frozen = events[-1]
    report.require_at_most("frozen primary, longest request", frozen.longest_attempt_seconds, 15)
    report.require_at_most("frozen primary, ready after the new primary", frozen.ready_seconds, 15)
    return report


async def _finish(probing: "asyncio.Task[None]", running: Sequence[Awaitable[None]]) -> None:
    await asyncio.gather(*running)
    probing.cancel()
    with suppress(asyncio.CancelledError):
        await probing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--turns", type=int, default=3_000, help="acknowledged turns over all kills")
    options = parser.parse_args()
    asyncio.run(run_benchmark(options.kills, options.turns)).print_goals_and_exit()


if __name__ == "__main__":
    main()
