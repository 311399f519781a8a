"""A real server accepts the items of OpenAI's Responses format, and its replies go back to it."""

from typing import Any

import httpx2
import pytest

from quire.model import Message, TextPart, ToolCallPart, ToolDefinition, ToolResultPart
from quire.wire import Reply, wire_format_for
from shared_local_model import LocalModelAddress

pytestmark = [pytest.mark.nightly, pytest.mark.real_model]

WIRE_FORMAT = wire_format_for("responses")
TOOL = ToolDefinition(name="look", description="Looks.", parameters={"properties": {"q": {"type": "string"}}})
CALL = ToolCallPart(id="1", name="look", arguments='{"q":"a"}')
TEXTS = (TextPart(text="a"), TextPart(text="b"))
PARSED_MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}] * 2}


async def send(local_model: LocalModelAddress, *history: Message) -> Reply:
    body = WIRE_FORMAT.build_payload(
        model=local_model.name,
        system="Be brief.",
        tools=[WIRE_FORMAT.render_tool(TOOL)],
        messages=[item for message in history for item in WIRE_FORMAT.render_message(message)],
        max_tokens=8,
    )
    assert WIRE_FORMAT.check(body) == []
    async with httpx2.AsyncClient(timeout=120) as client:
        response = await client.post(f"{local_model.url}/responses", json=body)
    assert response.status_code == 200, response.text
    return WIRE_FORMAT.parse_reply(response.json())


@pytest.mark.parametrize(
    "said",
    [
        [],
        [Message.assistant("Hello."), Message.user("And?")],
        [Message.system("Now in French."), Message.user("And?")],
        [Message(role="assistant", parts=(*TEXTS, CALL)), Message.tool("1", "A")],
        [
            Message(role="assistant", parts=(CALL,)),
            Message(role="tool", parts=(ToolResultPart(call_id="1", content=TEXTS),)),
        ],
        [*WIRE_FORMAT.parse_messages([PARSED_MESSAGE]), Message.user("And?")],
        [*WIRE_FORMAT.parse_messages([{**PARSED_MESSAGE, "id": "msg_1", "status": "completed"}]), Message.user("And?")],
    ],
    ids=["question", "answer", "system", "call", "output list", "content list", "ids"],
)
async def test_every_item_is_accepted(local_model: LocalModelAddress, said: list[Any]):
    reply = await send(local_model, Message.user("Hi."), *said)
    assert reply.usage is not None
    assert reply.usage.input_tokens > 10
    assert reply.finish_reason == "completed"


async def test_a_reply_goes_back_to_the_server(local_model: LocalModelAddress):
    question = Message.user("Name a river. " * 10)
    first = await send(local_model, question)
    second = await send(local_model, question, first.message, Message.user("And another?"))
    assert first.message.text
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.cache_read_tokens > 0.8 * first.usage.input_tokens
