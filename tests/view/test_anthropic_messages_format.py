"""Anthropic's Messages wire format: rendering, token counts, checks and parsing."""

import copy
import json
from base64 import b64encode
from datetime import UTC, datetime
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
from quire.wire.labels import label_text
from quire.wire.media import PDF_PAGE_TOKENS, REMOTE_FILE_PAGES, count_claude_image
from quire.wire.messages.cache_markers import drop_cache_markers
from quire.wire.messages.parse import parse_messages
from quire.wire.messages.render import DEFAULT_MAX_TOKENS, OPENER_TEXT, AnthropicMessagesFormat

BLOB = "ab" * 32
GIF = b64encode(b"GIF89a" + (640).to_bytes(2, "little") + (480).to_bytes(2, "little") + bytes(4)).decode()
SIGNATURE = "EqQBCgIYAhIM+/=ü"

wire_format = AnthropicMessagesFormat()


class CharacterCounter:
    """Counts characters, so that a test notices everything that is sent."""

    name = "characters"
    exact = True

    def count(self, text: str) -> int:
        return len(text)


COUNTER = CharacterCounter()
TOOL = ToolDefinition(name="look", description="Looks.", parameters={"type": "object", "properties": {"q": {}}})


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def build_payload(*sent: Message, tools: tuple[ToolDefinition, ...] = (), system: str | None = None) -> dict[str, Any]:
    wire_messages = [wire_message for message in sent for wire_message in wire_format.render_message(message)]
    rendered = [wire_format.render_tool(tool) for tool in tools]
    return wire_format.build_payload(
        model="claude-x", system=system, tools=rendered, messages=wire_messages, max_tokens=None
    )


def render_blocks(*parts: Any, role: Any = "assistant", load: Any = None) -> list[dict[str, Any]]:
    [wire_message] = wire_format.render_message(Message(role=role, parts=parts), load_blob=load)
    return wire_message["content"]


def make_call(id_: str, name: str = "look", arguments: str = "{}") -> ToolCallPart:
    return ToolCallPart(id=id_, name=name, arguments=arguments)


def test_a_conversation_with_parallel_calls():
    sent = (
        Message.user("What is in a and b?"),
        Message.user("Please."),
        Message(
            role="assistant",
            parts=(
                ThinkingPart(text="hm ", signature=SIGNATURE),
                ThinkingPart(redacted="Zm9v"),
                make_call("1", arguments='{ "q":"a"}'),
                make_call("2"),
            ),
        ),
        Message.tool("1", "A"),
        Message.tool("2", "broken", is_error=True),
        Message.user("And?"),
    )
    payload = build_payload(*sent, tools=(TOOL,), system="Be brief.")
    assert payload == {
        "model": "claude-x",
        "max_tokens": DEFAULT_MAX_TOKENS,
        "system": "Be brief.",
        "tools": [
            {
                "name": "look",
                "description": "Looks.",
                "input_schema": {"type": "object", "properties": {"q": {}}},
            }
        ],
        "messages": [
            {"role": "user", "content": [text("What is in a and b?"), text("Please.")]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm ", "signature": SIGNATURE},
                    {"type": "redacted_thinking", "data": "Zm9v"},
                    {"type": "tool_use", "id": "1", "name": "look", "input": {"q": "a"}},
                    {"type": "tool_use", "id": "2", "name": "look", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": [text("A")]},
                    {"type": "tool_result", "tool_use_id": "2", "content": [text("broken")], "is_error": True},
                    text("And?"),
                ],
            },
        ],
    }
    assert wire_format.check(payload) == []


def test_a_request_that_would_begin_with_the_assistant_gets_an_opener():
    payload = build_payload(Message.assistant("Hello."), Message.user("Hi."))
    assert payload["messages"][0] == {"role": "user", "content": OPENER_TEXT}
    assert wire_format.check(payload) == []
    spoken = build_payload(Message.user(OPENER_TEXT), Message.assistant("Hello."), Message.user("Hi."))
    assert count_payload(wire_format, spoken, COUNTER) == count_payload(wire_format, payload, COUNTER) + 4 + len(
        OPENER_TEXT
    )


def test_max_tokens_and_the_bare_name_of_the_model():
    payload = wire_format.build_payload(model="anthropic:claude-x", system=" \n", tools=[], messages=[], max_tokens=7)
    assert payload == {"model": "claude-x", "max_tokens": 7, "messages": []}
    assert wire_format.count_system(" \n", COUNTER) == 0


def test_nothing_is_said_where_the_api_refuses_nothing():
    assert render_blocks(role="user") == [text("[empty]")]
    assert render_blocks(TextPart(text=" \n"), role="user") == [text("[empty]")]
    assert render_blocks(TextPart(text=""), TextPart(text="x ")) == [text("x ")]
    thought = ThinkingPart(text="", signature="s")
    assert render_blocks(thought, TextPart(text=" "))[-1] == text("[empty]")
    assert render_blocks(ThinkingPart(text="another's"), ThinkingPart(signature="")) == [text("[empty]")]
    assert render_blocks(ToolResultPart(call_id="1"), role="tool")[0]["content"] == [text("[empty]")]
    assert wire_format.render_message(Message(role="tool", parts=())) == []


def test_a_system_message_within_the_conversation_is_a_labelled_note():
    assert wire_format.render_message(Message.system("The user has gone.")) == [
        {"role": "user", "content": [text(label_text("system", "The user has gone."))]}
    ]


@pytest.mark.parametrize(
    ("arguments", "input_"),
    [
        ('{"b": 1, "a": [1.5, null]}', {"b": 1, "a": [1.5, None]}),
        ("", {"_raw": ""}),
        ('{"a": ', {"_raw": '{"a": '}),
        ("[1]", {"_raw": "[1]"}),
        ('"x"', {"_raw": '"x"'}),
        ('{"a": NaN}', {"_raw": '{"a": NaN}'}),
        ('{"a": 1e999}', {"_raw": '{"a": 1e999}'}),
        ('{"a": "\\ud800"}', {"_raw": '{"a": "\\ud800"}'}),
        ("[" * 100_000, {"_raw": "[" * 100_000}),
        ('{"a": ' + "9" * 5_000 + "}", {"_raw": '{"a": ' + "9" * 5_000 + "}"}),
    ],
)
def test_arguments_become_an_object_or_stay_whole(arguments: str, input_: dict[str, Any]):
    [block] = render_blocks(make_call("1", arguments=arguments))
    assert block["input"] == input_
    json.dumps(block, ensure_ascii=False, allow_nan=False).encode()


@given(texts(max_size=100), texts(max_size=100))
def test_ids_are_mapped_to_what_the_api_takes_the_same_for_calls_and_results(one: str, other: str):
    made = Message(role="assistant", parts=(make_call(one), make_call(other)))
    payload = build_payload(Message.user("x"), made, Message.tool(one, "1"), Message.tool(other, "2"))
    ids = [block["id"] for block in payload["messages"][1]["content"]]
    assert [block["tool_use_id"] for block in payload["messages"][2]["content"]] == ids
    assert (ids[0] == ids[1]) == (one == other)
    assert one == other or wire_format.check(payload) == []
    assert render_blocks(make_call("toolu_01-A"))[0]["id"] == "toolu_01-A"


def test_images_and_files_are_sent_as_data_or_by_url_or_described():
    parts = (
        ImagePart(blob=BLOB, media_type="image/gif"),
        ImagePart(url="data:image/png;base64,AA=="),
        ImagePart(url="https://x/y.png"),
        ImagePart(url="http://x/y.png"),
        ImagePart(url="data:image/tiff;base64,AA=="),
        FilePart(blob=BLOB, name="a.pdf", media_type="application/pdf"),
        FilePart(url="https://x/b.PDF?v=1"),
        FilePart(blob=BLOB, name="c.txt", media_type="text/plain"),
        FilePart(url="https://x/d", media_type="text/html"),
    )
    assert render_blocks(*parts, role="user", load=lambda _: GIF) == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": GIF}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
        {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
        text("[image: http://x/y.png]"),
        text("[image: data:image/tiff;base64]"),
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": GIF},
            "title": "a.pdf",
        },
        {"type": "document", "source": {"type": "url", "url": "https://x/b.PDF?v=1"}},
        text("[file: c.txt, text/plain, blob abababababab]"),
        text("[file: text/html, https://x/d]"),
    ]
    assert render_blocks(parts[0], role="user") == [text("[image: image/gif, blob abababababab]")]


def test_a_result_shows_its_pictures_but_a_failure_is_only_text():
    content = (TextPart(text="seen"), ImagePart(url="https://x/y.png"), TextPart(text=" "))
    [result] = render_blocks(ToolResultPart(call_id="1", content=content), role="tool")
    assert [block["type"] for block in result["content"]] == ["text", "image"]
    [failed] = render_blocks(ToolResultPart(call_id="1", content=content, is_error=True), role="tool")
    assert failed["content"] == [text("seen"), text("[image: https://x/y.png]")]
    assert failed["is_error"] is True


def test_only_this_providers_fields_are_sent_and_none_in_place_of_ours():
    mine: dict[str, Any] = {"cache_control": {"type": "ephemeral"}, "text": "forged", "n": float("inf")}
    part = TextPart(text="hi", provider_fields={"messages": mine, "chat": {"x": 1}, "flat": 1})
    assert render_blocks(part) == [{**text("hi"), "cache_control": {"type": "ephemeral"}}]


# --- token counts ---


def test_what_a_request_costs_by_hand():
    made = Message(role="assistant", parts=(TextPart(text="abc"), make_call("1", "look", '{ "a": 1 }')))
    payload = build_payload(Message.user("hello"), made, Message.tool("1", "12345"), system="sys")
    user, assistant, result = 4 + 5, 4 + 3 + 4 + 12 + 4 + len('{"a":1}'), 4 + 12 + 4 + 5
    assert (
        count_payload(wire_format, payload, COUNTER) == wire_format.request_overhead + 4 + 3 + user + assistant + result
    )
    tools = build_payload(Message.user("hello"), tools=(TOOL,))
    schema = '{"type":"object","properties":{"q":{}}}'
    assert count_payload(wire_format, tools, COUNTER) == wire_format.request_overhead + user + 346 + 12 + len(
        "look" + "Looks." + schema
    )


def test_pictures_files_and_sealed_thinking_cost_by_what_is_in_them():
    def cost(part: Any, role: Any = "user") -> int:
        return (
            wire_format.count_messages(
                wire_format.render_message(Message(role=role, parts=(part,)), load_blob=lambda _: GIF), COUNTER
            )
            - 4
        )

    assert cost(ImagePart(blob=BLOB, media_type="image/gif")) == count_claude_image((640, 480))
    sharp = AnthropicMessagesFormat("claude-opus-4-7")
    assert sharp.count_messages([make_user_message({"type": "image", "source": {"type": "url"}})], COUNTER) == 4 + 4784
    assert cost(FilePart(blob=BLOB, media_type="application/pdf")) == PDF_PAGE_TOKENS
    assert cost(FilePart(url="https://x/y.pdf")) == PDF_PAGE_TOKENS * REMOTE_FILE_PAGES
    closing = 4 + len("[empty]")
    assert cost(ThinkingPart(text="x" * 50, signature="s" * 20), "assistant") == 50 + closing
    assert cost(ThinkingPart(text="", signature="s" * 500), "assistant") == 101 + closing
    assert cost(ThinkingPart(redacted="s" * 500), "assistant") == 101 + closing


def provider_fields() -> st.SearchStrategy[dict[str, Any]]:
    """Provider fields, including some that would break a request."""
    keys = st.sampled_from(["role", "content", "text", "type", "input", "signature", "is_error", "x", "cache_control"])
    values = st.sampled_from(
        [None, "", "server_tool_use", "system", 1, float("inf"), [float("nan"), "é"], {"a": float("-inf")}]
    )
    return st.dictionaries(keys, values, max_size=3).map(lambda fields: {"messages": fields, "chat": fields})


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
    return st.sampled_from([None, lambda _: None, lambda _: GIF])


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


@given(st.lists(messages().filter(lambda message: message.role != "tool" and not message.tool_calls), max_size=6))
def test_any_talk_without_tools_is_valid(sent: list[Message]):
    assert wire_format.check(build_payload(*sent, Message.user("And?"))) == []


@given(st.lists(messages(), max_size=5))
def test_thinking_keeps_its_bytes_and_its_place(sent: list[Message]):
    expected = [
        (part.redacted or (part.text, part.signature))
        for message in sent
        if message.role == "assistant"
        for part in message.parts
        if isinstance(part, ThinkingPart) and (part.redacted or part.signature)
    ]
    found = [
        block["data"] if block["type"] == "redacted_thinking" else (block["thinking"], block["signature"])
        for message in build_payload(*sent)["messages"]
        for block in message["content"]
        if isinstance(block, dict) and block["type"] in ("thinking", "redacted_thinking")
    ]
    assert found == expected


# --- checks ---

USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": [text("x")]}
SYSTEM = {"role": "system", "content": "Be brief."}
COMPACTION = {"type": "compaction", "content": "They talked.", "signature": "s+/="}
SEARCHED = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"encrypted_content": "Eq+/="}]}
EPHEMERAL = {"type": "ephemeral"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
A, B = ({"type": "tool_use", "id": id_, "name": "f", "input": {}} for id_ in "ab")
RA, RB = ({"type": "tool_result", "tool_use_id": id_, "content": "x"} for id_ in "ab")


def make_user_message(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*content]}


def make_assistant_message(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [*content]}


@pytest.mark.parametrize(
    "valid",
    [
        [USER],
        [USER, make_assistant_message(THOUGHT, A, B), make_user_message(RB, RA, text("and"))],
        [USER, make_assistant_message(text("x"), A), make_user_message(RA), ASSISTANT, USER],
        [USER, make_assistant_message(A), make_user_message({**RA, "content": []})],
        [USER, make_assistant_message({"type": "server_tool_use", "id": "s"}), USER],
        [USER, USER, ASSISTANT, ASSISTANT, USER],
        [USER, make_assistant_message(A), make_assistant_message(B), make_user_message(RA), make_user_message(RB)],
        [USER, SYSTEM],
        [USER, USER, SYSTEM, ASSISTANT, USER, SYSTEM],
        [USER, make_assistant_message(A), make_user_message(RA), {**SYSTEM, "content": [], "output_config": {"x": 1}}],
        [USER, make_assistant_message(SEARCHED), SYSTEM],
        [make_assistant_message(COMPACTION), USER],
    ],
)
def test_valid_requests_have_no_problems(valid: list[Any]):
    assert wire_format.check({"max_tokens": 0, "messages": valid}) == []


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ([], "there are none"),
        ([ASSISTANT, USER], "the first must be the user's"),
        ([USER, ASSISTANT], "the last must be the user's"),
        ([make_assistant_message(text("x"), COMPACTION), USER], "the first must be the user's"),
        ([SYSTEM, USER], "the first must be the user's"),
        ([USER, SYSTEM, USER], "a system message must follow the user's"),
        ([USER, ASSISTANT, SYSTEM], "a system message must follow the user's"),
        ([USER, SYSTEM, SYSTEM, ASSISTANT, USER], "messages[1]: a system message must follow the user's"),
        ([USER, make_assistant_message(A), SYSTEM, make_user_message(RA)], "messages[2]: a system message must"),
        ([USER, {**SYSTEM, "content": []}], "messages[1]: the content is empty"),
        ([{"role": "tool", "content": "x"}, USER], "unknown role 'tool'"),
        ([USER, make_assistant_message(A), make_assistant_message(B), make_user_message(RB)], "'a' before it has no"),
        ([USER, make_assistant_message(A), USER, make_user_message(RA)], "results must come before anything else"),
        ([make_user_message()], "the content is empty"),
        ([{"role": "user", "content": ""}], "a text must hold more than blanks"),
        ([make_user_message(text("x"), text("\n"))], "a text must hold more than blanks"),
        ([USER, make_assistant_message(A), USER], "the call 'a' before it has no result"),
        ([USER, make_assistant_message(A, B), make_user_message(RA)], "the call 'b' before it has no result"),
        ([USER, make_assistant_message(A)], "the call 'a' has no result"),
        ([USER, make_assistant_message(A), make_user_message(text("x"), RA)], "results must come before anything else"),
        ([make_user_message(RA)], "'a' answers no call in the turn before it"),
        (
            [USER, make_assistant_message(A), make_user_message(RA), ASSISTANT, make_user_message(RA)],
            "'a' answers no call in the turn before it",
        ),
        ([USER, make_assistant_message(A), make_user_message(RA, RA)], "the call 'a' has 2 results"),
        ([USER, make_assistant_message(A, A), make_user_message(RA)], "the id 'a' is taken by an earlier call"),
        (
            [USER, make_assistant_message(A), make_user_message(RA), make_assistant_message(A), make_user_message(RA)],
            "the id 'a' is taken by an earlier call",
        ),
        (
            [USER, make_assistant_message({**A, "id": "a.b"}), make_user_message({**RA, "tool_use_id": "a.b"})],
            "no valid id of a call",
        ),
        ([USER, make_assistant_message({**A, "name": "a.b"}), make_user_message(RA)], "'a.b' is no valid tool name"),
        ([USER, make_assistant_message({**A, "input": "{}"}), make_user_message(RA)], "is not an object"),
        (
            [USER, make_assistant_message(A), make_user_message({**RA, "content": [text("")]})],
            "a text in a result must hold more",
        ),
        (
            [USER, make_assistant_message(A), make_user_message({**RA, "content": [], "is_error": True})],
            "a failure needs content",
        ),
        (
            [
                USER,
                make_assistant_message(A),
                make_user_message({**RA, "content": [{"type": "image"}], "is_error": True}),
            ],
            "only text",
        ),
        ([USER, make_assistant_message(text("x"), THOUGHT), USER], "thinking cannot be the last block"),
        (
            [USER, make_assistant_message({"type": "thinking", "thinking": "x"}, text("x")), USER],
            "thinking needs its signature",
        ),
        ([make_user_message(THOUGHT, text("x"))], "only the assistant's messages hold thinking"),
        ([make_user_message(A)], "only the assistant's messages hold tool_use"),
        ([USER, make_assistant_message({"type": "image"}), USER], "only the user's messages hold image"),
    ],
)
def test_what_the_provider_would_refuse_is_found(bad: list[Any], problem: str):
    assert any(problem in found for found in wire_format.check({"max_tokens": 1, "messages": bad}))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        (
            {"cache_control": EPHEMERAL, "tools": [{"name": f"f{n}", "cache_control": EPHEMERAL} for n in range(4)]},
            "5 mar",
        ),
        ({"system": " "}, "system"),
        ({"tools": [{"name": "f"}, {"name": "f"}]}, "two are named 'f'"),
        ({"tools": [{"name": "a b"}]}, "'a b' is no valid name"),
        ({"tools": [{"name": "f", "input_schema": {}}]}, "is not an object's"),
    ],
)
def test_requests_that_the_provider_would_refuse_are_found(changes: dict[str, Any], problem: str):
    assert any(problem in found for found in wire_format.check({"max_tokens": 1, "messages": [USER], **changes}))


def test_with_thinking_enabled_a_tool_loop_must_begin_with_it():
    enabled = {"max_tokens": 1, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    loop = [make_user_message(RA), make_assistant_message(B), make_user_message(RB)]
    assert wire_format.check({**enabled, "messages": [USER, make_assistant_message(THOUGHT, A), *loop]}) == []
    assert wire_format.check({**enabled, "messages": [USER, make_assistant_message(A), *loop, ASSISTANT, USER]}) == []
    [problem] = wire_format.check({**enabled, "messages": [USER, USER, make_assistant_message(A), *loop, SYSTEM]})
    assert problem.startswith("messages[2]: with thinking enabled")
    [problem] = wire_format.check({**enabled, "messages": [USER, ASSISTANT, USER, make_assistant_message(A), *loop]})
    assert problem.startswith("messages[3]: with thinking enabled")


# --- parsing ---

RESPONSE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x-1",
    "container": {"expires_at": datetime(2026, 1, 1, tzinfo=UTC)},
    "content": [
        {"type": "thinking", "thinking": " hm\n", "signature": SIGNATURE},
        {"type": "redacted_thinking", "data": "Zm9v+/="},
        SEARCHED,
        {"type": "text", "text": "I look.", "citations": None},
        {"type": "text", "text": "Cited.", "citations": [{"type": "char_location", "document_title": None}]},
        {
            "type": "tool_use",
            "id": "toolu_1",
            "name": "look",
            "input": {"b": "é", "a": [1.0]},
            "caller": {"type": "direct"},
        },
    ],
    "stop_reason": "tool_use",
    "stop_sequence": "END",
    "usage": {
        "input_tokens": 10,
        "cache_read_input_tokens": 64,
        "cache_creation_input_tokens": 26,
        "output_tokens": 20,
        "service_tier": "standard",
        "output_tokens_details": {"thinking_tokens": 7},
        "iterations": [{"type": "compaction", "input_tokens": 900, "output_tokens": 30}],
    },
    "context_management": {"applied_edits": [{"type": "clear_tool_uses_20250919", "cleared_tool_uses": 2}]},
    "diagnostics": {"cache_miss": {"type": "system_changed"}},
}


class SdkObject(BaseModel):
    """Object of an SDK, with the methods that Quire uses."""

    model_config = {"extra": "allow"}


@pytest.mark.parametrize("response", [RESPONSE, SdkObject.model_validate(RESPONSE)])
def test_a_reply_keeps_signatures_arguments_and_usage(response: Any):
    message, usage, finish = wire_format.parse_reply(response)
    assert finish == "tool_use"
    thinking, redacted, searched, *_, made = message.parts
    assert thinking == ThinkingPart(text=" hm\n", signature=SIGNATURE)
    assert redacted == ThinkingPart(redacted="Zm9v+/=")
    assert isinstance(searched, TextPart)
    assert searched.text == "[web_search_tool_result]"
    assert isinstance(made, ToolCallPart)
    assert made.arguments == '{"b":"é","a":[1.0]}'
    assert usage is not None
    assert (usage.model, usage.input_tokens, usage.output_tokens) == ("claude-x-1", 100, 20)
    assert (usage.cache_read_tokens, usage.cache_write_tokens) == (64, 26)
    assert usage.provider_fields == {
        **{field: RESPONSE["usage"][field] for field in ("service_tier", "output_tokens_details", "iterations")},
        "response": {
            "id": "msg_1",
            "container": {"expires_at": "2026-01-01T00:00:00Z"},
            "stop_sequence": "END",
            **{field: RESPONSE[field] for field in ("context_management", "diagnostics")},
        },
    }
    sent = copy.deepcopy(RESPONSE["content"])
    del sent[3]["citations"]
    assert wire_format.render_message(message) == [{"role": "assistant", "content": sent}]
    assert Message.parse(message.canonical_json()) == message


@pytest.mark.parametrize("wrong", [{}, {"type": "error", "error": {}}, {"content": "x"}, "text", None])
def test_what_is_no_reply_is_an_error_that_says_so(wrong: Any):
    with pytest.raises(InvalidEntry, match="no content"):
        wire_format.parse_reply(wrong)


def test_a_users_message_with_results_is_a_tools_and_a_users():
    given = [USER, make_assistant_message(A), make_user_message(RA, text("and"))]
    system, user, assistant, tool, more = wire_format.parse_messages(given, system=[text("Be brief.")])
    assert (system, user) == (Message.system("Be brief."), Message.user("hi"))
    assert assistant.tool_calls == (make_call("a", "f"),)
    assert (tool, more) == (Message.tool("a", "x"), Message.user("and"))
    with pytest.raises(InvalidEntry, match="Message 1 has the role 'tool'"):
        wire_format.parse_messages([USER, {"role": "tool", "content": "x"}])


def test_each_result_can_become_a_message_of_its_own():
    raw = [USER, make_assistant_message(A, B), make_user_message(RA, RB, text("and"))]
    assert [len(message.parts) for message in parse_messages(raw)] == [1, 2, 2, 1]
    assert parse_messages(raw, split_results=True)[2:] == [
        Message.tool("a", "x"),
        Message.tool("b", "x"),
        Message.user("and"),
    ]


def test_a_system_message_comes_back_with_its_role_and_fields_where_the_api_takes_it():
    addition = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}}
    noted = {"role": "system", "content": [text("Be brief."), addition], "output_config": {"effort": "low"}}
    silent = {"role": "system", "content": [], "output_config": {"effort": "high"}}
    raw = [make_user_message(text("hi")), noted, ASSISTANT, make_user_message(text("And?")), silent]
    parsed = wire_format.parse_messages([{**message, "cache_control": EPHEMERAL} for message in raw])
    assert [message.role for message in parsed] == ["user", "system", "assistant", "user", "system"]
    assert build_payload(*parsed)["messages"] == raw
    assert Message.parse(parsed[1].canonical_json()) == parsed[1]
    one, other = wire_format.parse_messages([SYSTEM, {**SYSTEM, "clear_at": "never"}])
    assert wire_format.render_message(other) == [
        {"role": "system", "content": [text("Be brief.")], "clear_at": "never"}
    ]
    assert build_payload(Message.user("hi"), one, other)["messages"] == [
        make_user_message(text("hi"), text(label_text("system", "Be brief."))),
        {"role": "system", "content": [text("Be brief.")], "clear_at": "never"},
    ]


def test_a_system_message_is_labelled_text_where_the_api_rejects_its_role():
    removal = {"role": "system", "content": [text("Go."), {"type": "tool_removal"}]}
    effort = {"role": "system", "content": [], "output_config": {"effort": "low"}}
    noted, silent = wire_format.parse_messages([removal, effort])
    labelled = [text(label_text("system", "Go.")), text(label_text("system", '{"type":"tool_removal"}'))]
    for sent, expected in (
        ((noted, Message.user("hi")), [make_user_message(*labelled, text("hi"))]),
        ((silent, Message.assistant("x"), Message.user("hi")), [USER | {"content": OPENER_TEXT}, ASSISTANT]),
        ((Message.user("hi"), Message.assistant("x"), noted), [make_user_message(text("hi")), ASSISTANT]),
    ):
        payload = build_payload(*sent)
        assert payload["messages"][: len(expected)] == expected
        assert wire_format.check(payload) == []


def test_messages_that_begin_with_a_compaction_need_no_opener():
    reply = wire_format.parse_reply({**RESPONSE, "content": [COMPACTION], "stop_reason": "compaction"})
    assert reply.finish_reason == "compaction"
    payload = build_payload(reply.message, Message.user("And?"))
    assert payload["messages"] == [make_assistant_message(COMPACTION), make_user_message(text("And?"))]
    assert wire_format.check(payload) == []
    assert reply.message.text == label_text("summary", "They talked.")


def test_pictures_and_documents_come_back_as_they_were():
    marker = {"cache_control": EPHEMERAL}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "AA=="}
    raw = make_user_message(
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
        {"type": "image", "source": {"type": "url", "url": "https://x/y"}},
        {"type": "image", "source": {"type": "file", "file_id": "f"}},
        {"type": "document", "source": pdf, "title": "a", "citations": {"enabled": True}},
        {"type": "document", "source": {"type": "url", "url": "https://x/y"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
    )
    [message] = wire_format.parse_messages([make_user_message(*({**block, **marker} for block in raw["content"]))])
    assert [part.type for part in message.parts] == ["image", "image", "text", "file", "file", "text"]
    assert wire_format.render_message(message) == [raw]


@given(st.lists(any_messages(), max_size=5), blob_loaders())
def test_what_was_rendered_comes_back_to_the_same_blocks(sent: list[Message], load: Any):
    wire_messages = [
        wire_message for message in sent for wire_message in wire_format.render_message(message, load_blob=load)
    ]
    again = [
        wire_message
        for message in wire_format.parse_messages(wire_messages)
        for wire_message in wire_format.render_message(message)
    ]
    assert _blocks_of(again) == _blocks_of(wire_messages)


def _blocks_of(wire_messages: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Blocks with the role of their message, without cache markers."""
    return [
        (wire_message["role"], drop_cache_markers(block))
        for wire_message in wire_messages
        for block in wire_message["content"]
    ]
