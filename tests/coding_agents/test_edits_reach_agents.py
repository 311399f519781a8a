"""Drops and their undo in the real Claude Code and Codex, unmodified, with an upstream that checks signed reasoning."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from bound_thinking import THINKING, BoundThinking
from gateway_fixtures import run_gateway
from gateway_records import get_address

from infra.real_agents import Claude, Codex
from infra.scripted_provider import ProviderRequest, ScriptedCall, ScriptedProvider, ScriptedReply
from infra.sizes import IS_FULL_SIZE
from quire.model import Compaction
from quire.store import SqlStore

pytestmark = pytest.mark.slow

CALLS_PER_TURN = 10 if IS_FULL_SIZE else 2
TURNS = 30 if IS_FULL_SIZE else 2
DROPPED_RESULTS = 20 if IS_FULL_SIZE else 2

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


def read_content(content: Any) -> str:
    return "".join(part["text"] for part in content) if isinstance(content, list) else str(content)


def list_contents(items: list[Item]) -> set[tuple[str, str, str]]:
    """Role, ID and content of each block."""
    return {
        (
            item["role"],
            block.get("id") or block.get("tool_use_id") or "",
            read_content(block.get("text") or block.get("input") or block.get("content")),
        )
        for item in items
        for block in item["content"]
    }


def list_main(provider: ProviderRequest | ScriptedProvider, tool: str) -> list[ProviderRequest]:
    assert isinstance(provider, ScriptedProvider)
    return [request for request in provider.requests if tool in request.tool_names and not request.is_count]


def count_extensions(requests: list[ProviderRequest]) -> int:
    """How many of the lists extend the one before, apart from markers and from reasoning that was left out."""
    lists = [[strip(item) for item in request.items] for request in requests]
    return sum(after[: len(before)] == before for before, after in pairwise(lists))


async def test_drops_reach_claude_code_and_come_back(
    store: SqlStore, provider: ScriptedProvider, make_claude: Callable[..., Claude]
):
    script = call_tools("Bash", lambda n: {"command": f"seq {n} {n + 400}", "description": "Count"}, CALLS_PER_TURN)
    provider.script = upstream = BoundThinking(script)
    upstreams: Any = {"*": {"base_url": provider.openai_url, "speaks": ["messages"]}}
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=1_000_000) as harness:
        claude = make_claude(**get_address(harness), env={"DISABLE_AUTO_COMPACT": "1"})

        async def ask(prompt: str, *flags: str) -> list[Item]:
            run = await claude.run(prompt, *flags)
            assert run.exit_code == 0, run.stdout + run.stderr
            assert not upstream.refused
            return list_main(provider, "Bash")[-1].items

        await ask("Read on.")
        for _ in range(TURNS - 1):
            before = await ask("Read on.", "--continue")
        records = await store.list_conversations()
        [main] = [each for each in records if each.origin is not None and each.origin.purpose is None]
        results = [entry for entry in await store.read_range(main.id, kinds=["message"]) if entry.role == "tool"]
        dropped = [entry.seq for entry in results[:DROPPED_RESULTS]]
        for seq in dropped:
            await harness.http.post(f"/api/conversations/{main.id}/drops", json={"seq": seq, "now": True})
        requests = len(list_main(provider, "Bash"))
        edited = await ask("Read on.", "--continue")
        text = str(edited)
        assert [seq for seq in dropped if f"read #{seq}]" in text] == dropped
        assert sum("[dropped by the user" in str(item) for item in edited) == len(dropped)
        await ask("Read on.", "--continue")
        during = list_main(provider, "Bash")[requests:]
        assert count_extensions(during) == len(during) - 1

        for seq in dropped:
            await harness.http.delete(f"/api/conversations/{main.id}/drops/{seq}", params={"now": True})
        after = await ask("Read on.", "--continue")
        assert "[dropped by the user" not in str(after)
        assert [strip(item) for item in after][: len(before)] == [strip(item) for item in before]
        assert len(await store.list_branches(main.id)) == 1
        kinds = [entry.kind for entry in await store.read_range(main.id)]
        assert kinds.count("epoch") == 2


async def test_drops_reach_codex_in_the_middle_of_a_session(
    store: SqlStore, provider: ScriptedProvider, make_codex: Callable[..., Codex]
):
    provider.script = call_tools("exec_command", lambda n: {"cmd": f"seq {n} {n + 400}"}, CALLS_PER_TURN)
    upstreams: Any = {"*": {"base_url": provider.openai_url, "speaks": ["responses"]}}
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=1_000_000) as harness:
        codex = make_codex(**get_address(harness), context_window_tokens=1_000_000)
        run = await codex.run("Read on.")
        assert run.exit_code == 0, run.stderr
        records = await store.list_conversations()
        [main] = [each for each in records if each.origin is not None and each.origin.purpose is None]
        results = [entry for entry in await store.read_range(main.id, kinds=["message"]) if entry.role == "tool"]
        dropped = [entry.seq for entry in results[:DROPPED_RESULTS]]
        assert dropped
        for seq in dropped:
            await harness.http.post(f"/api/conversations/{main.id}/drops", json={"seq": seq, "now": True})
        run = await codex.run("Read on.", resume=run.session_id)
        assert run.exit_code == 0, run.stderr
        text = str(provider.requests[-1].items)
        assert [seq for seq in dropped if f"read #{seq}]" in text] == dropped


FACT = "The pier's code is 7319."


def call_and_summarize(script: Any) -> Any:
    """Answers the request for a summary with one that lacks the fact."""

    def choose(request: ProviderRequest) -> ScriptedReply:
        if "Respond with TEXT ONLY" in str(request.items[-1]) or "CONTEXT CHECKPOINT" in str(request.items[-1]):
            return ScriptedReply(SUMMARY_REPLY)
        return script(request)

    return choose


SUMMARY = "1. Primary Request: the user reads numbers.\n2. Files: none.\n3. Next: read on, as the user says each time."
SUMMARY_REPLY = f"<analysis>I think.</analysis>\n<summary>\n{SUMMARY}\n</summary>"


async def test_an_undone_compaction_is_restored_in_claude_code(
    store: SqlStore, provider: ScriptedProvider, make_claude: Callable[..., Claude]
):
    script = call_tools("Bash", lambda n: {"command": f"seq {n} {n + 400}", "description": "Count"}, CALLS_PER_TURN)
    provider.script = upstream = BoundThinking(call_and_summarize(script))
    upstreams: Any = {"*": {"base_url": provider.openai_url, "speaks": ["messages"]}}
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=200_000) as harness:
        claude = make_claude(**get_address(harness))

        async def ask(prompt: str, *flags: str) -> list[Item]:
            run = await claude.run(prompt, *flags)
            assert run.exit_code == 0, run.stdout + run.stderr
            return list_main(provider, "Bash")[-1].items

        await ask(f"{FACT} Read on.")
        await ask("Read on.", "--continue")
        before = [strip(item) for item in await ask("Read on.", "--continue")]
        await ask("/compact", "--continue")
        compacted = await ask("Once more.", "--continue")
        assert FACT not in str(compacted)
        records = await store.list_conversations()
        [main] = [each for each in records if each.origin is not None and each.origin.purpose is None]
        [entry] = [each for each in await store.read_range(main.id) if each.kind == "compaction"]
        assert isinstance(entry.body, Compaction)
        assert (entry.body.trigger, SUMMARY in (entry.body.summary or "")) == ("client", True)

        answer = await harness.http.delete(f"/api/conversations/{main.id}/compaction")
        assert answer.status_code == 200, answer.text
        requests = len(list_main(provider, "Bash"))
        refused = len(upstream.refused)
        restored = [strip(item) for item in await ask("Go on.", "--continue")]
        assert FACT in str(restored)
        assert SUMMARY not in str(restored)
        assert len(upstream.refused) == refused
        assert list_contents(before) <= list_contents(restored)
        await ask("Go on.", "--continue")
        during = list_main(provider, "Bash")[requests:]
        assert count_extensions(during) == len(during) - 1
        assert len(upstream.refused) == refused
