"""A campaign of faults against a fleet of real processes: database, two nodes, two workers, and clients under load. The
last node connects through PgBouncer if there is one.

Faults come from a seeded schedule and overlap: one of the database does not delay those of nodes, connections and
upstream. Two faults of the same process, or of the database, follow each other.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import psycopg
from fault_checks import CheckResult, check_clients
from fault_clients import FaultClient, GatewayClient, SendClient
from fleet import Process

from fake_upstream import run_fake_upstream
from infra.fault_database import APPLICATION_ROLE, DATABASE_NAME, FaultDatabase
from infra.fault_proxy import FaultProxy
from infra.fault_schedule import DATABASE_FAULTS, Fault, FaultKind
from infra.metered_upstream import INPUT_PRICE, OUTPUT_PRICE, MeteredUpstream
from infra.postgres import PostgresError, find_free_port
from quire.store import SqlStore

NODE_COUNT = WORKER_COUNT = 2
GATEWAY_CLIENTS, SEND_CLIENTS = 6, 2
TURNS_AFTER_FAULTS = 3
RECOVERY_SECONDS = 120.0
"""Time that clients have for their last turns once all faults have ended."""
MAX_CLOCK_JUMP_SECONDS = 7_200
MAX_RUNNING_FAULTS = 12
TURNS_BETWEEN_FAULTS = 2
MAX_TURN_WAIT_SECONDS = 2.0
"""Time after which the next fault is injected although no turn was acknowledged."""
DATABASE_DELAY_SECONDS = 0.05
FAKETIME_LIBRARY = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
"""Debian's package faketime; without it no clock jumps."""


def list_supported_kinds(database: FaultDatabase) -> set[FaultKind]:
    """The kinds of faults that this machine and this database allow."""
    unsupported = set[FaultKind]() if FAKETIME_LIBRARY.exists() else {FaultKind.JUMP_CLOCK}
    if database.pooler is None:
        unsupported.add(FaultKind.RESTART_POOLER)
    return set(FaultKind) - database.unsupported_faults - unsupported


@dataclass
class Campaign:
    """A running fleet, and the faults that were injected into it. Created by `run_fleet`."""

    database: FaultDatabase
    folder: Path
    key: str
    upstream: MeteredUpstream
    upstream_proxy: FaultProxy
    database_proxies: list[list[FaultProxy]]
    """Of each node, in front of each member of the database, or of the pooler."""
    nodes: list[Process] = field(default_factory=list[Process])
    node_ports: list[int] = field(default_factory=list[int])
    node_proxies: list[FaultProxy] = field(default_factory=list[FaultProxy])
    workers: list[Process] = field(default_factory=list[Process])
    clients: list[FaultClient] = field(default_factory=list[FaultClient])
    injected: Counter[FaultKind] = field(default_factory=Counter[FaultKind])
    without_effect: Counter[FaultKind] = field(default_factory=Counter[FaultKind])
    """Faults that could not be injected, because the database was away at that time."""
    database_failures: list[str] = field(default_factory=list[str])
    """Faults after which the database did not recover by itself."""
    _locks: dict[str, asyncio.Lock] = field(default_factory=dict[str, asyncio.Lock])

    def build_environment(self, url: str, *, clock: Path | None = None) -> dict[str, str]:
        models = {"echo": {"input_price": INPUT_PRICE, "output_price": OUTPUT_PRICE, "window": 4_000}}
        own = {
            "QUIRE_DATABASE_URL": url,
            "QUIRE_LISTEN_DATABASE_URL": self.database.url(),
            "QUIRE_BASE_URL": f"http://127.0.0.1:{self.upstream_proxy.port}/v1",
            "QUIRE_MODEL": "echo",
            "QUIRE_MODELS": json.dumps(models),
            "QUIRE_REQUESTS_PER_MINUTE": "1000000",
            **{name: str(self.folder) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")},
        }
        if clock is not None:
            clock.write_text("+0")
            own |= {
                "LD_PRELOAD": str(FAKETIME_LIBRARY),
                "FAKETIME_TIMESTAMP_FILE": str(clock),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        return {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")} | own

    def start_processes(self, *, has_fake_clocks: bool) -> None:
        command = [sys.executable, "-m", "quire"]
        for number, proxies in enumerate(self.database_proxies):
            url = self._build_url([proxy.port for proxy in proxies], node=number)
            environment = self.build_environment(url, clock=self._clock_file(number) if has_fake_clocks else None)
            arguments = [*command, "serve", "--port", str(self.node_ports[number]), "--keys"]
            self.nodes.append(Process(arguments, output=self.folder / f"node-{number}.log", environment=environment))
        environment = self.build_environment(self.database.url())
        for number in range(WORKER_COUNT):
            output = self.folder / f"worker-{number}.log"
            self.workers.append(Process([*command, "worker"], output=output, environment=environment))

    def _build_url(self, ports: list[int], *, node: int) -> str:
        if node == NODE_COUNT - 1 and self.database.pooler is not None:
            return f"postgresql://{APPLICATION_ROLE}@127.0.0.1:{ports[0]}/{DATABASE_NAME}"
        return self.database.url(ports=ports)

    def _clock_file(self, node: int) -> Path:
        return self.folder / f"clock-{node}"

    async def wait_ready(self, *, timeout_seconds: float = RECOVERY_SECONDS) -> None:
        """Waits until every node is ready."""
        async with asyncio.timeout(timeout_seconds), httpx2.AsyncClient(timeout=3.0) as http:
            for port in self.node_ports:
                while not await _is_ready(http, port):  # noqa: ASYNC110 (another process)
                    await asyncio.sleep(0.1)

    async def run(
        self,
        schedule: Sequence[Fault],
        *,
        clients: tuple[int, int] = (GATEWAY_CLIENTS, SEND_CLIENTS),
        report: Callable[[str], None] = lambda _: None,
    ) -> CheckResult:
        """Injects the faults while clients run turns; returns what was found in the log afterwards."""
        ports = [proxy.port for proxy in self.node_proxies]
        self.clients += [GatewayClient(ports, self.key, f"g{number}") for number in range(clients[0])]
        self.clients += [SendClient(ports, self.key, f"s{number}") for number in range(clients[1])]
        ending = asyncio.Event()
        running = [asyncio.create_task(each.run(ending, turns_after=TURNS_AFTER_FAULTS)) for each in self.clients]
        await asyncio.sleep(2.0)
        await self._inject_all(schedule, report)
        await self.wait_ready()
        ending.set()
        _, late = await asyncio.wait(running, timeout=RECOVERY_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        async with SqlStore.open(self.database.url()) as store:
            result = await check_clients(store, self.upstream, self.clients)
        names = [client.name for client, task in zip(self.clients, running, strict=True) if task in late]
        result.failures += self.database_failures
        result.failures += [f"client {name} got no reply after the faults" for name in names]
        result.failures += [repr(task.exception()) for task in running if not task.cancelled() and task.exception()]
        return result

    async def _inject_all(self, schedule: Sequence[Fault], report: Callable[[str], None]) -> None:
        started = time.monotonic()
        tasks: list[asyncio.Task[None]] = []
        for fault in schedule:
            await asyncio.sleep(fault.pause_seconds)
            await self._wait_for_turns()
            tasks.append(asyncio.create_task(self._inject(fault)))
            if fault.number % 50 == 0:
                turns, seconds = self._count_turns(), time.monotonic() - started
                report(f"{seconds:6.0f} s: {fault.number} faults, {turns} turns acknowledged")
            # Faults of the database take longest; the schedule does not run far ahead of them.
            running = [task for task in tasks if not task.done()]
            if len(running) > MAX_RUNNING_FAULTS:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*tasks)

    async def _wait_for_turns(self) -> None:
        """Waits for some turns between two faults: on a slow machine no turn would survive a dense schedule."""
        expected = self._count_turns() + TURNS_BETWEEN_FAULTS
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_TURN_WAIT_SECONDS):
                while self._count_turns() < expected:  # noqa: ASYNC110 (polls several clients)
                    await asyncio.sleep(0.02)

    def _count_turns(self) -> int:
        return sum(client.turn_count for client in self.clients)

    async def _inject(self, fault: Fault) -> None:
        handler, group = self._find_handler(fault)
        async with self._locks.setdefault(group, asyncio.Lock()):
            try:
                await handler()
                self.injected[fault.kind] += 1
            except psycopg.Error:
                self.without_effect[fault.kind] += 1
            except PostgresError as error:
                self.database_failures.append(f"after fault {fault.number}, {fault.kind}: {error}")

    def _find_handler(self, fault: Fault) -> tuple[Callable[[], Awaitable[object]], str]:
        """What injects the fault, and the group of faults that follow each other."""
        target, seconds, kind = fault.target, fault.seconds, fault.kind
        number = target % NODE_COUNT
        node, worker, proxies = self.nodes[number], self.workers[number], self.database_proxies[number]
        handlers: dict[FaultKind, tuple[Callable[[], Awaitable[object]], str]] = {
            FaultKind.KILL_NODE: (lambda: _kill(node, seconds), f"node {number}"),
            FaultKind.FREEZE_NODE: (lambda: _freeze(node, seconds), f"node {number}"),
            FaultKind.KILL_WORKER: (lambda: _kill(worker, seconds), f"worker {number}"),
            FaultKind.FREEZE_WORKER: (lambda: _freeze(worker, seconds), f"worker {number}"),
            FaultKind.JUMP_CLOCK: (lambda: self._jump_clock(number, target), f"clock {number}"),
            FaultKind.RESET_DATABASE: (lambda: _reset(proxies), "resets"),
            FaultKind.RESET_CLIENTS: (lambda: _reset([self.node_proxies[number]]), "resets"),
            FaultKind.RESET_UPSTREAM: (lambda: _reset([self.upstream_proxy]), "resets"),
            FaultKind.DELAY_DATABASE: (lambda: _delay(proxies, seconds), f"network {number}"),
            FaultKind.BLOCK_DATABASE: (lambda: _block(proxies, seconds), f"network {number}"),
            FaultKind.RESTART_POOLER: (self._restart_pooler, "pooler"),
            FaultKind.END_SESSIONS: (self._end_sessions, "sessions"),
            FaultKind.LOCK_CONVERSATION: (lambda: self._lock_conversation(target, seconds), "locks"),
        }
        if kind in DATABASE_FAULTS:
            return lambda: self.database.inject(kind, seconds), "database"
        return handlers.get(kind) or (lambda: self._arm_upstream(kind), "upstream")

    async def _jump_clock(self, node: int, target: int) -> None:
        """Sets the clock of a node forward or back by up to two hours; it stays so."""
        offset = (target / 1_000 * 2 - 1) * MAX_CLOCK_JUMP_SECONDS
        self._clock_file(node).write_text(f"{offset:+.0f}")

    async def _arm_upstream(self, kind: FaultKind) -> None:
        self.upstream.pending_faults.append(kind)

    async def _restart_pooler(self) -> None:
        assert self.database.pooler is not None
        await asyncio.to_thread(self.database.pooler.restart)

    async def _end_sessions(self) -> None:
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'quire_app'"
        async with await psycopg.AsyncConnection.connect(self.database.admin_conninfo, connect_timeout=2) as session:
            await session.execute(query)

    async def _lock_conversation(self, target: int, seconds: float) -> None:
        conversation = list(self.clients[target % len(self.clients)].acknowledged)[-1]
        query = "SELECT 1 FROM quire_branches WHERE conversation = %s FOR UPDATE"
        async with await psycopg.AsyncConnection.connect(self.database.admin_conninfo, connect_timeout=2) as session:
            await session.execute("SET lock_timeout = '1s'")
            with suppress(psycopg.errors.LockNotAvailable):
                await session.execute(query, [conversation])
                await asyncio.sleep(seconds)

    def stop(self) -> None:
        for process in (*self.nodes, *self.workers):
            process.process.send_signal(signal.SIGCONT)
            process.stop()


async def _is_ready(http: httpx2.AsyncClient, port: int) -> bool:
    try:
        return (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
    except httpx2.HTTPError:
        return False


async def _kill(process: Process, seconds: float) -> None:
    process.kill()
    await asyncio.sleep(seconds)
    process.restart()


async def _freeze(process: Process, seconds: float) -> None:
    process.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(seconds)
    process.process.send_signal(signal.SIGCONT)


async def _reset(proxies: Sequence[FaultProxy]) -> None:
    for proxy in proxies:
        proxy.reset_connections()


async def _delay(proxies: Sequence[FaultProxy], seconds: float) -> None:
    for proxy in proxies:
        proxy.delay_seconds = DATABASE_DELAY_SECONDS
    await asyncio.sleep(seconds)
    for proxy in proxies:
        proxy.delay_seconds = 0.0


async def _block(proxies: Sequence[FaultProxy], seconds: float) -> None:
    for proxy in proxies:
        proxy.freeze()
    await asyncio.sleep(seconds)
    for proxy in proxies:
        proxy.thaw()


@asynccontextmanager
async def run_fleet(database: FaultDatabase, folder: Path, *, has_fake_clocks: bool = True) -> AsyncIterator[Campaign]:
    """Starts upstream, proxies, nodes and workers; stops them afterwards."""
    async with SqlStore.open(database.url()) as store:
        # With a spend cap every call reserves its cost before and settles it after.
        _, key = await store.keys.create("campaign", ["read", "write", "chat"], max_spend=1_000_000.0)
    upstream = MeteredUpstream()
    async with AsyncExitStack() as stack:
        fake = await stack.enter_async_context(run_fake_upstream(upstream.respond))
        upstream_port = int(fake.url.rpartition(":")[2].partition("/")[0])
        enter = stack.enter_async_context
        database_ports = [database.ports] * NODE_COUNT
        if database.pooler is not None:
            database_ports[-1] = [database.pooler.port]
        campaign = Campaign(
            database,
            folder,
            key,
            upstream,
            upstream_proxy=await enter(FaultProxy(upstream_port)),
            database_proxies=[[await enter(FaultProxy(port)) for port in ports] for ports in database_ports],
            node_ports=[find_free_port() for _ in range(NODE_COUNT)],
        )
        campaign.node_proxies += [await enter(FaultProxy(port)) for port in campaign.node_ports]
        try:
            campaign.start_processes(has_fake_clocks=has_fake_clocks and FAKETIME_LIBRARY.exists())
            await campaign.wait_ready()
            yield campaign
        finally:
            await asyncio.to_thread(campaign.stop)
