"""Random sessions with every edit, on two servers with one store: what the provider receives is valid, stays below its
window and the client's limit, is the same on both servers, and extends what it received before."""

import json
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from gateway_fixtures import GatewayHarness, run_gateway

from infra.scripted_provider import (
    ProviderRequest,
    ScriptedCall,
    ScriptedProvider,
    ScriptedReply,
    WireFormatName,
    run_scripted_provider,
)
from infra.sizes import IS_FULL_SIZE
from proxy.client_lists import EDITORS, Item, make_question, make_results
from proxy.test_edited_lists import Provider
from quire.log import MAIN_BRANCH
from quire.store import SqlStore

SESSIONS = 4 if IS_FULL_SIZE else 1
"""Sessions of each format."""
STEPS = 30 if IS_FULL_SIZE else 12
CLIENT_LIMIT, WINDOW = 6_000, 40_000
"""Tokens of a list at which the client compacts, and that the model takes."""
INSTRUCTION = "Create a detailed summary of the conversation so far."
OPENING = "This session is being continued from a previous conversation that ran out of context. {}"
PATHS = {
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
    "gemini": "/v1beta/models/m:generateContent",
}
COUNT_PATHS = {
    "messages": "/v1/messages/count_tokens",
    "responses": "/v1/responses/input_tokens",
    "gemini": "/v1beta/models/m:countTokens",
}
FIELDS = {"responses": "input", "gemini": "contents"}
SCHEMA = {"type": "object", "properties": {}}
TOOLS: dict[str, Item] = {
    "messages": {"name": "Bash", "input_schema": SCHEMA},
    "responses": {"type": "function", "name": "Bash", "parameters": SCHEMA},
    "chat": {"type": "function", "function": {"name": "Bash", "parameters": SCHEMA}},
    "gemini": {"functionDeclarations": [{"name": "Bash", "parameters": SCHEMA}]},
}


def count_items(request: ProviderRequest) -> int:
    return len(json.dumps(request.items, ensure_ascii=False)) // 4


@dataclass
class RandomClient:
    """A client with its own list that compacts at its limit, and a user who edits."""

    wire: WireFormatName
    name: str
    nodes: list[GatewayHarness]
    provider: ScriptedProvider
    rng: random.Random
    replies: list[ScriptedReply]
    items: list[Item] = field(default_factory=list[Item])
    lists: int = 0
    edits: int = 0
    compactions: int = 0
    was_edited: bool = False
    has_undone: bool = False
    """Whether the user has undone a compaction since the newest request."""
    begins_with_summary: bool = False
    """Whether the list is the first one after a compaction."""
    before: tuple[list[Item], list[Item]] = field(default_factory=lambda: ([], []))
    """The client's list of the newest request, and what the provider received for it."""

    async def post(self, path: str, items: list[Item], node: GatewayHarness) -> dict[str, Any]:
        body: dict[str, Any] = {FIELDS.get(self.wire, "messages"): items, "tools": [TOOLS[self.wire]]}
        if self.wire != "gemini":
            body["model"] = "m"
        if self.wire == "messages" and path not in COUNT_PATHS.values():
            body["max_tokens"] = 500
        headers = {"x-claude-code-session-id": self.name}
        answer = await node.http.post(path, content=json.dumps(body).encode(), headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def send(self, reply: ScriptedReply) -> int:
        """Sends the list, checks what the provider receives, and adds its reply; returns the tokens it reports."""
        self.replies[:] = [reply]
        node, other = self.rng.sample(self.nodes, 2)
        response = await self.post(PATHS[self.wire], self.items, node)
        request = self.provider.requests[-1]
        received = request.items
        Provider(self.wire).check_pairs(received)
        assert count_items(request) <= (CLIENT_LIMIT if self.has_undone else WINDOW)
        # A list that is not sent yet has no reply by which the log knows it, so it is counted without edits.
        if self.wire in COUNT_PATHS and not self.begins_with_summary:
            await self.post(COUNT_PATHS[self.wire], self.items, other)
            assert self.provider.received[-1].is_count
            assert self.provider.received[-1].items == received, "another server edits the list in another way"
        client_before, received_before = self.before
        if not self.was_edited and self.items[: len(client_before)] == client_before:
            assert received[: len(received_before)] == received_before, "the prefix broke without an edit"
        self.before = list(self.items), received
        self.was_edited = self.has_undone = self.begins_with_summary = False
        self.lists += 1
        match self.wire:
            case "messages":
                self.items.append({"role": "assistant", "content": response["content"]})
            case "responses":
                self.items += response["output"]
            case "chat":
                self.items.append(response["choices"][0]["message"])
            case "gemini":
                self.items.append(response["candidates"][0]["content"])
        return count_items(request)

    async def take_turn(self) -> None:
        self.items += make_question(self.wire, f"Question {self.lists}: {'why ' * self.rng.randint(1, 60)}")
        for _ in range(self.rng.randint(0, 3)):
            calls = [ScriptedCall("Bash", {"n": n}) for n in range(self.rng.choice([1, 1, 2, 3]))]
            sent = len(self.items)
            await self.send(ScriptedReply("", tuple(calls)))
            made = [id_ for item in self.items[sent:] for id_, _, _ in EDITORS[self.wire].list_calls(item)]
            self.items += make_results(self.wire, made, self.rng.randint(10, 2_000))
        tokens = await self.send(ScriptedReply(f"Answer {self.lists}. {'so ' * self.rng.randint(1, 90)}"))
        if tokens > CLIENT_LIMIT:
            await self.compact()

    async def compact(self) -> None:
        summary = f"Part {self.compactions} of {self.name}: {self.rng.random()} " + "it went on. " * 20
        self.compactions += 1
        self.items += make_question(self.wire, INSTRUCTION)
        await self.send(ScriptedReply(f"<summary>{summary}</summary>"))
        self.items = make_question(self.wire, OPENING.format(summary))
        self.was_edited = self.begins_with_summary = True
        if self.wire == "messages":
            self.items.append({"role": "system", "content": "The following deferred tools are now available."})
        compactions = self.compactions
        await self.take_turn()
        assert self.compactions == compactions, "the client compacts again at once"

    async def edit(self, store: SqlStore) -> None:
        """Drops, pins, restores, or undoes a compaction, of anything in the log."""
        records = [each for each in await store.list_session(self.name) if each.is_main]
        if not records:
            return
        [main] = records
        http, base = self.rng.choice(self.nodes).http, f"/api/conversations/{main.id}"
        state = (await store.get_branch(main.id, MAIN_BRANCH)).state
        entries = await store.read_range(main.id, kinds=["message"])
        entry = self.rng.choice(entries)
        results = [each.seq for each in entries if each.role == "tool"]
        match self.rng.choice(["drop", "drop", "pin", "restore", "unpin", "undo", "redo"]):
            case "drop" if results:
                await http.post(f"{base}/drops", json={"seq": self.rng.choice(results), "now": self.rng.random() < 0.6})
            case "restore" if state.dropped:
                seq = self.rng.choice(sorted(state.dropped))
                await http.delete(f"{base}/drops/{seq}", params={"now": self.rng.random() < 0.6})
            case "pin" if entry.role == "user":
                await http.post(f"{base}/pins", json={"seq": entry.seq})
            case "unpin" if state.pins:
                await http.delete(f"{base}/pins/{self.rng.choice(sorted(state.pins))}")
            case "undo" if state.active_compaction is not None:
                await http.delete(f"{base}/compaction")
                self.has_undone = True
            case "redo":
                await http.post(f"{base}/compaction/redo")
            case _:
                return
        self.was_edited = True
        self.edits += 1


@pytest.mark.parametrize("wire", list(PATHS))
async def test_random_sessions_on_two_servers(store: SqlStore, wire: WireFormatName):
    replies: list[ScriptedReply] = []
    clients: list[RandomClient] = []
    with run_scripted_provider(lambda _: replies[0], count_tokens=count_items) as provider:
        settings: Any = {
            "upstreams": {"*": {"base_url": provider.openai_url, "speaks": [wire]}},
            "models": {"m": {"window": WINDOW}},
        }
        async with AsyncExitStack() as stack:
            nodes = [
                await stack.enter_async_context(run_gateway(store, provider.openai_url, **settings)) for _ in range(2)
            ]
            for number in range(SESSIONS):
                name = f"{wire} {number}"
                clients.append(RandomClient(wire, name, nodes, provider, random.Random(name), replies))
                for _ in range(STEPS):
                    await clients[-1].take_turn()
                    for _ in range(clients[-1].rng.randint(0, 2)):
                        await clients[-1].edit(store)
    lists, edits, compactions = (
        sum(getattr(each, name) for each in clients) for name in ("lists", "edits", "compactions")
    )
    print(f"{wire}: {lists} lists, {edits} edits, {compactions} compactions")
    assert edits > SESSIONS * 2
