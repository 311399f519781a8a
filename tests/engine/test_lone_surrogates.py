"""Lone surrogates, as programs leave them that cut a text within an emoji, at every entrance of a conversation."""

import json
from typing import Any

import pytest

from quire.engine import Engine, EngineConfig
from quire.engine.request import Document
from quire.llm import Prompt, Reply
from quire.model import Message, ToolCallPart
from quire.model.agents import Agent
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel

CUT: str = json.loads('"cut emoji \\ud83d"')
WHOLE = "cut emoji \ufffd"


def make_engine(store: SqlStore, **parts: Any) -> Engine:
    return Engine(store, EngineConfig.create(Settings(model="gpt-4o", context_limit=2_000), **parts))


def test_every_text_of_a_message_can_be_encoded():
    call = ToolCallPart(id=CUT, name=CUT, arguments=json.dumps({"a": CUT}, ensure_ascii=False))
    messages = [
        Message.user(CUT, name=CUT),
        Message.tool(CUT, CUT),
        Message(role="assistant", parts=(call,), provider_fields={CUT: [CUT, {"x": CUT}]}),
    ]
    for message in messages:
        message.canonical_json().encode()
        assert Message.parse(message.canonical_json()) == message
    assert messages[0].text == WHOLE
    pair = Message.user(json.loads('"\\ud83d"') + json.loads('"\\ude00"'))
    assert pair.text == "\U0001f600"


@pytest.mark.every_database
async def test_a_conversation_accepts_texts_that_were_cut_within_a_character(store: SqlStore):
    agent = Agent(name="helper", instructions=CUT)
    conversation = await make_engine(store, agent=agent).conversation("c")
    await conversation.append(CUT, Message.assistant(CUT))
    request = await conversation.prepare(CUT, documents=[Document(name=CUT, text=CUT)])
    json.dumps(request.to_chat(), ensure_ascii=False).encode()
    await conversation.record(CUT, request=request)
    outcome = await conversation.send("Go on.", model=ScriptedModel(f"reply {CUT}", name="gpt-4o"))
    assert outcome.text == f"reply {WHOLE}"
    assert await store.verify_conversation("c") == []


async def test_an_exception_of_a_summarizer_ends_no_request(store: SqlStore):
    class BrokenModel(ScriptedModel):
        async def complete(self, prompt: Prompt) -> Reply:
            raise KeyError("choices")

    conversation = await make_engine(store, summarizer=BrokenModel("never")).conversation("c")
    for number in range(40):
        await conversation.append(f"{number}: " + "word " * 40, Message.assistant("Noted."))
    request = await conversation.prepare("And now?")
    assert request.compactions
