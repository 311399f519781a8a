"""What a number of users needs: nodes, cores, disks, object storage and dollars, from measured costs per operation and
a stated model of traffic.

docs/scale.md has the table for the costs in results.json, and a test compares them. `scale.py` measures the costs again
in one run and compares predictions with measured points.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Costs(NamedTuple):
    """Measured per operation."""

    turn_cpu_ms: float
    """CPU time of a server for a request of the gateway, without what grows with its body."""
    body_cpu_ms: float
    """The same for each kilobyte of the body."""
    database_cpu_ms: float
    """CPU time of PostgreSQL for a request."""
    message_bytes: float
    """On disk for a message, with indexes and its part of the conversation, without its text."""
    manifest_bytes: float
    """On disk for the record of a request."""
    index_cpu_ms: float
    """CPU time of a worker for a message."""
    index_bytes: float
    """On disk for a message in the search index."""
    stream_bytes: float
    """Memory of a server for an open stream."""


class Traffic(NamedTuple):
    """What users of one kind do, on average over all of them."""

    name: str
    share: float
    """Of all users."""
    turns: float
    """A day."""
    requests: float
    """Model calls of a turn."""
    body_kb: float
    """Mean size of a request."""
    new_kb: float
    """Text that a request adds: the question or tool results, and the reply."""
    stream_seconds: float
    """Time for which a reply streams."""


TRAFFIC = (
    Traffic("chat", share=0.95, turns=3, requests=1, body_kb=12, new_kb=1.6, stream_seconds=10),
    Traffic("coding agent", share=0.05, turns=10, requests=100, body_kb=200, new_kb=4, stream_seconds=8),
)
MESSAGES_PER_REQUEST = 2
PEAK = 3.0
"""The busiest hour, relative to the average."""
MAX_LOAD = 0.5
"""Share of a core that is planned for: the rest is for bursts, a lost node, and what is not counted."""
HOT_DAYS = 90
"""Days for which a conversation is in the database; older ones are compressed files in object storage."""
COLD_SHARE = 0.25
"""Compressed size of a message with its text and record, relative to that in the database without its index."""
DATABASE_COPIES = 3
SERVER_CORES, SHARD_CORES, SHARD_TERABYTES = 8, 16, 4.0
"""Of one server node, and of one PostgreSQL."""
SERVER_GIGABYTES = 32.0
CORE_DOLLARS, DISK_DOLLARS, OBJECT_DOLLARS = 30.0, 0.10, 0.023
"""A month: a core with 4 GB of memory; a gigabyte of disk; a gigabyte of object storage."""
SHORT_LIST_KB, LONG_LIST_KB = 4.0, 500.0
"""Bodies of the requests in the gateway's benchmark."""
DATABASE_SHARE, STREAM_BYTES = 0.5, 100_000.0
"""Not measured on an idle machine: CPU time of PostgreSQL for a request relative to the gateway's, and the memory of an
open stream."""
USER_COUNTS = tuple(10**power for power in range(3, 9))


class Needs(NamedTuple):
    users: int
    requests_per_second: float
    """In the busiest hour."""
    server_cores: float
    worker_cores: float
    database_cores: float
    streams: float
    nodes: int
    shards: int
    hot_terabytes: float
    """In one copy of the database, once `HOT_DAYS` have passed."""
    cold_terabytes_a_year: float
    dollars_a_month: float
    """At the end of the first year."""


def predict_turn_cpu_ms(costs: Costs, body_kb: float) -> float:
    return costs.turn_cpu_ms + costs.body_cpu_ms * body_kb


def predict_log_bytes(costs: Costs, messages: float, *, requests: float, text_bytes: float) -> float:
    """Bytes on disk without the search index."""
    return messages * costs.message_bytes + requests * costs.manifest_bytes + text_bytes


def predict_index_bytes(costs: Costs, messages: float) -> float:
    return messages * costs.index_bytes


def predict_needs(costs: Costs, users: int, traffic: Iterable[Traffic] = TRAFFIC) -> Needs:
    peak = server = streams = log_bytes = messages_a_day = requests_a_day = 0.0
    for kind in traffic:
        daily = users * kind.share * kind.turns * kind.requests
        requests_a_day += daily
        messages_a_day += daily * MESSAGES_PER_REQUEST
        busiest = daily * PEAK / 86_400
        peak += busiest
        server += busiest * predict_turn_cpu_ms(costs, kind.body_kb) / 1_000
        streams += busiest * kind.stream_seconds
        log_bytes += predict_log_bytes(
            costs, daily * MESSAGES_PER_REQUEST, requests=daily, text_bytes=daily * kind.new_kb * 1_000
        )
    server_cores = server / MAX_LOAD
    worker_cores = messages_a_day * PEAK / 86_400 * costs.index_cpu_ms / 1_000 / MAX_LOAD
    database_cores = peak * costs.database_cpu_ms / 1_000 / MAX_LOAD
    hot = (log_bytes + predict_index_bytes(costs, messages_a_day)) * HOT_DAYS / 1e12
    cold = log_bytes * COLD_SHARE * 365 / 1e12
    memory_nodes = streams * costs.stream_bytes / (SERVER_GIGABYTES * 1e9 * MAX_LOAD)
    nodes = max(2, math.ceil(max((server_cores + worker_cores) / SERVER_CORES, memory_nodes)))
    shards = max(1, math.ceil(max(hot / SHARD_TERABYTES, database_cores / SHARD_CORES)))
    # A small database has a smaller machine.
    database_machine = min(SHARD_CORES, max(2, math.ceil(database_cores)))
    cores = nodes * SERVER_CORES if users > 10_000 else nodes * 2
    cores += shards * DATABASE_COPIES * database_machine
    dollars = cores * CORE_DOLLARS + hot * 1_000 * DATABASE_COPIES * DISK_DOLLARS + cold * 1_000 * OBJECT_DOLLARS
    return Needs(users, peak, server_cores, worker_cores, database_cores, streams, nodes, shards, hot, cold, dollars)


def _round(value: float) -> str:
    """Two digits are all that the model can say."""
    if value <= 0:
        return "0"
    digits = 1 - math.floor(math.log10(value))
    rounded = round(value, digits)
    return f"{rounded:,.{max(0, digits)}f}"


def render_table(costs: Costs) -> str:
    """The table of docs/scale.md."""
    rows = [
        f"| {needs.users:,} | {_round(needs.requests_per_second)} | {_round(needs.server_cores)} "
        f"| {_round(needs.worker_cores)} | {_round(needs.database_cores)} | {_round(needs.streams)} | {needs.nodes:,} "
        f"| {needs.shards:,} | {_round(needs.hot_terabytes)} | {_round(needs.cold_terabytes_a_year)} "
        f"| {_round(needs.dollars_a_month)} |"
        for needs in (predict_needs(costs, users) for users in USER_COUNTS)
    ]
    head = (
        "| users | requests a second, busiest | server cores | worker cores | PostgreSQL cores | open streams "
        "| server nodes | shards | TB in PostgreSQL | TB a year in object storage | $ a month |"
    )
    return "\n".join((head, "|" + "---|" * 11, *rows))


def read_costs(outputs: Mapping[str, str]) -> Costs:
    """The costs in the stored outputs of the benchmarks, by name. They were measured on idle machines."""

    def find(name: str, pattern: str) -> float:
        found = re.search(pattern, outputs[name], re.MULTILINE)
        if found is None:
            raise ValueError(f"the result of {name} has no line like {pattern}")
        return float(found[1].replace(",", ""))

    short = find("gateway", r"^ +16 +gateway .* (\S+)$")
    body_cpu_ms = (find("gateway", r"^ +long list .* (\S+)$") - short) / (LONG_LIST_KB - SHORT_LIST_KB)
    messages = find("footprint", r"^in all +(\S+) messages")
    log_bytes = sum(
        find("footprint", rf"^{table} .* (\S+) bytes") for table in ("entries", "paths", "branches", "conversations")
    )
    index = r"^append us/msg.*\n(?: +\S+){%d} +(\S+)"
    postgres = outputs["search"][outputs["search"].index("postgres: appends, index and purge") :]
    index_us, index_bytes = (re.search(index % column, postgres, re.MULTILINE) for column in (1, 2))
    if index_us is None or index_bytes is None:
        raise ValueError("the result of search has no costs of the index on PostgreSQL")
    return Costs(
        turn_cpu_ms=short - body_cpu_ms * SHORT_LIST_KB,
        body_cpu_ms=body_cpu_ms,
        database_cpu_ms=short * DATABASE_SHARE,
        message_bytes=log_bytes / messages - find("footprint", r"^a body has (\S+) characters"),
        manifest_bytes=find("footprint", r"^manifests .* (\S+) a row"),
        index_cpu_ms=float(index_us[1]) / 1_000,
        index_bytes=float(index_bytes[1]),
        stream_bytes=STREAM_BYTES,
    )
