"""Every client format with every upstream format, streamed and not, by the official SDKs' own accumulators.

Each cell is recorded and replayed, its next request repeats the history, and what has no place upstream is named.
"""

import json
from collections.abc import Sequence

import pytest
from format_clients import (
    INSTRUCTIONS,
    PARAMETERS,
    PNG_BASE64,
    PNG_URL,
    TOOL_NAME,
    Json,
    MatrixHarness,
    Reply,
    run_matrix_gateway,
    served_pairs,
)

from infra.scripted_provider import ScriptedCall, ScriptedReply, ScriptedUsage, WireFormatName
from quire.engine import Conversation
from quire.model import Entry, ImagePart
from quire.store import SqlStore
from quire.wire import wire_format_for
from quire.wire.codecs import CODECS

USAGE = ScriptedUsage(input_tokens=60, cached_tokens=10, output_tokens=9)
FINISHES: dict[WireFormatName, tuple[str, str]] = {
    "chat": ("stop", "tool_calls"),
    "messages": ("end_turn", "tool_use"),
    "responses": ("completed", "completed"),
    "gemini": ("STOP", "STOP"),
}
"""How a text ends, and how calls do."""

streams = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


async def load_entries(store: SqlStore) -> list[Entry]:
    """The messages of the only conversation, which has one branch."""
    (conversation,) = await store.list_conversations()
    assert len(await store.list_branches(conversation.id)) == 1
    return await store.read_range(conversation.id, kinds=["message"])


async def check_records(
    harness: MatrixHarness, store: SqlStore, *, dropped: Sequence[tuple[str, ...]], are_replayable: bool = True
) -> None:
    """Checks what is recorded of every request: its form, what was dropped, and that a replay gives what was sent."""
    entries = await load_entries(store)
    replies = [entry for entry in entries if entry.message.role == "assistant"]
    is_native = harness.client.format == harness.provider.requests[0].format
    engine = harness.gateway.server_state.engine_for("default")
    assert len(replies) == len(harness.provider.requests) == len(dropped)
    for entry, request, names in zip(replies, harness.provider.requests, dropped, strict=True):
        manifest = await store.get_manifest(entry.conversation, entry.seq)
        assert manifest.forwarded is not None
        assert manifest.forwarded.form == ("unchanged" if is_native else "translated")
        assert manifest.forwarded.dropped == names
        usage = entry.metadata.usage
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (60, 9, 10)
        codec = CODECS[request.format]
        wire_format = wire_format_for(codec.name)
        assert wire_format.check(request.body) == []
        if not manifest.forwarded.replayable:
            assert not are_replayable
            continue
        replay = await Conversation(engine, entry.conversation, entry.branch).replay(entry.seq)
        assert replay.matches, replay.mismatch
        assert replay.rendered is not None
        if not is_native:
            payload = replay.rendered.to_payload()
            assert payload[codec.item_field] == request.body[codec.item_field]
            assert payload.get("tools") == request.body.get("tools")


def check_reply(harness: MatrixHarness, reply: Reply, *, text: str = "", calls: int = 0) -> None:
    assert (reply.text, len(reply.calls)) == (text, calls)
    assert reply.finish == FINISHES[harness.client.format][bool(calls)]
    assert (reply.input_tokens, reply.output_tokens) == (60, 9)


@streams
@served_pairs
async def test_parallel_tools(store: SqlStore, client: WireFormatName, speaks: WireFormatName, stream: bool):
    calls = (ScriptedCall(TOOL_NAME, {"path": "a"}), ScriptedCall(TOOL_NAME, {"path": "b"}))
    script = [ScriptedReply("Looking.", calls=calls, usage=USAGE), ScriptedReply("Both are empty.", usage=USAGE)]
    async with run_matrix_gateway(store, script, client=client, speaks=speaks) as harness:
        history = [harness.client.make_question("Compare a and b.")]
        reply = await harness.client.send(history, stream=stream, has_tools=True)
        check_reply(harness, reply, text="Looking.", calls=2)
        assert [(call.name, call.arguments) for call in reply.calls] == [
            (TOOL_NAME, {"path": "a"}),
            (TOOL_NAME, {"path": "b"}),
        ]
        assert len({call.id for call in reply.calls}) == 2
        history += [*reply.items, *harness.client.make_results(reply.calls, ["nothing in a", "nothing in b"])]
        check_reply(harness, await harness.client.send(history, stream=stream, has_tools=True), text="Both are empty.")
        entries = await load_entries(store)
        assert [entry.message.role for entry in entries] == ["user", "assistant", "tool", "tool", "assistant"]
        recorded = entries[1].message.tool_calls
        assert [(call.id, call.name, json.loads(call.arguments)) for call in recorded] == list(reply.calls)
        results = [part for entry in entries[2:4] for part in entry.message.tool_results]
        assert [(part.call_id, part.text) for part in results] == [
            (reply.calls[0].id, "nothing in a"),
            (reply.calls[1].id, "nothing in b"),
        ]
        assert harness.provider.requests[0].tool_names == [TOOL_NAME]
        assert harness.provider.requests[1].newest_results == ["nothing in a", "nothing in b"]
        await check_records(harness, store, dropped=[(), ()])


@streams
@served_pairs
async def test_texts_and_images(store: SqlStore, client: WireFormatName, speaks: WireFormatName, stream: bool):
    script = [ScriptedReply("It is red.", usage=USAGE), ScriptedReply("Yes, I am.", usage=USAGE)]
    async with run_matrix_gateway(store, script, client=client, speaks=speaks) as harness:
        history = [harness.client.make_question("Which colour?", has_image=True)]
        reply = await harness.client.send(history, stream=stream)
        check_reply(harness, reply, text="It is red.")
        history += [*reply.items, harness.client.make_question("Are you sure?")]
        check_reply(harness, await harness.client.send(history, stream=stream), text="Yes, I am.")
        entries = await load_entries(store)
        assert [(entry.message.role, entry.message.text) for entry in entries] == [
            ("user", "Which colour?"),
            ("assistant", "It is red."),
            ("user", "Are you sure?"),
            ("assistant", "Yes, I am."),
        ]
        (image,) = [part for part in entries[0].message.parts if isinstance(part, ImagePart)]
        assert image.url == PNG_URL
        for request in harness.provider.requests:
            assert request.format == speaks
            assert INSTRUCTIONS in request.raw.decode()
            assert find_image(request.items) == PNG_BASE64
        await check_records(harness, store, dropped=[(), ()])


def find_image(items: Sequence[Json]) -> str:
    """The data of the image in the first question, in any format."""
    first = next(item for item in items if item.get("role") == "user")
    for piece in first.get("content") or first["parts"]:
        match piece:
            case {"inlineData": {"data": data}}:
                # Google's SDK writes base64 in the alphabet for URLs.
                return data.translate(str.maketrans("-_", "+/"))
            case {"type": "image_url", "image_url": {"url": url}} | {"type": "input_image", "image_url": url}:
                return url.removeprefix("data:image/png;base64,")
            case {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}:
                return data
            case _:
                pass
    raise AssertionError(first)


@streams
@served_pairs
async def test_thinking(store: SqlStore, client: WireFormatName, speaks: WireFormatName, stream: bool):
    calls = (ScriptedCall(TOOL_NAME, {"path": "a"}),)
    script = [
        ScriptedReply("Looking.", calls=calls, thinking="Is it there?", usage=USAGE),
        ScriptedReply("Empty.", usage=USAGE),
    ]
    async with run_matrix_gateway(store, script, client=client, speaks=speaks) as harness:
        history = [harness.client.make_question("What is in a?")]
        reply = await harness.client.send(history, stream=stream, has_tools=True)
        check_reply(harness, reply, text="Looking.", calls=1)
        assert reply.thinking == "Is it there?"
        history += [*reply.items, *harness.client.make_results(reply.calls, ["nothing"])]
        check_reply(harness, await harness.client.send(history, stream=stream, has_tools=True), text="Empty.")
        is_signed = speaks in ("messages", "responses")
        await check_records(
            harness,
            store,
            # Thinking with the upstream's signature is in the log; other thinking has no place upstream.
            dropped=[(), () if client == speaks or is_signed else ("messages[thinking]",)],
            are_replayable=not client == speaks == "chat",
        )
        request = harness.provider.requests[1]
        sent = [item for item in request.items if item.get("role") != "system"]
        if client == speaks:
            assert sent == history
        elif speaks == "messages":
            assert sent[1]["content"][0] == {
                "type": "thinking",
                "thinking": "Is it there?",
                "signature": "signature0001",
            }
        elif speaks == "responses":
            assert (sent[1]["id"], sent[1]["encrypted_content"]) == ("rs_0001", "sealed0001")
        else:
            assert "Is it there?" not in request.raw.decode()
        if speaks == "gemini":
            signed = [part for item in sent for part in item["parts"] if "functionCall" in part]
            assert [part["thoughtSignature"] for part in signed] == ["c2ln0001"]


@pytest.mark.parametrize("speaks", ["chat", "responses"])
async def test_unsigned_thinking_stays_with_its_client(store: SqlStore, speaks: WireFormatName):
    """Thinking that Quire gave a client with its own mark goes to no upstream, also if the log does not know it."""
    async with run_matrix_gateway(store, "Yes.", client="messages", speaks=speaks) as harness:
        thinking = {"type": "thinking", "thinking": "Secret.", "signature": "quire-unsigned"}
        reply = {"role": "assistant", "content": [thinking, {"type": "text", "text": "Hm."}]}
        history = [harness.client.make_question("Hi"), reply, harness.client.make_question("And?")]
        assert (await harness.client.send(history, stream=False)).text == "Yes."
        assert "Secret." not in harness.provider.requests[0].raw.decode()
        (conversation,) = await store.list_conversations()
        newest = (await store.read_range(conversation.id, kinds=["message"]))[-1]
        forwarded = (await store.get_manifest(conversation.id, newest.seq)).forwarded
        assert forwarded is not None
        assert forwarded.dropped == ("messages[thinking]",)


DROPPED_OPTIONS: list[tuple[WireFormatName, WireFormatName, Json, set[str]]] = [
    ("messages", "chat", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"thinking.budget_tokens"}),
    ("messages", "chat", {"thinking": {"type": "disabled"}, "top_k": 5}, {"thinking", "top_k"}),
    ("messages", "chat", {"service_tier": "auto", "container": "c"}, {"service_tier", "container"}),
    ("messages", "chat", {"metadata": {"user_id": "u"}, "stop_sequences": ["a"], "temperature": 0.5}, set()),
    ("messages", "responses", {"stop_sequences": ["a"], "top_k": 5}, {"stop", "top_k"}),
    ("chat", "messages", {"n": 1, "store": False, "reasoning_effort": "minimal"}, set()),
    ("chat", "messages", {"n": 2, "seed": 1, "logprobs": True}, {"n", "seed", "logprobs"}),
    ("chat", "messages", {"reasoning_effort": "none", "response_format": {"type": "json_object"}},
     {"reasoning_effort", "response_format"}),
    ("chat", "responses", {"stop": "a", "web_search_options": {}}, {"stop", "web_search_options"}),
    ("responses", "messages", {"text": {"verbosity": "low"}, "top_logprobs": 3}, {"text.verbosity", "top_logprobs"}),
    ("responses", "chat", {"prompt_cache_key": "k", "max_tool_calls": 2}, {"prompt_cache_key", "max_tool_calls"}),
    ("chat", "messages", {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
     {"tools.strict"}),
    ("messages", "responses", {"tools": [{"name": "f", "input_schema": PARAMETERS, "strict": True}]}, {"tools.strict"}),
    ("responses", "chat", {"tools": [{"type": "function", "name": "f", "parameters": PARAMETERS, "strict": True}]},
     {"tools.strict"}),
]  # fmt: skip


@pytest.mark.parametrize(("client", "speaks", "options", "dropped"), DROPPED_OPTIONS)
async def test_dropped_options_are_named(
    store: SqlStore, client: WireFormatName, speaks: WireFormatName, options: Json, dropped: set[str]
):
    async with run_matrix_gateway(store, "Yes.", client=client, speaks=speaks) as harness:
        body = harness.client.make_body([harness.client.make_question("Hi")], stream=False) | options
        answer = await harness.post(body)
        assert answer.status_code == 200, answer.text
        recorded = await store.get_request(answer.headers["x-quire-request"])
        assert recorded.manifest.forwarded is not None
        assert set(recorded.manifest.forwarded.dropped) == dropped
        assert answer.headers.get("x-quire-dropped", "0") == str(len(dropped))


DROPPED_PARTS: list[tuple[WireFormatName, WireFormatName, list[Json], set[str]]] = [
    (
        "chat",
        "messages",
        [
            {
                "role": "user",
                "name": "ada",
                "content": [{"type": "image_url", "image_url": {"url": "http://a.de/b.png"}}],
            },
            {"role": "assistant", "content": None, "refusal": "No."},
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}]},
        ],
        {"messages[name]", "messages[image]", "messages[refusal]", "messages[input_audio]"},
    ),
    (
        "messages",
        "chat",
        [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "read", "input": {}}]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t",
                        "content": [
                            {
                                "type": "image",
                                "source": {"type": "base64", "media_type": "image/png", "data": PNG_BASE64},
                            }
                        ],
                    }
                ],
            },
        ],
        {"messages[image]"},
    ),
]


@pytest.mark.parametrize(("client", "speaks", "history", "dropped"), DROPPED_PARTS)
async def test_dropped_parts_are_named(
    store: SqlStore, client: WireFormatName, speaks: WireFormatName, history: list[Json], dropped: set[str]
):
    async with run_matrix_gateway(store, "Yes.", client=client, speaks=speaks) as harness:
        answer = await harness.post(harness.client.make_body(history, stream=False))
        assert answer.status_code == 200, answer.text
        recorded = await store.get_request(answer.headers["x-quire-request"])
        assert recorded.manifest.forwarded is not None
        assert set(recorded.manifest.forwarded.dropped) == dropped
