"""Unusual request bodies: all reach the upstream, and are recorded as far as the log can represent them."""

import json

import pytest
from gateway_fixtures import assistant_message, run_gateway, system_message, user_message

from fake_upstream import (
    SSE_DONE,
    UpstreamRequest,
    make_chunk_event,
    make_completion,
    respond_with_stream,
    respond_with_text,
    run_fake_upstream,
)
from quire.engine import Engine, EngineConfig
from quire.model import ImagePart, ToolCallPart
from quire.settings import Settings
from quire.store import SqlStore

IMAGE_DATA_URL = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

BODIES = {
    "a content list": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]},
    "a picture": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is it?"},
                    {"type": "image_url", "image_url": {"url": IMAGE_DATA_URL, "detail": "low"}},
                ],
            }
        ]
    },
    "a sound": {
        "messages": [
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]}
        ],
        "modalities": ["text", "audio"],
        "audio": {"voice": "alloy", "format": "wav"},
    },
    "a named speaker": {"messages": [{"role": "user", "name": "Ada", "content": "Hello"}]},
    "a developer": {"messages": [{"role": "developer", "content": "Be brief."}, user_message("Hello")]},
    "two instructions": {"messages": [system_message("Be brief."), system_message("Be kind."), user_message("Hello")]},
    "instructions in between": {
        "messages": [user_message("Hello"), assistant_message("Hi"), system_message("Be rude."), user_message("Well?")]
    },
    "instructions alone": {"messages": [system_message("Write a poem.")]},
    "a refusal": {
        "messages": [
            user_message("Hello"),
            {"role": "assistant", "content": None, "refusal": "No."},
            user_message("Why?"),
        ],
    },
    "a beginning to go on from": {"messages": [user_message("Write JSON"), assistant_message("{")]},
    "functions of the old kind": {
        "messages": [
            user_message("Look"),
            {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
            {"role": "function", "name": "look", "content": "waves"},
        ],
        "functions": [{"name": "look", "parameters": {"type": "object", "properties": {}}}],
    },
    "a tool of an unknown kind": {"messages": [user_message("Hello")], "tools": [{"type": "web_search", "depth": 3}]},
    "a strict tool": {
        "messages": [user_message("Hello")],
        "tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object"}}}],
    },
    "a tool's answer without its call": {
        "messages": [user_message("Hello"), {"role": "tool", "tool_call_id": "x", "content": "1"}]
    },
    "unknown fields": {
        "messages": [{**user_message("Hello"), "weight": 0.5}],
        "reasoning_effort": "low",
        "chat_kwargs": {},
    },
    "a form for the answer": {
        "messages": [user_message("Hello")],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
    },
    "odd characters": {"messages": [user_message("\x00\x1f\x7f\u2028 \U0001f338 é \\u0041")]},
    "nulls": {"messages": [{"role": "user", "content": "Hello", "name": None}], "tools": None, "stop": None},
}
NOT_REPLAYABLE = {
    "a developer", "two instructions", "functions of the old kind", "a tool of an unknown kind",
    "a strict tool", "a tool's answer without its call",
}  # fmt: skip
"""Bodies that a replay renders in another form."""


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_reaches_the_upstream_unchanged_and_is_recorded(store: SqlStore, name: str):
    body = json.dumps({"model": "gpt-4o", **BODIES[name]}).encode()
    async with run_fake_upstream(respond_with_text("Yes.")) as up, run_gateway(store, up.url) as harness:
        answer = await harness.post(body)
        assert answer.status_code == 200
        assert up.requests[0].raw == body
        recorded = await store.get_request(answer.headers["x-quire-request"])
        assert recorded.manifest.forwarded is not None
        assert recorded.manifest.forwarded.replayable == (name not in NOT_REPLAYABLE)
        messages = await harness.load_messages(recorded.conversation)
        assert messages[-1] == ("assistant", "Yes.")
        assert await store.verify_conversation(recorded.conversation) == []


async def test_an_image_is_recorded_as_an_image_part(store: SqlStore):
    async with run_fake_upstream(respond_with_text("A dot.")) as up, run_gateway(store, up.url) as harness:
        answer = await harness.ask(*BODIES["a picture"]["messages"])
        question = (await store.get_entry(answer.headers["x-quire-conversation"], 1)).message
        assert [part.url for part in question.parts if isinstance(part, ImagePart)] == [IMAGE_DATA_URL]


@pytest.mark.parametrize(
    "messages",
    [[{"role": "critic", "content": "Hm."}], [{"content": "Hello"}], "Hello", [], ["Hello"], None],
    ids=["role", "no role", "text", "empty", "texts", "none"],
)
async def test_an_unreadable_body_passes_through_and_is_marked_unrecorded(store: SqlStore, messages: object):
    async with run_fake_upstream(respond_with_text("Yes.")) as up, run_gateway(store, up.url) as harness:
        body = json.dumps({"model": "gpt-4o", "messages": messages}).encode()
        answer = await harness.post(body)
        assert (answer.status_code, answer.headers["x-quire-recorded"]) == (200, "no")
        assert up.requests[0].raw == body
        assert await store.list_conversations() == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"hello"', b"\xff\xfe", b'{"a": "\\ud800"}'])
async def test_what_is_no_json_object_is_refused(store: SqlStore, body: bytes):
    async with run_fake_upstream(respond_with_text("Yes.")) as up, run_gateway(store, up.url) as harness:
        answer = await harness.post(body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
        assert up.requests == []


async def test_every_choice_is_recorded_on_a_branch_of_its_own(store: SqlStore):
    choices = [
        {"index": place, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for place, text in enumerate(["red", "green", "blue"])
    ]

    async def respond(request: UpstreamRequest) -> None:
        await request.respond(
            make_completion("", choices=choices) if request.body.get("n") else make_completion("Good.")
        )

    async with run_fake_upstream(respond) as up, run_gateway(store, up.url) as harness:
        answer = await harness.ask(user_message("A colour?"), n=3)
        assert [choice["message"]["content"] for choice in answer.json()["choices"]] == ["red", "green", "blue"]
        conversation = answer.headers["x-quire-conversation"]
        lines = [[text for _, text in await harness.load_messages(conversation, number)] for number in range(3)]
        assert lines == [["A colour?", "red"], ["A colour?", "green"], ["A colour?", "blue"]]
        taken = await harness.ask(user_message("A colour?"), assistant_message("blue"), user_message("Why?"))
        assert (taken.headers["x-quire-conversation"], taken.headers["x-quire-branch"]) == (conversation, "2")


async def test_every_choice_of_a_stream_is_recorded_too(store: SqlStore):
    pieces = (
        make_chunk_event("re"), make_chunk_event("gre", index=1), make_chunk_event("d"), make_chunk_event({}, "stop"),
        make_chunk_event("en", index=1), make_chunk_event({}, "stop", index=1), SSE_DONE,
    )  # fmt: skip
    async with run_fake_upstream(respond_with_stream(*pieces)) as up, run_gateway(store, up.url) as harness:
        answer = await harness.ask(user_message("A colour?"), n=2, stream=True, x_quire_conversation="c")
        assert answer.content == b"".join(pieces)
        assert [[text for _, text in await harness.load_messages("c", number)][1] for number in range(2)] == [
            "red",
            "green",
        ]


async def test_the_calls_of_a_stream_are_put_together(store: SqlStore):
    def calls(index: int, **function: str) -> dict[str, object]:
        named = {"id": f"c{index}", "type": "function"} if "name" in function else {}
        return {"tool_calls": [{"index": index, **named, "function": function}]}

    pieces = (
        make_chunk_event({"role": "assistant", "content": None, "reasoning_content": "Let "}),
        make_chunk_event({"reasoning_content": "me."}),
        make_chunk_event(calls(0, name="look", arguments="")),
        make_chunk_event(calls(0, arguments='{"at":')),
        make_chunk_event(calls(1, name="hear", arguments="{}")),
        make_chunk_event(calls(0, arguments=' "sea"}')),
        make_chunk_event({}, "tool_calls"),
        b'data: {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 5}, "model": "up-1"}\n\n',
        SSE_DONE,
    )
    async with (
        run_fake_upstream(respond_with_stream(*pieces), respond_with_text("Waves.")) as up,
        run_gateway(store, up.url) as harness,
    ):
        answer = await harness.ask(user_message("Look"), stream=True, x_quire_conversation="c")
        assert answer.content == b"".join(pieces)
        entry = await store.get_entry("c", 2)
        assert entry.message.tool_calls == (
            ToolCallPart(id="c0", name="look", arguments='{"at": "sea"}'),
            ToolCallPart(id="c1", name="hear", arguments="{}"),
        )
        assert entry.metadata.usage is not None
        assert (entry.metadata.usage.input_tokens, entry.metadata.usage.output_tokens) == (20, 5)


async def test_an_openai_client_runs_its_tools_through_the_gateway(store: SqlStore):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    tool = {
        "type": "function",
        "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}},
    }
    calls = respond_with_text({"content": None, "tool_calls": [call]}, finish="tool_calls")
    async with run_fake_upstream(calls, respond_with_text("Three.")) as up, run_gateway(store, up.url) as harness:
        create = harness.openai.chat.completions.with_raw_response.create
        history = [user_message("1 + 2?")]
        first = await create(model="gpt-4o", messages=history, tools=[tool])
        message = first.parse().choices[0].message
        assert message.tool_calls is not None
        history += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3"}]
        second = await create(model="gpt-4o", messages=history, tools=[tool])
        assert second.parse().choices[0].message.content == "Three."
        assert second.headers["x-quire-conversation"] == first.headers["x-quire-conversation"]
        roles = [role for role, _ in await harness.load_messages(second.headers["x-quire-conversation"])]
        assert roles == ["user", "assistant", "tool", "assistant"]


def make_long_text(number: int) -> str:
    return f"{number}: " + "the river carries more water in spring than in autumn, and the mill runs. " * 6


async def test_what_does_not_fit_is_fitted_and_all_else_stays_as_it_was(store: SqlStore):
    async with (
        run_fake_upstream(respond_with_text("Noted.")) as up,
        run_gateway(store, up.url, context_limit=1_000) as harness,
    ):
        history = [system_message("Keep the mill's books.")]
        for number in range(12):
            history.append(user_message(make_long_text(number)))
            answer = await harness.ask(*history, temperature=0.5, max_tokens=100, metadata={"a": "b"})
            assert answer.status_code == 200
            history.append(assistant_message("Noted."))
        conversation = answer.headers["x-quire-conversation"]
        assert len(await harness.load_messages(conversation)) == 24
        last = up.requests[-1].body
        assert (last["temperature"], last["max_tokens"], last["metadata"]) == (0.5, 100, {"a": "b"})
        assert last["messages"][0] == system_message("Keep the mill's books.")
        assert last["messages"][-1] == user_message(make_long_text(11))
        assert len(last["messages"]) < 24
        recorded = await store.get_request(answer.headers["x-quire-request"])
        manifest = recorded.manifest
        assert manifest.forwarded is not None
        assert (manifest.forwarded.form, manifest.policy.reserved_response_tokens) == ("fitted", 100)
        assert manifest.total_tokens <= 900
        reader = await Engine(store, EngineConfig.create(Settings())).conversation(conversation)
        replay = await reader.replay(recorded.seq)
        assert replay.matches
        assert replay.rendered is not None
        assert replay.rendered.to_payload()["messages"] == last["messages"]
        assert await store.verify_conversation(conversation) == []


async def test_the_answers_of_tools_are_fitted_with_the_call_before_them(store: SqlStore):
    def call(number: int) -> dict[str, object]:
        function = {"name": "look", "arguments": "{}"}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
        }

    async def respond_with_call(request: UpstreamRequest) -> None:
        await request.respond(make_completion({"content": None, "tool_calls": call(len(up.requests))["tool_calls"]}))

    async with run_fake_upstream(respond_with_call) as up, run_gateway(store, up.url, context_limit=1_000) as harness:
        history = []
        for number in range(1, 12):
            history += [user_message(f"Look again, for the {number}th time")]
            await harness.ask(*history)
            history += [call(2 * number - 1), {"role": "tool", "tool_call_id": f"c{2 * number - 1}", "content": "Hm."}]
            answer = await harness.ask(*history)
            assert answer.status_code == 200, answer.text
            history += [
                call(2 * number),
                {"role": "tool", "tool_call_id": f"c{2 * number}", "content": make_long_text(number)},
            ]
        conversation = answer.headers["x-quire-conversation"]
        last = up.requests[-1].body["messages"]
        assert len(last) < len(history) - 2
        assert last[-1]["tool_call_id"] == last[-2]["tool_calls"][0]["id"] == "c21"
        assert await store.verify_conversation(conversation) == []
        recorded = await store.get_request(answer.headers["x-quire-request"])
        reader = await Engine(store, EngineConfig.create(Settings())).conversation(conversation)
        replay = await reader.replay(recorded.seq)
        assert replay.matches
        assert replay.rendered is not None
        assert replay.rendered.to_payload()["messages"] == last


async def test_an_overflow_that_only_the_upstream_could_see_is_refitted_once(store: SqlStore):
    room = 600

    async def respond_within_room(request: UpstreamRequest) -> None:
        tokens = len(request.raw) // 4
        if tokens > room:
            message = (
                f"This model's maximum context length is {room} tokens. Your messages resulted in {tokens} tokens."
            )
            return await request.respond({"error": {"message": message, "code": "context_length_exceeded"}}, 400)
        return await respond_with_text("Noted.")(request)

    async with (
        run_fake_upstream(respond_within_room) as up,
        run_gateway(store, up.url, model="unknown-model", context_limit=4_000) as harness,
    ):
        history = []
        for number in range(10):
            history.append(user_message(make_long_text(number)))
            answer = await harness.ask(*history, model="unknown-model", max_tokens=50)
            assert answer.status_code == 200, answer.text
            history.append(assistant_message("Noted."))
        assert len(await harness.load_messages(answer.headers["x-quire-conversation"])) == 20
        rejected = [request for request in up.requests if len(request.raw) // 4 > room]
        assert len(rejected) == 1


async def test_an_overflow_that_nothing_can_be_done_about_passes_through(store: SqlStore):
    async def report_overflow(request: UpstreamRequest) -> None:
        await request.respond({"error": {"message": "prompt is too long", "code": "context_length_exceeded"}}, 400)

    async with run_fake_upstream(report_overflow) as up, run_gateway(store, up.url) as harness:
        answer = await harness.ask(user_message("Hello"))
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "prompt is too long")
        assert len(up.requests) <= 2


async def test_with_context_management_off_nothing_is_changed(store: SqlStore):
    off = {"context_limit": 300, "context_management_enabled": False}
    async with run_fake_upstream(respond_with_text("Noted.")) as up, run_gateway(store, up.url, **off) as harness:
        messages = [
            user_message(make_long_text(1)),
            assistant_message("Noted."),
            user_message(make_long_text(2)),
            assistant_message("Noted."),
            user_message(make_long_text(3)),
        ]
        assert (await harness.ask(*messages)).status_code == 200
        assert up.requests[0].body["messages"] == messages


async def test_what_cannot_be_reduced_is_refused_with_the_largest_items(store: SqlStore):
    tools = [
        {
            "type": "function",
            "function": {"name": f"f{number}", "description": make_long_text(number), "parameters": {}},
        }
        for number in range(10)
    ]
    async with (
        run_fake_upstream(respond_with_text("Noted.")) as up,
        run_gateway(store, up.url, context_limit=700) as harness,
    ):
        answer = await harness.ask(user_message("Hello"), tools=tools)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert "tool 'f1' (" in answer.json()["detail"]
        assert up.requests == []
