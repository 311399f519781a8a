"""Cache markers in requests of Anthropic's Messages format."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payload_oracle import count_payload
from quire.model import Message, TextPart, ThinkingPart
from quire.wire import WireMessage
from quire.wire.messages.cache_markers import (
    MAX_BLOCK_DEPTH,
    MAX_CACHE_MARKERS,
    add_cache_markers,
    drop_cache_markers,
    list_cache_markers,
)
from quire.wire.messages.parse import parse_messages
from quire.wire.messages.render import AnthropicMessagesFormat
from quire.wire.tokens import estimating_counter

wire_format = AnthropicMessagesFormat()
MARKER = {"type": "ephemeral", "ttl": "5m"}
[NOTE] = parse_messages([{"role": "system", "content": "Be brief."}])
SPOKEN = Message.user("hi")
THOUGHTFUL = Message(role="assistant", parts=(TextPart(text="x"), ThinkingPart(text="hm", signature="s")))


def render(*messages: Message) -> list[WireMessage]:
    return [wire_message for message in messages for wire_message in wire_format.render_message(message)]


def build_payload(*messages: Message, **fields: Any) -> dict[str, Any]:
    rendered = render(*messages)
    payload = wire_format.build_payload(model="m", system=None, tools=[], messages=rendered, max_tokens=None)
    return {**payload, **fields}


def list_marked_texts(payload: dict[str, Any]) -> list[str]:
    return [
        block["text"]
        for message in payload["messages"]
        for block in message["content"]
        if isinstance(block, dict) and "cache_control" in block
    ]


def make_system(*ttls: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": ttl, "cache_control": {"type": "ephemeral", "ttl": ttl}} for ttl in ttls]


@pytest.mark.parametrize("stable", range(5))
def test_the_ends_of_the_stable_prefix_and_of_the_request_are_marked(stable: int):
    sent = [Message.user("0"), Message.user("1"), Message.assistant("2"), Message.user("3"), Message.user("4")]
    payload = build_payload(*sent)
    before = copy.deepcopy(payload)
    marked = add_cache_markers(payload, stable_prefix=render(*sent[:stable]), ttl="1h")
    assert list_marked_texts(marked) == ([str(stable - 1), "4"] if stable else ["4"])
    assert list_cache_markers(marked)[-1] == {"type": "ephemeral", "ttl": "1h"}
    assert payload == before
    assert len(list_marked_texts(add_cache_markers(payload, stable_prefix=render(*sent)))) == 1


def test_an_opener_is_part_of_the_stable_prefix():
    sent = [Message.assistant("0"), Message.user("1"), Message.user("2")]
    marked = add_cache_markers(build_payload(*sent), stable_prefix=render(*sent[:2]))
    assert list_marked_texts(marked) == ["1", "2"]
    assert list_marked_texts(add_cache_markers(build_payload(*sent), stable_prefix=[])) == ["2"]


def test_thinking_and_system_messages_are_not_marked():
    """The API rejects a marker on thinking, and not every gateway accepts one on a system message."""
    sent = [SPOKEN, Message(role="assistant", parts=(*THOUGHTFUL.parts, TextPart(text="y"))), Message.user("z"), NOTE]
    payload = build_payload(*sent)
    assert payload["messages"][-1]["role"] == "system"
    payload["messages"][1]["content"].pop()
    marked = add_cache_markers(payload, stable_prefix=payload["messages"][:2])
    assert list_marked_texts(marked) == ["x", "z"]


@pytest.mark.parametrize(
    ("fields", "marked_texts"),
    [
        ({"system": make_system("5m", "5m")}, ["a", "b"]),
        ({"system": make_system("5m", "5m"), "tools": [{"name": "f", "cache_control": MARKER}]}, ["a"]),
        ({"system": make_system("5m", "5m", "5m", "5m")}, []),
        ({"system": make_system("5m", "5m", "5m", "5m", "5m")}, []),
        ({"cache_control": MARKER}, ["a"]),
    ],
)
def test_markers_of_the_client_count_towards_the_limit(fields: dict[str, Any], marked_texts: list[str]):
    sent = [Message.user("a"), Message.assistant("x"), Message.user("b")]
    payload = add_cache_markers(build_payload(*sent, **fields), stable_prefix=render(sent[0]))
    assert list_marked_texts(payload) == marked_texts
    assert {key: payload[key] for key in fields} == fields


def test_a_block_with_a_marker_is_not_marked_again():
    part = TextPart(text="a", provider_fields={"messages": {"cache_control": {"type": "ephemeral"}}})
    payload = build_payload(Message(role="user", parts=(part,)))
    assert add_cache_markers(payload, stable_prefix=payload["messages"]) == payload


@pytest.mark.parametrize(("ttls", "expected"), [(("1h",), "1h"), (("1h", "5m"), "5m"), ((), "1h")])
def test_no_longer_lifetime_follows_a_shorter_one(ttls: tuple[str, ...], expected: str):
    payload = build_payload(SPOKEN, system=make_system(*ttls))
    marked = add_cache_markers(payload, stable_prefix=[], ttl="1h")
    assert marked["messages"][-1]["content"][-1]["cache_control"]["ttl"] == expected
    untimed = build_payload(SPOKEN, cache_control={"type": "ephemeral"})
    assert list_cache_markers(add_cache_markers(untimed, stable_prefix=render(SPOKEN), ttl="1h"))[0]["ttl"] == "5m"


def test_markers_are_found_and_dropped_in_nested_blocks():
    marker = {"cache_control": MARKER}
    inner = {"type": "text", "text": "x"}
    document = {"type": "document", "source": {"type": "content", "content": [inner]}}
    marked_document = {"type": "document", "source": {"type": "content", "content": [{**inner, **marker}]}, **marker}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [document, "odd"]}
    marked_result = {**result, "content": [marked_document, "odd"], **marker}
    assert drop_cache_markers(marked_result) == result
    payload = {"messages": [{"role": "user", "content": [marked_result]}], "system": "x", "tools": None}
    assert list_cache_markers(payload) == [MARKER] * 3


def test_the_search_ends_at_the_limit_of_the_depth():
    block: dict[str, Any] = {"type": "tool_result", "content": []}
    for _ in range(100_000):
        block = {"type": "tool_result", "content": [block], "cache_control": MARKER}
    assert len(list_cache_markers({"messages": [{"content": [block]}]})) == MAX_BLOCK_DEPTH + 1
    assert "cache_control" not in drop_cache_markers(block)
    while block["content"]:
        [block] = block.pop("content")


@given(
    st.lists(st.sampled_from([SPOKEN, THOUGHTFUL, NOTE, Message.assistant("x"), Message.system("y")]), max_size=8),
    st.integers(0, 8),
    st.lists(st.sampled_from(["5m", "1h"]), max_size=4).map(lambda ttls: sorted(ttls)),
    st.sampled_from(["5m", "1h"]),
)
def test_a_marked_request_is_valid_and_has_the_same_tokens(sent: list[Message], stable: int, ttls: list[str], ttl: Any):
    messages = [*sent, SPOKEN]
    payload = build_payload(*messages)
    marked = add_cache_markers(
        {**payload, "system": make_system(*ttls)}, stable_prefix=render(*messages[:stable]), ttl=ttl
    )
    assert wire_format.check(marked) == []
    assert len(ttls) <= len(list_cache_markers(marked)) <= MAX_CACHE_MARKERS
    del marked["system"]
    counter = estimating_counter()
    assert count_payload(wire_format, marked, counter) == count_payload(wire_format, payload, counter)
