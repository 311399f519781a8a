"""Calls for titles and the like: recognized by headers and by the lack of tools, not by words."""

import json
from typing import Any

import pytest

from quire.proxy.client_origin import find_origin
from quire.settings import Settings
from quire.wire.responses.codec import ResponsesCodec

TOOL = {"type": "function", "name": "exec", "parameters": {"type": "object"}}


def make_item(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


@pytest.mark.parametrize(
    ("thread_source", "tools", "purpose"),
    [("thread_title", [], "side"), ("user", [], None), (None, [], None), ("thread_title", [TOOL], None)],
)
def test_codex_names_what_began_a_thread(thread_source: str | None, tools: list[Any], purpose: str | None):
    """The context before the prompt grows with a person's rules and skills, so its length says little."""
    turn = {"agent_name": "/root", **({"thread_source": thread_source} if thread_source else {})}
    headers = {"session-id": "s", "thread-id": "s", "x-codex-turn-metadata": json.dumps(turn)}
    body = {"model": "m", "tools": tools, "input": [make_item(f"Context {n}.") for n in range(5)]}
    body["input"].insert(2, {**make_item("Be brief."), "role": "developer"})
    body["input"].insert(4, {**make_item("Be kind."), "role": "developer"})
    request = ResponsesCodec().parse_request(json.dumps(body).encode(), body)
    assert len(request.messages) > 3
    origin = find_origin(headers, request, session_headers=Settings().session_headers)
    assert origin is not None
    assert origin.purpose == purpose
