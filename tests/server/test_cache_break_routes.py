"""Cache breaks of sessions through the gateway: from the stored bodies and the provider's usage to the API."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from gateway_fixtures import GatewayHarness, run_gateway

from fake_upstream import UpstreamRequest, run_fake_upstream
from infra.simulated_cache import SimulatedCache
from quire.engine import Engine, EngineConfig
from quire.mcp_server.access import HistoryAccess
from quire.mcp_server.tools import explain_request
from quire.model import Draft, Message, Usage
from quire.settings import Settings
from quire.store import SqlStore

MODEL = "claude-sonnet-4-5"
HOOK = "<system-reminder>\nSessionStart hook additional context: branch {branch}\n</system-reminder>"
LONG = "All of this was said before. " * 60


class CachingProvider:
    """Answers "Noted.", with a usage by the rules of Anthropic's cache."""

    def __init__(self) -> None:
        self.cache, self.seconds = SimulatedCache("messages"), 0.0

    async def __call__(self, request: UpstreamRequest) -> None:
        self.seconds += 10
        usage = self.cache.serve(request.body, self.seconds)
        counts = {
            "input_tokens": usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens,
            "cache_read_input_tokens": usage.cache_read_tokens,
            "cache_creation_input_tokens": usage.cache_write_tokens,
            "output_tokens": 5,
            **(usage.provider_fields or {}),
        }
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "stop_sequence": None}
        content = [{"type": "text", "text": "Noted."}]
        await request.respond({**head, "content": content, "stop_reason": "end_turn", "usage": counts})


def make_body(questions: int, *, branch: str = "main", **more: Any) -> dict[str, Any]:
    """A list of so many questions, with a marker on the instructions and on the newest block."""
    marker = {"cache_control": {"type": "ephemeral"}}
    messages: list[dict[str, Any]] = []
    for number in range(questions):
        content = [{"type": "text", "text": f"Question {number}? {LONG}"}]
        if number == 0:
            content.insert(0, {"type": "text", "text": HOOK.format(branch=branch)})
        messages += [{"role": "user", "content": content}, {"role": "assistant", "content": "Noted."}]
    messages.pop()
    messages[-1]["content"][-1] |= marker
    system = [{"type": "text", "text": "Follow the rules. " * 100, **marker}]
    return {"model": MODEL, "max_tokens": 500, "system": system, "messages": messages, **more}


async def send(harness: GatewayHarness, body: dict[str, Any]) -> None:
    headers = {"x-claude-code-session-id": "s1"}
    answer = await harness.http.post("/v1/messages", content=json.dumps(body).encode(), headers=headers)
    assert answer.status_code == 200, answer.text


@asynccontextmanager
async def run_session(store: SqlStore) -> AsyncIterator[GatewayHarness]:
    async with run_fake_upstream(CachingProvider()) as up:
        upstreams = {"*": {"base_url": up.url, "speaks": ["messages"]}}
        async with run_gateway(store, up.url, upstreams=upstreams) as harness:
            yield harness


async def list_breaks(harness: GatewayHarness) -> list[dict[str, Any]]:
    """The breaks of all conversations and branches, in the order of time."""
    found: list[dict[str, Any]] = []
    for record in sorted(await harness.store.list_conversations(), key=lambda each: each.created_at):
        for branch in await harness.store.list_branches(record.id):
            path = f"/api/conversations/{record.id}/cache-breaks"
            answer = await harness.http.get(path, params={"branch": branch.number})
            assert answer.status_code == 200, answer.text
            assert answer.json()["unknown"] is None
            found += answer.json()["breaks"]
    return found


def count_tokens(items: list[dict[str, Any]]) -> int:
    return len(json.dumps(items)) // 4


async def test_a_session_that_grows_has_no_breaks_and_a_changed_system_prompt_has_one(store: SqlStore):
    async with run_session(store) as harness:
        for number in range(1, 6):
            await send(harness, make_body(number))
        assert await list_breaks(harness) == []
        other = [{"type": "text", "text": "Follow other rules. " * 100, "cache_control": {"type": "ephemeral"}}]
        await send(harness, make_body(6, system=other))
        await send(harness, make_body(7, system=other))
        [found] = await list_breaks(harness)
        [record] = await store.list_conversations()
        engine = Engine(store, EngineConfig.create(Settings(model=MODEL)))
        access = HistoryAccess(engine=engine)
        explained = await explain_request(access, record.id, 12, branch=0)
        assert explained.cache_break is not None
        assert (explained.cache_break.kind, explained.cache_break.tokens) == ("system", found["tokens"])
        assert "Prompt cache broke: system at system[0]" in explained.render()
        assert (await explain_request(access, record.id, 10, branch=0)).cache_break is None
    assert (found["reply"], found["previous"], found["kind"], found["place"]) == (12, 10, "system", "system[0]")
    assert (found["before"][:12], found["after"][:18]) == ("Follow the r", "Follow other rules")
    assert found["read_tokens"] == 0
    # All of the request before was cached, and each token costs 3.75 dollars a million instead of 0.30.
    assert found["tokens"] == pytest.approx(count_tokens(make_body(5)["messages"]) + 450, rel=0.1)
    assert found["cost_usd"] == pytest.approx(found["tokens"] * 3.45e-6)


async def test_a_changed_message_begins_a_branch_or_conversation_and_is_found(store: SqlStore):
    async with run_session(store) as harness:
        for number in range(1, 5):
            await send(harness, make_body(number))
        # The first message differs: a new conversation of the session.
        await send(harness, make_body(5, branch="dev"))
        await send(harness, make_body(6, branch="dev"))
        # A message in the middle differs: a branch.
        body = make_body(7, branch="dev")
        body["messages"][4]["content"][0]["text"] += " changed"
        await send(harness, body)
        # A return to an earlier question is a branch too, and loses nothing.
        await send(harness, make_body(3, branch="dev"))
        hook, message = await list_breaks(harness)
        [_, first] = sorted(await store.list_conversations(), key=lambda each: -each.created_at)
    assert (hook["kind"], hook["place"], hook["previous_conversation"]) == ("hook", "messages[0]", first.id)
    assert "branch dev" in hook["after"]
    assert (message["kind"], message["place"], message["previous_conversation"]) == ("message", "messages[4]", None)
    assert 0 < message["tokens"] < count_tokens(body["messages"])


async def test_an_edit_of_the_user_is_named(store: SqlStore):
    async with run_session(store) as harness:
        for number in range(1, 5):
            await send(harness, make_body(number))
        [record] = await store.list_conversations()
        drop = {"seq": 3, "now": True}
        assert (await harness.http.post(f"/api/conversations/{record.id}/drops", json=drop)).status_code == 201
        await send(harness, make_body(5))
        await send(harness, make_body(6))
        [found] = await list_breaks(harness)
    assert (found["kind"], found["place"]) == ("edit", "messages[2]")
    assert found["after"].startswith("[dropped by the user")


async def test_what_is_not_known_is_said(store: SqlStore):
    async with run_session(store) as harness:
        for number in range(1, 4):
            await send(harness, make_body(number))
        [record] = await store.list_conversations()
        await store.purge(record.id, [1])
        path = "/api/conversations/{}/cache-breaks"
        purged = (await harness.http.get(path.format(record.id))).json()
        # Imported replies have a usage at most.
        usages = [
            Usage(model=MODEL, input_tokens=9_000, cache_read_tokens=read, cache_write_tokens=9_000 - read)
            for read in (0, 8_990, 0)
        ]
        await store.create_conversation("imported")
        for usage in usages:
            await store.append("imported", Draft(body=Message.assistant("Aye."), usage=usage))
        imported = (await harness.http.get(path.format("imported"))).json()
        await store.create_conversation("empty")
        empty = (await harness.http.get(path.format("empty"))).json()
    assert purged["breaks"] == []
    assert "3 of 3 requests are stored without their bodies" in purged["unknown"]
    [found] = imported["breaks"]
    assert (found["reply"], found["kind"], found["tokens"]) == (3, "unknown", 9_000)
    assert "3 of 3 requests" in imported["unknown"]
    assert (empty["requests"], empty["breaks"]) == (0, [])
    assert "nothing is known" in empty["unknown"]
