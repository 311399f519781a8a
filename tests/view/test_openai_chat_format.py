"""OpenAI's Chat Completions wire format: rendering, token counts, checks and parsing."""

import copy
import json
import struct
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from infra.strategies import messages, texts
from payload_oracle import count_payload
from quire.errors import InvalidEntry
from quire.model import (
    FilePart,
    ImagePart,
    Message,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolDefinition,
    ToolResultPart,
)
from quire.wire import infer_wire_format, wire_format_for
from quire.wire.chat.render import OpenAIChatFormat
from quire.wire.media import PDF_PAGE_BYTES, PDF_PAGE_TOKENS, count_openai_image

BLOB = "ab" * 32
PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480) + bytes(8)
JPEG = (
    b"\xff\xd8\xff\xe0"
    + struct.pack(">H", 6)
    + bytes(4)
    + b"\xff\xc0"
    + struct.pack(">HBHH", 11, 8, 480, 640)
    + b"\x03"
)
GIF = b"GIF89a" + struct.pack("<HH", 640, 480) + bytes(4)
WEBP_X = b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + (639).to_bytes(3, "little") + (479).to_bytes(3, "little")
WEBP_L = b"RIFF\0\0\0\0WEBPVP8L" + bytes(4) + b"\x2f" + (639 | 479 << 14).to_bytes(4, "little") + bytes(5)
WEBP = b"RIFF\0\0\0\0WEBPVP8 " + bytes(10) + struct.pack("<HH", 640, 480)

wire_format = OpenAIChatFormat()


class CharacterCounter:
    """Counts characters, so that a test notices everything that is sent."""

    name = "characters"
    exact = True

    def count(self, text: str) -> int:
        return len(text)


COUNTER = CharacterCounter()
TOOL = ToolDefinition(name="look", description="Looks.", parameters={"type": "object", "properties": {"q": {}}})


def base64(data: bytes) -> str:
    return b64encode(data).decode()


def build_payload(*sent: Message, tools: tuple[ToolDefinition, ...] = (), system: str | None = None) -> dict[str, Any]:
    wire_messages = [wire_message for message in sent for wire_message in wire_format.render_message(message)]
    rendered = [wire_format.render_tool(tool) for tool in tools]
    return wire_format.build_payload(
        model="gpt-4o", system=system, tools=rendered, messages=wire_messages, max_tokens=None
    )


def make_call(id_: str, name: str = "look", arguments: str = "{}") -> ToolCallPart:
    return ToolCallPart(id=id_, name=name, arguments=arguments)


def test_a_conversation_with_parallel_calls():
    sent = (
        Message.user("What is in a and b?"),
        Message(
            role="assistant", parts=(TextPart(text="I look."), make_call("1", arguments='{ "q":"a"}'), make_call("2"))
        ),
        Message(
            role="tool",
            parts=(
                ToolResultPart(call_id="1", content=(TextPart(text="A"),)),
                ToolResultPart(call_id="2", content=(TextPart(text="broken"),), is_error=True),
            ),
        ),
    )
    payload = build_payload(*sent, tools=(TOOL,), system="Be brief.")
    assert payload == {
        "model": "gpt-4o",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is in a and b?"},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{ "q":"a"}'}},
                    {"id": "2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "1", "content": "A"},
            {"role": "tool", "tool_call_id": "2", "content": "broken"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "look",
                    "description": "Looks.",
                    "parameters": {"type": "object", "properties": {"q": {}}},
                },
            }
        ],
    }
    assert wire_format.check(payload) == []


def test_max_tokens_and_the_bare_name_of_the_model():
    payload = wire_format.build_payload(model="openai:gpt-4o", system=None, tools=[], messages=[], max_tokens=7)
    assert payload == {"model": "gpt-4o", "messages": [], "max_completion_tokens": 7}


def test_images_and_files_are_sent_as_data_or_described():
    parts = (
        TextPart(text="see"),
        ImagePart(blob=BLOB, media_type="image/gif", detail="low"),
        ImagePart(url="https://x/y.png"),
        ImagePart(url="file:///etc/passwd"),
        FilePart(blob=BLOB, name="a.pdf"),
        FilePart(url="https://x/b.docx", name="b.docx"),
    )
    message = Message(role="user", parts=parts)
    assert wire_format.render_message(message, load_blob=lambda digest: f"{digest[:4]}===")[0]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/gif;base64,abab===", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
        {"type": "text", "text": "[image: file:///etc/passwd]"},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,abab==="}},
        {"type": "text", "text": "[file: b.docx, https://x/b.docx]"},
    ]
    for load in (None, lambda _: None):
        unseen = wire_format.render_message(message, load_blob=load)[0]["content"]
        assert unseen[1] == {"type": "text", "text": "[image: image/gif, blob abababababab]"}
        assert unseen[4] == {"type": "text", "text": "[file: a.pdf, blob abababababab]"}


def test_a_picture_in_a_tools_result_is_named():
    result = ToolResultPart(
        call_id="1", content=(TextPart(text="done"), ImagePart(url=f"data:image/png;base64,{'A' * 999}"))
    )
    assert wire_format.render_message(Message(role="tool", parts=(result,)))[0]["content"] == [
        {"type": "text", "text": "done"},
        {"type": "text", "text": "[image: data:image/png;base64]"},
    ]


def test_thinking_is_not_sent_and_an_assistant_always_says_something():
    thought = ThinkingPart(text="hm", signature="s")
    assert wire_format.render_message(Message(role="assistant", parts=(thought,))) == [
        {"role": "assistant", "content": ""}
    ]
    assert wire_format.render_message(Message(role="assistant", parts=(thought, make_call("1"))))[0]["content"] is None


def test_only_this_providers_fields_are_sent_and_none_in_place_of_ours():
    provider: dict[str, Any] = {
        "chat": {"name": "eve", "role": "system", "tool_calls": [], "n": float("inf"), "l": [1.0, float("nan")]},
        "messages": {"x": 1},
        "flat": True,
    }
    text = TextPart(text="hi", provider_fields={"chat": {"cache_control": {"type": "ephemeral"}, "text": "forged"}})
    assert wire_format.render_message(Message(role="user", parts=(text,), provider_fields=provider, name="bob")) == [
        {
            "role": "user",
            "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}],
            "name": "bob",
            "l": [1.0],
        }
    ]


def test_a_speakers_name_goes_and_comes_back_without_the_signs_that_are_refused():
    assert wire_format.render_message(Message.user("hi", name="Fahim Khan")) == [
        {"role": "user", "content": "hi", "name": "Fahim_Khan"}
    ]
    assert wire_format.parse_messages([{"role": "user", "content": "hi", "name": "bob"}]) == [
        Message.user("hi", name="bob")
    ]


def test_names_that_would_be_refused_are_mapped_the_same_in_calls_and_definitions():
    tool = wire_format.render_tool(ToolDefinition(name="files.read", parameters={}))
    wire_message = wire_format.render_message(Message(role="assistant", parts=(make_call("", "files.read"),)))[0][
        "tool_calls"
    ][0]
    assert wire_message["function"]["name"] == tool["function"]["name"] != "files_read"
    assert tool["function"]["parameters"] == {"type": "object", "properties": {}}
    assert wire_format.render_message(Message.tool("", "x"))[0]["tool_call_id"] == wire_message["id"] != ""


def test_which_shape_a_model_takes():
    assert [infer_wire_format(model) for model in ("claude-opus-4", "anthropic:x", "Claude-3")] == ["messages"] * 3
    assert [infer_wire_format(model) for model in ("gpt-4o", "qwen3", "anthropic/claude-3")] == ["chat"] * 3
    assert (wire_format_for("chat").name, wire_format_for("messages").name) == ("chat", "messages")


# --- token counts ---


def test_what_a_request_costs_by_hand():
    sent = Message(role="assistant", parts=(TextPart(text="abc"), make_call("1", "look", "{}")))
    payload = build_payload(Message.user("hello"), sent, Message.tool("1", "12345"), system="sys")
    system, user, assistant, tool = 4 + 3, 4 + 5, 4 + 3 + 8 + 4 + 2, 4 + 5 + 4
    assert count_payload(wire_format, payload, COUNTER) == 3 + system + user + assistant + tool


def count_image(data: str, model: str = "") -> int:
    wire_messages = wire_format.render_message(
        Message(role="user", parts=(ImagePart(blob=BLOB, detail="high"),)), load_blob=lambda _: data
    )
    return wire_format_for("chat", model=model).count_messages(wire_messages, COUNTER) - 4


@pytest.mark.parametrize("data", [PNG, JPEG, GIF, WEBP, WEBP_L, WEBP_X])
def test_an_image_costs_by_the_size_in_its_data(data: bytes):
    assert count_image(base64(data)) == count_openai_image((640, 480), "high")
    assert count_image(base64(data), "gpt-4o-mini") == count_openai_image((640, 480), "high", model="gpt-4o-mini")


@pytest.mark.parametrize(
    "data", ["not base64: é", "A", "R0lGODlh", base64(PNG[:18]), base64(b"\xff\xd8" + b"\xff" * 99)]
)
def test_an_image_of_unknown_size_costs_the_maximum(data: str):
    assert count_image(data) == count_openai_image(None, "high")


def test_a_file_costs_by_its_pages():
    def cost(data: bytes) -> int:
        message = Message(role="user", parts=(FilePart(blob=BLOB, name="a"),))
        return (
            wire_format.count_messages(wire_format.render_message(message, load_blob=lambda _: base64(data)), COUNTER)
            - 4
            - 1
        )

    assert cost(b"%PDF /Type /Pages /Type /Page /Type/Page ") == 2 * PDF_PAGE_TOKENS
    assert cost(b"%PDF" + bytes(3 * PDF_PAGE_BYTES)) == 4 * PDF_PAGE_TOKENS


def provider_fields() -> st.SearchStrategy[dict[str, Any]]:
    """Provider fields, including some that would break a request."""
    keys = st.sampled_from(["role", "content", "text", "type", "tool_calls", "refusal", "name", "x", "function"])
    values = st.sampled_from(
        [None, "", "custom", "input_audio", 1, float("inf"), [float("nan"), "é"], {"a": float("-inf")}]
    )
    return st.dictionaries(keys, values, max_size=3).map(lambda fields: {"chat": fields, "messages": fields})


@st.composite
def any_messages(draw: st.DrawFn) -> Message:
    """Any valid message, with provider fields anywhere."""
    message = draw(messages())
    parts = [
        draw(st.sampled_from([part, part.model_copy(update={"provider_fields": draw(provider_fields())})]))
        for part in message.parts
    ]
    return message.model_copy(update={"parts": tuple(parts), "provider_fields": draw(st.none() | provider_fields())})


def blob_loaders() -> st.SearchStrategy[Any]:
    return st.sampled_from([None, lambda _: None, lambda _: base64(PNG)])


@given(st.lists(any_messages(), max_size=6), st.none() | texts(), st.booleans(), blob_loaders())
def test_any_messages_render_to_json_and_the_recount_is_the_sum(
    sent: list[Message], system: str | None, tooled: bool, load: Any
):
    tools = (
        [
            wire_format.render_tool(TOOL),
            wire_format.render_tool(ToolDefinition(name="é", parameters={"x": float("inf")})),
        ]
        if tooled
        else []
    )
    apart = [wire_format.render_message(message, load_blob=load) for message in sent]
    before = copy.deepcopy((apart, tools))
    wire_messages = [wire_message for some in apart for wire_message in some]
    payload = wire_format.build_payload(model="m", system=system, tools=tools, messages=wire_messages, max_tokens=None)
    wire_format.check(payload)
    json.dumps(payload, ensure_ascii=False, allow_nan=False).encode()
    total = (
        wire_format.request_overhead
        + wire_format.count_system(system, COUNTER)
        + wire_format.count_tools(tools, COUNTER)
    )
    total += sum(wire_format.count_messages(some, COUNTER) for some in apart)
    assert count_payload(wire_format, payload, COUNTER) == total
    assert count_payload(wire_format, json.loads(json.dumps(payload)), COUNTER) == total
    assert (apart, tools) == before


@given(st.lists(any_messages(), max_size=6))
def test_everything_that_is_sent_is_paid_for(sent: list[Message]):
    wire_messages = [wire_message for message in sent for wire_message in wire_format.render_message(message)]
    said = sum(len(text) for text in _texts(wire_messages))
    assert wire_format.count_messages(wire_messages, COUNTER) >= said


def _texts(wire_messages: list[Any]) -> list[str]:
    """Texts and names that the model reads."""
    found: list[str] = []
    for wire_message in wire_messages:
        content = wire_message["content"]
        found += [content] if isinstance(content, str) else [p["text"] for p in content or () if p["type"] == "text"]
        for made in wire_message.get("tool_calls", ()):
            found += list((made.get("function") or made["custom"]).values())
    return found


# --- checks ---

USER = {"role": "user", "content": "hi"}
CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    ],
}
ONE, TWO = ({"role": "tool", "tool_call_id": id_, "content": "x"} for id_ in "12")
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {}}}


def with_call(**changes: Any) -> dict[str, Any]:
    return {**CALLS, "tool_calls": [{**CALLS["tool_calls"][0], **changes}]}


@pytest.mark.parametrize(
    "valid",
    [
        [USER],
        [{"role": "developer", "content": "x"}, USER],
        [USER, CALLS, TWO, ONE],
        [USER, CALLS, ONE, TWO, USER],
        [USER, {"role": "assistant", "content": None, "refusal": "no"}, USER],
        [USER, {"role": "assistant", "content": ""}, USER],
        [USER, USER],
        [with_call(), ONE],
    ],
)
def test_valid_requests_have_no_problems(valid: list[Any]):
    assert wire_format.check({"messages": valid, "tools": [FUNCTION]}) == []


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ([], "at least one must not be a system message"),
        ([{"role": "system", "content": "x"}], "at least one must not be a system message"),
        ([{"role": "function", "content": "x"}, USER], "unknown role 'function'"),
        ([{"role": "user", "content": None}], "a user message needs content"),
        ([{"role": "user", "content": []}], "the content list is empty"),
        ([USER, {"role": "assistant", "content": None}, USER], "needs content or tool calls"),
        ([USER, {"role": "assistant", "content": "x", "tool_calls": []}, USER], "the list of tool calls is empty"),
        ([USER, {"role": "assistant", "content": "x"}], "the last message must be the user's or a tool's"),
        ([USER, CALLS, ONE], "the call '2' has no result"),
        ([USER, CALLS, ONE, USER, TWO], "the call '2' before it has no result"),
        ([USER, CALLS, ONE, USER, TWO], "'2' matches no pending call"),
        ([USER, CALLS, ONE, TWO, ONE], "'1' matches no pending call"),
        ([USER, ONE], "'1' matches no pending call"),
        ([USER, CALLS, USER], "the call '1' before it has no result"),
        ([USER, {**CALLS, "tool_calls": [CALLS["tool_calls"][0]] * 2}, ONE, ONE], "two calls have the id '1'"),
        ([USER, with_call(id="")], "a tool call needs an id"),
        ([USER, with_call(function={"name": "a.b", "arguments": ""}), ONE], "'a.b' is no valid tool name"),
        ([USER, with_call(function={"name": "f", "arguments": {}}), ONE], "arguments of a call are its JSON text"),
        ([USER, with_call(), {**ONE, "content": None}], "a tool message needs content"),
        ([USER, with_call(), {**ONE, "content": [{"type": "image_url"}]}], "only user messages may contain images"),
    ],
)
def test_what_the_provider_would_refuse_is_found(bad: list[Any], problem: str):
    assert any(problem in found for found in wire_format.check({"messages": bad}))


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ([FUNCTION, FUNCTION], "two are named 'f'"),
        ([{"type": "function", "function": {"name": "a b"}}], "'a b' is no valid name"),
        ([{"type": "function", "function": {"name": "x" * 65}}], "is no valid name"),
        ([{"type": "function"}], "None is no valid name"),
        ([], "the list is empty"),
    ],
)
def test_tools_that_the_provider_would_refuse_are_found(tools: list[Any], problem: str):
    assert any(problem in found for found in wire_format.check({"messages": [USER], "tools": tools}))


# --- parsing ---

RESPONSE: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "gpt-4o-2024",
    "system_fingerprint": "fp",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "I look.",
                "refusal": None,
                "annotations": [],
                "reasoning_content": "hm",
                "reasoning_details": [{"type": "encrypted", "data": "EqQ+/="}],
                "tool_calls": [
                    {
                        "id": "1",
                        "index": 0,
                        "type": "function",
                        "function": {"name": "look", "arguments": '{ "b" : 1,\t"a": 1.0 }'},
                        "extra_content": {"google": {"thought_signature": "Ab+/="}},
                    }
                ],
            },
        }
    ],
    "usage": {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "total_tokens": 120,
        "prompt_tokens_details": {"cached_tokens": 64},
        "completion_tokens_details": {"reasoning_tokens": 7},
    },
}


class SdkObject(BaseModel):
    """Object of an SDK, with the methods that Quire uses."""

    model_config = {"extra": "allow"}


@pytest.mark.parametrize("response", [RESPONSE, SdkObject.model_validate(RESPONSE)])
def test_a_reply_keeps_arguments_signatures_and_usage(response: Any):
    message, usage, finish = wire_format.parse_reply(response)
    assert finish == "tool_calls"
    thinking, text, made = message.parts
    assert thinking == ThinkingPart(text="hm")
    assert text == TextPart(text="I look.")
    assert isinstance(made, ToolCallPart)
    assert made.arguments == '{ "b" : 1,\t"a": 1.0 }'
    assert usage is not None
    assert (usage.model, usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (
        "gpt-4o-2024",
        100,
        20,
        64,
    )
    assert usage.provider_fields == {
        "prompt_tokens_details": {"cached_tokens": 64},
        "completion_tokens_details": {"reasoning_tokens": 7},
        "response": {"id": "chatcmpl-1", "system_fingerprint": "fp"},
    }
    sent = wire_format.render_message(message)[0]
    assert sent["reasoning_details"] == [{"type": "encrypted", "data": "EqQ+/="}]
    assert sent["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "Ab+/="}}
    assert "annotations" not in sent
    assert "reasoning_content" not in sent


def test_a_reply_is_the_message_that_clients_send_back():
    """Some clients drop the nulls of a response, some do not; the conversation must be recognized either way."""
    answered = {"role": "assistant", "content": "Hi.", "refusal": None, "annotations": [], "function_call": None}
    reply = wire_format.parse_reply({"choices": [{"message": answered, "finish_reason": "stop"}]})
    assert reply.usage is None
    assert (
        wire_format.parse_messages([answered])
        == wire_format.parse_messages([{"role": "assistant", "content": "Hi."}])
        == [reply.message]
    )


def test_refusals_sounds_and_custom_calls_go_back_as_they_came():
    refused = {"role": "assistant", "content": None, "refusal": "No."}
    audio = {"id": "audio_1", "data": "UklG", "transcript": "Hello.", "expires_at": 1}
    spoken = wire_format.parse_reply(
        {"choices": [{"message": {"role": "assistant", "content": None, "audio": audio}}]}
    ).message
    custom = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "custom", "custom": {"name": "sh", "input": "ls"}}],
    }
    audio = {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}]}
    assert wire_format.render_message(spoken) == [
        {"role": "assistant", "content": "Hello.", "audio": {"id": "audio_1"}}
    ]
    for raw in (refused, custom, audio):
        assert [
            wire_message
            for message in wire_format.parse_messages([raw])
            for wire_message in wire_format.render_message(message)
        ] == [raw]
    assert wire_format.parse_messages([audio])[0].text == "[input_audio]"


def test_developer_messages_and_the_system_text():
    given = [{"role": "developer", "content": "x", "name": "d"}, USER]
    system, developer, user = wire_format.parse_messages(given, system="Be brief.")
    assert (system, developer.role, user) == (Message.system("Be brief."), "system", Message.user("hi"))
    assert wire_format.render_message(developer) == [given[0]]


@pytest.mark.parametrize("wrong", [{}, {"error": {"message": "no"}}, {"choices": []}, {"choices": [{}]}, "text", None])
def test_what_is_no_reply_is_an_error_that_says_so(wrong: Any):
    with pytest.raises(InvalidEntry, match="no choices"):
        wire_format.parse_reply(wrong)


@pytest.mark.parametrize("wrong", [{}, {"role": "function"}, "text", None])
def test_a_message_without_a_known_role_is_refused(wrong: Any):
    with pytest.raises(InvalidEntry, match="Message 1 has the role"):
        wire_format.parse_messages([USER, wrong])


@given(st.lists(any_messages(), max_size=5), blob_loaders())
def test_what_was_rendered_comes_back_to_the_same_units(sent: list[Message], load: Any):
    wire_messages = [
        wire_message for message in sent for wire_message in wire_format.render_message(message, load_blob=load)
    ]
    again = [
        wire_message
        for message in wire_format.parse_messages(wire_messages)
        for wire_message in wire_format.render_message(message)
    ]
    assert again == wire_messages


@given(texts(), texts(), texts())
def test_bytes_of_arguments_and_results_survive_the_round_trip(text: str, arguments: str, result: str):
    calls = with_call(function={"name": "f", "arguments": arguments})["tool_calls"]
    pieces = [{"type": "text", "text": text}, {"type": "text", "text": result}]
    raw = [
        {"role": "user", "content": text, "name": "bob"},
        {"role": "assistant", "content": text, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": result},
        {"role": "tool", "tool_call_id": "2", "content": pieces},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "auto"}},
                {"type": "image_url", "image_url": {"url": "https://x/y", "format": "image/png"}},
                {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="}},
                {"type": "file", "file": {"file_id": "file-1"}},
            ],
        },
    ]
    parsed = wire_format.parse_messages(raw)
    assert [message.role for message in parsed] == [message["role"] for message in raw]
    assert [wire_message for message in parsed for wire_message in wire_format.render_message(message)] == raw
