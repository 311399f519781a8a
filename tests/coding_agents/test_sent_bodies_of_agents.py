"""Requests of the real Claude Code and Codex are given back to the byte after a restart, and what a provider clears of
them on its side is named."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from gateway_fixtures import run_gateway
from gateway_records import get_address
from sqlalchemy import Connection, func, select
from test_claude_through_gateway import make_upstreams

from infra.real_agents import Claude, Codex
from infra.scripted_provider import ProviderRequest, ScriptedCall, ScriptedError, ScriptedProvider, ScriptedReply
from infra.sizes import IS_FULL_SIZE
from quire.cli.run_host import describe_refusals
from quire.db.schema import exchanges
from quire.db.store_part import read
from quire.engine import Engine, EngineConfig
from quire.ledger import find_decision, load_sent_body
from quire.ledger.timeline import load_timeline
from quire.settings import Settings
from quire.store import SqlStore

pytestmark = pytest.mark.slow

MakeClaude = Callable[..., Claude]
MakeCodex = Callable[..., Codex]

STEPS = 500 if IS_FULL_SIZE else 10
"""Calls of a tool in one turn of each agent."""
TURN_TIMEOUT_SECONDS = 1_200.0 if IS_FULL_SIZE else 240.0
CLEARED = {"type": "clear_tool_uses_20250919", "cleared_tool_uses": 2, "cleared_input_tokens": 4_000}


class CountingScript:
    """Calls a tool so many times, then answers."""

    def __init__(self, call: ScriptedCall, *, steps: int, argument: str) -> None:
        self.call, self.steps, self.argument, self.count = call, steps, argument, 0

    def __call__(self, request: ProviderRequest) -> ScriptedReply:
        if self.call.name not in request.tool_names or self.count >= self.steps:
            return ScriptedReply("Done.")
        self.count += 1
        command = f"echo step {self.count} of a long turn"
        call = replace(self.call, arguments={**self.call.arguments, self.argument: command})
        return ScriptedReply(f"Step {self.count}.", calls=(call,), thinking="I go on.")


async def check_given_back(database_url: str, provider: ScriptedProvider) -> None:
    """Compares what a store gives back after a restart with what the provider received."""
    async with SqlStore.open(database_url) as store:
        given: list[bytes] = []
        for record in await store.list_conversations():
            for branch in await store.list_branches(record.id):
                for seq, manifest in await store.list_manifests(record.id, branch=branch.number):
                    if manifest.branch == branch.number:
                        body = await load_sent_body(store, manifest, seq)
                        assert body is not None
                        given.append(body)

        def measure(connection: Connection, tenant: str) -> tuple[int, int, int]:
            columns = func.count(), func.sum(exchanges.c.size), func.sum(func.length(exchanges.c.request))
            count, size, stored = connection.execute(select(*columns).where(exchanges.c.tenant == tenant)).one()
            return count, size, stored

        count, size, stored = await store.run(read, measure)
    assert sorted(given) == sorted(request.raw for request in provider.requests)
    print(f"{count} bodies, {size // count} bytes each, stored in {stored // count}")
    assert stored < size / 5


@pytest.mark.nightly
async def test_requests_of_claude_code_are_given_back(
    database_url: str, provider: ScriptedProvider, make_claude: MakeClaude
):
    call = ScriptedCall("Bash", {"command": "", "description": "Echo"})
    provider.script = CountingScript(call, steps=STEPS, argument="command")
    upstreams = make_upstreams(provider.openai_url, "messages")
    async with (
        SqlStore.open(database_url) as store,
        run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=1_000_000) as harness,
    ):
        run = await make_claude(**get_address(harness)).run("Take your steps.", timeout_seconds=TURN_TIMEOUT_SECONDS)
        assert run.exit_code == 0, run.stdout + run.stderr
    assert len(provider.requests) > STEPS
    await check_given_back(database_url, provider)


async def test_refused_requests_of_claude_code_are_stored_and_shown(
    store: SqlStore, provider: ScriptedProvider, make_claude: MakeClaude
):
    words = "messages.0.content.3: text content blocks must be non-empty"
    provider.script = lambda request: ScriptedReply(error=ScriptedError(400, "invalid_request_error", words))
    upstreams = make_upstreams(provider.openai_url, "messages")
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=1_000_000) as harness:
        claude = make_claude(**get_address(harness))
        runs = [await claude.run("Look at it."), await claude.run("And now?", "--continue"), await claude.run("Again.")]
        assert all(words in run.answer for run in runs)
        found = [each for each in await store.list_unanswered() if each.model == claude.model]
        assert len(found) >= 3
        assert {each.describe() for each in found} == {f"400: {words}"}
        lines = await describe_refusals(store, [*dict.fromkeys(each.conversation for each in found)], since=0)
        assert lines[0] == f"{len(found)} requests were refused: 400: {words}"
        for each in found:
            assert each in (await load_timeline(store, each.conversation)).unanswered
            content = await store.read_exchange(each.conversation, each.id)
            assert content is not None
            assert (content.request or "").encode() in [request.raw for request in provider.requests]
            assert not {"authorization", "x-api-key"} & content.request_headers.keys()
            assert content.request_headers["x-claude-code-session-id"]


async def test_requests_of_codex_are_given_back(database_url: str, provider: ScriptedProvider, make_codex: MakeCodex):
    call = ScriptedCall("exec_command", {"cmd": ""})
    provider.script = CountingScript(call, steps=STEPS, argument="cmd")
    upstreams = make_upstreams(provider.openai_url, "responses")
    async with (
        SqlStore.open(database_url) as store,
        run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=1_000_000) as harness,
    ):
        run = await make_codex(**get_address(harness)).run("Take your steps.", timeout_seconds=TURN_TIMEOUT_SECONDS)
        assert run.exit_code == 0, run.stdout + run.stderr
    assert len(provider.requests) > STEPS
    await check_given_back(database_url, provider)


@pytest.mark.nightly
async def test_what_the_provider_clears_of_claude_code_is_named(
    store: SqlStore, provider: ScriptedProvider, make_claude: MakeClaude
):
    call = ScriptedCall("Bash", {"command": "", "description": "Echo"})
    script = CountingScript(call, steps=4, argument="command")
    provider.script = lambda request: replace(script(request), applied_edits=(CLEARED,) if script.count > 3 else ())
    upstreams = make_upstreams(provider.openai_url, "messages")
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=1_000_000) as harness:
        run = await make_claude(**get_address(harness)).run("Take your steps.", timeout_seconds=TURN_TIMEOUT_SECONDS)
        assert run.exit_code == 0, run.stdout + run.stderr
        assert all(b"context_management" in request.raw for request in provider.requests)
        [record] = await store.list_conversations()
        seq, manifest = (await store.list_manifests(record.id, limit=1))[-1]
        assert manifest.forwarded is not None
        assert [each.cleared_input_tokens for each in manifest.forwarded.provider_edits] == [4_000]
        assert not manifest.forwarded.replayable
        cleared = [row.span for row in manifest.decisions if row.reason == "cleared_by_provider"]
        entries = await store.read_range(record.id, kinds=["message"])
        results = [entry.seq for entry in entries if entry.message.role == "tool"]
        assert [span.first for span in cleared if span is not None] == results[:2]
        assert find_decision(manifest, results[0]).reason == "cleared_by_provider"
        assert find_decision(manifest, results[-1]).reason != "cleared_by_provider"
        engine = Engine(store, EngineConfig.create(Settings(model="gpt-4o")))
        replay = await (await engine.conversation(record.id)).replay(seq)
        assert replay.sent_body == provider.requests[-1].raw
        assert replay.changed_by_provider is not None
