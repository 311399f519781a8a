"""What a provider leaves out on its side is in the manifest, by a scripted upstream that reports it as documented."""

import json
from typing import Any

import pytest
from gateway_fixtures import GatewayHarness, run_gateway

from fake_upstream import Responder, UpstreamRequest, make_sse_event, run_fake_upstream
from quire.engine import Engine, EngineConfig
from quire.ledger import find_decision
from quire.model import Compaction, Manifest, Span
from quire.settings import Settings
from quire.store import SqlStore

MODEL = "claude-sonnet-5-5"
EDITS = [
    {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}},
    {"type": "clear_tool_uses_20250919", "keep": {"type": "tool_uses", "value": 1}, "exclude_tools": ["web"]},
]
APPLIED = [
    {"type": "clear_thinking_20251015", "cleared_thinking_turns": 1, "cleared_input_tokens": 300},
    {"type": "clear_tool_uses_20250919", "cleared_tool_uses": 2, "cleared_input_tokens": 50_000},
]


def make_response(*blocks: dict[str, Any], stop_reason: str = "end_turn", **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 10, "output_tokens": 5}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "stop_sequence": None}
    return {**head, "content": list(blocks), "stop_reason": stop_reason, "usage": usage, **more}


def respond(response: dict[str, Any]) -> Responder:
    """Answers whole, or as a stream if the request asks for one. A compaction block comes whole in its first event."""

    async def answer(request: UpstreamRequest) -> None:
        if not request.body.get("stream"):
            await request.respond(response)
            return
        ended = {"stop_reason": response["stop_reason"], "stop_sequence": None}
        more = {name: response[name] for name in ("context_management",) if name in response}
        events: list[dict[str, Any]] = [{"type": "message_start", "message": {**response, "content": [], **ended}}]
        for index, block in enumerate(response["content"]):
            events.append({"type": "content_block_start", "index": index, "content_block": block})
            events.append({"type": "content_block_stop", "index": index})
        events.append({"type": "message_delta", "delta": ended, "usage": response["usage"], **more})
        events.append({"type": "message_stop"})
        await request.start_sse()
        for event in events:
            await request.send_sse(f"event: {event['type']}\n".encode() + make_sse_event(event))
        await request.end_sse()

    return answer


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def use(number: int, name: str = "read") -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": {"path": str(number)}}


def result(number: int) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": f"result {number}"}


def thought(number: int) -> dict[str, Any]:
    return {"type": "thinking", "thinking": f"thought {number}", "signature": f"sig{number}"}


HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Look."},
    {"role": "assistant", "content": [thought(1), use(1)]},
    {"role": "user", "content": [result(1)]},
    {"role": "assistant", "content": [use(2, "web"), use(3)]},
    {"role": "user", "content": [result(2), result(3)]},
    {"role": "assistant", "content": [text("Seen.")]},
    {"role": "user", "content": "Look again."},
    {"role": "assistant", "content": [thought(2), use(4)]},
    {"role": "user", "content": [result(4)]},
]
"""Results are the messages 3, 5 (of the excluded tool), 6 and 10; thinking is in 2 and 9."""


async def send(
    harness: GatewayHarness, messages: list[dict[str, Any]], *, stream: bool = False, **more: Any
) -> dict[str, str]:
    body = {"model": MODEL, "max_tokens": 500, "stream": stream, "messages": messages, **more}
    answer = await harness.http.post("/v1/messages", content=json.dumps(body).encode())
    assert answer.status_code == 200, answer.text
    return dict(answer.headers)


def upstreams(url: str) -> dict[str, Any]:
    return {"claude-*": {"base_url": url, "speaks": ["messages"]}}


async def load_newest(store: SqlStore, conversation: str) -> tuple[int, Manifest]:
    return (await store.list_manifests(conversation, limit=1))[-1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("is_stored", [False, True])
async def test_the_manifest_names_what_was_cleared(store: SqlStore, stream: bool, is_stored: bool):
    edited = make_response(text("Done."), context_management={"applied_edits": APPLIED})
    responders = [respond(make_response(text("Seen.")))] if is_stored else []
    async with (
        run_fake_upstream(*responders, respond(edited)) as up,
        run_gateway(store, up.url, upstreams=upstreams(up.url), context_limit=200_000) as harness,
    ):
        if is_stored:
            await send(harness, HISTORY[:5])
        headers = await send(harness, HISTORY, stream=stream, context_management={"edits": EDITS})
        conversation = headers["x-quire-conversation"]
        seq, manifest = await load_newest(store, conversation)
        assert (seq, manifest.forwarded is not None) == (11, True)
        assert manifest.forwarded is not None
        assert [edit.model_dump(exclude_none=True) for edit in manifest.forwarded.provider_edits] == APPLIED
        assert not manifest.forwarded.replayable
        cleared = [row for row in manifest.decisions if row.reason == "cleared_by_provider"]
        assert [(row.span.first, row.name) for row in cleared if row.span] == [(2, "thinking"), (3, None), (6, None)]
        assert [find_decision(manifest, number).reason for number in (1, 3, 5, 6, 10)] == [
            "recent" if is_stored else "newest",
            "cleared_by_provider",
            "recent" if is_stored else "newest",
            "cleared_by_provider",
            "newest",
        ]
        engine = Engine(store, EngineConfig.create(Settings(model=MODEL)))
        replay = await (await engine.conversation(conversation)).replay(seq)
        assert replay.sent_body == up.requests[-1].raw
        assert replay.changed_by_provider is not None
        assert "50,300 tokens" in replay.changed_by_provider
        shown = (await harness.http.get(f"/api/conversations/{conversation}/requests/{seq}/why?item=3")).json()
        assert shown["reason"] == "cleared_by_provider"


async def test_an_edit_that_cleared_nothing_changes_nothing(store: SqlStore):
    response = make_response(text("Hi."), context_management={"applied_edits": []})
    async with (
        run_fake_upstream(respond(response)) as up,
        run_gateway(store, up.url, upstreams=upstreams(up.url)) as harness,
    ):
        headers = await send(harness, HISTORY[:1], context_management={"edits": EDITS})
        _, manifest = await load_newest(store, headers["x-quire-conversation"])
        assert manifest.forwarded is not None
        assert manifest.forwarded.provider_edits == ()
        assert manifest.forwarded.replayable


SUMMARY = "The user looked at four files; the port is 4711."
COMPACTED = {"type": "compaction", "content": SUMMARY, "signature": "signed"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_compaction_of_the_provider_is_an_entry_that_covers_a_range(store: SqlStore, stream: bool):
    replies = (
        make_response(text("Seen.")),
        make_response(COMPACTED, text("Go on.")),
        make_response(text("Further.")),
        make_response(text("End.")),
    )
    async with (
        run_fake_upstream(*map(respond, replies)) as up,
        run_gateway(store, up.url, upstreams=upstreams(up.url), context_limit=200_000) as harness,
    ):
        await send(harness, HISTORY[:5])
        compacted = {"role": "assistant", "content": [COMPACTED, text("Go on.")]}
        conversation = (await send(harness, HISTORY, stream=stream))["x-quire-conversation"]
        entries = await store.read_range(conversation)
        assert [entry.kind for entry in entries[-2:]] == ["message", "compaction"]
        body = entries[-1].body
        assert isinstance(body, Compaction)
        assert (body.covers, body.summary, body.trigger) == (Span(first=1, last=10), SUMMARY, "provider")
        manifest = await store.get_manifest(conversation, 11)
        assert find_decision(manifest, 1).reason == "compacted_by_provider"

        # The client drops what the block stands for, and has no session header.
        rest = [compacted, {"role": "user", "content": "And now?"}]
        assert (await send(harness, rest, stream=stream))["x-quire-conversation"] == conversation
        rest += [{"role": "assistant", "content": [text("Further.")]}, {"role": "user", "content": "Then?"}]
        # After a restart, nothing is cached.
        async with run_gateway(store, up.url, upstreams=upstreams(up.url), context_limit=200_000) as other:
            assert (await send(other, rest, stream=stream))["x-quire-conversation"] == conversation
        [branch] = await store.list_branches(conversation)
        texts = [entry.message.text for entry in await store.read_range(conversation, kinds=["message"])]
        assert texts[11:] == ["And now?", "Further.", "Then?", "End."]
        _, manifest = await load_newest(store, conversation)
        assert [row.span for row in manifest.decisions if row.slot == "messages"] == [Span(first=11, last=14)]
        # Undo applies.
        engine = Engine(store, EngineConfig.create(Settings(model=MODEL)))
        await (await engine.conversation(conversation)).undo_compaction()
        assert (await store.get_branch(conversation, branch.number)).state.active_compaction is None


async def test_a_client_that_sends_everything_again_is_recorded_in_place(store: SqlStore):
    replies = (make_response(COMPACTED, text("Go on.")), make_response(text("End.")))
    async with (
        run_fake_upstream(*map(respond, replies)) as up,
        run_gateway(store, up.url, upstreams=upstreams(up.url), context_limit=200_000) as harness,
    ):
        first = await send(harness, HISTORY)
        compacted = {"role": "assistant", "content": [COMPACTED, text("Go on.")]}
        whole = [*HISTORY, compacted, {"role": "user", "content": "And now?"}]
        second = await send(harness, whole)
        assert second["x-quire-conversation"] == first["x-quire-conversation"]
        _, manifest = await load_newest(store, second["x-quire-conversation"])
        [row] = [row for row in manifest.decisions if row.reason == "compacted_by_provider"]
        assert row.span == Span(first=1, last=10)
        assert manifest.forwarded is not None
        assert not manifest.forwarded.replayable
        assert len(await store.list_branches(second["x-quire-conversation"])) == 1


ON_DEMAND = make_response(
    COMPACTED,
    stop_reason="compaction",
    usage={
        "input_tokens": 0,
        "output_tokens": 0,
        "iterations": [{"type": "compaction", "input_tokens": 100_000, "output_tokens": 1_000}],
    },
)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_compaction_on_demand_is_an_entry_and_the_list_after_it_continues(store: SqlStore, stream: bool):
    replies = (make_response(text("Done.")), ON_DEMAND, make_response(text("End.")))
    async with (
        run_fake_upstream(*map(respond, replies)) as up,
        run_gateway(store, up.url, upstreams=upstreams(up.url), context_limit=200_000) as harness,
    ):
        conversation = (await send(harness, HISTORY))["x-quire-conversation"]
        whole = [*HISTORY, {"role": "assistant", "content": [text("Done.")]}]
        headers = await send(harness, whole, stream=stream, compaction={"type": "summarize"})
        assert (headers["x-quire-conversation"], headers["x-quire-branch"]) == (conversation, "0")
        [entry] = await store.read_range(conversation, kinds=["compaction"])
        assert isinstance(entry.body, Compaction)
        assert (entry.body.covers, entry.body.summary) == (Span(first=1, last=11), SUMMARY)
        reply = await store.get_entry(conversation, 12)
        assert reply.metadata.cost_usd == pytest.approx((100_000 * 2 + 1_000 * 10) / 1e6)
        rest = [{"role": "assistant", "content": [COMPACTED]}, {"role": "user", "content": "And now?"}]
        assert (await send(harness, rest, stream=stream))["x-quire-conversation"] == conversation
        texts = [each.message.text for each in await store.read_range(conversation, first=13, kinds=["message"])]
        assert texts == ["And now?", "End."]


async def test_messages_that_a_compaction_on_demand_leaves_out_follow_it_on_its_branch(store: SqlStore):
    """In the background, or to keep the newest messages verbatim, a client compacts only the start of its list."""
    replies = (make_response(text("Seen.")), make_response(text("Done.")), ON_DEMAND, make_response(text("End.")))
    async with (
        run_fake_upstream(*map(respond, replies)) as up,
        run_gateway(store, up.url, upstreams=upstreams(up.url), context_limit=200_000) as harness,
    ):
        await send(harness, HISTORY[:5])
        conversation = (await send(harness, HISTORY))["x-quire-conversation"]
        await send(harness, HISTORY[:6], compaction={"type": "summarize"})
        done = {"role": "assistant", "content": [text("Done.")]}
        block = {"role": "assistant", "content": [COMPACTED]}
        headers = await send(harness, [block, *HISTORY[6:], done, {"role": "user", "content": "And now?"}])
        assert (headers["x-quire-conversation"], headers["x-quire-branch"]) == (conversation, "1")
        entries = await store.read_range(conversation, branch=1)
        [entry] = [each for each in entries if isinstance(each.body, Compaction)]
        assert isinstance(entry.body, Compaction)
        assert entry.body.covers == Span(first=1, last=7)
        texts = [each.message.text for each in entries if each.kind == "message" and each.seq > entry.seq]
        assert texts == ["Look again.", "", "", "Done.", "And now?", "End."]


@pytest.mark.parametrize("kept_id", [False, True])
async def test_a_compaction_by_openai_on_demand_is_a_reply_that_the_list_continues(store: SqlStore, kept_id: bool):
    first = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look."}]}
    seen = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Seen."}]}
    item = {"id": "cmp_1", "type": "compaction", "encrypted_content": "sealed"}
    usage = {"input_tokens": 1_000, "output_tokens": 100, "total_tokens": 1_100}
    compacted = {
        "id": "resp_2",
        "object": "response.compaction",
        "created_at": 1,
        "output": [first, item],
        "usage": usage,
    }
    response = {"id": "resp_1", "object": "response", "status": "completed", "model": "gpt-5", "usage": usage}

    async def answer(request: UpstreamRequest) -> None:
        is_compaction = request.path.endswith("/compact")
        await request.respond(compacted if is_compaction else {**response, "output": [seen]})

    async with (
        run_fake_upstream(answer) as up,
        run_gateway(
            store, up.url, upstreams={"*": {"base_url": up.url, "speaks": ["responses"]}}, context_limit=200_000
        ) as harness,
    ):

        async def post(path: str, *items: dict[str, Any]) -> dict[str, str]:
            got = await harness.http.post(path, json={"model": "gpt-5", "input": list(items)})
            assert got.status_code == 200, got.text
            return dict(got.headers)

        conversation = (await post("/v1/responses", first))["x-quire-conversation"]
        headers = await post("/v1/responses/compact", first, seen)
        assert headers["x-quire-conversation"] == conversation
        reply = await store.get_entry(conversation, 3)
        assert reply.metadata.cost_usd == pytest.approx((1_000 * 1.25 + 100 * 10) / 1e6)
        manifest = await store.get_manifest(conversation, 3)
        assert [row.reason for row in manifest.decisions if not row.included] == ["compacted_by_provider"]
        # Codex sends the item without its ID.
        sent_back = item if kept_id else {name: value for name, value in item.items() if name != "id"}
        following = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And now?"}]}
        headers = await post("/v1/responses", first, sent_back, following)
        assert (headers["x-quire-conversation"], headers["x-quire-branch"]) == (conversation, "0")
        texts = [each.message.text for each in await store.read_range(conversation, first=4, kinds=["message"])]
        assert texts == ["And now?", "Seen."]
        # It is no response that could be read or continued.
        assert (await harness.http.get("/v1/responses/resp_2")).status_code == 404
