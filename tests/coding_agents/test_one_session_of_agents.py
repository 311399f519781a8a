"""A session of a real agent is one conversation: recorded, hooked, compacted without Quire, resumed, scanned."""

import json
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from gateway_fixtures import run_gateway
from gateway_records import get_address
from hooked_agents import has_text, make_runtime_folder, run_quire, wait_for_entries
from test_claude_code import ECHO
from test_claude_through_gateway import make_upstreams

from infra.real_agents import AgentRun, Claude, Codex
from infra.scripted_provider import (
    ProviderRequest,
    ScriptedCall,
    ScriptedProvider,
    ScriptedReply,
    ScriptedUsage,
    WireFormatName,
)
from quire.model import Entry
from quire.store import SqlStore

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

QUESTIONS = ("Greet.", "Alone.", "Go on.", "Back.", "Resumed.", "Resumed alone.", "And back.")
SUMMARY = "They greeted each other at the harbour, and echo printed ahoy twice."
FULL_TOKENS = 50_000
"""Usage at which Codex compacts before its next turn."""
FORMATS: dict[str, WireFormatName] = {"claude": "messages", "codex": "responses"}
CALLS = {"claude": ECHO, "codex": ScriptedCall("exec_command", {"cmd": "echo ahoy"})}
SUMMARY_PROMPTS = (b"Respond with TEXT ONLY", b"CONTEXT CHECKPOINT COMPACTION")
Ask = Callable[[str, str | None], Awaitable[AgentRun]]


@pytest.fixture
def runtime() -> Iterator[Path]:
    with make_runtime_folder() as folder:
        yield folder


def is_summary(request: ProviderRequest) -> bool:
    return any(prompt in json.dumps(request.items[-1]).encode() for prompt in SUMMARY_PROMPTS)


def make_ask(agent: Claude | Codex) -> Ask:
    async def ask(prompt: str, session: str | None) -> AgentRun:
        if isinstance(agent, Claude):
            run = await agent.run(prompt, *(("--resume", session) if session is not None else ()))
        else:
            run = await agent.run(prompt, "--dangerously-bypass-hook-trust", resume=session)
        assert run.exit_code == 0, run.stdout + run.stderr
        return run

    return ask


@pytest.mark.parametrize("program", ["claude", "codex"])
async def test_a_session_of_an_agent_is_one_conversation(
    program: str,
    provider: ScriptedProvider,
    make_claude: Callable[..., Claude],
    make_codex: Callable[..., Codex],
    runtime: Path,
):
    call = CALLS[program]

    def choose(request: ProviderRequest) -> ScriptedReply:
        if is_summary(request):
            return ScriptedReply(f"<summary>{SUMMARY}</summary>" if program == "claude" else SUMMARY)
        if call.name in request.tool_names and not request.newest_results:
            return ScriptedReply("I will greet.", calls=(call,))
        asked = [json.dumps(item) for item in request.items if item.get("role") == "user"]
        is_full = program == "codex" and "Alone." in asked[-1]
        # Replies of real sessions differ.
        return ScriptedReply(f"It said ahoy {len(request.raw)}.", usage=ScriptedUsage(FULL_TOKENS if is_full else None))

    provider.script = choose
    environment = {"XDG_RUNTIME_DIR": str(runtime), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    make = make_claude if program == "claude" else make_codex
    settings = {} if program == "claude" else {"config": [f"model_auto_compact_token_limit={FULL_TOKENS - 10_000}"]}
    alone = make(provider.url, env=environment, **settings)
    source = "claude-code" if program == "claude" else "codex"
    run_quire(alone, "hook", "install", source, "--yes")
    database = alone.home / ".local/share/quire/quire.db"
    database.parent.mkdir(parents=True, exist_ok=True)
    async with SqlStore.open(f"sqlite:///{database}") as store:
        upstreams = make_upstreams(provider.openai_url, FORMATS[program])
        async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=200_000) as harness:
            address = get_address(harness)
            ask_recorded = make_ask(replace(alone, base_url=address["base_url"], key=address["key"]))
            ask_alone = make_ask(alone)
            session = (await ask_recorded("Greet.", None)).session_id
            assert session is not None
            await ask_alone("Alone.", session)
            if program == "claude":
                await ask_alone("/compact", session)
            await ask_alone("Go on.", session)
            await ask_recorded("Back.", session)
            written = json.loads(run_quire(alone, "resume", session, "--in", program, "--json").stdout)["session"]
            assert written != session
            await ask_recorded("Resumed.", written)
            await ask_alone("Resumed alone.", written)
            await ask_recorded("And back.", written)
            await harness.server_state.wait_for_background()

            def is_whole(entries: list[Entry]) -> bool:
                return all(has_text(entries, question) for question in QUESTIONS)

            await wait_for_entries(alone, session, is_whole)
            for path in alone.home.rglob("*.jsonl"):
                os.utime(path, (1, 1))
            for _ in range(2):
                report = json.loads(run_quire(alone, "scan", "--json").stdout)
                records = [each for each in await store.list_conversations() if each.is_main]
                assert [each.origin.session for each in records if each.origin] == [session]
                assert await store.verify_conversation(records[0].id) == []
                assert await store.imports.list_doubles() == {}
                own = [
                    entry
                    for branch in await store.list_branches(records[0].id)
                    for entry in await store.read_range(records[0].id, branch=branch.number, first=branch.fork_seq + 1)
                ]
                texts = [entry.message.text.strip().rpartition("\n")[2] for entry in own if entry.kind == "message"]
                assert {each: texts.count(each) for each in QUESTIONS} == dict.fromkeys(QUESTIONS, 1)
                assert [SUMMARY in entry.raw for entry in own if entry.kind == "compaction"] == [True]
                # Claude Code writes the request for its summary to no transcript.
                answered = [
                    each
                    for each in provider.requests
                    if not each.is_count and not (program == "claude" and is_summary(each))
                ]
                assert report["totals"]["requests"] == len(answered)
