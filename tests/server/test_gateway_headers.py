"""Headers of the gateway: which ones go upstream and which come back, and conversation IDs in headers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, get_args
from urllib.parse import quote

import httpx2
import pytest
from gateway_fixtures import MODEL, run_gateway, user_message
from hypothesis import given
from hypothesis import strategies as st
from server_helpers import create_key_for, serve_app
from starlette.datastructures import Headers

from fake_upstream import FakeUpstream, UpstreamRequest, make_completion, respond_with_text, run_fake_upstream
from infra.database_dump import contains_text, dump_database
from quire.errors import InvalidRequest
from quire.model.policy import WireFormatName
from quire.server.app import create_app
from quire.server.caller import Caller
from quire.server.gateway.upstream import (
    MAX_CONVERSATION_HEADER_CHARS,
    MAX_CONVERSATION_ID_CHARS,
    UpstreamCall,
    build_upstream_call,
    decode_conversation_header,
    encode_conversation_header,
    filter_request_headers,
)
from quire.server.state import ServerState
from quire.server.upstream_client import UpstreamClient
from quire.settings import Settings
from quire.settings.schema import Upstream
from quire.store import SqlStore
from quire.wire.codecs import CODECS

TOKEN = "t0ken-of_this-Server"
BODY = {"model": MODEL, "messages": [user_message("Hello")]}


@asynccontextmanager
async def run_local_gateway(store: SqlStore, upstream_url: str, **settings: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """Runs a gateway that authenticates by token; the client presents nothing by itself."""
    values = {"model": MODEL, "base_url": upstream_url, **settings}
    async with UpstreamClient() as upstream_client:
        state = ServerState(
            store, Settings.model_validate(values), http_client=upstream_client, environ={"UP_KEY": "sk-up"}
        )
        async with (
            serve_app(create_app(state, token=TOKEN)) as address,
            httpx2.AsyncClient(base_url=address, timeout=20) as client,
        ):
            yield client
            await state.wait_for_background()


def cookie_header(client: httpx2.AsyncClient) -> str:
    return f"quire-{client.base_url.port}={TOKEN}"


def sent_values(up: FakeUpstream) -> str:
    return "\n".join(f"{name}: {value}" for request in up.requests for name, value in request.headers.items())


# credentials


@pytest.mark.parametrize(
    "presented",
    [
        {"Authorization": f"Bearer {TOKEN}", "Cookie": "theme=dark"},
        {"x-api-key": TOKEN},
        {"api-key": TOKEN},
        {
            "Authorization": f"Bearer {TOKEN}",
            "x-api-key": TOKEN,
            "X-Own": f"see {TOKEN}",
            "Referer": f"/?token={TOKEN}",
        },
    ],
)
async def test_the_token_never_goes_upstream(store: SqlStore, presented: dict[str, str]):
    async with run_fake_upstream(respond_with_text("Yes.")) as up, run_local_gateway(store, up.url) as client:
        answer = await client.post("/v1/chat/completions", json=BODY, headers=presented)
        assert answer.status_code == 200, answer.text
        await client.get("/v1/models", headers=presented)
        assert len(up.requests) == 2
        assert TOKEN not in sent_values(up)
        assert "cookie" not in up.requests[0].headers


OWN_CREDENTIALS = {
    "Authorization": "Bearer sk-canary-own", "x-api-key": "sk-canary-x", "api-key": "sk-canary-api",
    "ChatGPT-Account-Id": "canary-account", "OpenAI-Organization": "canary-org", "OpenAI-Project": "canary-project",
}  # fmt: skip
"""What a client may send to a provider; no part of it is for Quire."""


@pytest.mark.parametrize("presented", [{"X-Quire-Key": TOKEN}, "cookie"])
async def test_a_local_client_sends_its_own_credentials_where_the_upstream_takes_them(
    store: SqlStore, presented: dict[str, str] | str
):
    async with run_fake_upstream(respond_with_text("Yes.")) as up:
        upstreams = {"*": {"base_url": up.url, "credentials": "client"}}
        async with run_local_gateway(store, up.url, upstreams=upstreams) as client:
            own = {"Cookie": cookie_header(client)} if isinstance(presented, str) else presented
            answer = await client.post("/v1/chat/completions", json=BODY, headers={**OWN_CREDENTIALS, **own})
            assert answer.status_code == 200, answer.text
            sent = up.requests[0].headers
            assert {name: sent[name.lower()] for name in OWN_CREDENTIALS} == OWN_CREDENTIALS
            assert TOKEN not in sent_values(up)


async def test_the_operators_upstream_gets_nothing_of_a_clients_credentials(store: SqlStore):
    async with run_fake_upstream(respond_with_text("Yes.")) as up, run_local_gateway(store, up.url) as client:
        headers = {**OWN_CREDENTIALS, "X-Quire-Key": TOKEN, "X-Request-Id": "7"}
        assert (await client.post("/v1/chat/completions", json=BODY, headers=headers)).status_code == 200
        assert "canary" not in sent_values(up)
        assert up.requests[0].headers["x-request-id"] == "7"


async def test_a_clients_credentials_go_upstream_with_a_key_in_its_own_header_and_stay_nowhere(
    store: SqlStore, admin_url: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("DEBUG")
    key = await create_key_for(store, "default")
    async with run_fake_upstream(respond_with_text("Yes.")) as up:
        upstreams = {"*": {"base_url": up.url, "credentials": "client"}}
        async with run_gateway(store, up.url, upstreams=upstreams) as harness:
            del harness.http.headers["Authorization"]
            answer = await harness.http.post(
                "/v1/chat/completions", json=BODY, headers={**OWN_CREDENTIALS, "X-Quire-Key": key}
            )
            assert answer.status_code == 200, answer.text
            sent = up.requests[0].headers
            assert {name: sent[name.lower()] for name in OWN_CREDENTIALS} == OWN_CREDENTIALS
            assert key not in sent_values(up)
            models = await harness.http.get("/v1/models", headers={**OWN_CREDENTIALS, "X-Quire-Key": key})
            assert models.status_code == 200
            assert "canary" not in "".join([answer.text, *answer.headers.values(), models.text])
    dump = dump_database(admin_url)
    assert contains_text(dump, "Hello")
    assert not contains_text(dump, "canary")
    assert "canary" not in caplog.text


@pytest.mark.parametrize(
    ("headers", "recipients"),
    [
        ({"Authorization": "Bearer sk-ant-oat01-own"}, ["anthropic"]),
        ({"x-api-key": "sk-ant-own"}, ["anthropic"]),
        ({"Authorization": "Bearer own", "anthropic-version": "2023-06-01"}, ["anthropic"]),
        ({"Authorization": "Bearer sk-own"}, ["openai"]),
    ],
)
async def test_a_list_of_models_sends_credentials_to_their_own_provider_only(
    store: SqlStore, headers: dict[str, str], recipients: list[str]
):
    key = await create_key_for(store, "default")
    sent: list[str] = []

    def list_as(name: str):
        async def respond(request: UpstreamRequest) -> None:
            assert request.path.endswith("/models")
            sent.append(name)
            await request.respond({"data": [{"id": f"{name}-1"}]})

        return respond

    async with (
        run_fake_upstream(list_as("anthropic")) as anthropic,
        run_fake_upstream(list_as("openai")) as openai,
        run_fake_upstream(list_as("other")) as other,
    ):
        upstreams: dict[str, Any] = {
            "anthropic-*": {"base_url": anthropic.url, "credentials": "client", "speaks": ["messages"]},
            "openai-*": {"base_url": openai.url, "credentials": "client", "speaks": ["responses", "chat"]},
        }
        async with run_gateway(store, anthropic.url, base_url=None, upstreams=upstreams) as harness:
            del harness.http.headers["Authorization"]
            for path in ("/v1/models", "/v1/models/openai-1"):
                await harness.http.get(path, headers={**headers, "X-Quire-Key": key})
            assert sent == recipients * 2
            sent.clear()
        # With a second provider of the same format, nothing tells whose credentials they are.
        upstreams["other-*"] = {"base_url": other.url, "credentials": "client", "speaks": ["chat"]}
        async with run_gateway(store, anthropic.url, base_url=None, upstreams=upstreams) as harness:
            del harness.http.headers["Authorization"]
            await harness.http.get("/v1/models", headers={**headers, "X-Quire-Key": key})
            assert sent == (recipients if recipients == ["anthropic"] else [])


async def test_a_key_in_the_place_of_a_clients_credentials_is_refused(store: SqlStore):
    async with run_fake_upstream(respond_with_text("Yes.")) as up:
        upstreams = {"*": {"base_url": up.url, "credentials": "client"}}
        async with run_gateway(store, up.url, upstreams=upstreams) as harness:
            answer = await harness.http.post("/v1/chat/completions", json=BODY)
            assert (answer.status_code, answer.json()["code"]) == (401, "invalid_key")
            assert "X-Quire-Key" in answer.text
            assert (await harness.http.get("/v1/models")).json()["data"] == []
            assert not up.requests


@pytest.mark.parametrize("name", ["Authorization", "x-api-key", "api-key", "X-Own"])
async def test_a_key_of_ours_never_goes_upstream_from_a_local_client(store: SqlStore, name: str):
    key = await create_key_for(store, "default")
    value = f"Bearer {key}" if name == "Authorization" else key
    async with run_fake_upstream(respond_with_text("Yes.")) as up, run_local_gateway(store, up.url) as client:
        headers = {name: value, "Cookie": cookie_header(client)}
        assert (await client.post("/v1/chat/completions", json=BODY, headers=headers)).status_code == 200
        assert key not in sent_values(up)


@pytest.mark.parametrize("name", ["Authorization", "x-api-key", "api-key"])
async def test_a_key_is_read_from_each_of_its_headers_and_not_forwarded(store: SqlStore, name: str):
    key = await create_key_for(store, "other")
    async with run_fake_upstream(respond_with_text("Yes.")) as up, run_gateway(store, up.url) as harness:
        del harness.http.headers["Authorization"]
        headers = {
            name: f"Bearer {key}" if name == "Authorization" else key,
            "X-Own": f"key={key}",
            "X-Request-Id": "7",
        }
        answer = await harness.http.post("/v1/chat/completions", json=BODY, headers=headers)
        assert answer.status_code == 200, answer.text
        assert key not in sent_values(up)
        assert up.requests[0].headers["x-request-id"] == "7"


# other request headers

DROPPED_REQUEST_HEADERS = {
    "Connection": "keep-alive, X-Hop", "X-Hop": "1", "Keep-Alive": "timeout=5", "TE": "trailers",
    "Content-Encoding": "identity", "Accept-Encoding": "gzip", "X-Real-IP": "10.1.2.3", "X-Client-IP": "10.1.2.3",
    "True-Client-IP": "10.1.2.3", "CF-Connecting-IP": "10.1.2.3", "Via": "1.1 proxy", "Forwarded": "for=10.1.2.3",
    "X-Forwarded-For": "10.1.2.3", "Proxy-Authorization": "Basic eA==", "X-Amz-Security-Token": "aws",
    "X-Vault-Token": "hvs", "X-OpenWebUI-User-Email": "a@b.example", "X-Own": "1", "Baggage": "user=7",
    "Referer": "http://page/", "Sec-Fetch-Mode": "cors", "X-Quire-Other": "1", "Cookie": "a=b",
}  # fmt: skip


async def test_headers_of_the_connection_and_of_the_client_stay_here(store: SqlStore):
    async with run_fake_upstream(respond_with_text("Yes.")) as up, run_gateway(store, up.url) as harness:
        headers = {**DROPPED_REQUEST_HEADERS, "X-Title": "Gr\u00fc\u00dfe".encode()}
        answer = await harness.http.post("/v1/chat/completions", json=BODY, headers=headers)
        assert answer.status_code == 200, answer.text
        [request] = up.requests
        assert request.headers.pop("accept-encoding") == "identity"
        assert "x-title" in request.headers
        dropped = {name.lower() for name in DROPPED_REQUEST_HEADERS} - {"connection"}
        assert not dropped & request.headers.keys()
        assert "x-hop" not in request.headers.get("connection", "").lower()


async def test_every_connection_header_is_read(store: SqlStore):
    async with run_fake_upstream(respond_with_text("Yes.")) as up, run_gateway(store, up.url) as harness:
        headers = [("Connection", "x-app"), ("Connection", "keep-alive , X-Title"), ("X-App", "1"), ("X-Title", "2")]
        answer = await harness.http.post("/v1/chat/completions", json=BODY, headers=headers)
        assert answer.status_code == 200
        assert not {"x-app", "x-title"} & up.requests[0].headers.keys()


AGENT_HEADERS: dict[WireFormatName, dict[str, str]] = {
    "messages": {
        "accept": "application/json", "user-agent": "claude-cli/2.1.325 (external, sdk-cli)",
        "x-claude-code-session-id": "s", "x-claude-code-agent-id": "a", "x-stainless-arch": "x64",
        "x-stainless-retry-count": "0", "x-stainless-timeout": "600", "anthropic-beta": "claude-code-20250219",
        "anthropic-dangerous-direct-browser-access": "true", "anthropic-version": "2023-06-01", "x-app": "cli",
    },
    "responses": {
        "accept": "text/event-stream", "originator": "codex_exec", "session-id": "s", "thread-id": "t",
        "user-agent": "codex_exec/0.166.0", "x-client-request-id": "t", "x-codex-beta-features": "b",
        "x-codex-turn-metadata": "{}", "x-codex-window-id": "w", "x-codex-turn-state": "s",
        "x-openai-subagent": "review",
    },
    "chat": {
        "accept": "application/json", "user-agent": "AsyncOpenAI/Python 3.49.0", "x-stainless-lang": "python",
        "idempotency-key": "k", "traceparent": "00-1-2-01", "openai-beta": "assistants=v2", "x-session-affinity": "s",
        "http-referer": "https://app.example", "x-title": "App", "x-openrouter-categories": "cli",
    },
    "gemini": {
        "accept": "*/*", "user-agent": "GeminiCLI-tui/0.61.0/gemini-2.5-pro (linux; x64; terminal)",
        "x-goog-api-client": "google-genai-sdk/1.30.0 gl-node/v20.20.2",
    },
}  # fmt: skip
"""What Claude Code 2.1.325, Codex 0.166.0, Gemini CLI 0.61.0 and the SDKs with OpenRouter's headers send."""


@pytest.mark.parametrize("format_name", get_args(WireFormatName))
def test_an_upstream_gets_all_headers_of_known_agents(format_name: WireFormatName):
    headers = AGENT_HEADERS[format_name]
    assert filter_request_headers(Headers(headers), Upstream(base_url="http://up")) == headers


@pytest.mark.parametrize("name", ["OpenAI-Organization", "OpenAI-Project"])
async def test_account_headers_do_not_go_with_the_operators_key(store: SqlStore, name: str):
    async with run_fake_upstream(respond_with_text("Yes.")) as up:
        upstreams = {"*": {"base_url": up.url, "api_key_env": "UP_KEY"}}
        async with run_gateway(store, up.url, upstreams=upstreams) as harness:
            answer = await harness.http.post("/v1/chat/completions", json=BODY, headers={name: "org-of-the-client"})
            assert answer.status_code == 200
            assert up.requests[0].headers["authorization"] == "Bearer sk-up"
            assert name.lower() not in up.requests[0].headers


# calls by wire format


def build_call(format_name: WireFormatName, path: str, *, base_url: str, **options: Any) -> UpstreamCall:
    """Builds a call with the operator's key, for a client with headers of every kind."""
    headers = Headers({"anthropic-beta": "new-1", "x-stainless-os": "Linux", "openai-beta": "b", "x-request-id": "7"})
    state: Any = SimpleNamespace(environ={"UP_KEY": "sk-up"}, http_client=None)
    upstream = Upstream(base_url=base_url, api_key_env="UP_KEY")
    caller = Caller("default", "k", frozenset())
    return build_upstream_call(
        upstream, CODECS[format_name], path, server_state=state, caller=caller, headers=headers, **options
    )


@pytest.mark.parametrize(
    ("format_name", "path", "base_url", "url"),
    [
        ("chat", "chat/completions", "http://up/v1", "http://up/v1/chat/completions"),
        ("responses", "responses", "http://up/v1/", "http://up/v1/responses"),
        ("responses", "responses", "http://up/backend-api/codex", "http://up/backend-api/codex/responses"),
        ("responses", "responses/resp_1/cancel", "http://up/v1", "http://up/v1/responses/resp_1/cancel"),
        ("messages", "messages", "http://up", "http://up/v1/messages"),
        ("gemini", "models/m:generateContent", "http://up", "http://up/v1beta/models/m:generateContent"),
        ("gemini", "models/m:countTokens", "http://up/v1beta/", "http://up/v1beta/models/m:countTokens"),
        ("messages", "messages", "http://up/v1/", "http://up/v1/messages"),
        ("messages", "messages/count_tokens", "http://up/anthropic", "http://up/anthropic/v1/messages/count_tokens"),
    ],
)
def test_the_address_of_a_call_follows_its_wire_format(format_name: WireFormatName, path: str, base_url: str, url: str):
    assert build_call(format_name, path, base_url=base_url).url == url
    assert build_call(format_name, path, base_url=base_url, query="beta=true").url == f"{url}?beta=true"


def test_a_key_in_the_query_does_not_go_upstream():
    query = f"key=quire_{'a' * 26}_{'b' * 43}"
    assert build_call("chat", "chat/completions", base_url="http://up/v1", query=query).url.endswith("/completions")


@pytest.mark.parametrize("format_name", get_args(WireFormatName))
def test_the_operators_key_goes_where_the_wire_format_has_it(format_name: WireFormatName):
    sent = build_call(format_name, CODECS[format_name].create_path, base_url="http://up").headers
    names = {"messages": "x-api-key", "gemini": "x-goog-api-key"}
    key = {names[format_name]: "sk-up"} if format_name in names else {"authorization": "Bearer sk-up"}
    assert {name: sent[name] for name in (*names.values(), "authorization") if name in sent} == key
    assert (sent["anthropic-beta"], sent["openai-beta"], sent["x-stainless-os"]) == ("new-1", "b", "Linux")
    assert "anthropic-version" not in sent


@pytest.mark.parametrize("format_name", get_args(WireFormatName))
def test_a_translated_request_has_no_headers_of_the_clients_format(format_name: WireFormatName):
    sent = build_call(format_name, CODECS[format_name].create_path, base_url="http://up", is_translated=True).headers
    assert sent["x-request-id"] == "7"
    assert not {"anthropic-beta", "openai-beta", "x-stainless-os"} & sent.keys()
    assert sent.get("anthropic-version") == ("2023-06-01" if format_name == "messages" else None)


# response headers


@pytest.mark.parametrize("stream", [False, True])
async def test_response_headers_are_filtered_by_name(store: SqlStore, stream: bool):
    passed = {
        "X_Request_Id": "up-9", "Request_Id": "req_1", "Anthropic_Ratelimit_Tokens_Remaining": "5", "Retry_After": "1",
        "OpenAI_Processing_Ms": "3", "X_Codex_Turn_State": "s", "X_Reasoning_Included": "true",
    }  # fmt: skip
    dropped = {
        "X_Hop": "1", "Keep_Alive": "timeout=5", "Set_Cookie": "a=b", "Server": "up", "X_Quire_Recorded": "no",
        "Access_Control_Allow_Origin": "*", "Strict_Transport_Security": "max-age=1", "Alt_Svc": "h3",
    }  # fmt: skip

    async def respond(request: UpstreamRequest) -> None:
        body: object = make_completion("Yes.")
        kind = {}
        if stream:
            kind = {"content_type": "text/event-stream"}
            chunk = b'data: {"choices":[{"index":0,"delta":{"content":"Yes."},"finish_reason":"stop"}]}\n\n'
            body = chunk + b"data: [DONE]\n\n"
        await request.respond(body, 200, Connection="X-Hop", X_Note="日本", **passed, **dropped, **kind)

    async with run_fake_upstream(respond) as up, run_gateway(store, up.url) as harness:
        answer = await harness.ask(user_message("Hello"), stream=stream)
        assert answer.status_code == 200, answer.text
        assert {name: answer.headers[name.replace("_", "-")] for name in passed} == passed
        assert (b"x-note", "日本".encode()) in answer.headers.raw
        for name, value in dropped.items():
            assert answer.headers.get(name.replace("_", "-")) != value, name


# conversation IDs


@pytest.mark.parametrize("conversation", ["日本", "a b", "50%", "%41", "é", "line\nbreak", "x" * 200])
async def test_any_conversation_id_can_be_used_in_headers(store: SqlStore, conversation: str):
    await store.create_conversation(conversation)
    async with run_fake_upstream(respond_with_text("Yes.")) as up, run_gateway(store, up.url) as harness:
        first = await harness.ask(user_message("Hello"), x_quire_conversation=quote(conversation))
        assert first.status_code == 200, first.text
        header = first.headers["x-quire-conversation"]
        second = await harness.ask(user_message("And?"), x_quire_conversation=header)
        assert second.headers["x-quire-conversation"] == header
        assert len(up.requests) == 2
        assert len(await harness.load_messages(conversation)) == 4


async def test_a_conversation_id_may_arrive_as_plain_utf_8(store: SqlStore):
    async with run_fake_upstream(respond_with_text("Yes.")) as up, run_gateway(store, up.url) as harness:
        headers = [(b"x-quire-conversation", "日本".encode())]
        answer = await harness.http.post("/v1/chat/completions", json=BODY, headers=headers)
        assert answer.headers["x-quire-conversation"] == quote("日本")
        assert len(await harness.load_messages("日本")) == 2


@pytest.mark.parametrize(
    "header",
    [
        b"%FF",
        b"\xff",
        b"%00",
        b"",
        b"x" * (MAX_CONVERSATION_ID_CHARS + 1),
        b"%41" * (MAX_CONVERSATION_HEADER_CHARS // 3 + 1),
    ],
)
async def test_an_invalid_conversation_id_is_refused_before_the_upstream_is_called(store: SqlStore, header: bytes):
    async with run_fake_upstream(respond_with_text("Yes.")) as up, run_gateway(store, up.url) as harness:
        headers = [(b"x-quire-conversation", header)]
        answer = await harness.http.post("/v1/chat/completions", json=BODY, headers=headers)
        assert answer.status_code in (400, 422), answer.text
        assert not up.requests


@pytest.mark.parametrize(("branch", "status"), [("0", 200), ("", 422), ("x", 422), ("-1", 422), (str(2**31), 422)])
async def test_an_invalid_branch_is_refused_before_the_upstream_is_called(store: SqlStore, branch: str, status: int):
    async with run_fake_upstream(respond_with_text("Yes.")) as up, run_gateway(store, up.url) as harness:
        await harness.http.post("/v1/chat/completions", json=BODY, headers={"x-quire-conversation": "c"})
        headers = {"x-quire-conversation": "c", "x-quire-branch": branch}
        answer = await harness.http.post("/v1/chat/completions", json=BODY, headers=headers)
        assert (answer.status_code, len(up.requests)) == (status, 2 if status == 200 else 1), answer.text


IDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=200)


@given(IDS)
def test_a_conversation_header_is_ascii_and_decodes_to_the_id(conversation: str):
    header = encode_conversation_header(conversation)
    assert header.isascii()
    assert header.isprintable()
    assert header == header.strip()
    assert len(header) <= MAX_CONVERSATION_HEADER_CHARS
    assert decode_conversation_header(header) == conversation


@given(st.text(st.characters(max_codepoint=255)))
def test_a_conversation_header_is_decoded_or_refused(header: str):
    try:
        conversation = decode_conversation_header(header)
    except InvalidRequest:
        return
    assert 0 < len(conversation) <= MAX_CONVERSATION_ID_CHARS
