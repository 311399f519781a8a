"""Anthropic's Messages wire format: every kind of block comes back unchanged, and any history makes a valid request."""

import copy
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import is_typeddict

from infra.strategies import texts
from payload_oracle import count_payload
from quire.model import Message, TextPart, ThinkingPart, ToolCallPart
from quire.model.base import JsonObject
from quire.wire.labels import label_text
from quire.wire.messages.parse import parse_messages
from quire.wire.messages.render import AnthropicMessagesFormat
from quire.wire.tokens import estimating_counter

anthropic_types = pytest.importorskip("anthropic.types")
beta_types = pytest.importorskip("anthropic.types.beta")

wire_format = AnthropicMessagesFormat()
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}

SAMPLES: dict[str, Any] = {
    "url": "https://example.com/a.pdf",
    "text": "words",
    "data": "QUJD",
    "input": {"q": [1, None]},
}


def sample_values(kind: Any, name: str = "") -> list[Any]:
    """Values of a type of the SDK: each member of a union, and each optional field, is in at least one of them."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if name in SAMPLES:
        return [SAMPLES[name]]
    if origin is typing.Literal:
        return list(arguments)
    if origin is typing.Union:
        return [value for each in arguments if each is not type(None) for value in sample_values(each, name)]
    if is_typeddict(kind):
        return _sample_objects(kind)
    if origin is not None and issubclass(origin, dict):
        return [{"key": "value"}]
    if origin is not None:
        return [sample_values(arguments[0])]
    return [{str: "sample", bool: True, int: 3, float: 0.5}.get(kind, {"key": "value"})]


def _sample_objects(kind: Any) -> list[dict[str, Any]]:
    hints = {
        name: hint for name, hint in typing.get_type_hints(kind).items() if name not in ("cache_control", "is_error")
    }
    choices = {name: sample_values(hint, name) for name, hint in hints.items()}
    count = max(map(len, choices.values()))
    return [{name: values[index % len(values)] for name, values in choices.items()} for index in range(count)]


def list_block_types() -> list[Any]:
    unions = (anthropic_types.ContentBlockParam, beta_types.BetaContentBlockParam)
    return list(dict.fromkeys(kind for union in unions for kind in typing.get_args(union) if is_typeddict(kind)))


def role_of(block: dict[str, Any]) -> str:
    user_types = ("image", "document", "search_result", "tool_result", "container_upload")
    return "user" if block["type"] in user_types else "assistant"


def normalize(block: dict[str, Any]) -> dict[str, Any]:
    """The content of a result as a list: a text and a list with that text are the same to the API."""
    content = block.get("content")
    if block["type"] != "tool_result" or not isinstance(content, str):
        return block
    return {**block, "content": [{"type": "text", "text": content}]}


def mark(value: Any) -> Any:
    """The block with a cache marker on itself and on the blocks in it."""
    if not isinstance(value, dict) or "type" not in value:
        return value
    content = value.get("content")
    nested = {"content": [mark(inner) for inner in content]} if isinstance(content, list) else {}
    return {**value, **nested, **EPHEMERAL}


@pytest.mark.parametrize("kind", list_block_types(), ids=lambda kind: kind.__name__)
def test_every_kind_of_block_comes_back_unchanged_without_its_markers(kind: Any):
    for block in sample_values(kind):
        raw = {"role": role_of(block), "content": [block, {"type": "text", "text": "end"}]}
        expected = [{**raw, "content": [normalize(block), raw["content"][1]]}]
        for given_raw in (raw, {**raw, "content": [mark(each) for each in raw["content"]]}):
            before = copy.deepcopy(given_raw)
            parsed = parse_messages([given_raw])
            stored = [Message.parse(message.canonical_json()) for message in parsed]
            rendered = [wire_message for message in stored for wire_message in wire_format.render_message(message)]
            payload = wire_format.build_payload(model="m", system=None, tools=[], messages=rendered, max_tokens=None)
            sent = [message for message in payload["messages"] if not isinstance(message["content"], str)]
            assert sent == expected
            assert given_raw == before


def test_the_samples_cover_the_kinds_that_the_specification_names():
    kinds = {block["type"] for kind in list_block_types() for block in sample_values(kind)}
    assert kinds >= {
        *("text", "image", "document", "search_result", "thinking", "redacted_thinking", "tool_use", "tool_result"),
        *("server_tool_use", "web_search_tool_result", "container_upload", "compaction", "tool_addition"),
        *("mcp_tool_use", "mcp_tool_result", "tool_search_tool_result", "bash_code_execution_tool_result"),
    }


def test_the_key_of_a_marker_in_a_calls_input_is_data():
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {"cache_control": 1, "content": [EPHEMERAL]}}
    [message] = parse_messages([{"role": "assistant", "content": [call]}])
    assert wire_format.render_message(message) == [{"role": "assistant", "content": [call]}]


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Rain."}, "title": "w"},
            label_text("document", "Rain.", name="w"),
        ),
        (
            {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "Rain."}]}},
            label_text("document", "Rain."),
        ),
        (
            {"type": "search_result", "source": "x", "title": "w", "content": [{"type": "text", "text": "Rain."}]},
            label_text("document", "Rain.", title="w", link="x"),
        ),
        ({"type": "tool_reference", "tool_name": "f"}, "[tool_reference: f]"),
        ({"type": "compaction", "content": None}, "[compaction]"),
        ({"type": "new_block", "x": 1}, "[new_block]"),
    ],
)
def test_other_providers_get_the_text_of_a_block_or_its_type(block: dict[str, Any], text: str):
    [message] = parse_messages([{"role": "user", "content": [block]}])
    assert message.text == text


def make_system_message(words: str, fields: dict[str, Any]) -> Message:
    return parse_messages([{"role": "system", "content": words, **fields}])[0]


def system_messages() -> st.SearchStrategy[list[Message]]:
    fields = st.sampled_from([{}, {"output_config": {"effort": "low"}}, {"clear_at": "next_user_message"}])
    native = st.builds(make_system_message, texts(max_size=20), fields)
    return st.lists(native | st.builds(Message.system, texts(max_size=20)), max_size=2)


@st.composite
def steps(draw: st.DrawFn, number: int) -> list[Message]:
    """The user's messages, a reply, and the results of its calls, with system messages anywhere but before results."""
    spoken = [Message.user(words) for words in draw(st.lists(texts(max_size=20), max_size=2))]
    calls = [ToolCallPart(id=f"call_{number}_{n}", name="f") for n in range(draw(st.integers(0, 2)))]
    searched: JsonObject = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    compacted: JsonObject = {"type": "compaction", "content": "They talked."}
    parts = draw(
        st.lists(
            st.sampled_from(
                [
                    TextPart(text="x"),
                    ThinkingPart(text="hm", signature="s"),
                    TextPart(text="[searched]", provider_fields={"messages": searched}),
                    TextPart(text="[compaction]", provider_fields={"messages": compacted}),
                ]
            ),
            max_size=3,
        )
    )
    reply = Message(role="assistant", parts=(*parts, *calls))
    results = [Message.tool(call.id, draw(texts(max_size=20)), is_error=draw(st.booleans())) for call in calls]
    return [*spoken, *draw(system_messages()), reply, *results, *draw(system_messages())]


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    messages = [message for number in range(draw(st.integers(0, 4))) for message in draw(steps(number))]
    return [*draw(system_messages()), *messages, Message.user("And?"), *draw(system_messages())]


@given(histories())
def test_any_history_makes_a_valid_request_with_the_tokens_of_its_messages(history: list[Message]):
    apart = [wire_format.render_message(message) for message in history]
    before = copy.deepcopy(apart)
    wire_messages = [wire_message for some in apart for wire_message in some]
    payload = wire_format.build_payload(model="m", system=None, tools=[], messages=wire_messages, max_tokens=None)
    assert wire_format.check(payload) == []
    counter = estimating_counter()
    tokens = wire_format.request_overhead + sum(wire_format.count_messages(some, counter) for some in apart)
    assert count_payload(wire_format, payload, counter) == tokens
    assert apart == before


@given(histories())
def test_a_valid_request_comes_back_to_the_same_messages(history: list[Message]):
    wire_messages = [wire_message for message in history for wire_message in wire_format.render_message(message)]
    request = {"model": "m", "system": None, "tools": [], "max_tokens": None}
    payload = wire_format.build_payload(messages=wire_messages, **request)
    parsed = parse_messages(payload["messages"], split_results=True)
    assert all(len(message.parts) == 1 for message in parsed if message.role == "tool")
    again = [wire_message for message in parsed for wire_message in wire_format.render_message(message)]
    rebuilt = wire_format.build_payload(messages=again, **request)["messages"]
    assert [_with_blocks(message) for message in rebuilt] == [_with_blocks(message) for message in payload["messages"]]


def _with_blocks(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    return {**message, "content": [{"type": "text", "text": content}] if isinstance(content, str) else content}
