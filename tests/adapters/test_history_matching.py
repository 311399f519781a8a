"""Where a client's list continues: the gateway and the adapters decide it by the same rules."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from quire.engine import Engine, open_engine
from quire.model import Message, TextPart, ThinkingPart
from quire.proxy.framework_requests import ConversionCache, ConvertedMessage, store_messages
from quire.proxy.recognition import HeadScope, RequestedConversation, match_request
from quire.wire.codecs import CHAT

THOUGHT = Message(role="assistant", parts=(ThinkingPart(text="Hm."), TextPart(text="  a1 ")))
STORED = [Message.user("q1"), THOUGHT, Message.user("q2"), Message.assistant("a2")]
LISTS = {
    "the same list": [*STORED, Message.user("q3")],
    "a trimmed reply without its thinking": [STORED[0], Message.assistant("a1"), *STORED[2:], Message.user("q3")],
    "a summary, then new turns": [Message.user("summary: …"), Message.assistant("ok"), Message.user("q3")],
    "a summary, then the newest turns": [Message.user("summary: …"), *STORED[2:], Message.user("q3")],
    "a window on the newest turns": [*STORED[2:], Message.user("q3")],
    "only the question": [Message.user("q3")],
    "an edited question": [*STORED[:2], Message.user("another q2")],
    "a regenerated reply": STORED[:3],
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'quire.db'}"


async def match_by_gateway(engine: Engine, conversation: str, messages: Sequence[Message]) -> list[str]:
    body = {"model": "gpt-4o", "messages": [{"role": each.role, "content": each.text} for each in messages]}
    request = CHAT.parse_request(json.dumps(body).encode(), body)
    match = await match_request(
        engine.store, request, RequestedConversation(conversation), head_cache=None, scope=HeadScope("default", None)
    )
    opened = await engine.conversation(conversation, branch=match.branch)
    await opened.append(*messages[match.stored_end :])
    return await list_texts(engine, conversation, match.branch)


async def match_by_adapter(engine: Engine, conversation: str, messages: Sequence[Message]) -> list[str]:
    history = ConversionCache[Message](lambda message: [ConvertedMessage(message)]).convert(conversation, messages)
    return await list_texts(engine, conversation, (await store_messages(engine, conversation, history)).branch)


async def list_texts(engine: Engine, conversation: str, branch: int) -> list[str]:
    entries = await engine.store.read_range(conversation, branch=branch, kinds=["message"])
    return [f"branch {branch}", *(entry.message.text.strip() for entry in entries)]


@pytest.mark.parametrize("name", LISTS)
async def test_the_gateway_and_the_adapters_continue_a_list_at_the_same_place(url: str, name: str):
    async with open_engine(url) as engine:
        for conversation in ("gateway", "adapter"):
            await (await engine.conversation(conversation)).append(*STORED)
        by_gateway = await match_by_gateway(engine, "gateway", LISTS[name])
        assert await match_by_adapter(engine, "adapter", LISTS[name]) == by_gateway
        assert (by_gateway[0] == "branch 0") == (name not in ("an edited question", "a regenerated reply"))


async def test_a_list_that_the_log_has_in_another_form_is_not_stored_twice(url: str):
    async with open_engine(url) as engine:
        await (await engine.conversation("c")).append(Message.user("q0"), Message.assistant("a0"), *STORED)
        messages = [Message.user("q0"), Message.assistant("a0"), STORED[0], Message.assistant("a1"), *STORED[2:]]
        stored = await match_by_adapter(engine, "c", messages)
        assert stored == ["branch 0", "q0", "a0", "q1", "a1", "q2", "a2"]
