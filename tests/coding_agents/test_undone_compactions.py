"""Compactions by the real agents themselves, recognized, undone and restored by the gateway."""

import re
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest
from bound_thinking import BoundThinking
from gateway_fixtures import run_gateway
from gateway_records import get_address
from test_edits_reach_agents import SUMMARY_REPLY, call_and_summarize, call_tools, count_extensions

from infra.real_agents import Claude, Codex
from infra.scripted_provider import ProviderRequest, ScriptedCall, ScriptedProvider, ScriptedReply
from infra.sizes import IS_FULL_SIZE
from quire.cli.run_host import format_lost_facts
from quire.engine.client_compactions import find_client_compactions
from quire.model import Compaction
from quire.store import SqlStore

pytestmark = pytest.mark.slow


def count_items(request: ProviderRequest) -> int:
    """Tokens of the list alone: the size of instructions and tools depends on the agent's version."""
    return len(str(request.items)) // 4


def read_facts(request: ProviderRequest) -> list[int]:
    """Numbers of the facts in tool results; the calls have them too."""
    text = str(request.items)
    return [n for n in range(100) if f"\\nfact {n}: " in text or f"'fact {n}: " in text]


def report_fact(number: int) -> dict[str, str]:
    return {"cmd": f"echo fact {number}: pier {number} is closed; seq {number} {number + 2_000}"}


def summarize_remotely(script: Any) -> Any:
    """Answers Codex's request for a compaction item."""
    count = iter(range(100))

    def choose(request: ProviderRequest) -> ScriptedReply:
        if request.items[-1].get("type") == "compaction_trigger":
            return ScriptedReply(compaction=f"sealed {next(count)}")
        return script(request)

    return choose


@pytest.mark.parametrize("provider_name", ["quire", pytest.param("OpenAI", marks=pytest.mark.nightly)])
async def test_an_undone_compaction_is_restored_in_codex(
    store: SqlStore, provider: ScriptedProvider, make_codex: Callable[..., Codex], provider_name: str
):
    """Codex has any provider write a summary, and OpenAI seal one in an item."""
    is_sealed = provider_name == "OpenAI"
    script = call_tools("exec_command", report_fact, 4)
    provider.script = (summarize_remotely if is_sealed else call_and_summarize)(script)
    provider.count_tokens = count_items
    upstreams: Any = {"*": {"base_url": provider.openai_url, "speaks": ["responses"]}}
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=1_000_000) as harness:
        config = ["model_auto_compact_token_limit=30000", f'model_providers.quire.name="{provider_name}"']
        codex = make_codex(**get_address(harness), context_window_tokens=1_000_000, config=config)
        session: str | None = None

        async def ask() -> ProviderRequest:
            nonlocal session
            run = await codex.run("Read on.", resume=session)
            assert run.exit_code == 0, run.stderr
            session = run.session_id
            return provider.requests[-1]

        await ask()
        await ask()
        compacted = await ask()
        assert 1 not in read_facts(compacted)
        [main] = await store.list_conversations()
        [entry] = [each for each in await store.read_range(main.id) if each.kind == "compaction"]
        assert isinstance(entry.body, Compaction)
        assert entry.body.trigger == "client"
        assert entry.body.summary == (None if is_sealed else SUMMARY_REPLY)

        answer = await harness.http.delete(f"/api/conversations/{main.id}/compaction")
        assert answer.status_code == 200, answer.text
        requests = len(provider.requests)
        await ask()
        restored, *after = provider.requests[requests:]
        added = set(read_facts(restored)) - set(read_facts(compacted))
        assert {8, 9} <= added
        assert count_items(restored) < 30_000
        ids = [item["id"] for item in restored.items if "id" in item]
        assert len(ids) == len(set(ids))
        calls = [item["call_id"] for item in restored.items if item.get("type") == "function_call"]
        assert calls == [item["call_id"] for item in restored.items if item.get("type") == "function_call_output"]
        assert sum(item.get("role") == "developer" for item in restored.items) == 2
        assert "CONTEXT CHECKPOINT" not in str(restored.items)
        questions = [item for item in restored.items if item.get("role") == "user" and "Read on." in str(item)]
        assert len(questions) == 4
        until = next((n for n, each in enumerate(after) if len(each.items) < len(restored.items)), len(after))
        assert until > 1
        assert count_extensions([restored, *after[:until]]) == until


CALLS_AFTER_RESTORE = 50 if IS_FULL_SIZE else 12
AUTO_COMPACT = {"CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": "4"}
"""Claude Code compacts at 4 % of this model's window of a million tokens."""


def count_compactions(provider: ScriptedProvider) -> int:
    return sum("Respond with TEXT ONLY" in str(request.items[-1]) for request in provider.requests)


def run_commands(turns: list[tuple[int, int]]) -> Any:
    """In each turn, a number of calls whose results have so many lines; then an answer."""
    remaining = [lines for calls, lines in turns for lines in [*[lines] * calls, 0]]
    count = iter(range(1, 1_000))

    def choose(request: ProviderRequest) -> ScriptedReply:
        if "Bash" not in request.tool_names:
            return ScriptedReply("Noted.")
        lines = remaining.pop(0) if remaining else 0
        if not lines:
            return ScriptedReply("All read.")
        n = next(count)
        command = f"echo fact {n}: pier {n} has the code QX{n + 4700}Z; seq {n} {n + lines}"
        return ScriptedReply("", calls=(ScriptedCall("Bash", {"command": command, "description": "Count"}),))

    return choose


@pytest.mark.nightly
@pytest.mark.parametrize("has_brake", [True, False])
async def test_a_restore_does_not_make_claude_code_compact_again(
    store: SqlStore,
    provider: ScriptedProvider,
    make_claude: Callable[..., Claude],
    monkeypatch: pytest.MonkeyPatch,
    *,
    has_brake: bool,
):
    """Claude Code compacts by the tokens that the provider reports. Without the brake it does so again at once."""
    if not has_brake:
        monkeypatch.setattr("quire.proxy.edited_requests.measure_restorable_tokens", AsyncMock(return_value=10**6))
    provider.script = BoundThinking(call_and_summarize(run_commands([(10, 2_000), (1, 5), (CALLS_AFTER_RESTORE, 5)])))
    upstreams: Any = {"*": {"base_url": provider.openai_url, "speaks": ["messages"]}}
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=200_000) as harness:
        claude = make_claude(**get_address(harness), env=AUTO_COMPACT)
        for prompt, flags in (("Read on.", ()), ("Read on.", ("--continue",))):
            run = await claude.run(prompt, *flags)
            assert run.exit_code == 0, run.stdout + run.stderr
        assert count_compactions(provider) == 1
        compacted = provider.requests[-1]
        records = await store.list_conversations()
        [main] = [each for each in records if each.origin is not None and each.origin.purpose is None]
        answer = await harness.http.delete(f"/api/conversations/{main.id}/compaction")
        assert answer.status_code == 200, answer.text
        requests = len(provider.requests)
        run = await claude.run("Go on.", "--continue")
        assert run.exit_code == 0 or not has_brake, run.stdout + run.stderr
        restored = provider.requests[requests]
        assert len(read_facts(restored)) >= len(read_facts(compacted)) + 2
        assert (count_compactions(provider) == 1) == has_brake


FACTS = 20


@pytest.mark.nightly
async def test_facts_that_an_automatic_compaction_removed_come_back_by_the_command_that_quire_names(
    store: SqlStore, provider: ScriptedProvider, make_claude: Callable[..., Claude]
):
    """An undo brings back what fits below the agent's limit, the newest first. The lost facts were before that."""
    provider.script = upstream = BoundThinking(
        call_and_summarize(run_commands([(FACTS, 40), (10, 2_000), (1, 5), (CALLS_AFTER_RESTORE, 5)]))
    )
    upstreams: Any = {"*": {"base_url": provider.openai_url, "speaks": ["messages"]}}
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=200_000) as harness:
        claude = make_claude(**get_address(harness), env=AUTO_COMPACT)
        for flags in ((), ("--continue",), ("--continue",)):
            run = await claude.run("Read on.", *flags)
            assert run.exit_code == 0, run.stdout + run.stderr
        assert count_compactions(provider) == 1
        assert "QX4701Z" not in str(provider.requests[-1].items)
        [main] = [each for each in await store.list_conversations() if each.origin and each.origin.purpose is None]
        [compaction] = await find_client_compactions(store, main)
        note = format_lost_facts(compaction)
        command = re.search(r"`quire context restore ([\d,]+) ", note)
        assert command is not None, note
        for seq in command[1].split(","):
            answer = await harness.http.delete(f"/api/conversations/{main.id}/drops/{seq}")
            assert answer.is_success, answer.text
        requests, refused = len(provider.requests), len(upstream.refused)
        run = await claude.run("Go on.", "--continue")
        assert run.exit_code == 0, run.stdout + run.stderr
        restored = next(each for each in provider.requests[requests:] if "Bash" in each.tool_names)
        text = str(restored.items)
        assert sum(f"QX{number + 4700}Z" in text for number in range(1, FACTS + 1)) >= FACTS - 1
        assert (count_compactions(provider), len(upstream.refused)) == (1, refused)
