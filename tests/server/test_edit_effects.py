"""What an edit of an agent's list will do is known before it takes effect: tokens, cache, price, and when."""

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from gateway_fixtures import GatewayHarness, run_gateway

from infra.scripted_provider import (
    ProviderRequest,
    ScriptedProvider,
    ScriptedReply,
    ScriptedUsage,
    count_tokens_of_texts,
    run_scripted_provider,
)
from proxy.client_lists import Item, make_answer, make_calls, make_question, make_results
from quire.model import Entry, Usage
from quire.store import SqlStore

PATHS = {"messages": "/v1/messages", "responses": "/v1/responses", "chat": "/v1/chat/completions"}
MODELS = {"messages": "claude-sonnet-4-5", "responses": "gpt-4o", "chat": "gpt-4o"}
SESSION = {"x-claude-code-session-id": "s1"}
WORDS = ["tide", "quay", "anchor", "ledger", "brass", "window", "copper", "harbour", "seventeen", "lantern", "orbit"]
OPENING = "This session is being continued from a previous conversation that ran out of context."
SUMMARY_PROMPT = "Summarize the conversation so far for a new context."
SUMMARY = "<summary>The user walked the harbour, read twelve logs and wants the list of brass lanterns kept.</summary>"


TOOL_PROMPT_TOKENS = 346
"""Tokens of the instructions that Anthropic adds to a request with tools, as published."""


def count_billed_tokens(request: ProviderRequest) -> int:
    adds_prompt = request.format == "messages" and request.body.get("tools")
    return count_tokens_of_texts(request) + (TOOL_PROMPT_TOKENS if adds_prompt else 0)


class CachingScript:
    """A provider that counts by a public vocabulary and reports a prompt cache, by the published rules.

    Anthropic's finds a list that extends an earlier one, or only tools and instructions; OpenAI's the common start.
    """

    def __init__(self) -> None:
        self._sent: list[list[Item]] = []
        self.text = "Noted."

    def __call__(self, request: ProviderRequest) -> ScriptedReply:
        total, items = count_billed_tokens(request), request.items
        before = max((self._count_common(request, each) for each in self._sent), default=0)
        fixed = total - self._count(request, items)
        cached = fixed + before if self._sent else 0
        self._sent.append(items)
        is_summary = SUMMARY_PROMPT in request.raw.decode()
        written = total - cached if request.format == "messages" else 0
        usage = ScriptedUsage(input_tokens=total, cached_tokens=cached, written_tokens=written)
        return ScriptedReply(SUMMARY if is_summary else self.text, usage=usage)

    def _count(self, request: ProviderRequest, items: list[Item]) -> int:
        raw = json.dumps({"messages": items}).encode()
        return count_tokens_of_texts(ProviderRequest("messages", request.path, {}, raw))

    def _count_common(self, request: ProviderRequest, earlier: list[Item]) -> int:
        items = request.items
        if request.format == "messages":
            return self._count(request, earlier) if items[: len(earlier)] == earlier else 0
        length = next((at for at, pair in enumerate(zip(items, earlier, strict=False)) if pair[0] != pair[1]), None)
        return self._count(request, items[: min(len(items), len(earlier)) if length is None else length])


@asynccontextmanager
async def run_caching_gateway(store: SqlStore, wire: str) -> AsyncIterator[tuple[GatewayHarness, ScriptedProvider]]:
    with run_scripted_provider(CachingScript(), count_tokens=count_billed_tokens) as provider:
        settings: Any = {"upstreams": {"*": {"base_url": provider.openai_url, "speaks": [wire]}}}
        async with run_gateway(store, provider.openai_url, **settings) as harness:
            yield harness, provider


async def send(harness: GatewayHarness, wire: str, items: list[Item]) -> None:
    name = "input" if wire == "responses" else "messages"
    limit = {"max_tokens": 500} if wire == "messages" else {}
    rules = " ".join(WORDS * 20)
    system = {"messages": {"system": rules}, "responses": {"instructions": rules}, "chat": {}}[wire]
    tool = {"name": "Bash", "description": "Runs a command.", "input_schema": {"type": "object"}}
    if wire == "responses":
        tool = {"type": "function", "name": "Bash", "parameters": {"type": "object"}}
    body = {"model": MODELS[wire], **limit, **system, name: items}
    if wire != "chat":
        body["tools"] = [tool]
    headers = SESSION if wire == "messages" else {}
    answer = await harness.http.post(PATHS[wire], content=json.dumps(body).encode(), headers=headers)
    assert answer.status_code == 200, answer.text


async def run_rounds(harness: GatewayHarness, wire: str, count: int) -> list[Item]:
    rng, items = random.Random(7), list[Item]()
    for number in range(count):
        items += make_question(wire, f"Read part {number}: {' '.join(rng.choices(WORDS, k=30))}")
        calls = make_calls(wire, [f"call_{number}"], " ".join(rng.choices(WORDS, k=60)))
        if wire == "messages":
            # No provider bills the characters of a signature.
            calls[0]["content"][0]["signature"] = f"s{number}"
        items += calls
        [*result] = make_results(wire, [f"call_{number}"], 1)
        text = " ".join(rng.choices(WORDS, k=rng.randrange(100, 600)))
        items += json.loads(json.dumps(result).replace("\\u00e9.", text))
        await send(harness, wire, items)
        items += make_answer(wire, "Noted.", "")
    return items


async def find_newest_reply(store: SqlStore, conversation: str) -> Entry:
    return (await store.read_tail(conversation, 1, kinds=["message"]))[-1]


def check_forecast(harness: GatewayHarness, waiting: dict[str, Any], usage: Usage, *, question_tokens: int) -> None:
    """What was said before and what the provider reported differ by at most 3 %."""
    reported = usage.input_tokens - question_tokens
    assert waiting["prompt_tokens"] == pytest.approx(reported, rel=0.03)
    written = usage.input_tokens - usage.cache_read_tokens - question_tokens
    assert waiting["rewritten_tokens"] == pytest.approx(written, rel=0.03)
    cost = harness.server_state.engine_for("default").config.compute_cost(
        usage.model_copy(update={"output_tokens": 0}), usage.model or ""
    )
    assert cost.is_complete
    assert waiting["cost_usd"] == pytest.approx(cost.usd, rel=0.03)
    assert waiting["unedited_cost_usd"] < waiting["cost_usd"]


@pytest.mark.parametrize("wire", list(PATHS))
async def test_the_price_of_a_drop_is_known_before(store: SqlStore, wire: str):
    async with run_caching_gateway(store, wire) as (harness, provider):
        items = await run_rounds(harness, wire, 14)
        [conversation] = await store.list_conversations()
        base = f"/api/conversations/{conversation.id}"
        entries = await store.read_range(conversation.id, kinds=["message"])
        results = [entry for entry in entries if entry.role == "tool"]
        waiting: dict[str, Any] = {}
        for entry in results[4:8]:
            waiting = (await harness.http.post(f"{base}/drops", json={"seq": entry.seq})).json()["waiting"]
        assert waiting["drops"] == [entry.seq for entry in results[4:8]]
        assert waiting["moment"] == "cold_cache"
        lifetime = 330 if wire == "messages" else 660
        assert lifetime - 60 < waiting["cold_in_seconds"] <= lifetime
        assert waiting["removed_tokens"] > 800
        answer = await harness.http.post(f"{base}/drops", json={"seq": results[4].seq, "now": True})
        waiting = answer.json()["waiting"]
        assert waiting["moment"] == "next_turn"
        question = make_question(wire, "And now?")
        await send(harness, wire, [*items, *question])
        usage = (await find_newest_reply(store, conversation.id)).metadata.usage
        assert usage is not None
        check_forecast(harness, waiting, usage, question_tokens=8)
        assert "dropped by the user" in provider.requests[-1].raw.decode()
        assert (await harness.http.get(f"{base}/compaction")).json()["waiting"] is None

        # Bringing one back has a price of its own, and none after the cache has expired.
        answer = await harness.http.delete(f"{base}/drops/{results[4].seq}")
        waiting = answer.json()["waiting"]
        assert (waiting["restores"], waiting["moment"]) == ([results[4].seq], "cold_cache")
        assert waiting["added_tokens"] > 100
        assert waiting["rewritten_tokens"] > 100


async def test_a_drop_does_not_wait_for_a_provider_without_a_cache(store: SqlStore):
    with run_scripted_provider("Noted.", count_tokens=count_billed_tokens) as provider:
        settings: Any = {"upstreams": {"*": {"base_url": provider.openai_url, "speaks": ["messages"]}}}
        async with run_gateway(store, provider.openai_url, **settings) as harness:
            items = await run_rounds(harness, "messages", 3)
            [conversation] = await store.list_conversations()
            base = f"/api/conversations/{conversation.id}"
            entries = await store.read_range(conversation.id, kinds=["message"])
            result = next(entry for entry in entries if entry.role == "tool")
            answer = await harness.http.post(f"{base}/drops", json={"seq": result.seq})
            assert answer.json()["waiting"]["moment"] == "next_turn"
            await send(harness, "messages", [*items, *make_question("messages", "And now?")])
            assert "dropped by the user" in provider.requests[-1].raw.decode()
            assert (await harness.http.get(f"{base}/compaction")).json()["waiting"] is None


async def test_an_undo_of_the_agents_compaction_says_what_it_restores(store: SqlStore):
    async with run_caching_gateway(store, "messages") as (harness, provider):
        items = await run_rounds(harness, "messages", 12)
        await send(harness, "messages", [*items, *make_question("messages", SUMMARY_PROMPT)])
        compacted = [
            *make_question("messages", f"{OPENING} {SUMMARY} <command-name>/compact</command-name>"),
            *make_answer("messages", "Understood.", ""),
        ]
        compacted += make_question("messages", "Go on.")
        await send(harness, "messages", compacted)
        [conversation] = [each for each in await store.list_conversations() if each.origin]
        base = f"/api/conversations/{conversation.id}"
        waiting = (await harness.http.delete(f"{base}/compaction")).json()["waiting"]
        assert waiting["moment"] == "next_turn"
        assert waiting["added_tokens"] > 3_000
        compacted += [*make_answer("messages", "Noted.", ""), *make_question("messages", "And now?")]
        await send(harness, "messages", compacted)
        assert "Read part 3" in provider.requests[-1].raw.decode()
        usage = (await find_newest_reply(store, conversation.id)).metadata.usage
        assert usage is not None
        check_forecast(harness, waiting, usage, question_tokens=8)
        assert (await harness.http.get(f"{base}/compaction")).json()["waiting"] is None
