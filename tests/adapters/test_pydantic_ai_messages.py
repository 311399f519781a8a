"""Messages go to pydantic-ai and come back: nothing that a provider verifies is lost."""

import base64

from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import messages as pai
from pydantic_ai.usage import RequestUsage
from pydantic_ai_oracle import from_pydantic_ai

from infra.strategies import texts
from quire.adapters.pydantic_ai_messages import to_pydantic_ai, to_reply
from quire.model import (
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)

PNG_BASE64 = base64.b64encode(b"\x89PNG\r\n\x1a\n not quite a picture").decode()


def _response_parts() -> st.SearchStrategy[Part]:
    ids = st.text("abc123_-", min_size=1, max_size=8)
    nonempty = texts().filter(bool)
    return (
        st.builds(TextPart, text=nonempty)
        | st.builds(ThinkingPart, text=texts(), signature=nonempty)
        | st.builds(ThinkingPart, redacted=nonempty)
        | st.builds(ToolCallPart, id=ids, name=ids, arguments=texts())
    )


def _user_parts() -> st.SearchStrategy[Part]:
    data = st.binary(min_size=1, max_size=40).map(lambda raw: base64.b64encode(raw).decode())
    details = st.sampled_from([None, "low", "high", "auto"])
    inline = st.builds(
        lambda data, detail: ImagePart(url=f"data:image/png;base64,{data}", media_type="image/png", detail=detail),
        data,
        details,
    )
    linked = st.builds(ImagePart, url=st.just("https://example.org/a.png"), detail=details)
    files = data.map(lambda data: FilePart(url=f"data:application/pdf;base64,{data}", media_type="application/pdf"))
    return st.builds(TextPart, text=texts()) | inline | linked | files


def _histories() -> st.SearchStrategy[list[Message]]:
    assistant = st.lists(_response_parts(), max_size=4).map(lambda parts: Message(role="assistant", parts=tuple(parts)))
    user = st.lists(_user_parts(), min_size=1, max_size=3).map(lambda parts: Message(role="user", parts=tuple(parts)))
    tool = st.builds(Message.tool, st.text("abc", min_size=1), texts(), is_error=st.booleans())
    return st.lists(assistant | user | tool | st.builds(Message.system, texts()), max_size=5)


def _strip_provider(message: Message) -> Message:
    """Removes provider fields, which a message from another source does not have."""
    return message.model_copy(
        update={"parts": tuple(part.model_copy(update={"provider_fields": None}) for part in message.parts)}
    )


@given(_histories())
def test_messages_go_to_pydantic_ai_and_come_back(history: list[Message]):
    back = from_pydantic_ai(to_pydantic_ai(history))
    assert [_strip_provider(message) for message in back] == history
    # With its provider fields a message makes the round trip unchanged.
    assert from_pydantic_ai(to_pydantic_ai(back)) == back


@given(_histories())
def test_what_is_sent_can_be_stored_by_pydantic_ai(history: list[Message]):
    adapter = pai.ModelMessagesTypeAdapter
    sent = to_pydantic_ai(history)
    assert [_strip_provider(m) for m in from_pydantic_ai(adapter.validate_json(adapter.dump_json(sent)))] == history


def test_the_parts_of_a_response_retain_the_fields_of_pydantic_ai():
    response = pai.ModelResponse(
        parts=[
            pai.ThinkingPart("Hm", id="rs_1", signature="enc", provider_name="openai"),
            pai.TextPart("Hi", id="msg_1", provider_name="openai", provider_details={"phase": "final"}),
            pai.ToolCallPart("f", {"a": 1}, "call_1", id="fc_1", provider_name="openai"),
            pai.FilePart(pai.BinaryContent(data=b"x", media_type="image/png")),
        ],
        usage=RequestUsage(input_tokens=10, cache_read_tokens=4, cache_write_tokens=2, output_tokens=3),
        model_name="gpt",
        provider_details={"finish_reason": "stop"},
    )
    reply = to_reply(response)
    assert reply.finish_reason == "stop"
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.cache_read_tokens, reply.usage.cache_write_tokens) == (10, 4, 2)
    assert Message.parse(reply.message.canonical_json()) == reply.message
    (back,) = to_pydantic_ai([reply.message])
    thinking, text, call = back.parts
    assert thinking == response.parts[0]
    assert text == response.parts[1]
    assert isinstance(call, pai.ToolCallPart)
    assert (call.tool_call_id, call.id, call.args_as_json_str()) == ("call_1", "fc_1", '{"a":1}')
    picture = reply.message.parts[3]
    assert isinstance(picture, ImagePart)


def test_a_results_pictures_follow_its_text():
    content = (
        TextPart(text="a"),
        ImagePart(url=f"data:image/png;base64,{PNG_BASE64}"),
        TextPart(text="b"),
        ImagePart(url="data:image/png;base64,@@@"),
    )
    result = Message(role="tool", parts=(ToolResultPart(call_id="c", content=content),))
    (request,) = to_pydantic_ai([result])
    (part,) = request.parts
    assert isinstance(part, pai.ToolReturnPart)
    text, picture = part.content_items(mode="raw")
    assert text == "ab[image: data:image/png;base64]"
    assert isinstance(picture, pai.BinaryContent)
