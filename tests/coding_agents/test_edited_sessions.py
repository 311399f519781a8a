"""A long session of the real Claude Code and of the real Codex with every kind of edit.

Each request that the provider received is compared with what the agent sent, edited again by an account of its own.
"""

import json
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any, NamedTuple

import pytest
from bound_thinking import THINKING, BoundThinking
from gateway_fixtures import GatewayHarness, run_gateway
from gateway_records import get_address

from infra.real_agents import Claude, Codex
from infra.recording_relay import RecordingRelay, run_recording_relay
from infra.scripted_provider import ProviderRequest, Script, ScriptedCall, ScriptedProvider, ScriptedReply
from infra.sizes import IS_FULL_SIZE
from quire.log import MAIN_BRANCH
from quire.store import SqlStore

pytestmark = pytest.mark.slow

CALLS_PER_TURN = 10 if IS_FULL_SIZE else 3
TURNS = 10 if IS_FULL_SIZE else 2
"""Of each of the three parts of a session: before, between and behind two compactions."""
DROPPED_RESULTS, PINS = (20, 10) if IS_FULL_SIZE else (2, 2)

MAX_TOKENS = 1_000_000
SETTINGS: Any = {"context_limit": MAX_TOKENS, "timeout_seconds": 60}

STOP = "Stop here."
SUMMARY_PROMPTS = ("Respond with TEXT ONLY", "CONTEXT CHECKPOINT COMPACTION")
QUOTE = re.compile(r'<quire:pinned[^>]* message="#(\d+)"')
STUB = re.compile(r"\[dropped by the user: .*, [\d,]+ characters; read #(\d+)\]")


class Block(NamedTuple):
    """A text, call or result of a list, without markers and reasoning."""

    role: str
    kind: str
    id: str
    text: str


def iter_blocks(items: list[dict[str, Any]]) -> Iterator[Block]:
    for item in items:
        match item.get("type"):
            case "function_call":
                yield Block("assistant", "call", item["call_id"], item["arguments"])
            case "function_call_output":
                yield Block("user", "result", item["call_id"], read_text(item["output"]))
            case None | "message":
                content = item["content"]
                for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
                    if block["type"] == "tool_use":
                        yield Block("assistant", "call", block["id"], json.dumps(block["input"]))
                    elif block["type"] == "tool_result":
                        yield Block("user", "result", block["tool_use_id"], read_text(block["content"]))
                    elif block["type"] not in THINKING:
                        yield Block(item["role"], "text", "", block["text"])
            case "reasoning":
                pass
            case other:
                raise AssertionError(other)


def read_text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def is_compaction(request: ProviderRequest) -> bool:
    """Whether it asks for a summary. An agent does not repeat this prompt in its later lists."""
    return any(prompt.encode() in request.raw for prompt in SUMMARY_PROMPTS)


def write_summary(number: int) -> str:
    return f"1. Primary Request: the user reads numbers, in part {number}.\n2. Files: none.\n3. Next: read on as told."


@dataclass
class Edits:
    """What was requested, and an account of what the provider should receive for a list of the agent."""

    dropped: dict[str, int] = field(default_factory=dict[str, int])
    """Numbers of dropped messages by call."""
    pinned: dict[str, int] = field(default_factory=dict[str, int])
    """Numbers of pinned results by call."""
    restored: int = 0
    """Compactions that are undone: each covers the one before it."""
    covered: list[list[Block]] = field(default_factory=list[list[Block]])
    """What the session was when the agent had each summary written."""

    def check(self, client: list[Block], received: list[Block]) -> None:
        """Compares a list of the agent with the one that the provider received."""
        present = {block.id for block in received if block.kind == "result"}
        is_compacted = any(find_summary(client, number) is not None for number in range(1, len(self.covered) + 1))
        lacking = {seq for call, seq in self.pinned.items() if call not in present} if is_compacted else set[int]()
        assert {int(quote[1]) for block in received if (quote := QUOTE.match(block.text))} == lacking
        received = [describe_stub(block) for block in received if not QUOTE.match(block.text)]
        place = find_summary(client, self.restored)
        if place is None:
            assert received == self.drop(client)
            return
        covered, after = self.drop(self.covered[self.restored - 1]), self.drop(client[place + 1 :])
        summary = find_summary(received, self.restored)
        if summary is None:
            assert received == [*covered, *after]
            return
        # Not all fit below the agent's limit: the newest are behind the summary, and none of them before it.
        restored = received[summary + 1 : len(received) - len(after)]
        assert received[len(received) - len(after) :] == after
        assert covered[-len(restored) :] == restored
        before = client[:place][::-1]
        for block in restored:
            if (block.role, block.kind) == ("user", "text"):
                before.remove(block)
        assert received[:summary] == before[::-1]

    def note_covered(self, client: list[Block]) -> None:
        place = find_summary(client, len(self.covered))
        self.covered.append([*self.covered[-1], *client[place + 1 :]] if place is not None else client)

    def drop(self, blocks: list[Block]) -> list[Block]:
        return [
            block._replace(text=f"dropped #{self.dropped[block.id]}")
            if block.kind == "result" and block.id in self.dropped
            else block
            for block in blocks
        ]


def find_summary(blocks: list[Block], number: int) -> int | None:
    """The place of a summary. Zero is none."""
    text = write_summary(number)
    return next((at for at, each in enumerate(blocks) if each.role == "user" and text in each.text), None)


def describe_stub(block: Block) -> Block:
    stub = STUB.fullmatch(block.text) if block.kind == "result" else None
    return block._replace(text=f"dropped #{stub[1]}") if stub is not None else block


def count_calls(tool: str, make_arguments: Callable[[int], dict[str, Any]]) -> Script:
    """Calls the tool a number of times in each turn, then answers; writes a new summary at each request for one."""
    calls, summaries = count(1), count(1)
    made = 0

    def choose(request: ProviderRequest) -> ScriptedReply:
        nonlocal made
        if is_compaction(request):
            return ScriptedReply(f"<analysis>Hm.</analysis>\n<summary>\n{write_summary(next(summaries))}\n</summary>")
        if tool not in request.tool_names:
            return ScriptedReply("Noted.")
        if (request.newest_results and made % CALLS_PER_TURN == 0) or STOP in str(request.items[-1]):
            return ScriptedReply("All read.")
        made = next(calls)
        return ScriptedReply("", calls=(ScriptedCall(tool, make_arguments(made)),))

    return choose


@dataclass
class EditedSession:
    """A session of an agent through a relay, the gateway, and a scripted provider."""

    harness: GatewayHarness
    provider: ScriptedProvider
    relay: RecordingRelay
    tool: str
    ask: Callable[[str], Awaitable[None]]
    edits: Edits = field(default_factory=Edits)
    client: list[ProviderRequest] = field(default_factory=list[ProviderRequest])
    """What the agent sent."""
    compared: int = 0
    breaks: list[int] = field(default_factory=list[int])
    """Requests that need not extend the one before."""

    async def run_turns(self, turns: int) -> None:
        for _ in range(turns):
            await self.ask("Read on.")
            self.compare()

    def compare(self) -> None:
        """Compares the requests since the last comparison with what the agent sent."""
        wire = self.provider.requests[0].format
        posted = [each for each in self.relay.list_requests() if each.body]
        self.client += [ProviderRequest(wire, path, {}, body) for path, body in posted[len(self.client) :]]
        pairs = list(zip(self.list_main(self.client), self.list_main(self.provider.requests), strict=True))
        for sent, received in pairs[self.compared :]:
            self.compared += 1
            lists = [list(iter_blocks(each.items)) for each in (sent, received)]
            if is_compaction(sent):
                covered = [each for each in lists[0] if not any(prompt in each.text for prompt in SUMMARY_PROMPTS)]
                self.edits.note_covered(covered)
            self.edits.check(*lists)
            assert received.raw == sent.raw or self.provider.replies[received].error is None

    def list_main(self, requests: list[ProviderRequest]) -> list[ProviderRequest]:
        return [
            each for each in requests if not each.is_count and (self.tool in each.tool_names or is_compaction(each))
        ]

    def list_lists(self) -> list[list[Block]]:
        requests = self.list_main(self.provider.requests)
        return [list(iter_blocks(each.items)) for each in requests if not is_compaction(each)]

    def expect_break(self) -> None:
        self.breaks.append(len(self.list_lists()))

    async def run(self, store: SqlStore, compact: Callable[[], Awaitable[None]]) -> None:
        """Two compactions (one in CI), with drops and pins before each, both undone; then all is taken back."""
        http, base, seen = self.harness.http, "", 0
        for part in (1, 2) if IS_FULL_SIZE else (1,):
            await self.run_turns(TURNS - 1)
            records = await store.list_conversations()
            [main] = [each for each in records if each.origin is not None and each.origin.purpose is None]
            base = f"/api/conversations/{main.id}"
            entries = await store.read_range(main.id, first=seen + 1, kinds=["message"])
            results = [entry for entry in entries if entry.role == "tool"]
            drops, pins = results[: DROPPED_RESULTS // 2], results[DROPPED_RESULTS // 2 :][: PINS // 2]
            assert (len(drops), len(pins)) == (DROPPED_RESULTS // 2, PINS // 2)
            for entry in drops:
                answer = await http.post(f"{base}/drops", json={"seq": entry.seq, "now": True})
                assert answer.is_success, answer.text
                self.edits.dropped |= {each.call_id: entry.seq for each in entry.message.tool_results}
            for entry in pins:
                answer = await http.post(f"{base}/pins", json={"seq": entry.seq})
                assert answer.is_success, answer.text
                self.edits.pinned |= {each.call_id: entry.seq for each in entry.message.tool_results}
            self.expect_break()
            await self.run_turns(1)

            await compact()
            self.compare()
            self.expect_break()
            await self.run_turns(1)
            assert len(self.edits.covered) == part
            answer = await http.delete(f"{base}/compaction")
            assert answer.status_code == 200, answer.text
            self.edits.restored = part
            self.expect_break()
            await self.run_turns(1)
            seen = (await store.get_branch(main.id, MAIN_BRANCH)).head_seq
        await self.run_turns(TURNS - 2)
        for seq in self.edits.dropped.values():
            answer = await http.delete(f"{base}/drops/{seq}", params={"now": True})
            assert answer.is_success, answer.text
        for seq in self.edits.pinned.values():
            answer = await http.delete(f"{base}/pins/{seq}")
            assert answer.is_success, answer.text
        self.edits.dropped, self.edits.pinned = {}, {}
        self.expect_break()
        await self.run_turns(1)
        assert self.count_breaks() == self.breaks

    def count_breaks(self) -> list[int]:
        lists = self.list_lists()
        return [number for number, (before, after) in enumerate(pairwise(lists), 1) if after[: len(before)] != before]


async def test_every_edit_reaches_claude_code(
    store: SqlStore, provider: ScriptedProvider, make_claude: Callable[..., Claude]
):
    script = count_calls("Bash", lambda n: {"command": f"seq {n} {n + 400}", "description": "Count"})
    provider.script = BoundThinking(script)
    upstreams: Any = {"*": {"base_url": provider.openai_url, "speaks": ["messages"]}}
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, **SETTINGS) as harness:
        address = get_address(harness)
        async with run_recording_relay(address["base_url"]) as relay:
            claude = make_claude(**address | {"base_url": relay.url}, env={"DISABLE_AUTO_COMPACT": "1"})
            flags: tuple[str, ...] = ()

            async def ask(prompt: str) -> None:
                nonlocal flags
                run = await claude.run(prompt, *flags)
                assert run.exit_code == 0, run.stdout + run.stderr
                flags = ("--continue",)

            session = EditedSession(harness, provider, relay, "Bash", ask)
            await session.run(store, lambda: ask("/compact"))


@pytest.mark.nightly
async def test_every_edit_reaches_codex(store: SqlStore, provider: ScriptedProvider, make_codex: Callable[..., Codex]):
    provider.script = count_calls("exec_command", lambda n: {"cmd": f"seq {n} {n + 400}"})
    upstreams: Any = {"*": {"base_url": provider.openai_url, "speaks": ["responses"]}}
    # Codex compacts at the start of a turn if its provider reported so many tokens for the turn before.
    provider.count_tokens = lambda request: MAX_TOKENS if STOP in str(request.items[-1]) else 1_000
    async with run_gateway(store, provider.openai_url, upstreams=upstreams, **SETTINGS) as harness:
        address = get_address(harness)
        async with run_recording_relay(address["base_url"]) as relay:
            config = [f"model_auto_compact_token_limit={MAX_TOKENS // 2}"]
            codex = make_codex(**address | {"base_url": relay.url}, context_window_tokens=MAX_TOKENS, config=config)
            thread: str | None = None

            async def ask(prompt: str) -> None:
                nonlocal thread
                run = await codex.run(prompt, resume=thread)
                assert run.exit_code == 0, run.stdout + run.stderr
                thread = run.session_id

            session = EditedSession(harness, provider, relay, "exec_command", ask)
            await session.run(store, lambda: ask(STOP))
