"""Compactions of the real agents with varied summaries: each is an entry of the log that covers what it replaced.

No header names the session, and no hook is installed: the lists of messages are all that the gateway has.
"""

import json
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import httpx2
import pytest
from gateway_fixtures import GatewayHarness, run_gateway
from gateway_records import get_address
from varied_summaries import wrap_as_reply, write_summary

from infra.real_agents import Claude, Codex, Gemini, OpenCode, find_gemini, find_opencode
from infra.scripted_provider import (
    ProviderRequest,
    ScriptedCall,
    ScriptedProvider,
    ScriptedReply,
    ScriptedUsage,
    WireFormatName,
    run_scripted_provider,
)
from infra.sizes import IS_FULL_SIZE
from proxy.client_lists import EDITORS, Item, make_answer, make_question
from quire.model import Compaction
from quire.rows.boilerplate import SUMMARY_OPENINGS
from quire.settings.schema import DEFAULT_SESSION_HEADERS
from quire.store import SqlStore

pytestmark = pytest.mark.slow

SESSIONS, COMPACTIONS = (4, 13) if IS_FULL_SIZE else (1, 3)
"""Sessions of each kind, and compactions of each."""
GEMINI_COMPACTIONS = 3 if IS_FULL_SIZE else 2
"""Compactions of a session of Gemini CLI, which needs a process for each."""
REPLAYED_REQUESTS = 500 if IS_FULL_SIZE else 60
"""Requests without a compaction, of each agent and scope."""
CALLS = 4
"""Tool calls between two compactions: Claude Code gives up if it compacts again and again within three."""
FULL_TOKENS = 900_000
"""Usage that makes an agent compact."""
AUTO_COMPACT = {"CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": "4"}
"""Claude Code compacts at 4 % of this model's window of a million tokens."""
SUMMARY_PROMPTS = (
    "Respond with TEXT ONLY", "CONTEXT CHECKPOINT COMPACTION", "context summarization agent", "<state_snapshot>",
)  # fmt: skip
SESSION_HEADERS = ("x-claude-code-session-id", "session-id")
MARK = re.compile(r"Part \d+ of \d+|gAAAA-\w+-\d+")
"""In each summary, and in no other."""
FACT = re.compile(r"fact-(\d+)-of-\w+!")
SCOPES = {
    "list alone": dict.fromkeys(DEFAULT_SESSION_HEADERS, ""),
    "session": {},
}
"""Settings of the gateway: without and with the headers that name a session."""
scopes = pytest.mark.parametrize("scope", ["list alone", pytest.param("session", marks=pytest.mark.nightly)])


def find_facts(value: object) -> set[int]:
    return {int(number) for number in FACT.findall(value if isinstance(value, str) else json.dumps(value))}


@dataclass
class CompactedSession:
    """Scripts one session: calls a tool for facts, summarizes on request, and notes what each summary replaces."""

    tool: str
    name: str
    make_command: Callable[[str], dict[str, Any]]
    is_automatic: bool = False
    """Whether usage makes the agent compact within a turn, else the test tells it to."""
    summaries: list[str] = field(default_factory=list[str])
    """Replies with a summary; a sealed one is its content."""
    drafts: list[str] = field(default_factory=list[str])
    """Summaries of which the agent's next list has one. Gemini CLI has each written twice, Claude Code those without
    tags; Gemini CLI uses none that is longer than what it covers."""
    written: int = 0
    facts: int = 0
    covered: list[set[int]] = field(default_factory=list[set[int]])
    """Facts that the agent's list no longer had after each compaction."""
    requests: int = 0
    lock: Lock = field(default_factory=Lock)

    def __call__(self, request: ProviderRequest) -> ScriptedReply:
        with self.lock:
            self.requests += 1
            if request.items[-1].get("type") == "compaction_trigger":
                self.drafts.append(f"gAAAA-{self.name}-{len(self.summaries)}")
                return ScriptedReply(compaction=self.drafts[-1])
            if is_summary_request(request):
                return ScriptedReply(self.summarize(request), usage=ScriptedUsage(1_000))
            if self.tool not in request.tool_names:
                return ScriptedReply('{"complexity_score": 1}')
            text = request.raw.decode()
            used = [draft for draft in self.drafts if MARK.findall(draft)[-1] in text]
            self.drafts.clear()
            self.summaries += used
            self.covered += [set(range(1, self.facts + 1)) - find_facts(text)] * len(used)
            is_turn_over = bool(request.newest_results) and self.facts % CALLS == 0
            if self.facts >= CALLS * COMPACTIONS + 2 if self.is_automatic else is_turn_over:
                return ScriptedReply(f"All {self.facts} are read.", usage=ScriptedUsage(1_000))
            self.facts += 1
            # The command has the number in another form than its output.
            call = ScriptedCall(self.tool, self.make_command(f"echo fact-$(({self.facts} + 0))-of-{self.name}!"))
            is_full = self.is_automatic and self.facts % CALLS == 0
            return ScriptedReply("", (call,), usage=ScriptedUsage(FULL_TOKENS if is_full else 1_000))

    def summarize(self, request: ProviderRequest) -> str:
        number, rng = self.written, random.Random(f"{self.name} {self.written}")
        self.written += 1
        number += int(self.name[-1]) * COMPACTIONS
        summary = write_summary(number, self.summaries[-1] if self.summaries else "", rng)
        if request.format == "gemini":
            is_first = b"Critically evaluate" not in request.raw
            summary = f"<state_snapshot>\n{summary}\n{'Draft.' if is_first else 'Done.'}</state_snapshot>"
        self.drafts.append(wrap_as_reply(summary, number, rng) if request.format == "messages" else summary)
        return self.drafts[-1]


def is_summary_request(request: ProviderRequest) -> bool:
    return any(prompt.encode() in request.raw for prompt in SUMMARY_PROMPTS[:3]) or (
        request.format == "gemini" and not request.tool_names and b"<state_snapshot>" in request.raw
    )


@asynccontextmanager
async def run_scope(
    store: SqlStore, scope: str, wire: WireFormatName
) -> AsyncIterator[tuple[GatewayHarness, ScriptedProvider]]:
    with run_scripted_provider() as provider:
        settings: Any = {
            "upstreams": {"*": {"base_url": provider.openai_url, "speaks": [wire]}},
            "context_limit": 2_000_000,
            "session_headers": SCOPES[scope],
            "timeout_seconds": 60,
        }
        async with run_gateway(store, provider.openai_url, **settings) as harness:
            yield harness, provider


async def check_log(store: SqlStore, sessions: list[CompactedSession]) -> None:
    """Each compaction is one entry with its summary and the range that the agent's list lost, and nothing else is."""
    found: dict[str, list[tuple[str | None, set[int]]]] = {}
    for record in await store.list_conversations(limit=1_000):
        for branch in await store.list_branches(record.id):
            entries = await store.read_range(record.id, branch=branch.number)
            bodies = [entry.body for entry in entries if isinstance(entry.body, Compaction)]
            messages = {
                each.seq: find_facts(each.message.model_dump_json()) for each in entries if each.kind == "message"
            }
            for body in bodies:
                assert body.covers is not None
                assert body.trigger in ("client", "provider")
            lists = [
                (each.summary, set().union(*(facts for seq, facts in messages.items() if seq in (each.covers or ()))))
                for each in bodies
            ]
            if len(lists) > len(found.get(record.id, ())):
                found[record.id] = lists
    expected = [
        [
            (None if text.startswith("gAAAA-") else text, facts)
            for text, facts in zip(each.summaries, each.covered, strict=True)
        ]
        for each in sessions
    ]
    problems = [
        (number, index)
        for number, session in enumerate(expected)
        for index, each in enumerate(session)
        if each not in [entry for entries in found.values() for entry in entries]
    ]
    assert not problems, [(expected[n][i][0] or "")[:3_000] for n, i in problems]
    assert sorted(map(len, found.values())) == sorted(map(len, expected))
    assert all(each.summaries for each in sessions)
    print(
        f"{sum(len(each.summaries) for each in sessions)} compactions in "
        f"{sum(each.requests for each in sessions)} requests of {len(sessions)} sessions"
    )


@scopes
@pytest.mark.parametrize(
    "is_automatic", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["by command", "automatic"]
)
async def test_compactions_of_claude_code(
    store: SqlStore, make_claude: Callable[..., Claude], scope: str, *, is_automatic: bool
):
    sessions: list[CompactedSession] = []
    async with run_scope(store, scope, "messages") as (harness, provider):
        for number in range(SESSIONS):
            session = CompactedSession(
                "Bash", f"claude{number}", lambda each: {"command": each, "description": "Read"}, is_automatic
            )
            sessions.append(session)
            provider.script = session
            async with make_claude(**get_address(harness), env=AUTO_COMPACT).converse() as ask:
                for _ in range(1 if is_automatic else COMPACTIONS):
                    await ask("Read on.")
                    if not is_automatic:
                        await ask("/compact")
                await ask("Once more.")
        await harness.server_state.wait_for_background()
        await check_log(store, sessions)


@pytest.mark.nightly
@scopes
@pytest.mark.parametrize(
    "provider_name", ["quire", pytest.param("OpenAI", marks=pytest.mark.nightly)], ids=["summary", "sealed"]
)
async def test_compactions_of_codex(store: SqlStore, make_codex: Callable[..., Codex], scope: str, provider_name: str):
    sessions: list[CompactedSession] = []
    async with run_scope(store, scope, "responses") as (harness, provider):
        for number in range(SESSIONS):
            session = CompactedSession("exec_command", f"codex{number}", lambda each: {"cmd": each}, is_automatic=True)
            sessions.append(session)
            provider.script = session
            limits = ["model_auto_compact_token_limit=500000", f'model_providers.quire.name="{provider_name}"']
            codex = make_codex(**get_address(harness), context_window_tokens=2_000_000, config=limits)
            run = await codex.run("Read on.")
            assert run.exit_code == 0, run.stdout + run.stderr
        await harness.server_state.wait_for_background()
        await check_log(store, sessions)


@pytest.mark.nightly
@scopes
async def test_compactions_of_opencode(store: SqlStore, tmp_path: Path, scope: str):
    if find_opencode() is None:
        pytest.skip("OPENCODE IS NOT INSTALLED: its compactions are not tried (`just install-agents`)")
    sessions: list[CompactedSession] = []
    async with run_scope(store, scope, "chat") as (harness, provider):
        agent = OpenCode(tmp_path, **get_address(harness))
        with agent.serve() as url:
            async with httpx2.AsyncClient(base_url=url, timeout=120) as http:
                for number in range(SESSIONS):
                    session = CompactedSession(
                        "bash", f"opencode{number}", lambda each: {"command": each, "description": "Read"}
                    )
                    sessions.append(session)
                    provider.script = session
                    path = f"/session/{(await http.post('/session', json={})).json()['id']}"
                    for _ in range(COMPACTIONS):
                        await http.post(f"{path}/message", json={"parts": [{"type": "text", "text": "Read on."}]})
                        answer = await http.post(
                            f"{path}/summarize", json={"providerID": "local", "modelID": agent.model}
                        )
                        assert answer.is_success, answer.text
                    await http.post(f"{path}/message", json={"parts": [{"type": "text", "text": "Once more."}]})
        await harness.server_state.wait_for_background()
        await check_log(store, sessions)


def write_plainly(command: str) -> str:
    """Gemini CLI runs no command with a substitution."""
    return re.sub(r"\$\(\((\d+) \+ 0\)\)", r"\1", command)


@pytest.mark.nightly
async def test_compactions_of_gemini_cli(store: SqlStore, tmp_path: Path):
    """It sends no header for its session at all. It compacts at the start of a turn."""
    if find_gemini() is None:
        pytest.skip("GEMINI CLI IS NOT INSTALLED: its compactions are not tried (`just install-agents`)")
    sessions: list[CompactedSession] = []
    async with run_scope(store, "list alone", "gemini") as (harness, provider):
        for number in range(SESSIONS):
            session = CompactedSession(
                "run_shell_command", f"gemini{number}", lambda each: {"command": write_plainly(each)}
            )
            sessions.append(session)
            provider.script = session
            agent = Gemini(tmp_path / str(number), **get_address(harness))
            path = agent.home / ".gemini" / "settings.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"model": {"compressionThreshold": 0.0001}}))
            for turn in range(GEMINI_COMPACTIONS + 1):
                prompt = f"The harbour is wide, says chapter {turn}. " * 2_000
                run = await agent.run(prompt, "--yolo", *(("--resume", "latest") if turn else ()))
                assert run.exit_code == 0, run.stderr
        await harness.server_state.wait_for_background()
        await check_log(store, sessions)


@dataclass
class ReplayedClient:
    """Goes on with the list that a real agent sent last, in ways that are no compaction."""

    request: ProviderRequest
    """The agent's newest request, whose list begins with a summary."""
    session: CompactedSession
    rng: random.Random
    items: list[Item] = field(default_factory=list[Item])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    sent: int = 0

    def __post_init__(self) -> None:
        self.items = list(self.request.items)
        dropped = ("host", "content-length", "connection", "accept-encoding", "authorization", "x-api-key")
        self.headers = {name: value for name, value in self.request.headers.items() if name not in dropped}

    @property
    def wire(self) -> str:
        return self.request.format

    def write_question(self) -> list[Item]:
        """A question, often with a pasted summary: alone, quoted, with its tags, or as the agent began its list."""
        summary = self.rng.choice(self.session.summaries)
        begun = next(text for item in self.request.items if (text := find_text(item)) and is_continuation(text))
        pasted = ("", f"You wrote: {summary}\nIs that right?", summary, f"> {summary[:500]}", begun, f"Look: {begun}")
        return make_question(self.wire, f"{self.rng.choice(pasted)}\nQuestion {self.rng.random()}.")

    def take_step(self) -> tuple[str, dict[str, str], list[Item], bool]:
        """What the client does, its headers, its list, and whether it offers tools."""
        questions = [at for at, item in enumerate(self.items) if EDITORS[self.wire].is_question(item)]
        # The first ones are the environment, and the summary.
        place = self.rng.choice([at for at in questions if not is_continuation(find_text(self.items[at]))] or questions)
        name = next((each for each in SESSION_HEADERS if each in self.headers), SESSION_HEADERS[0])
        other = self.headers | {name: f"session {self.rng.random()}"}
        action = self.rng.choice(["grow"] * 6 + ["rewind", "edit", "first", "new", "fork", "sub-agent", "side"])
        match action:
            case "rewind":
                self.items = [*self.items[:place], *self.write_question()]
            case "edit":
                edited = make_question(self.wire, f"{find_text(self.items[place])} Edited {self.rng.random()}.")
                return action, self.headers, [*self.items[:place], *edited, *self.items[place + 1 :]], True
            case "first":
                return action, self.headers, self.write_question(), True
            case "new":
                return action, other, self.write_question(), True
            case "fork":
                return action, other, [*self.items, *self.write_question()], True
            case "sub-agent":
                return action, self.headers | {"x-claude-code-agent-id": other[name]}, self.write_question(), True
            case "side":
                return action, self.headers, self.write_question(), False
            case _:
                self.items += self.write_question()
        return action, self.headers, list(self.items), True

    async def send(self, harness: GatewayHarness) -> str:
        action, headers, items, has_tools = self.take_step()
        body = self.request.body | {"input" if self.wire == "responses" else "messages": items, "stream": False}
        body["tools"] = body["tools"][:2] if has_tools else []
        path = self.request.path.partition("?")[0]
        answer = await harness.http.post(path, content=json.dumps(body).encode(), headers=headers)
        assert answer.status_code == 200, answer.text
        if items == self.items:
            self.items += make_answer(self.wire, f"Reply {self.sent}: it is as it was before, and stays so.", "")
        self.sent += 1
        return action

    def __call__(self, request: ProviderRequest) -> ScriptedReply:
        return ScriptedReply(f"Reply {self.sent}: it is as it was before, and stays so.")


def find_text(item: Item) -> str:
    content = item.get("content") or ""
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


def is_continuation(text: str) -> bool:
    return text.lstrip().startswith(SUMMARY_OPENINGS)


async def list_compactions(store: SqlStore) -> set[tuple[str, int, int]]:
    return {
        (record.id, entry.branch, entry.seq)
        for record in await store.list_conversations(limit=10_000)
        for branch in await store.list_branches(record.id)
        for entry in await store.read_range(record.id, branch=branch.number, kinds=["compaction"])
    }


@pytest.mark.nightly
@scopes
@pytest.mark.parametrize("agent", ["claude", "codex"])
async def test_nothing_else_is_a_compaction(
    store: SqlStore, make_claude: Callable[..., Claude], make_codex: Callable[..., Codex], scope: str, agent: str
):
    """Lists of a real agent that grow, are edited or rewound, forks, sub-agents, side calls, and pasted summaries."""
    async with run_scope(store, scope, "messages" if agent == "claude" else "responses") as (harness, provider):
        if agent == "claude":
            session = CompactedSession("Bash", "claude0", lambda each: {"command": each, "description": "Read"})
            provider.script = session
            async with make_claude(**get_address(harness)).converse() as ask:
                for prompt in ("Read on.", "/compact", "Read on.", "/compact", "Read on."):
                    await ask(prompt)
        else:
            session = CompactedSession("exec_command", "codex0", lambda each: {"cmd": each}, is_automatic=True)
            provider.script = session
            limits = ["model_auto_compact_token_limit=500000"]
            run = await make_codex(**get_address(harness), context_window_tokens=2_000_000, config=limits).run("Go.")
            assert run.exit_code == 0, run.stdout + run.stderr
        newest = next(each for each in reversed(provider.requests) if session.tool in each.tool_names)
        before = await list_compactions(store)
        assert len(before) == len(session.summaries)
        client = provider.script = ReplayedClient(newest, session, random.Random(f"{agent} {scope}"))
        client.items += make_answer(client.wire, provider.replies[newest].text, "")
        actions: list[str] = []
        for number in range(REPLAYED_REQUESTS):
            actions.append(await client.send(harness))
            if number % 20 == 19:
                assert await list_compactions(store) == before, actions[-20:]
        await harness.server_state.wait_for_background()
        assert await list_compactions(store) == before
        print(f"{len(actions)} requests without a compaction: { {each: actions.count(each) for each in set(actions)} }")
