"""What only Google's format has: model and key in the URL, calls without IDs, cached contents, lists of models."""

import json
from typing import Any

import pytest
from format_clients import MODEL, PNG_BASE64, Json, run_matrix_gateway
from gateway_fixtures import GatewayHarness, user_message
from server_helpers import create_key_for

from infra.scripted_provider import ScriptedCall, ScriptedReply, WireFormatName
from quire.engine import Conversation
from quire.model import ImagePart, ToolCallPart
from quire.store import SqlStore
from quire.wire import wire_format_for
from quire.wire.codecs import GEMINI
from quire.wire.fields import MADE_ID_PREFIX
from quire.wire.prompt_prefix import find_prefix_change

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

QUESTION: Json = {"role": "user", "parts": [{"text": "Compare a and b."}]}
GEMINI_CLI_HEADERS = {"user-agent": "GeminiCLI-tui/0.61.0/gemini-2.5-pro (linux; x64; terminal)"}


def make_path(method: str = "generateContent", prefix: str = "/v1beta") -> str:
    return f"{prefix}/models/{MODEL}:{method}"


async def post(gateway: GatewayHarness, contents: list[Json], path: str = "", **fields: Any) -> Any:
    return await gateway.http.post(path or make_path(), json={"contents": contents, **fields})


def strip_ids(reply: ScriptedReply) -> ScriptedReply:
    """The reply as models before Gemini 3 give it: calls without IDs."""
    calls = [{"functionCall": {"name": call.name, "args": call.arguments}} for call in reply.calls]
    return ScriptedReply(content=tuple(calls))


@pytest.mark.parametrize("makes_ids", [False, True], ids=["none", "gemini-cli"])
async def test_calls_without_ids_are_recognized(store: SqlStore, makes_ids: bool):
    """Clients send them back without IDs, or with IDs of their own; the results belong to them by order."""
    calls = (ScriptedCall("read", {"path": "a"}), ScriptedCall("read", {"path": "b"}))
    script = [strip_ids(ScriptedReply(calls=calls)), ScriptedReply("Both are empty."), ScriptedReply("Sure.")]
    async with run_matrix_gateway(store, script, client="chat", speaks="gemini") as harness:
        gateway = harness.gateway
        reply = (await post(gateway, [QUESTION])).json()["candidates"][0]["content"]
        assert [part["functionCall"].get("id") for part in reply["parts"]] == [None, None]
        results: list[Json] = []
        for number, part in enumerate(reply["parts"]):
            own = {"id": f"read_1794914011926_{number}"} if makes_ids else {}
            part["functionCall"] |= own
            response = {"output": f"nothing {number}"}
            results.append({"functionResponse": {"name": "read", **own, "response": response}})
        history = [QUESTION, reply, {"role": "user", "parts": results}]
        answer = (await post(gateway, history)).json()["candidates"][0]["content"]
        history += [answer, {"role": "user", "parts": [{"text": "Sure?"}]}]
        await post(gateway, history)
        (conversation,) = await store.list_conversations()
        assert len(await store.list_branches(conversation.id)) == 1
        entries = await store.read_range(conversation.id, kinds=["message"])
        roles = [entry.message.role for entry in entries]
        assert roles == ["user", "assistant", "tool", "tool", "assistant", "user", "assistant"]
        ids = [call.id for call in entries[1].message.tool_calls]
        assert [entry.message.tool_results[0].call_id for entry in entries[2:4]] == ids
        assert all(id_.startswith(MADE_ID_PREFIX) for id_ in ids)
        engine = gateway.server_state.engine_for("default")
        for entry in (entries[1], entries[4], entries[6]):
            replay = await Conversation(engine, entry.conversation, entry.branch).replay(entry.seq)
            assert replay.matches, replay.mismatch


@pytest.mark.parametrize("place", ["header", "query", "bearer"])
@pytest.mark.parametrize("prefix", ["/v1beta", "/v1", "/v1beta1/publishers/google"])
async def test_keys_and_paths_of_googles_clients(store: SqlStore, place: str, prefix: str):
    async with run_matrix_gateway(store, "Yes.", client="chat", speaks="gemini") as harness:
        key = await create_key_for(store, "default")
        headers = {"header": {"x-goog-api-key": key}, "bearer": {"authorization": f"Bearer {key}"}}.get(place, {})
        query = f"?alt=json&key={key}" if place == "query" else ""
        del harness.gateway.http.headers["authorization"]
        answer = await harness.gateway.http.post(
            make_path(prefix=prefix) + query, json={"contents": [QUESTION]}, headers=headers
        )
        assert answer.status_code == 200, answer.text
        (request,) = harness.provider.requests
        assert key not in json.dumps([request.path, request.headers])
        assert ("alt=json" in request.path) == (place == "query")
        refused = await harness.gateway.http.post(make_path(prefix=prefix), json={"contents": [QUESTION]})
        assert (refused.status_code, refused.json()["error"]["status"]) == (401, "UNAUTHENTICATED")


async def test_a_stream_as_one_list(store: SqlStore):
    async with run_matrix_gateway(store, "Two words.", client="chat", speaks="gemini") as harness:
        answer = await post(harness.gateway, [QUESTION], make_path("streamGenerateContent"))
        assert answer.headers["content-type"].startswith("application/json")
        chunks = answer.json()
        texts = [part["text"] for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
        assert "".join(texts) == "Two words."
        assert chunks[-1]["candidates"][0]["finishReason"] == "STOP"
        (conversation,) = await store.list_conversations()
        assert [text for _, text in await harness.gateway.load_messages(conversation.id)][-1] == "Two words."


async def test_the_spelling_of_the_documentation_and_of_its_examples(store: SqlStore):
    """Google reads `inline_data` like `inlineData`; the names of a client's own arguments stay."""
    body = {
        "system_instruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"parts": [{"text": "Look."}, {"inline_data": {"mime_type": "image/png", "data": PNG_BASE64}}]},
            {"role": "model", "parts": [{"function_call": {"name": "read", "args": {"file_path": "a"}}}]},
            {"parts": [{"function_response": {"name": "read", "response": {"file_text": "b"}}}]},
        ],
        "generation_config": {"max_output_tokens": 7, "response_mime_type": "application/json"},
        "tools": [{"function_declarations": [{"name": "read", "parameters": {"type": "OBJECT"}}]}],
    }
    async with run_matrix_gateway(store, "Yes.", client="chat", speaks="gemini") as harness:
        answer = await harness.gateway.http.post(make_path(), json=body)
        assert answer.status_code == 200, answer.text
        (request,) = harness.provider.requests
        assert request.body == body
        (conversation,) = await store.list_conversations()
        first, second, *_ = await store.read_range(conversation.id, kinds=["message"])
        assert any(isinstance(part, ImagePart) for part in first.message.parts)
        (call,) = [part for part in second.message.parts if isinstance(part, ToolCallPart)]
        assert json.loads(call.arguments) == {"file_path": "a"}


async def test_cached_content(store: SqlStore):
    """Only Google can read it, and in an account that tenants share it may belong to another one."""
    fields = {"cachedContent": "cachedContents/abc"}
    async with run_matrix_gateway(store, "Yes.", client="chat", speaks="gemini") as harness:
        refused = await post(harness.gateway, [QUESTION], **fields)
        assert (refused.status_code, refused.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")
        upstream = harness.gateway.server_state.settings.upstreams["*"].model_dump() | {"credentials": "client"}
        await harness.gateway.server_state.change_settings({"upstreams": {"*": upstream}})
        key = harness.gateway.http.headers["authorization"].removeprefix("Bearer ")
        headers = {"x-quire-key": key, "x-goog-api-key": "my-key", "authorization": ""}
        passed = await harness.gateway.http.post(make_path(), json={"contents": [QUESTION], **fields}, headers=headers)
        assert passed.status_code == 200, passed.text
        (request,) = harness.provider.requests
        assert request.body["cachedContent"] == "cachedContents/abc"
        assert request.headers["x-goog-api-key"] == "my-key"
        assert "x-quire-key" not in request.headers


async def test_what_is_not_spoken_is_refused_with_a_sentence(store: SqlStore):
    async with run_matrix_gateway(store, "Yes.", client="chat", speaks="chat") as harness:
        other = await harness.gateway.http.post("/v1beta/models/imagen:predict", json={})
        assert (other.status_code, other.json()["error"]["status"]) == (404, "NOT_FOUND")
        assert "only generateContent" in other.json()["error"]["message"]
        assert harness.provider.requests == []


@pytest.mark.parametrize("uri", ["https://generativelanguage.googleapis.com/v1beta/files/abc", "gs://bucket/file"])
async def test_a_file_in_a_shared_account_is_refused(store: SqlStore, uri: str):
    async with run_matrix_gateway(store, "Yes.", client="chat", speaks="gemini") as harness:
        file = {"role": "user", "parts": [{"fileData": {"fileUri": uri, "mimeType": "application/pdf"}}]}
        refused = await post(harness.gateway, [file])
        assert refused.status_code == 400
        assert "stores for all tenants" in refused.json()["error"]["message"]


async def test_tokens_and_models(store: SqlStore):
    async with run_matrix_gateway(store, "Yes.", client="chat", speaks="gemini", model="scripted") as harness:
        gateway = harness.gateway
        counted = await post(gateway, [QUESTION], make_path("countTokens"))
        assert counted.json()["totalTokens"] == harness.provider.count_tokens(harness.provider.received[0])
        upstream = gateway.server_state.settings.upstreams["*"].model_dump() | {"api_key_env": "UP_KEY"}
        await gateway.server_state.change_settings({"upstreams": {"*": upstream}})
        gateway.http.headers["x-goog-api-client"] = "google-genai-sdk/3.3.0"
        for path in ("/v1beta/models", "/v1/models"):
            (model,) = (await gateway.http.get(path)).json()["models"]
            assert (model["name"], "generateContent" in model["supportedGenerationMethods"]) == (
                "models/scripted",
                True,
            )
            assert (await gateway.http.get(f"{path}/scripted")).json() == model
        assert (await gateway.http.get("/v1beta/models/none")).json()["error"]["status"] == "NOT_FOUND"


async def test_a_request_above_the_window_is_fitted(store: SqlStore):
    """A fitted request has the client's other fields, whole pairs of calls and results, and no fields of the URL."""
    calls = (ScriptedCall("read", {"path": "a"}),)
    async with run_matrix_gateway(
        store, [ScriptedReply("Yes.")], client="chat", speaks="gemini", context_limit=3_000
    ) as harness:
        gateway = harness.gateway
        upstream = gateway.server_state.settings.upstreams["*"].model_dump() | {"overflow": "fit"}
        await gateway.server_state.change_settings({"upstreams": {"*": upstream}})
        history: list[Json] = []
        for number in range(30):
            harness.provider.script = lambda _: strip_ids(ScriptedReply(calls=calls))
            history.append({"role": "user", "parts": [{"text": f"Question {number}. " + "Words of it. " * 20}]})
            answer = await post(gateway, history, safetySettings=[])
            history.append(answer.json()["candidates"][0]["content"])
            result = {"functionResponse": {"name": "read", "response": {"result": f"File {number}."}}}
            history.append({"role": "user", "parts": [result]})
            harness.provider.script = lambda _: ScriptedReply("Noted.")
            answer = await post(gateway, history, safetySettings=[])
            assert answer.status_code == 200, answer.text
            history.append(answer.json()["candidates"][0]["content"])
        request = harness.provider.requests[-1]
        assert len(request.items) < len(history)
        assert request.body.keys() == {"contents", "safetySettings"}
        assert wire_format_for("gemini").check(request.body) == []
        assert any(
            part["functionResponse"]["response"] == {"result": "File 29."}
            for item in request.items
            for part in item["parts"]
            if "functionResponse" in part
        )


async def test_googles_sdk_with_schemas_and_chats(store: SqlStore):
    """Structured output, a function of Python that the SDK calls by itself, and a chat over two turns."""
    script = [
        ScriptedReply('{"city": "Oslo"}'),
        strip_ids(ScriptedReply(calls=(ScriptedCall("measure_tide", {"harbour": "Oslo"}),))),
        ScriptedReply("It is high."),
        ScriptedReply("One."),
        ScriptedReply("Two."),
    ]
    async with run_matrix_gateway(store, script, client="gemini", speaks="gemini") as harness:
        sdk: Any = harness.client
        client = sdk._client

        def measure_tide(harbour: str) -> str:
            """Measures the tide."""
            return f"high at {harbour}"

        schema = {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}}
        config: Json = {"response_mime_type": "application/json", "response_schema": schema}
        found = await client.aio.models.generate_content(model=MODEL, contents="Which city?", config=config)
        assert json.loads(found.text) == {"city": "Oslo"}
        tools: Json = {"tools": [measure_tide]}
        measured = await client.aio.models.generate_content(model=MODEL, contents="How high is it?", config=tools)
        assert measured.text == "It is high."
        chat = client.aio.chats.create(model=MODEL)
        for question, reply in (("First?", "One."), ("Second?", "Two.")):
            chunks = [chunk async for chunk in await chat.send_message_stream(question)]
            assert "".join(chunk.text or "" for chunk in chunks) == reply
        conversations = await store.list_conversations()
        sizes = [len(await store.read_range(each.id, kinds=["message"])) for each in conversations]
        assert sorted(sizes) == [2, 4, 4]
        assert [len(await store.list_branches(each.id)) for each in conversations] == [1, 1, 1]


CONTEXT = (
    "<session_context>\nThis is the Gemini CLI. We are setting up the context for our chat.\nToday's date is {day}.\n"
    "The project's temporary directory is: /home/ada/.gemini/tmp/harbour\n- **Workspace Directories:**\n"
    "  - /work/harbour\n</session_context>"
)


async def test_two_sessions_of_gemini_cli_with_the_same_start_are_two_conversations(store: SqlStore):
    """It sends no ID of a session, so that the sessions of a project share one; the first question tells nothing."""
    async with run_matrix_gateway(store, "Ahoy.", client="chat", speaks="gemini") as harness:
        harness.gateway.http.headers.update(GEMINI_CLI_HEADERS)
        tools = [{"functionDeclarations": [{"name": "read"}]}]
        context = {"text": CONTEXT.format(day="Monday")}
        question: Json = {"role": "user", "parts": [context, {"text": "Say ahoy."}]}
        for _ in range(2):
            await post(harness.gateway, [question], tools=tools)
        first, second = await store.list_conversations()
        assert first.origin is not None
        assert (first.origin.client, first.origin.project, first.origin.purpose) == ("gemini", "/work/harbour", None)
        assert first.origin == second.origin
        # A classifier sees the newest messages of the list.
        history = [
            question,
            {"role": "model", "parts": [{"text": "Ahoy."}]},
            {"role": "user", "parts": [{"text": "Now?"}]},
        ]
        await post(harness.gateway, history)
        assert len(await store.list_conversations(main_only=True)) == 2
        assert len(await store.list_conversations()) == 3


def test_a_change_of_a_part_or_a_tool_breaks_the_cached_prefix():
    before: Json = {"contents": [QUESTION, {"role": "model", "parts": [{"text": "a"}, {"text": "b"}]}]}
    longer = [*before["contents"], QUESTION]
    assert find_prefix_change(GEMINI, before, {"contents": longer}) is None
    changed = {"contents": [QUESTION, {"role": "model", "parts": [{"text": "a"}, {"text": "c"}]}, QUESTION]}
    change = find_prefix_change(GEMINI, before, changed)
    assert change is not None
    assert (change.field, change.position, change.before, change.after) == ("contents", 1, {"text": "b"}, {"text": "c"})


@pytest.mark.parametrize(
    ("client", "speaks"), [("gemini", "chat"), ("gemini", "messages"), ("chat", "gemini"), ("messages", "gemini")]
)
async def test_what_is_not_translated_is_refused_with_what_works(
    store: SqlStore, client: WireFormatName, speaks: WireFormatName
):
    async with run_matrix_gateway(store, "Yes.", client="chat", speaks=speaks) as harness:
        path, body = {
            "gemini": (make_path(), {"contents": [QUESTION]}),
            "chat": ("/v1/chat/completions", {"model": MODEL, "messages": [user_message("Hi")]}),
            "messages": (
                "/v1/messages",
                {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
            ),
        }[client]
        answer = await harness.gateway.http.post(path, json=body)
        assert answer.status_code == 400
        expected = "whose upstream speaks gemini" if client == "gemini" else "/v1beta/openai"
        assert expected in answer.json()["error"]["message"]
        assert harness.provider.requests == []
        assert await store.list_conversations() == []
