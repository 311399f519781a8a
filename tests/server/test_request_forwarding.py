"""How the gateway forwarded each request, in the list of a conversation's requests."""

from typing import Any

from gateway_fixtures import GatewayHarness, run_gateway

from infra.agent_sessions import create_agent_sessions
from quire.store import DEFAULT_TENANT, SqlStore

UNUSED_URL = "http://127.0.0.1:9/v1"


async def list_forwardings(harness: GatewayHarness, conversation: str) -> list[dict[str, Any]]:
    answer = await harness.http.get(f"/api/conversations/{conversation}/requests")
    return [each["forwarding"] for each in answer.raise_for_status().json()["items"]]


async def test_requests_say_where_a_client_compacted_and_what_was_dropped(store: SqlStore):
    sessions = await create_agent_sessions(store)
    async with run_gateway(store, UNUSED_URL) as harness:
        forwardings = await list_forwardings(harness, sessions.claude_code)
        translated = await list_forwardings(harness, sessions.codex)
    assert [each["form"] for each in forwardings] == ["unchanged"] * 6
    starts = [(each["unrecorded_messages"], each["first_message"]) for each in forwardings]
    assert starts == [(0, 1)] * 4 + [(1, 9)] * 2
    assert {each["form"] for each in translated} == {"translated"}
    assert all("tools[web_search]" in each["dropped"] for each in translated)


async def test_a_request_of_quires_own_was_not_forwarded(store: SqlStore):
    async with run_gateway(store, UNUSED_URL) as harness:
        record = await store.create_conversation()
        conversation = await harness.server_state.engine_for(DEFAULT_TENANT).conversation(record.id)
        await conversation.record("Slowly.", request=await conversation.prepare("How does the wheel turn?"))
        assert await list_forwardings(harness, record.id) == [None]
