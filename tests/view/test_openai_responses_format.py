"""OpenAI's Responses wire format: rendering, token counts, checks and parsing."""

import copy
import json
import struct
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import FunctionToolParam, Response, ResponseInputItemParam
from pydantic import TypeAdapter
from view_builders import make_message_counter

from infra.builders import make_entries
from infra.strategies import histories, messages, texts
from payload_oracle import count_payload
from quire.engine.message_input import parse_reply
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
from quire.view.batches import deduplicate_call_ids, flatten_batches, group_batches, repair_tool_calls
from quire.wire import infer_wire_format, wire_format_for
from quire.wire.media import PDF_PAGE_TOKENS, REMOTE_FILE_PAGES
from quire.wire.responses.render import OpenAIResponsesFormat

BLOB = "ab" * 32
PNG = b64encode(b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480) + bytes(8)).decode()
TOOL = ToolDefinition(name="look", description="Looks.", parameters={"type": "object", "properties": {"q": {}}})
PROVIDER = "responses"
INPUT_ITEM = TypeAdapter(ResponseInputItemParam)

wire_format = OpenAIResponsesFormat()


class CharacterCounter:
    """Counts characters, so that a test notices everything that is sent."""

    name = "characters"
    exact = True

    def count(self, text: str) -> int:
        return len(text)


COUNTER = CharacterCounter()


def render(*sent: Message, load_blob: Any = None) -> list[dict[str, Any]]:
    return [item for message in sent for item in wire_format.render_message(message, load_blob=load_blob)]


def build_payload(*sent: Message, tools: tuple[ToolDefinition, ...] = (), system: str | None = None) -> dict[str, Any]:
    rendered = [wire_format.render_tool(tool) for tool in tools]
    return wire_format.build_payload(
        model="openai:gpt-5", system=system, tools=rendered, messages=render(*sent), max_tokens=None
    )


def repeat(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items of the request that repeats them."""
    return build_payload(*wire_format.parse_messages(items))["input"]


def make_message_item(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content, **fields}


def make_call_item(id_: str = "1", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id_, "name": "f", "arguments": "{}", **fields}


def make_output_item(id_: str = "1", output: Any = "x", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id_, "output": output, **fields}


def make_reasoning_item(number: int = 1, **fields: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": "gAAA+/=", **fields}


USER = make_message_item("user", "hi")
ASSISTANT = make_message_item("assistant", "Hello.")
CUSTOM = {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": '*** Begin "é"'}
CUSTOM_OUTPUT = make_output_item(type="custom_tool_call_output")
WEB_SEARCH = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search", "query": "x"},
}


# --- rendering ---


def test_a_conversation_with_parallel_calls():
    calls = (ToolCallPart(id="1", name="look", arguments='{ "q":"a"}'), ToolCallPart(id="2", name="look"))
    sent = (
        Message.user("What is in a and b?"),
        Message(role="assistant", parts=(TextPart(text="I look."), *calls)),
        Message.tool("1", "A"),
        Message.tool("2", "broken", is_error=True),
    )
    payload = build_payload(*sent, tools=(TOOL,), system="Be brief.")
    assert payload == {
        "model": "gpt-5",
        "instructions": "Be brief.",
        "tools": [
            {
                "type": "function",
                "name": "look",
                "description": "Looks.",
                "parameters": {"type": "object", "properties": {"q": {}}},
                "strict": False,
            }
        ],
        "input": [
            {"type": "message", "role": "user", "content": "What is in a and b?"},
            {"type": "message", "role": "assistant", "content": "I look."},
            {"type": "function_call", "call_id": "1", "name": "look", "arguments": '{ "q":"a"}'},
            {"type": "function_call", "call_id": "2", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "A"},
            {"type": "function_call_output", "call_id": "2", "output": "broken"},
        ],
        "store": False,
    }
    assert wire_format.check(payload) == []
    TypeAdapter(FunctionToolParam).validate_python(payload["tools"][0])


def test_max_tokens_and_the_bare_name_of_the_model():
    payload = wire_format.build_payload(
        model="openai-responses:gpt-5", system=None, tools=[], messages=[], max_tokens=7
    )
    assert payload == {"model": "gpt-5", "input": [], "max_output_tokens": 7, "store": False}


def test_images_and_files_are_sent_as_data_or_described():
    parts = (
        TextPart(text="see"),
        ImagePart(blob=BLOB, media_type="image/gif", detail="low"),
        ImagePart(url="https://x/y.png"),
        ImagePart(url="file:///etc/passwd"),
        FilePart(blob=BLOB, name="a.pdf"),
        FilePart(url="https://x/b.docx", name="b.docx"),
    )
    [item] = render(Message(role="user", parts=parts), load_blob=lambda digest: f"{digest[:4]}===")
    assert item["content"] == [
        {"type": "input_text", "text": "see"},
        {"type": "input_image", "image_url": "data:image/gif;base64,abab===", "detail": "low"},
        {"type": "input_image", "image_url": "https://x/y.png", "detail": "auto"},
        {"type": "input_text", "text": "[image: file:///etc/passwd]"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,abab==="},
        {"type": "input_file", "file_url": "https://x/b.docx"},
    ]
    INPUT_ITEM.validate_python(item)
    result = ToolResultPart(call_id="1", content=parts[:3])
    [output] = render(Message(role="tool", parts=(result,)), load_blob=lambda _: "AA==")
    assert [piece["type"] for piece in output["output"]] == ["input_text", "input_image", "input_image"]


def test_thinking_of_other_providers_is_not_sent():
    thoughts = (ThinkingPart(text="hm", signature="s"), ThinkingPart(redacted="r"), ThinkingPart(text="hm"))
    assert render(Message(role="assistant", parts=thoughts)) == []
    assert render(Message(role="assistant", parts=(*thoughts, TextPart(text="Hello.")))) == [ASSISTANT]


def test_reasoning_goes_back_byte_equal_to_this_format_only():
    item = make_reasoning_item(summary=[{"type": "summary_text", "text": "I greet."}], status="completed")
    [message] = wire_format.parse_messages([item, ASSISTANT])
    thought, text = message.parts
    assert isinstance(thought, ThinkingPart)
    assert (thought.text, thought.signature, text) == ("I greet.", None, TextPart(text="Hello."))
    assert json.dumps(render(message)[0]) == json.dumps(item)
    assert wire_format_for("chat").render_message(message) == [{"role": "assistant", "content": "Hello."}]
    assert wire_format_for("messages").render_message(message) == [
        {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]}
    ]


def test_anthropic_gets_only_its_own_signatures():
    def count_blocks(**changes: Any) -> int:
        part = ThinkingPart(**{"text": "hm", "signature": "c2ln"} | changes)
        [message] = wire_format_for("messages").render_message(
            Message(role="assistant", parts=(part, TextPart(text="x")))
        )
        return len(message["content"])

    assert count_blocks() == 2
    assert count_blocks(signature=None, redacted="r") == 2
    assert count_blocks(provider_fields={"pydantic_ai": {"provider_name": "anthropic"}}) == 2
    for signature in (None, "", "quire-unsigned"):
        assert count_blocks(signature=signature) == 1
    assert count_blocks(provider_fields={"pydantic_ai": {"provider_name": "openai"}}) == 1
    assert count_blocks(provider_fields={PROVIDER: make_reasoning_item()}) == 1


def test_reasoning_is_not_sent_without_the_item_after_it_or_without_its_content():
    reasoning = make_reasoning_item()
    [message] = wire_format.parse_messages([reasoning, ASSISTANT, make_reasoning_item(2)])
    assert render(message) == [reasoning, ASSISTANT]
    only_id = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "I greet."}]}
    assert repeat([USER, only_id, ASSISTANT, USER]) == [USER, ASSISTANT, USER]


def test_ids_are_sent_only_together_with_reasoning():
    call = make_call_item(id="fc_1", status="completed")
    said = make_message_item("assistant", [{"type": "output_text", "text": "x", "annotations": []}], id="msg_1")
    said["status"] = "completed"
    with_reasoning = [USER, make_reasoning_item(), said, call, make_output_item()]
    assert repeat(with_reasoning) == with_reasoning
    assert repeat([USER, said, call, make_output_item()]) == [
        USER,
        make_message_item("assistant", "x"),
        make_call_item(),
        make_output_item(),
    ]


def test_names_and_ids_that_would_be_refused_are_mapped_the_same_on_both_sides():
    id_ = "call." * 20
    tool = wire_format.render_tool(ToolDefinition(name="files.read", parameters={}))
    call, output = render(
        Message(role="assistant", parts=(ToolCallPart(id=id_, name="files.read"),)), Message.tool(id_, "x")
    )
    assert call["name"] == tool["name"] != "files.read"
    assert call["call_id"] == output["call_id"]
    assert len(call["call_id"]) <= 64
    assert render(Message.tool("call 1", "x"))[0]["call_id"] == "call 1"


def test_which_models_take_this_format():
    assert infer_wire_format("openai-responses:gpt-5") == "responses"
    assert infer_wire_format("gpt-5") == "chat"
    assert wire_format_for("responses").name == "responses"


# --- token counts ---


def test_what_a_request_costs_by_hand():
    sent = Message(role="assistant", parts=(TextPart(text="abc"), ToolCallPart(id="1", name="look")))
    payload = build_payload(Message.user("hello"), sent, Message.tool("1", "12345"), system="sys")
    system, user, text, call, output = 4 + 3, 4 + 5, 4 + 3, 4 + 8 + 8 + 4 + 2, 4 + 4 + 5
    assert count_payload(wire_format, payload, COUNTER) == 3 + system + user + text + call + output


def test_two_calls_cost_at_least_what_they_cost_in_chat():
    calls = tuple(ToolCallPart(id=str(number), name="look") for number in range(5))
    for count in range(1, 6):
        message = Message(role="assistant", parts=calls[:count])
        chat = wire_format_for("chat")
        in_chat = chat.count_messages(chat.render_message(message), COUNTER)
        assert wire_format.count_messages(render(message), COUNTER) >= in_chat


def test_images_files_tools_and_reasoning_cost_what_they_cost_in_chat():
    chat = wire_format_for("chat", model="gpt-4o")
    image = Message(role="user", parts=(ImagePart(blob=BLOB, detail="high"), FilePart(blob=BLOB, name="a.pdf")))
    rendered = wire_format_for(PROVIDER, model="gpt-4o").render_message(image, load_blob=lambda _: PNG)
    in_chat = chat.count_messages(chat.render_message(image, load_blob=lambda _: PNG), COUNTER)
    assert OpenAIResponsesFormat("gpt-4o").count_messages(rendered, COUNTER) == in_chat
    remote = render(Message(role="user", parts=(FilePart(url="https://x/y.pdf"),)))
    assert wire_format.count_messages(remote, COUNTER) == 4 + PDF_PAGE_TOKENS * REMOTE_FILE_PAGES
    for counter in (COUNTER, make_message_counter("chat").token_counter):
        tools = [wire_format.render_tool(TOOL)]
        assert wire_format.count_tools(tools, counter) == chat.count_tools([chat.render_tool(TOOL)], counter)
    summary = [{"type": "summary_text", "text": "x" * 50}]
    assert wire_format.count_messages([make_reasoning_item(summary=summary)], COUNTER) == 4 + 50
    assert wire_format.count_messages([make_reasoning_item(encrypted_content="x" * 500)], COUNTER) == 4 + 101


def provider_fields() -> st.SearchStrategy[dict[str, Any]]:
    """Provider fields, including some that would break a request."""
    keys = st.sampled_from(
        ["role", "content", "text", "type", "output", "id", "message", "continues", "namespace", "detail", "name", "x"]
    )
    values = st.sampled_from(
        [None, "", "custom_tool_call", "refusal", "reasoning", True, float("inf"), [float("nan"), "é"], {"type": "a"}]
    )
    return st.dictionaries(keys, values, max_size=3).map(lambda fields: {PROVIDER: fields, "messages": fields})


@st.composite
def any_messages(draw: st.DrawFn) -> Message:
    """Any valid message, with provider fields anywhere."""
    message = draw(messages())
    parts = [
        draw(st.sampled_from([part, part.model_copy(update={"provider_fields": draw(provider_fields())})]))
        for part in message.parts
    ]
    return message.model_copy(update={"parts": tuple(parts), "provider_fields": draw(st.none() | provider_fields())})


@given(
    st.lists(any_messages(), max_size=6),
    st.none() | texts(),
    st.booleans(),
    st.sampled_from([None, lambda _: None, lambda _: PNG]),
)
def test_any_messages_render_to_json_and_the_recount_is_the_sum(
    sent: list[Message], system: str | None, tooled: bool, load: Any
):
    tools = [wire_format.render_tool(TOOL)] if tooled else []
    apart = [wire_format.render_message(message, load_blob=load) for message in sent]
    before = copy.deepcopy((apart, tools))
    items = [item for some in apart for item in some]
    payload = wire_format.build_payload(model="m", system=system, tools=tools, messages=items, max_tokens=None)
    wire_format.check(payload)
    json.dumps(payload, ensure_ascii=False, allow_nan=False).encode()
    total = (
        wire_format.request_overhead
        + wire_format.count_system(system, COUNTER)
        + wire_format.count_tools(tools, COUNTER)
        + sum(wire_format.count_messages(some, COUNTER) for some in apart)
    )
    assert count_payload(wire_format, payload, COUNTER) == total
    assert count_payload(wire_format, json.loads(json.dumps(payload)), COUNTER) == total
    assert (apart, tools) == before


@given(st.lists(any_messages(), max_size=6))
def test_everything_that_is_sent_is_paid_for(sent: list[Message]):
    items = render(*sent)
    said = sum(len(text) for item in items for text in _list_texts(item))
    assert wire_format.count_messages(items, COUNTER) >= said


def _list_texts(item: dict[str, Any]) -> list[str]:
    """Texts and names that the model reads."""
    content = item.get("content", item.get("output"))
    listed = content if isinstance(content, list) else []
    pieces = [content, *(piece.get("text") for piece in listed if isinstance(piece, dict))]
    fields = [item.get(field) for field in ("name", "arguments", "input", "namespace")]
    return [text for text in (*pieces, *fields) if isinstance(text, str)]


# --- checks ---


@given(histories())
def test_any_repaired_history_is_valid_by_the_check_and_by_the_sdk(history: list[Message]):
    counter = make_message_counter(PROVIDER)
    repaired = repair_tool_calls(counter.render_entries(make_entries(history)), counter).messages
    sent = flatten_batches(deduplicate_call_ids(group_batches(repaired), counter))
    payload = build_payload(*(rendered.message for rendered in sent), Message.user("And?"))
    assert wire_format.check(payload) == []
    for item in payload["input"]:
        if item["type"] != "message" or isinstance(item["content"], str) or item["role"] != "assistant":
            INPUT_ITEM.validate_python(item)


REFUSAL = make_message_item("assistant", [{"type": "refusal", "refusal": "no"}])
FUNCTION = {"type": "function", "name": "f", "parameters": {}}


@pytest.mark.parametrize(
    "valid",
    [
        [USER],
        [{"role": "user", "content": "hi"}],
        [make_message_item("developer", "x"), USER],
        [USER, make_call_item("1"), make_call_item("2"), make_output_item("2"), make_output_item("1")],
        [USER, make_call_item(), USER, make_output_item()],
        [USER, CUSTOM, CUSTOM_OUTPUT],
        [USER, make_reasoning_item(), make_call_item(), make_output_item()],
        [USER, make_reasoning_item(), WEB_SEARCH, ASSISTANT, USER],
        [USER, REFUSAL, USER],
        [ASSISTANT, USER, USER],
    ],
)
def test_valid_requests_have_no_problems(valid: list[Any]):
    assert wire_format.check({"input": valid, "tools": [FUNCTION, {"type": "web_search"}]}) == []


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ([], "at least one item must not be a system message"),
        ([make_message_item("system", "x")], "at least one item must not be a system message"),
        ([make_message_item("tool", "x"), USER], "unknown role 'tool'"),
        ([{"content": "x"}, USER], "an item needs a type"),
        ([make_message_item("user", None)], "a message needs content"),
        ([make_message_item("user", [])], "a message needs content"),
        ([make_message_item("user", [{"type": "output_text", "text": "x"}])], "cannot contain 'output_text'"),
        ([make_message_item("assistant", [{"type": "input_text", "text": "x"}]), USER], "cannot contain 'input_text'"),
        ([USER, ASSISTANT], "the last item must be the user's or a tool's"),
        ([USER, make_call_item()], "the call '1' has no output"),
        ([USER, make_output_item()], "matches no pending call"),
        ([USER, make_output_item(), make_call_item(), USER], "matches no pending call"),
        ([USER, make_call_item(), CUSTOM_OUTPUT], "matches no pending call"),
        ([USER, make_call_item(), make_output_item(), make_output_item()], "matches no pending call"),
        (
            [USER, make_call_item(), make_output_item(), make_call_item(), make_output_item()],
            "two calls have the call_id '1'",
        ),
        ([USER, make_call_item(name="a.b"), make_output_item()], "'a.b' is no valid tool name"),
        ([USER, make_call_item(arguments={}), make_output_item()], "the arguments of a call must be a text"),
        ([USER, {**CUSTOM, "input": {}}, CUSTOM_OUTPUT], "the input of a call must be a text"),
        ([USER, make_call_item(""), make_output_item("")], "a tool call needs a call_id"),
        ([USER, make_call_item(), make_output_item(output=None)], "an output is a text or a list of content"),
        ([USER, make_reasoning_item(), USER], "reasoning needs an item of its turn after it"),
        ([USER, make_reasoning_item()], "reasoning needs an item of its turn after it"),
        ([make_call_item(), make_reasoning_item(), make_output_item()], "reasoning needs an item of its turn after it"),
    ],
)
def test_problems_are_found(bad: list[Any], problem: str):
    assert [each for each in wire_format.check({"input": bad}) if problem in each]


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ([], "the list is empty"),
        ([FUNCTION, {**FUNCTION, "type": "custom"}], "two are named 'f'"),
        ([{**FUNCTION, "name": "a.b"}], "'a.b' is no valid name"),
    ],
)
def test_problems_of_tools_are_found(tools: list[Any], problem: str):
    assert [each for each in wire_format.check({"input": [USER], "tools": tools}) if problem in each]


# --- parsing ---


def test_adjacent_items_of_the_assistant_are_one_message_and_outputs_are_not():
    items = [
        make_message_item("developer", "Be brief."),
        {"role": "user", "content": "hi"},
        make_reasoning_item(),
        make_message_item("assistant", [{"type": "output_text", "text": "I look."}], phase="commentary"),
        make_call_item("1"),
        make_call_item("2"),
        make_output_item("1"),
        make_output_item("2"),
        ASSISTANT,
    ]
    parsed = wire_format.parse_messages(items, system="System.")
    assert [(message.role, [part.type for part in message.parts]) for message in parsed] == [
        ("system", ["text"]),
        ("system", ["text"]),
        ("user", ["text"]),
        ("assistant", ["thinking", "text", "tool_call", "tool_call"]),
        ("tool", ["tool_result"]),
        ("tool", ["tool_result"]),
        ("assistant", ["text"]),
    ]
    assert parsed[0] == Message.system("System.")
    assert parsed[2] == Message.user("hi")
    assert render(*parsed)[1]["role"] == "developer"
    assert wire_format.parse_messages("hi") == [Message.user("hi")]  # type: ignore[arg-type]


def test_custom_calls_and_namespaces_have_a_form_that_every_provider_accepts():
    items = [USER, CUSTOM, make_call_item("2", namespace="files"), CUSTOM_OUTPUT, make_output_item("2")]
    parsed = wire_format.parse_messages(items)
    custom, call = parsed[1].tool_calls
    assert json.loads(custom.arguments) == {"input": CUSTOM["input"]}
    assert (custom.name, call.name) == ("patch", "files__f")
    chat = [message for each in parsed for message in wire_format_for("chat").render_message(each)]
    assert [call["function"]["name"] for call in chat[1]["tool_calls"]] == ["patch", "files__f"]
    assert wire_format_for("chat").check({"messages": chat}) == []
    assert build_payload(*parsed)["input"] == items
    # A client of another format returns the result without its type.
    without_type = [*parsed[:2], Message.tool("1", "x"), Message.tool("2", "x")]
    assert build_payload(*without_type)["input"] == items


def test_items_of_other_types_are_named_elsewhere_and_go_back_unchanged():
    shell = {"type": "local_shell_call", "call_id": "s", "id": "lsh_1", "status": "completed", "action": {"env": {}}}
    output = {"type": "local_shell_call_output", "id": "lsh_1", "output": "x"}
    items = [USER, WEB_SEARCH, ASSISTANT, shell, output, USER]
    parsed = wire_format.parse_messages(items)
    assert [(message.role, message.text) for message in parsed] == [
        ("user", "hi"),
        ("assistant", "[web_search_call]Hello.[local_shell_call]"),
        ("user", "[local_shell_call_output]"),
        ("user", "hi"),
    ]
    assert repeat(items) == items
    assert wire_format_for("chat").render_message(parsed[2]) == [
        {"role": "user", "content": "[local_shell_call_output]"}
    ]


def test_content_that_quire_has_no_part_for_goes_back_unchanged():
    pieces = [
        {"type": "input_text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}},
        {"type": "input_image", "file_id": "file-1", "detail": "auto"},
        {"type": "input_image", "image_url": "https://x/y.png", "detail": "original"},
        {"type": "input_file", "file_id": "file-1"},
        {"type": "input_file", "file_url": "https://x/y.pdf", "filename": "y.pdf"},
        {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}},
    ]
    items = [make_message_item("user", pieces, id="msg_1"), make_call_item(), make_output_item(output=pieces)]
    assert repeat(items) == items
    assert repeat([USER, REFUSAL, USER]) == [USER, REFUSAL, USER]


@st.composite
def items_of_a_turn(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Items of one response, as a client repeats them, and the outputs of its calls."""
    text = texts(max_size=20)
    output_texts = st.builds(
        lambda text, extra: {"annotations": [], "type": "output_text", "text": text, **extra},
        text,
        st.sampled_from([{}, {"logprobs": [{"token": "x"}]}]),
    )
    refusals = text.map(lambda text: {"type": "refusal", "refusal": text})
    said = st.builds(
        lambda number, content, extra: make_message_item(
            "assistant", content, id=f"msg_{number}", status="completed", **extra
        ),
        st.integers(0, 3),
        st.lists(output_texts | refusals, min_size=1, max_size=3),
        st.sampled_from([{}, {"phase": "commentary"}]),
    )
    calls = st.builds(
        lambda arguments, extra: make_call_item(arguments=arguments, id="fc_1", status="completed", **extra),
        text,
        st.sampled_from([{}, {"namespace": "files"}, {"caller": {"type": "direct"}}]),
    )
    customs = text.map(lambda text: {**CUSTOM, "input": text, "id": "ctc_1"})
    produced = draw(st.lists(st.one_of(said, calls, customs, st.just(WEB_SEARCH)), min_size=1, max_size=5))
    numbered = [{**item, "call_id": f"call_{draw(st.uuids())}"} if "call_id" in item else item for item in produced]
    result = st.one_of(text, st.lists(text.map(lambda text: {"type": "input_text", "text": text}), min_size=2))
    outputs = [
        {
            **(make_output_item if item["type"] == "function_call" else _make_custom_output)(
                item["call_id"], draw(result)
            )
        }
        for item in numbered
        if "call_id" in item
    ]
    summary = draw(st.lists(text.map(lambda text: {"type": "summary_text", "text": text}), max_size=2))
    reasoning = make_reasoning_item(draw(st.integers(0, 9)), summary=summary)
    question = make_message_item("user", draw(text), id="msg_u")
    return [question, reasoning, *numbered, *outputs]


def _make_custom_output(id_: str, output: Any) -> dict[str, Any]:
    return make_output_item(id_, output, type="custom_tool_call_output")


@given(st.lists(items_of_a_turn(), min_size=1, max_size=3))
def test_items_come_back_equal(turns: list[list[dict[str, Any]]]):
    items = [*(item for turn in turns for item in turn), USER]
    parsed = wire_format.parse_messages(items)
    payload = build_payload(*parsed)
    assert payload["input"] == items
    assert wire_format.check(payload) == []
    for item in items:
        INPUT_ITEM.validate_python(item)
    for provider in ("chat", "messages"):
        sent = json.dumps([wire_format_for(provider).render_message(message) for message in parsed])
        assert "gAAA" not in sent
        assert "rs_" not in sent


@given(st.lists(messages(), max_size=5))
def test_what_was_rendered_comes_back_to_the_same_items(sent: list[Message]):
    items = render(*sent)
    assert [item for message in wire_format.parse_messages(items) for item in render(message)] == items


@pytest.mark.parametrize("wrong", [{}, {"type": None}, "text", None])
def test_an_item_without_type_and_role_is_refused(wrong: Any):
    with pytest.raises(InvalidEntry, match="Item 1 of the input has neither a type nor a role"):
        wire_format.parse_messages([USER, wrong])


def test_a_message_with_an_unknown_role_is_refused():
    with pytest.raises(InvalidEntry, match="Item 1 has the role 'tool'"):
        wire_format.parse_messages([USER, {"role": "tool", "content": "x"}])


# --- replies ---


def make_response(*output: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "model": "gpt-5-2026",
        "instructions": "Be brief.",
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "output": list(output),
        "usage": {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 16},
            "output_tokens": 20,
            "output_tokens_details": {"reasoning_tokens": 7},
            "total_tokens": 120,
        },
    } | changes


OUTPUT = [
    make_reasoning_item(summary=[{"type": "summary_text", "text": "I look."}]),
    make_message_item(
        "assistant", [{"annotations": [], "type": "output_text", "text": "I look."}], id="msg_1", status="completed"
    ),
    make_call_item(id="fc_1", status="completed", **{"async": True}),
]


@pytest.mark.parametrize("as_object", [False, True])
def test_a_reply_with_everything(as_object: bool):
    raw = make_response(*OUTPUT)
    response = Response.model_validate(raw) if as_object else raw
    message, usage, finish_reason = parse_reply(response)
    assert finish_reason == "completed"
    assert [part.type for part in message.parts] == ["thinking", "text", "tool_call"]
    assert usage is not None
    assert (usage.model, usage.input_tokens, usage.output_tokens) == ("gpt-5-2026", 100, 20)
    assert (usage.cache_read_tokens, usage.cache_write_tokens) == (64, 16)
    assert usage.provider_fields is not None
    assert usage.provider_fields["output_tokens_details"] == {"reasoning_tokens": 7}
    assert usage.provider_fields["response"]["id"] == "resp_1"
    assert "instructions" not in usage.provider_fields["response"]
    assert render(message) == OUTPUT
    assert wire_format.parse_messages(OUTPUT) == [message]


@pytest.mark.parametrize(
    ("changes", "finish_reason"),
    [
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "max_output_tokens"),
        ({"status": "failed", "error": {"code": "server_error", "message": "x"}}, "failed"),
        ({"status": None, "usage": None}, None),
    ],
)
def test_how_a_reply_ended(changes: dict[str, Any], finish_reason: str | None):
    assert wire_format.parse_reply(make_response(ASSISTANT, **changes)).finish_reason == finish_reason


@pytest.mark.parametrize("wrong", [{}, {"error": {"message": "no"}}, {"output": None}, "text", None])
def test_what_is_no_reply_is_an_error_that_says_so(wrong: Any):
    with pytest.raises(InvalidEntry, match="no output"):
        wire_format.parse_reply(wrong)
