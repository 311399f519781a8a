"""Which requests read a replica that is five seconds behind: every statement that reaches it is in its log."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import psycopg
import pytest
from gateway_fixtures import GatewayHarness, run_gateway

from fake_upstream import UpstreamRequest, run_fake_upstream
from infra.postgres import Cluster, find_binaries
from quire.db import migrate
from quire.store import SqlStore

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_binaries(15) is None, reason="PostgreSQL 15 is not installed")]

DELAY_SECONDS = 5
PATIENCE_SECONDS = 60.0
TURNS = 12
LAGGING_ROUTES = (
    "/api/conversations",
    "/api/conversations/c",
    "/api/conversations/c/entries",
    "/api/conversations/c/entries/1",
    "/api/conversations/c/verify",
    "/api/conversations/c/export",
    "/api/conversations/c/transcript",
    "/api/conversations/c/requests",
    "/api/conversations/c/timeline",
    "/api/conversations/c/client-compactions",
    "/api/origins",
    "/api/search?query=tide",
    "/api/stats",
    "/api/stats/findings",
    "/api/stats/references",
)


class Pair(NamedTuple):
    primary: Cluster
    replica: Cluster

    def read_statements(self) -> list[str]:
        """What the application has sent to the replica, without the looks at its position."""
        log = (self.replica.data_folder.parent / "server.log").read_text()
        return [
            line
            for line in re.findall(r"quire_app: LOG:  (?:statement|execute [^:]*): (.*)", log)
            if re.search(r"\bquire_\w+", line) and "pg_last_wal_replay_lsn" not in line
        ]

    async def wait_for_replay(self) -> None:
        with psycopg.connect(self.primary.url("quire")) as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        async with asyncio.timeout(PATIENCE_SECONDS):
            with psycopg.connect(self.replica.url("quire"), autocommit=True) as connection:
                while connection.execute("SELECT pg_last_wal_replay_lsn() < %s", row).fetchone() == (True,):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Cluster.start(15) as primary:
        primary.create_role("quire_app")
        primary.create_database("quire")
        migrate.upgrade(primary.url("quire"))
        migrate.grant_access(primary.url("quire"), "quire_app")
        settings = {
            "recovery_min_apply_delay": f"{DELAY_SECONDS}s",
            "log_statement": "all",
            "log_line_prefix": "%u: ",
            "log_min_messages": "warning",
        }
        with Cluster.start_replica(primary, settings=settings) as standby:
            yield Pair(primary, standby)


async def reply(request: UpstreamRequest) -> None:
    number = len(request.body["messages"])
    choice = {"index": 0, "message": {"role": "assistant", "content": f"tide {number}"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    await request.respond({"id": f"r{number}", "object": "chat.completion", "choices": [choice], "usage": usage})


@asynccontextmanager
async def run_node(pair: Pair, upstream_url: str) -> AsyncIterator[GatewayHarness]:
    url, replica_url = pair.primary.url("quire", user="quire_app"), pair.replica.url("quire", user="quire_app")
    async with (
        SqlStore.open(url, replica_url=replica_url) as store,
        run_gateway(store, upstream_url) as gateway,
    ):
        yield gateway


async def test_turns_on_two_nodes_never_read_the_replica_and_lists_do(pair: Pair):
    async with (
        run_fake_upstream(reply) as upstream,
        run_node(pair, upstream.url) as first,
        run_node(pair, upstream.url) as second,
    ):
        messages: list[dict[str, object]] = []
        for turn in range(TURNS):
            # Recognized by the header and by its messages, on a node that did not answer the last turn.
            messages.append({"role": "user", "content": f"tide {turn}?"})
            headers = {"x_quire_conversation": "c"} if turn % 3 == 0 else {}
            answer = await (first, second)[turn % 2].ask(*messages, **headers)
            assert answer.headers["X-Quire-Conversation"] == "c"
            messages.append(answer.json()["choices"][0]["message"])
        assert pair.read_statements() == []
        # Turns that had read the replica would not have known the ones before: a second conversation, or branch.
        assert [text for _, text in await first.load_messages("c")] == [each["content"] for each in messages]
        assert [each.head_seq for each in await first.store.list_branches("c")] == [2 * TURNS]

        listed = (await first.http.get("/api/conversations")).json()["items"]
        assert [each["id"] for each in listed] == ["c"]
        assert pair.read_statements() == []

        # Counting usage and indexing write, so they come before.
        for path in LAGGING_ROUTES:
            assert (await first.http.get(path)).status_code == 200, path
        await first.server_state.wait_for_background()
        await pair.wait_for_replay()
        for path in LAGGING_ROUTES:
            before = len(pair.read_statements())
            response = await first.http.get(path)
            assert response.status_code == 200, path
            assert len(pair.read_statements()) > before, path
        before = len(pair.read_statements())
        await second.ask(*messages, {"role": "user", "content": "and tomorrow?"})
        assert (await first.http.get("/api/conversations/c/context")).status_code == 200
        assert len(pair.read_statements()) == before


async def test_readiness_and_metrics_name_the_replica(pair: Pair):
    async with run_fake_upstream(reply) as upstream, run_node(pair, upstream.url) as node:
        assert (await node.http.get("/readyz")).json() == {"status": "ok", "replica": "unknown"}
        await node.http.get("/api/conversations")
        assert (await node.http.get("/readyz")).json() == {"status": "ok", "replica": "ok"}
        metrics = (await node.http.get("/metrics")).text
        assert "quire_replica_up 1.0" in metrics
        assert re.search(r"quire_replica_lag_seconds \d", metrics)
        assert re.search(r'quire_replica_reads{from="(replica|primary)"} 1.0', metrics)
