"""A compaction that the agent's hook announces can be undone before the agent's next request."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from gateway_fixtures import GatewayHarness, run_gateway

from infra.scripted_provider import (
    ProviderRequest,
    ScriptedProvider,
    ScriptedReply,
    run_scripted_provider,
)
from proxy.client_lists import Item, make_answer, make_question
from quire.cli.hook_service import HookService
from quire.engine import Conversation, Engine, EngineConfig
from quire.proxy.edit_effects import load_effect
from quire.settings import Settings
from quire.store import SqlStore

SESSION = "session-1"
PROMPT = "Your task is to create a detailed summary of the conversation so far."
SUMMARY = "<analysis>Short.</analysis><summary>The user walked the harbour and asked for brass lanterns.</summary>"
TOOL = {"name": "Bash", "description": "Runs a command.", "input_schema": {"type": "object"}}


def answer(request: ProviderRequest) -> ScriptedReply:
    return ScriptedReply(SUMMARY if PROMPT in request.raw.decode() else f"Noted {len(request.items)}.")


@asynccontextmanager
async def run_agent_gateway(store: SqlStore) -> AsyncIterator[tuple[GatewayHarness, ScriptedProvider]]:
    with run_scripted_provider(answer) as provider:
        upstreams = {"*": {"base_url": provider.openai_url, "speaks": ["messages"]}}
        async with run_gateway(store, provider.openai_url, upstreams=upstreams) as harness:
            yield harness, provider


async def send(harness: GatewayHarness, items: list[Item]) -> None:
    body = {"model": "claude-sonnet-5-5", "max_tokens": 500, "tools": [TOOL], "messages": items}
    headers = {"x-claude-code-session-id": SESSION}
    response = await harness.http.post("/v1/messages", content=json.dumps(body).encode(), headers=headers)
    assert response.status_code == 200, response.text


async def announce(store: SqlStore, summary: str, session: str = SESSION) -> None:
    event = {"hook_event_name": "PostCompact", "session_id": session, "trigger": "manual", "compact_summary": summary}
    service = HookService(Engine(store, EngineConfig.create(Settings())))
    await service.handle_line(json.dumps({"agent": "claude-code", "event": event}).encode())


async def count_compactions(store: SqlStore, conversation: str) -> int:
    return len(await store.read_range(conversation, kinds=["compaction"]))


@pytest.mark.parametrize("keeps_tail", [False, True])
@pytest.mark.parametrize("is_undone", [False, True])
async def test_a_compaction_is_recorded_when_the_hook_runs_and_once(
    store: SqlStore, *, keeps_tail: bool, is_undone: bool
):
    async with run_agent_gateway(store) as (harness, provider):
        items: list[Item] = []
        for number in range(4):
            items += make_question("messages", f"Question {number} about the harbour.")
            await send(harness, items)
            items += make_answer("messages", f"Noted {len(items)}.", "")
        [conversation] = await store.list_conversations()
        # Claude Code summarizes without the newest round.
        last = {**items[-2], "content": [*items[-2]["content"], {"type": "text", "text": PROMPT}]}
        await send(harness, [*items[:-2], last])
        assert await count_compactions(store, conversation.id) == 0
        await announce(store, SUMMARY, session="another")
        await announce(store, "A text that no reply of the session has, forty characters long.")
        assert await count_compactions(store, conversation.id) == 0
        await announce(store, SUMMARY)
        await announce(store, SUMMARY)
        assert await count_compactions(store, conversation.id) == 1
        forecast = 0
        loaded = Conversation(Engine(store, EngineConfig.create(Settings())), conversation.id, 0)
        if is_undone:
            await loaded.undo_compaction()
            effect = await load_effect(loaded)
            assert effect is not None
            assert (effect.moment, effect.waiting.summary is not None) == ("next_turn", True)
            forecast = effect.prompt_tokens
        kept = items[-1:] if keeps_tail else []
        text = "Summary: The user walked the harbour and asked for brass lanterns."
        compacted = [*make_question("messages", f"<command-name>/compact</command-name> {text}"), *kept]
        if not kept:
            compacted += make_answer("messages", "Understood.", "")
        compacted += make_question("messages", "Go on.")
        await send(harness, compacted)
        assert await count_compactions(store, conversation.id) == 1
        sent = provider.requests[-1].raw.decode()
        assert sent.count("Question 1 about") == (1 if is_undone else 0)
        assert sent.count("Question 3 about") == (1 if is_undone else 0)
        assert sent.count("Noted 7.") == (1 if is_undone or keeps_tail else 0)
        assert ("brass lanterns" in sent) is not is_undone
        if is_undone and not keeps_tail:
            reply = (await store.read_tail(conversation.id, 1, kinds=["message"]))[-1]
            assert reply.metadata.usage is not None
            assert forecast == pytest.approx(reply.metadata.usage.input_tokens, rel=0.15)
        assert len({each.id for each in await store.list_conversations() if each.origin}) == 1
