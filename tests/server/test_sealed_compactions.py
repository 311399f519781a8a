"""Compactions by OpenAI, whose content only the provider can read: entries of the log that cover a range, with undo."""

from typing import Any

import pytest
from gateway_fixtures import GatewayHarness, run_gateway

from fake_upstream import UpstreamRequest, run_fake_upstream
from quire.engine import Engine, EngineConfig
from quire.ledger.timeline import load_timeline
from quire.model import Compaction, Span
from quire.settings import Settings
from quire.store import SqlStore

ITEM = {"id": "cmp_1", "type": "compaction", "encrypted_content": "sealed-words"}
KINDS = ("in a response", "on demand")


def say(role: str, text: str) -> dict[str, Any]:
    part = {"type": "input_text" if role == "user" else "output_text", "text": text}
    return {"type": "message", "role": role, "content": [part]}


def read_text(item: dict[str, Any]) -> str:
    content = item["content"]
    return content if isinstance(content, str) else content[0]["text"]


HISTORY = [
    message
    for number in range(20)
    for message in (say("user", f"Port of gate {number}?"), say("assistant", f"It is 74{number:02}. {'tide ' * 60}"))
]


async def answer(request: UpstreamRequest) -> None:
    """Compacts on demand, or in the response to `Look again.`; else it answers."""
    newest = str(request.body["input"][-1])
    tokens = len(str(request.body["input"])) // 4
    usage = {"input_tokens": tokens, "output_tokens": 100, "total_tokens": tokens + 100}
    output = [HISTORY[-1]]
    if request.path.endswith("/compact"):
        kept = [each for each in request.body["input"] if each["role"] == "user"]
        body = {"id": "resp_c", "object": "response.compaction", "created_at": 1, "output": [*kept, ITEM]}
        await request.respond({**body, "usage": usage})
        return
    if "Look again." in newest:
        output = [ITEM, say("assistant", "Looked.")]
    elif "And now?" in newest:
        output = [say("assistant", "Done.")]
    response = {"id": "resp_1", "object": "response", "status": "completed", "model": "gpt-5", "usage": usage}
    await request.respond({**response, "output": output})


async def post(harness: GatewayHarness, path: str, items: list[dict[str, Any]], **headers: str) -> dict[str, str]:
    got = await harness.http.post(path, json={"model": "gpt-5", "input": items, "store": False}, headers=headers)
    assert got.status_code == 200, got.text
    return dict(got.headers)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("headers", [{}, {"session-id": "s1"}], ids=["no session", "session"])
async def test_a_sealed_compaction_is_an_entry_that_can_be_undone(store: SqlStore, kind: str, headers: dict[str, str]):
    async with (
        run_fake_upstream(answer) as up,
        run_gateway(
            store, up.url, upstreams={"*": {"base_url": up.url, "speaks": ["responses"]}}, context_limit=200_000
        ) as harness,
    ):
        await post(harness, "/v1/responses", HISTORY[:-1], **headers)
        if kind == "on demand":
            covered, summarized = HISTORY, [HISTORY[0], ITEM]
            sent = await post(harness, "/v1/responses/compact", covered, **headers)
        else:
            covered, summarized = [*HISTORY, say("user", "Look again.")], [ITEM, say("assistant", "Looked.")]
            sent = await post(harness, "/v1/responses", covered, **headers)
        conversation = sent["x-quire-conversation"]
        [entry] = await store.read_range(conversation, kinds=["compaction"])
        assert isinstance(entry.body, Compaction)
        assert (entry.body.covers, entry.body.summary) == (Span(first=1, last=len(covered)), None)
        assert entry.body.trigger == "provider"

        # The list that begins with the item continues the conversation.
        rest = [*summarized, say("user", "And now?")]
        sent = await post(harness, "/v1/responses", rest, **headers)
        assert (sent["x-quire-conversation"], sent["x-quire-branch"]) == (conversation, "0")
        timeline = await load_timeline(store, conversation)
        assert [(each.kind, each.author, each.span) for each in timeline.events] == [
            ("compaction", "provider", entry.body.covers)
        ]
        opened = Engine(store, EngineConfig.create(Settings(model="gpt-5", context_limit=200_000)))
        loaded = await opened.conversation(conversation)
        # Only the provider can read its summary: where Quire assembles, the messages stay.
        request = await loaded.prepare("Which port?")
        assert "It is 7400." in str(request.to_responses())

        # Undone, the newest covered messages follow the item, as many as stay below the tokens at which it was made.
        await loaded.undo_compaction()
        again = [*rest, say("assistant", "Done."), say("user", "And now? Once more.")]
        await post(harness, "/v1/responses", again, **headers)
        received = up.requests[-1].body["input"]
        place = next(index for index, each in enumerate(received) if each.get("type") == "compaction") + 1
        texts, before = ([read_text(each) for each in items] for items in (received[place:], covered))
        tail = texts.index("And now?")
        assert texts[tail:] == ["And now?", "Done.", "And now? Once more."]
        restored = [each for each in texts[:tail] if each != "Looked."]
        assert len(restored) > len(before) / 3
        assert restored == before[-len(restored) :]
        # Redone, the list is the client's own.
        await loaded.redo_compaction()
        again += [say("assistant", "Done."), say("user", "And now? At last.")]
        await post(harness, "/v1/responses", again, **headers)
        assert up.requests[-1].body["input"] == again
