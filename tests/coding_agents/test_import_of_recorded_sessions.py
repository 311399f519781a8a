"""Sessions of the real agents, in part through the gateway and in part without it, whose transcripts are imported."""

import asyncio
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from gateway_fixtures import GatewayHarness, run_gateway
from gateway_records import get_address
from test_claude_code import ECHO
from test_claude_through_gateway import call_once_a_turn, is_compaction, make_upstreams

from importers.transcript_files import import_path, read_texts
from infra.real_agents import Claude, Codex
from infra.scripted_provider import ProviderRequest, ScriptedCall, ScriptedProvider, ScriptedReply
from quire.sources.base import HOLD_BACK_SECONDS
from quire.store import SqlStore

pytestmark = pytest.mark.slow

TURN = ["I will greet.", "ahoy", "It said ahoy."]


async def import_all(store: SqlStore, source: str, folder: Path) -> tuple[int, int]:
    """Imports finished transcripts twice; returns the new messages of the first import, and of the second."""
    for path in folder.rglob("*.jsonl"):
        os.utime(path, (1, 1))
    reports = [await import_path(store, source, folder) for _ in range(2)]
    assert [report.error_count for report in reports] == [0, 0]
    return reports[0].messages, reports[1].messages


async def read_branches(harness: GatewayHarness) -> list[list[str]]:
    """What was said in each branch of the session's only conversation, without what the agent adds."""
    await harness.server_state.wait_for_background()
    [record] = await harness.store.list_conversations()
    assert await harness.store.verify_conversation(record.id) == []
    branches: list[list[str]] = []
    for branch in await harness.store.list_branches(record.id):
        texts = [text.splitlines() for text in await read_texts(harness.store, record.id, branch=branch.number)]
        branches.append([lines[-1] for lines in texts if lines[-1] in {*TURN, *QUESTIONS}])
    return branches


QUESTIONS = ("Greet.", "Alone.", "Back.", "Alone again.")


async def test_claude_code_with_and_without_the_gateway(
    store: SqlStore, provider: ScriptedProvider, make_claude: Callable[..., Claude]
):
    provider.script = call_once_a_turn(ECHO)
    upstreams = make_upstreams(provider.openai_url, "messages")
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=200_000) as harness:
        address = get_address(harness)
        recorded = make_claude(address["base_url"], key=address["key"])
        alone = replace(recorded, base_url=provider.url)
        transcripts = recorded.home / ".claude"
        await recorded.run("Greet.")
        assert await import_all(store, "claude-code", transcripts) == (0, 0)
        await alone.run("Alone.", "--continue")
        new, again = await import_all(store, "claude-code", transcripts)
        assert (new, again) == (4, 0)
        assert await read_branches(harness) == [["Greet.", *TURN, "Alone.", *TURN]]
        # The gateway sees neither this compaction nor its summary's request.
        await alone.run("Alone again.", "--continue")
        await alone.run("/compact", "--continue")
        await recorded.run("Back.", "--continue")
        assert await import_all(store, "claude-code", transcripts) == (4, 0)
        before = ["Greet.", *TURN, "Alone.", *TURN]
        assert await read_branches(harness) == [[*before, "Back.", *TURN], [*before, "Alone again.", *TURN]]
        usage = await store.usage.read_conversation((await store.list_conversations())[0].id)
    # Two calls a turn, each counted once; the summary's call is in no transcript.
    assert usage.requests == 8


def add_hooks(claude: Claude) -> None:
    """Hooks that add context to the start of a session, to prompts and, twice, to each result."""
    hooks = dict[str, Any]()
    for event, count_ in {"SessionStart": 1, "UserPromptSubmit": 1, "PostToolUse": 2}.items():
        added = [{"hookEventName": event, "additionalContext": f"Note {number}."} for number in range(count_)]
        commands = [f"echo '{json.dumps({'hookSpecificOutput': each})}'" for each in added]
        hooks[event] = [{"hooks": [{"type": "command", "command": each} for each in commands]}]
    path = claude.home / ".claude" / "settings.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"hooks": hooks}))


@pytest.mark.nightly
async def test_a_turn_with_hooks_between_two_recorded_ones_begins_no_branch(
    store: SqlStore, provider: ScriptedProvider, make_claude: Callable[..., Claude]
):
    greet = call_once_a_turn(ECHO)

    def choose(request: ProviderRequest) -> ScriptedReply:
        # Two calls at once, whose hooks end in any order.
        reply = greet(request)
        return replace(reply, calls=reply.calls * 2)

    provider.script = choose
    upstreams = make_upstreams(provider.openai_url, "messages")
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=200_000) as harness:
        address = get_address(harness)
        recorded = make_claude(address["base_url"], key=address["key"])
        alone = replace(recorded, base_url=provider.url)
        add_hooks(recorded)
        for agent, prompt in ((recorded, "Greet."), (alone, "Alone."), (recorded, "Back.")):
            await agent.run(prompt, "--continue" if prompt != "Greet." else "--verbose")
            await import_all(store, "claude-code", recorded.home / ".claude")
        [branch] = await read_branches(harness)
    turn = [TURN[0], TURN[1], TURN[1], TURN[2]]
    assert branch == [text for question in ("Greet.", "Alone.", "Back.") for text in (question, *turn)]


@pytest.mark.nightly
async def test_codex_with_and_without_the_gateway(
    store: SqlStore, provider: ScriptedProvider, make_codex: Callable[..., Codex]
):
    provider.script = call_once_a_turn(ScriptedCall("exec_command", {"cmd": "echo ahoy"}))
    upstreams = make_upstreams(provider.openai_url, "responses")
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=200_000) as harness:
        address = get_address(harness)
        recorded = make_codex(address["base_url"], key=address["key"])
        alone = replace(recorded, base_url=provider.url)
        session = (await recorded.run("Greet.")).session_id
        assert await import_all(store, "codex", recorded.home) == (0, 0)
        await alone.run("Alone.", resume=session)
        assert await import_all(store, "codex", recorded.home) == (4, 0)
        await recorded.run("Back.", resume=session)
        await alone.run("Alone again.", resume=session)
        assert await import_all(store, "codex", recorded.home) == (4, 0)
        said = [text for question in ("Greet.", "Alone.", "Back.", "Alone again.") for text in (question, *TURN)]
        assert await read_branches(harness) == [said]
        usage = await store.usage.read_conversation((await store.list_conversations())[0].id)
    assert usage.requests == 8


@pytest.mark.nightly
async def test_claude_code_goes_on_through_the_gateway_after_an_import(
    store: SqlStore, provider: ScriptedProvider, make_claude: Callable[..., Claude]
):
    provider.script = call_once_a_turn(ECHO)
    upstreams = make_upstreams(provider.openai_url, "messages")
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=200_000) as harness:
        address = get_address(harness)
        recorded = make_claude(address["base_url"], key=address["key"])
        alone = replace(recorded, base_url=provider.url)
        await alone.run("Alone.")
        assert (await import_all(store, "claude-code", recorded.home / ".claude"))[0]
        await recorded.run("Back.", "--continue")
        assert await read_branches(harness) == [["Alone.", *TURN, "Back.", *TURN]]
        assert await import_all(store, "claude-code", recorded.home / ".claude") == (0, 0)


@pytest.mark.nightly
async def test_codex_goes_on_through_the_gateway_after_an_import(
    store: SqlStore, provider: ScriptedProvider, make_codex: Callable[..., Codex]
):
    provider.script = call_once_a_turn(ScriptedCall("exec_command", {"cmd": "echo ahoy"}))
    upstreams = make_upstreams(provider.openai_url, "responses")
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=200_000) as harness:
        address = get_address(harness)
        recorded = make_codex(address["base_url"], key=address["key"])
        alone = replace(recorded, base_url=provider.url)
        session = (await alone.run("Alone.")).session_id
        assert (await import_all(store, "codex", recorded.home))[0]
        await recorded.run("Back.", resume=session)
        assert await read_branches(harness) == [["Alone.", *TURN, "Back.", *TURN]]
        assert await import_all(store, "codex", recorded.home) == (0, 0)


@pytest.mark.nightly
async def test_a_session_is_one_conversation_while_a_server_imports_its_transcript(
    store: SqlStore, provider: ScriptedProvider, make_claude: Callable[..., Claude]
):
    """The first reply takes longer than a transcript has to be quiet, and the agent compacts three times."""
    answer, is_first, summaries = call_once_a_turn(ECHO), [True], count(1)

    def choose(request: ProviderRequest) -> ScriptedReply:
        if is_compaction(request):
            return ScriptedReply(f"<summary>Part {next(summaries)}: they greeted, and echo printed ahoy.</summary>")
        if is_first and ECHO.name in request.tool_names:
            is_first.clear()
            time.sleep(HOLD_BACK_SECONDS + 2)
        return answer(request)

    provider.script = choose
    upstreams = make_upstreams(provider.openai_url, "messages")
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=200_000) as harness:
        address = get_address(harness)
        claude = make_claude(address["base_url"], key=address["key"])
        folder = claude.home / ".claude"
        alone = replace(claude, base_url=provider.url)
        await alone.run("Alone.")
        await import_all(store, "claude-code", folder)
        own = len(provider.requests)

        async def watch() -> None:
            while True:
                await import_path(store, "claude-code", folder)
                await asyncio.sleep(0.5)

        watching = asyncio.create_task(watch())
        await claude.run("Greet.")
        for prompt in ("/compact", "Back.", "/compact", "Again.", "/compact", "The end."):
            await claude.run(prompt, "--continue")
        watching.cancel()
        await asyncio.wait([watching])
        await harness.server_state.wait_for_background()
        assert (await import_all(store, "claude-code", folder))[1] == 0
        records = [each for each in await store.list_conversations() if each.is_main]
        assert len(records) == 2
        [recorded] = [each for each in records if not each.id.startswith("claude-code-")]
        used = await store.usage.read_conversation(recorded.id)
        compactions = {
            (entry.branch, entry.seq)
            for branch in await store.list_branches(recorded.id)
            for entry in await store.read_range(recorded.id, branch=branch.number)
            if entry.kind == "compaction"
        }
    calls = [each for each in provider.requests[own:] if not each.is_count and ECHO.name in each.tool_names]
    assert len(compactions) == 3
    assert used.requests == len(calls)
