"""Edits in the real opencode, unmodified; test_edited_sessions.py has those in Claude Code and Codex."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest
from bound_thinking import THINKING
from gateway_fixtures import run_gateway
from gateway_records import get_address

from infra.real_agents import OpenCode, find_opencode
from infra.scripted_provider import ProviderRequest, ScriptedCall, ScriptedProvider, ScriptedReply
from infra.sizes import IS_FULL_SIZE
from quire.store import SqlStore

pytestmark = pytest.mark.slow

CALLS_PER_TURN = 10 if IS_FULL_SIZE else 2

Item = dict[str, Any]


def call_tools(name: str, make_arguments: Callable[[int], dict[str, Any]], per_turn: int) -> Any:
    """Calls the tool a number of times in each turn, then answers."""
    count = 0

    def choose(request: ProviderRequest) -> ScriptedReply:
        nonlocal count
        if name not in request.tool_names:
            return ScriptedReply("Noted.")
        if request.newest_results and count % per_turn == 0:
            return ScriptedReply("All read.")
        count += 1
        return ScriptedReply("", calls=(ScriptedCall(name, make_arguments(count)),))

    return choose


def strip(item: Item) -> Item:
    """The item without cache markers and reasoning, its content as a list."""
    content = item.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list):
        return item
    plain = [{k: v for k, v in block.items() if k != "cache_control"} for block in blocks]
    return {**item, "content": [block for block in plain if block.get("type") not in THINKING]}


def count_extensions(requests: list[ProviderRequest]) -> int:
    """How many of the lists extend the one before, apart from markers and from reasoning that was left out."""
    lists = [[strip(item) for item in request.items] for request in requests]
    return sum(after[: len(before)] == before for before, after in pairwise(lists))


def call_and_summarize(script: Any) -> Any:
    """Answers the request for a summary with one that lacks the fact."""

    def choose(request: ProviderRequest) -> ScriptedReply:
        if "Respond with TEXT ONLY" in str(request.items[-1]) or "CONTEXT CHECKPOINT" in str(request.items[-1]):
            return ScriptedReply(SUMMARY_REPLY)
        return script(request)

    return choose


SUMMARY = "1. Primary Request: the user reads numbers.\n2. Files: none.\n3. Next: read on, as the user says each time."
SUMMARY_REPLY = f"<analysis>I think.</analysis>\n<summary>\n{SUMMARY}\n</summary>"


@pytest.mark.nightly
async def test_drops_and_pins_reach_opencode(store: SqlStore, provider: ScriptedProvider, tmp_path: Path):
    """opencode speaks chat completions, and has a call of its own write the summary."""
    if find_opencode() is None:
        pytest.skip("OPENCODE IS NOT INSTALLED: edits are not tried with it (`just install-agents`)")
    script = call_tools("bash", lambda n: {"command": f"seq {n} {n + 400}", "description": "Count"}, CALLS_PER_TURN)

    def choose(request: ProviderRequest) -> ScriptedReply:
        is_summary = "context summarization agent" in str(request.items[0])
        return ScriptedReply(SUMMARY) if is_summary else script(request)

    provider.script = choose
    upstreams: Any = {"*": {"base_url": provider.openai_url, "speaks": ["chat"]}}
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=1_000_000) as harness:
        agent = OpenCode(tmp_path, **get_address(harness))
        with agent.serve() as url:
            async with httpx2.AsyncClient(base_url=url, timeout=120) as http:
                session = (await http.post("/session", json={})).json()["id"]

                async def ask() -> list[ProviderRequest]:
                    first = len(provider.requests)
                    answer = await http.post(
                        f"/session/{session}/message", json={"parts": [{"type": "text", "text": "Read on."}]}
                    )
                    assert answer.is_success, answer.text
                    return [each for each in provider.requests[first:] if "bash" in each.tool_names]

                await ask()
                await ask()
                records = await store.list_conversations()
                [main] = [each for each in records if each.origin is not None and each.origin.purpose is None]
                base = f"/api/conversations/{main.id}"
                entries = await store.read_range(main.id, kinds=["message"])
                dropped, pinned = [entry.seq for entry in entries if entry.role == "tool"][:2]
                await harness.http.post(f"{base}/drops", json={"seq": dropped, "now": True})
                await harness.http.post(f"{base}/pins", json={"seq": pinned})
                edited = await ask()
                assert all(f"read #{dropped}]" in str(each.items) for each in edited)
                edited += await ask()
                assert count_extensions(edited) == len(edited) - 1

                answer = await http.post(
                    f"/session/{session}/summarize", json={"providerID": "local", "modelID": agent.model}
                )
                assert answer.is_success, answer.text
                compacted = (await ask())[0]
                assert SUMMARY in [each["content"] for each in compacted.items]
                assert f'message="#{pinned}"' in str(compacted.items)
