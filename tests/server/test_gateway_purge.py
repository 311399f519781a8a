"""After a purge, nothing that a client, a model or a tool sent through the gateway is in a dump of the database."""

from typing import Any

import pytest
from gateway_fixtures import run_gateway, system_message, user_message

from fake_upstream import respond_with_text, run_fake_upstream
from infra.database_dump import contains_text, dump_database
from quire.store import SqlStore

pytestmark = pytest.mark.every_database

CANARY = "quetzal"
RECORDED = (
    "system", "question", "speaker", "toolname", "tooltext", "toolfield", "callid", "calledtool", "argument", "result",
    "imagetext", "answer", "reasoning",
)  # fmt: skip
"""Places of a request and its reply whose text the gateway records."""
FORWARDED = ("user", "metadata", "requestid", "agent", "stop", "schema")
"""Places whose text only goes to the upstream."""


def canary(place: str) -> str:
    assert place in (*RECORDED, *FORWARDED)
    return f"{CANARY}{place}"


def build_body() -> dict[str, Any]:
    schema = {"type": "object", "properties": {canary("toolfield"): {"type": "string"}}}
    function = {"name": canary("toolname"), "description": canary("tooltext"), "parameters": schema}
    call = {"name": canary("calledtool"), "arguments": f'{{"q":"{canary("argument")}"}}'}
    image = {"type": "image_url", "image_url": {"url": f"https://example.com/{canary('imagetext')}.png"}}
    return {
        "model": "gpt-4o",
        "messages": [
            system_message(canary("system")),
            user_message(canary("question")) | {"name": canary("speaker")},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": canary("callid"), "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": canary("callid"), "content": canary("result")},
            {"role": "user", "content": [{"type": "text", "text": "And this?"}, image]},
        ],
        "tools": [{"type": "function", "function": function}],
        "user": canary("user"),
        "metadata": {"x": canary("metadata")},
        "stop": [canary("stop")],
        "response_format": {"type": "json_schema", "json_schema": {"name": canary("schema"), "schema": {}}},
    }


async def test_a_purged_conversation_of_the_gateway_is_in_no_dump(store: SqlStore, admin_url: str):
    reply = respond_with_text({"content": canary("answer"), "reasoning_content": canary("reasoning")})
    async with run_fake_upstream(reply) as upstream, run_gateway(store, upstream.url) as gateway:
        answer = await gateway.post(build_body(), x_request_id=canary("requestid"), user_agent=canary("agent"))
        assert answer.status_code == 200, answer.text
        conversation = answer.headers["x-quire-conversation"]
        dump = dump_database(admin_url)
        assert [place for place in RECORDED if not contains_text(dump, canary(place))] == []
        assert [place for place in FORWARDED if contains_text(dump, canary(place))] == []
        await store.purge(conversation)
        assert not contains_text(dump_database(admin_url), CANARY)
        assert await store.verify_conversation(conversation) == []
