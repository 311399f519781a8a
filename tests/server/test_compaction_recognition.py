"""Compactions of agents are recognized from their lists alone: none is missed, and no quoted reply is taken for one.

The lists have the forms that Claude Code, Codex and opencode were seen to send.
"""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from gateway_fixtures import GatewayHarness, run_gateway

from infra.scripted_provider import ProviderRequest, ScriptedProvider, ScriptedReply, run_scripted_provider
from infra.sizes import IS_FULL_SIZE
from proxy.client_lists import Item, make_answer, make_question
from quire.log import MAIN_BRANCH
from quire.store import SqlStore

SESSIONS = 25 if IS_FULL_SIZE else 2
"""Sessions of each agent."""
COMPACTIONS = 3
"""Compactions of each session."""

AGENTS = {"claude": "messages", "codex": "responses", "codex-sealed": "responses", "opencode": "chat"}
HEADERS = {"messages": "x-claude-code-session-id", "responses": "session-id", "chat": "x-session-affinity"}
PATHS = {"messages": "/v1/messages", "responses": "/v1/responses", "chat": "/v1/chat/completions"}
INSTRUCTION = "Do NOT call any tools. Create a detailed summary of the conversation so far."
CONTINUED = (
    "This session is being continued from a previous conversation that ran out of context. The summary below covers "
    "the earlier portion.\n<system-reminder>\n<tools-used-before-summary>Bash</tools-used-before-summary>\n"
    "</system-reminder>\nSummary:\n{}\n\nIf you need specific details from before compaction, read the full transcript."
)
HANDED_OVER = "Another language model started to solve this problem and produced a summary of its thinking:\n{}"
WORDS = ("the build fails", "because", "`port 8123`", "is taken;", "src/app.py", "über-config.toml,", "12", "tests")


def write_text(rng: random.Random, words: int) -> str:
    lines: list[str] = []
    while words > 0:
        size = min(words, rng.randint(1, 30))
        lines.append(rng.choice(["", "- ", "1. ", "## ", "    "]) + " ".join(rng.choices(WORDS, k=size)))
        words -= size
    return rng.choice(["\n", "\n\n", "\r\n"]).join(lines) + f"\n{rng.random()}"


@dataclass
class Agent:
    """An agent with its own list of messages."""

    kind: str
    session: str
    rng: random.Random
    harness: GatewayHarness
    replies: list[ScriptedReply]
    """What the provider replies with next."""
    items: list[Item] = field(default_factory=list[Item])
    summary: list[Item] = field(default_factory=list[Item])
    requests: int = 0
    texts: list[str] = field(default_factory=list[str])
    calls: int = 0

    @property
    def wire(self) -> str:
        return AGENTS[self.kind]

    async def send(self, items: list[Item], reply: ScriptedReply, *, has_tools: bool = True) -> None:
        name = "input" if self.wire == "responses" else "messages"
        tool: Item = {"name": "Bash", "description": "Run.", "input_schema": {"type": "object"}}
        if self.wire != "messages":
            tool = {"type": "function", "name": "Bash", "parameters": {"type": "object"}}
        if self.wire == "chat":
            tool = {"type": "function", "function": {"name": "Bash", "parameters": {"type": "object"}}}
        limit = {"max_tokens": 500} if self.wire == "messages" else {}
        body = {"model": "m", **limit, **({"tools": [tool]} if has_tools else {}), name: items}
        self.replies[:] = [reply]
        answer = await self.harness.http.post(
            PATHS[self.wire], content=json.dumps(body).encode(), headers={HEADERS[self.wire]: self.session}
        )
        assert answer.status_code == 200, answer.text
        self.requests += 1

    async def take_turn(self, question: str) -> None:
        """A question, some calls, and an answer."""
        self.items += make_question(self.wire, question)
        for _ in range(self.rng.randint(0, 2)):
            self.calls += 1
            call = f"call_{self.calls}"
            # The provider's own IDs of calls do not matter here: the agent's list has what it was sent.
            text = write_text(self.rng, 20)
            await self.send([*self.summary, *self.items], ScriptedReply(text))
            self.items += make_answer(self.wire, text, "")
            self.items += make_question(self.wire, f"Result of {call}: " + write_text(self.rng, 30))
        text = write_text(self.rng, self.rng.randint(10, 200))
        await self.send([*self.summary, *self.items], ScriptedReply(text))
        self.items += make_answer(self.wire, text, "")
        self.texts.append(text)

    async def compact(self) -> None:
        summary = write_text(self.rng, self.rng.choice([12, 200, 1_500]))
        listed = [*self.summary, *self.items]
        match self.kind:
            case "claude":
                kept = self.items[-1:]
                *before, last = listed[:-1]
                request = {**last, "content": [*last["content"], {"type": "text", "text": INSTRUCTION}]}
                reply = f"<analysis>\n{write_text(self.rng, 50)}\n</analysis>\n\n<summary>\n{summary}\n</summary>"
                await self.send([*before, request], ScriptedReply(reply))
                self.summary = [{"role": "user", "content": CONTINUED.format(summary.strip())}]
                self.items = kept if self.rng.random() < 0.7 else []
            case "codex":
                await self.send(
                    [*listed, *make_question(self.wire, INSTRUCTION)], ScriptedReply(summary), has_tools=False
                )
                questions = [
                    item for item in listed if item.get("role") == "user" and "Another language" not in str(item)
                ]
                self.summary = [*questions, *make_question(self.wire, HANDED_OVER.format(summary))]
                self.items = []
            case "codex-sealed":
                sealed = f"gAAAA{self.rng.random()}"
                await self.send([*listed, {"type": "compaction_trigger"}], ScriptedReply(compaction=sealed))
                questions = [item for item in listed if item.get("role") == "user"]
                self.summary = [*questions, {"type": "compaction", "id": f"cmp_{sealed}", "encrypted_content": sealed}]
                self.items = []
            case _:
                text = "\n".join(f"[{item['role']}]: {item['content']}" for item in listed)
                await self.send(make_question(self.wire, text), ScriptedReply(summary), has_tools=False)
                self.summary = [
                    *make_question(self.wire, "What did we do so far?"),
                    *make_answer(self.wire, summary, ""),
                ]
                self.items = self.items[-2:]


@contextmanager
def run_provider(replies: list[ScriptedReply]) -> Iterator[ScriptedProvider]:
    def choose(request: ProviderRequest) -> ScriptedReply:
        return replies[0]

    with run_scripted_provider(choose) as provider:
        yield provider


async def list_compactions(store: SqlStore, session: str) -> list[str]:
    found: list[str] = []
    for record in await store.list_session(session, limit=100):
        for branch in await store.list_branches(record.id):
            entries = await store.read_range(record.id, branch=branch.number, kinds=["compaction"])
            found += [f"{record.id}/{entry.seq}" for entry in entries]
    return sorted(set(found))


@pytest.mark.parametrize("kind", list(AGENTS))
async def test_compactions_of_agents_are_recognized_and_nothing_else(store: SqlStore, kind: str):
    replies: list[ScriptedReply] = []
    requests = compactions = 0
    with run_provider(replies) as provider:
        upstreams: Any = {"*": {"base_url": provider.openai_url, "speaks": [AGENTS[kind]]}}
        async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=1_000_000) as harness:
            for number in range(SESSIONS):
                agent = Agent(kind, f"{kind} {number}", random.Random(f"{kind} {number}"), harness, replies)
                expected = 0
                for _ in range(COMPACTIONS):
                    for turn in range(agent.rng.randint(2, 4)):
                        quoted = f"You said: {agent.rng.choice(agent.texts)} Why?" if turn and agent.texts else "Go on."
                        await agent.take_turn(f"{quoted} {agent.rng.random()}")
                    assert len(await list_compactions(store, agent.session)) == expected
                    await agent.compact()
                    expected += 1
                    if kind in ("claude", "opencode"):
                        await agent.take_turn("Go on.")
                    else:
                        text = write_text(agent.rng, 40)
                        await agent.send(agent.summary, ScriptedReply(text))
                        agent.items += make_answer(agent.wire, text, "")
                    assert len(await list_compactions(store, agent.session)) == expected
                # The user rewinds to the first message and quotes the newest reply, alone and with an older one.
                for quote in (agent.texts[-1], agent.texts[-1] + agent.texts[0]):
                    agent.summary, agent.items = [], []
                    await agent.take_turn(f"Earlier you answered: {quote} I do not agree.")
                assert len(await list_compactions(store, agent.session)) == expected
                mains = [
                    each for each in await store.list_session(agent.session) if each.origin and not each.origin.purpose
                ]
                assert len(mains) <= 3, "a list after a compaction began another conversation"
                requests, compactions = requests + agent.requests, compactions + expected
    assert compactions == SESSIONS * COMPACTIONS
    assert requests > 6 * compactions


@pytest.mark.parametrize("has_tail", [True, False], ids=["tail", "summary only"])
@pytest.mark.parametrize("has_session", [True, False], ids=["session", "list alone"])
async def test_a_rewind_to_a_compaction_forks_there(store: SqlStore, *, has_session: bool, has_tail: bool):
    """The list is the summary, what the agent kept, and another question; what followed is on another branch."""
    replies: list[ScriptedReply] = []
    with run_provider(replies) as provider:
        upstreams: Any = {"*": {"base_url": provider.openai_url, "speaks": ["messages"]}}
        headers = {} if has_session else {HEADERS["messages"]: ""}
        async with run_gateway(store, provider.openai_url, upstreams=upstreams, session_headers=headers) as harness:
            agent = Agent("claude", "s", random.Random(3), harness, replies)
            for question in ("Begin.", "More."):
                await agent.take_turn(question)
            tail = agent.items[-1:] if has_tail else []
            await agent.compact()
            # Claude Code separates the summary and the next question by a message of the system's.
            agent.summary.append({"role": "system", "content": "The following deferred tools are now available."})
            agent.items = [*tail]
            await agent.take_turn("After it.")
            [main] = [each for each in await store.list_conversations() if each.is_main]
            [compaction] = await store.read_range(main.id, kinds=["compaction"])
            before = await store.get_branch(main.id, MAIN_BRANCH)
            agent.items = [*tail]
            await agent.take_turn("Instead of it.")
            await agent.take_turn("And on.")
            assert await store.get_branch(main.id, MAIN_BRANCH) == before
            newest = max(await store.list_branches(main.id), key=lambda each: each.updated_at)
            assert newest.fork_seq == compaction.seq
            after = await store.read_range(main.id, branch=newest.number, first=compaction.seq + 1)
            assert {entry.kind for entry in after} == {"message"}
            questions = [entry.message.text for entry in after if entry.message.text.endswith("it.")]
            assert questions == ["Instead of it."]
