"""Results of a batch that are fetched through the gateway are recorded once, and priced at the batch tier."""

import json
from typing import Any

import pytest
from gateway_fixtures import run_gateway

from fake_upstream import UpstreamRequest, run_fake_upstream
from quire.store import SqlStore

Json = dict[str, Any]
CLAUDE_USAGE = {"input_tokens": 1_000, "output_tokens": 100, "service_tier": "batch"}
CHAT_USAGE = {"prompt_tokens": 1_000, "completion_tokens": 100, "total_tokens": 1_100}
RESPONSES_USAGE = {"input_tokens": 1_000, "output_tokens": 100, "total_tokens": 1_100}


def make_claude_result(number: int) -> Json:
    message = {
        "id": f"msg_{number}", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": f"Answer {number}."}], "stop_reason": "end_turn", "usage": CLAUDE_USAGE,
    }  # fmt: skip
    return {"custom_id": f"task-{number}", "result": {"type": "succeeded", "message": message}}


def make_openai_result(custom_id: str, body: Json, status: int = 200) -> Json:
    return {
        "id": "batch_req_1",
        "custom_id": custom_id,
        "response": {"status_code": status, "body": body},
        "error": None,
    }


CHAT_BODY: Json = {
    "id": "chatcmpl-1", "object": "chat.completion", "model": "gpt-4o", "usage": CHAT_USAGE, "service_tier": "default",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Answer 1."}, "finish_reason": "stop"}],
}  # fmt: skip
RESPONSES_BODY: Json = {
    "id": "resp_1", "object": "response", "status": "completed", "model": "gpt-5", "usage": RESPONSES_USAGE,
    "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Answer 2."}]}],
}  # fmt: skip
CLAUDE_LINES = [
    make_claude_result(1),
    {"custom_id": "task-3", "result": {"type": "errored", "error": {"type": "invalid_request_error"}}},
    make_claude_result(2),
]
OPENAI_LINES = [
    make_openai_result("task-1", CHAT_BODY),
    make_openai_result("task-2", RESPONSES_BODY),
    make_openai_result("task-3", {"error": {"message": "No."}}, 400),
    make_openai_result("task-4", {"object": "list", "data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 9}}),
]


@pytest.mark.parametrize(
    ("path", "lines", "dollars"),
    [
        ("messages/batches/msgbatch_7/results", CLAUDE_LINES, 2 * 0.0045 / 2),
        ("files/file-7/content", OPENAI_LINES, (0.0035 + 0.00225) / 2),
    ],
    ids=["messages", "openai"],
)
async def test_each_result_is_recorded_once_at_the_batch_price(
    store: SqlStore, path: str, lines: list[Json], dollars: float
):
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()

    async def respond(request: UpstreamRequest) -> None:
        await request.respond(content, content_type="application/x-jsonl")

    async with run_fake_upstream(respond) as up, run_gateway(store, up.url, pass_other_paths=True) as harness:
        for _ in range(2):
            answer = await harness.http.get(f"/v1/{path}")
            assert answer.content == content
            assert "x-quire-recorded" not in answer.headers
        (record,) = await store.list_conversations()
        messages = await harness.load_messages(record.id)
        assert messages == [("assistant", "Answer 1."), ("assistant", "Answer 2.")]
        assert await store.verify_conversation(record.id) == []
    while await store.usage.count():
        pass
    totals = (await store.usage.read_report()).totals
    assert (totals.requests, totals.unpriced_requests, totals.input_tokens) == (2, 0, 2_000)
    assert totals.cost_nanos / 1e9 == pytest.approx(dollars, abs=1e-9)


@pytest.mark.parametrize(
    "content", [b'{"custom_id": "a", "method": "POST", "body": {}}\n', b"\x00\xff", b'{"custom_id": [', b""]
)
async def test_another_file_is_passed_on_and_adds_nothing(store: SqlStore, content: bytes):
    async def respond(request: UpstreamRequest) -> None:
        await request.respond(content, content_type="application/octet-stream")

    async with run_fake_upstream(respond) as up, run_gateway(store, up.url, pass_other_paths=True) as harness:
        assert (await harness.http.get("/v1/files/file-7/content")).content == content
        assert await store.list_conversations() == []
