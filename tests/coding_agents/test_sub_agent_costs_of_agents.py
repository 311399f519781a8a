"""What the sub-agents of the real agents cost, by turn: recorded by the gateway, and from transcripts."""

from collections.abc import Callable

import pytest
from gateway_fixtures import run_gateway
from gateway_records import get_address
from test_claude_through_gateway import make_upstreams
from test_import_of_recorded_sessions import import_all

from infra.real_agents import Claude, Codex
from infra.scripted_provider import Script, ScriptedCall, ScriptedProvider, ScriptedReply, play
from quire.store import SqlStore

pytestmark = pytest.mark.slow

CLAUDE_AGENT = ScriptedCall("Agent", {"description": "Greet", "prompt": "Greet them.", "subagent_type": "claude"})
CODEX_AGENT = ScriptedCall("spawn_agent", {"message": "Greet them."}, namespace="multi_agent_v1")
WAIT = ScriptedCall("exec_command", {"cmd": "sleep 3"})
AGENT_HEADERS = ("x-claude-code-agent-id", "x-openai-subagent")


def delegate_twice(*calls: ScriptedCall) -> Script:
    """Makes these calls in the first and in the third turn; a sub-agent answers at once."""
    turn = (*(ScriptedReply(calls=(call,)) for call in calls), ScriptedReply("Done."))
    main = play(*turn, ScriptedReply("Rested."), *turn)
    return lambda request: (
        ScriptedReply("Greeted.") if any(name in request.headers for name in AGENT_HEADERS) else main(request)
    )


async def assert_costs(store: SqlStore, sub_agent_requests: int) -> None:
    """The turns that delegated have their sub-agents' cost, the one between them has none, and nothing is missing."""
    [main] = await store.list_conversations(main_only=True)
    costs = await store.usage.read_sub_agents(main)
    by_turn = [costs.turns[key] for key in sorted(costs.turns)]
    assert [each.sub_agents for each in by_turn] == [1, 1]
    assert costs.total.sub_agents == 2
    assert sum(each.cost_usd for each in by_turn) == pytest.approx(costs.total.cost_usd)
    assert costs.total.cost_usd > 0
    sub_agents = [each for each in await store.list_conversations() if each.id != main.id and each.origin]
    sub_agents = [each for each in sub_agents if each.origin and each.origin.purpose == "subagent"]
    used = [await store.usage.read_conversation(each.id) for each in sub_agents]
    assert sum(each.requests for each in used) == sub_agent_requests
    assert sum(each.cost_nanos for each in used) / 1e9 == pytest.approx(costs.total.cost_usd)
    replies = await store.read_range(main.id, kinds=["message"], roles=["assistant"])
    [rested] = [each.seq for each in replies if "Rested." in each.message.text]
    [(_, first), (_, last)] = sorted(costs.turns)
    assert first < rested < last


async def test_sub_agents_of_claude_code(
    store: SqlStore, provider: ScriptedProvider, make_claude: Callable[..., Claude]
):
    provider.script = delegate_twice(CLAUDE_AGENT)
    upstreams = make_upstreams(provider.openai_url, "messages")
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=200_000) as harness:
        address = get_address(harness)
        claude = make_claude(address["base_url"], key=address["key"])
        for number, prompt in enumerate(("Delegate.", "Rest.", "Delegate again.")):
            run = await claude.run(prompt, *(("--continue",) if number else ()))
            assert run.exit_code == 0, run.stderr
        await harness.server_state.wait_for_background()
    requests = sum(AGENT_HEADERS[0] in each.headers and not each.is_count for each in provider.requests)
    await assert_costs(store, requests)
    imported = store.for_tenant("imported")
    await import_all(imported, "claude-code", claude.home / ".claude")
    await assert_costs(imported, requests)


@pytest.mark.nightly
async def test_sub_agents_of_codex(store: SqlStore, provider: ScriptedProvider, make_codex: Callable[..., Codex]):
    # Codex does not wait for its sub-agent: a command gives it time.
    provider.script = delegate_twice(CODEX_AGENT, WAIT)
    upstreams = make_upstreams(provider.openai_url, "responses")
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=200_000) as harness:
        codex = make_codex(**get_address(harness), model="gpt-5")
        session = None
        for prompt in ("Delegate.", "Rest.", "Delegate again."):
            run = await codex.run(prompt, resume=session)
            assert run.exit_code == 0, run.stderr
            session = run.session_id
        await harness.server_state.wait_for_background()
    requests = sum(AGENT_HEADERS[1] in each.headers for each in provider.requests)
    await assert_costs(store, requests)
    imported = store.for_tenant("imported")
    await import_all(imported, "codex", codex.home)
    await assert_costs(imported, requests)
