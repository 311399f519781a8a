"""The codec of OpenAI's Responses: requests, tools, streams of an upstream, and encoded replies."""

import json
from typing import Any

import pytest
from responses_helpers import Json, check_events, check_response, parse_events

from quire.model import Message, TextPart, ThinkingPart, ToolCallPart, Usage
from quire.proxy.translation import to_deltas
from quire.wire import Reply
from quire.wire.client_messages import normalize_message
from quire.wire.codec import (
    MAX_REQUEST_TOOLS,
    ClientRequest,
    ReplyContext,
    RequestLimitExceeded,
    RequestOptions,
    UnreadableBody,
)
from quire.wire.codecs import RESPONSES
from quire.wire.replies import ReplyDelta, ReplyText, ReplyThinking, ReplyToolCall, encode_event
from quire.wire.responses.object import build_items, build_response_object
from quire.wire.responses.render import OpenAIResponsesFormat
from quire.wire.responses.stream import ResponsesEncoder, ResponsesStreamDecoder

FUNCTION: Json = {"type": "function", "name": "read", "description": "Reads.", "parameters": {"type": "object"}}
CUSTOM: Json = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: LINE+"},
}
NAMESPACE: Json = {
    "type": "namespace",
    "name": "files",
    "description": "Files.",
    "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}, {"type": "custom", "name": "sh"}],
}
USAGE = Usage(
    input_tokens=40,
    output_tokens=9,
    cache_read_tokens=30,
    provider_fields={"completion_tokens_details": {"reasoning_tokens": 4}},
)


def parse(input_: object = "Hi", **fields: Any) -> ClientRequest:
    body = {"model": "m", "input": input_, **fields}
    return RESPONSES.parse_request(json.dumps(body).encode(), body)


def make_encoder(**fields: Any) -> ResponsesEncoder:
    context = ReplyContext(client_request=parse(**fields), request_id="01ABC", created_at=1_000, input_tokens=7)
    encoder = RESPONSES.make_encoder(context)
    assert isinstance(encoder, ResponsesEncoder)
    return encoder


def stream(
    encoder: ResponsesEncoder, *deltas: ReplyDelta, reply: Reply | None = None, reason: Any = "stop"
) -> list[Json]:
    reply = reply or Reply(Message.assistant(""), USAGE, None)
    pieces = [encoder.start(), *map(encoder.encode, deltas), encoder.finish(reply, reason)]
    return parse_events(b"".join(pieces))


def user(text: str, **more: Any) -> Json:
    return {"role": "user", "content": text, **more}


class TestRequest:
    def test_instructions_are_the_field_and_the_leading_items(self):
        leading = [
            {
                "role": "developer",
                "content": [{"type": "input_text", "text": "b"}, {"type": "input_text", "text": "c"}],
            },
            {"role": "system", "content": "d"},
        ]
        request = parse([*leading, user("Hi"), {"role": "developer", "content": "later"}], instructions="a")
        assert RESPONSES.join_instructions(request) == "a\n\nb\nc\n\nd"
        assert [each.role for each in request.messages] == ["user", "system"]
        assert not RESPONSES.is_plain_system(request, "a")
        assert RESPONSES.is_plain_system(parse(instructions="a"), "a")
        body = json.loads(RESPONSES.encode_fitted(request, {"input": [user("x")]}, stable_prefix=(), model="n"))
        assert body == {
            "model": "n",
            "input": [*({"type": "message", **item} for item in leading), user("x")],
            "instructions": "a",
        }

    def test_items_become_messages_of_the_log(self):
        request = parse(
            [
                user("Environment", id="msg_1", type="message"),
                user("Question", id="msg_2", type="message"),
                {"type": "reasoning", "id": "rs_1", "summary": []},
                {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "read", "arguments": "{}"},
                {
                    "type": "custom_tool_call",
                    "id": "ctc_1",
                    "call_id": "c2",
                    "name": "sh",
                    "input": "ls",
                    "namespace": "files",
                },
                {"type": "function_call_output", "id": "fco_1", "call_id": "c1", "output": "one"},
                {"type": "custom_tool_call_output", "call_id": "c2", "output": "two"},
            ]
        )
        messages = [each.message for each in request.messages]
        assert [message.role for message in messages] == ["user", "user", "assistant", "tool", "tool"]
        assert messages[:2] == [Message.user("Environment"), Message.user("Question")]
        assert [(call.name, call.arguments) for call in messages[2].tool_calls] == [
            ("read", "{}"),
            ("files__sh", '{"input":"ls"}'),
        ]

    def test_ids_and_states_of_items_do_not_change_the_conversation(self):
        call = {"type": "function_call", "call_id": "c", "name": "read", "arguments": '{"a": 1}'}
        text = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}
        output = {"type": "function_call_output", "call_id": "c", "output": "one"}
        bare = parse([user("Hi"), text, call, output])
        more = {"id": "x", "status": "completed"}
        annotated = {**text["content"][0], "annotations": [], "logprobs": []}
        full = parse(
            [
                {**user("Hi"), "type": "message", "id": "u"},
                {**text, **more, "content": [annotated]},
                {**call, **more, "arguments": '{"a":1}'},
                {**output, **more, "output": [{"type": "input_text", "text": "one"}]},
            ]
        )
        assert [each.match_key for each in bare.messages] == [each.match_key for each in full.messages]

    def test_options(self):
        schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
        request = parse(
            stream=True, max_output_tokens=50, temperature=0.5, top_p=0.9, parallel_tool_calls=False,
            tool_choice={"type": "function", "name": "read"}, text={"format": schema, "verbosity": "low"},
            reasoning={"effort": "low", "summary": "auto"}, safety_identifier="u", truncation="auto", store=False,
            previous_response_id="resp_1", metadata={"a": "b"}, include=["reasoning.encrypted_content"],
            prompt_cache_key="k", client_metadata={"session_id": "s"}, background=False, service_tier="flex",
        )  # fmt: skip
        assert request.options == RequestOptions(
            stream=True, max_tokens=50, temperature=0.5, top_p=0.9, parallel_tool_calls=False, required_tool="read",
            response_format={
                "type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
            },
            reasoning_effort="low", user="u",
            other_fields=(
                "include", "prompt_cache_key", "client_metadata", "service_tier", "text.verbosity", "reasoning.summary",
            ),
        )  # fmt: skip
        assert (request.previous_reply, request.is_stored, request.overflow) == ("resp_1", False, "fit")
        assert parse(conversation={"id": "conv_1"}).conversation == parse(conversation="conv_1").conversation == "1"
        assert (parse().is_stored, parse(truncation="disabled").overflow) == (True, None)

    def test_a_choice_among_allowed_tools_is_translated_in_part(self):
        choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "read"}]}
        options = parse(tool_choice=choice).options
        assert (options.tool_choice, options.other_fields) == ("required", ("tool_choice[allowed_tools]",))

    def test_options_return_through_an_upstream_of_this_format(self):
        schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
        fields: Json = {
            "stream": True, "max_output_tokens": 50, "temperature": 0.5, "top_p": 0.9, "parallel_tool_calls": False,
            "tool_choice": {"type": "function", "name": "read"}, "text": {"format": schema},
            "reasoning": {"effort": "low"}, "user": "u",
        }  # fmt: skip
        translated = RESPONSES.translate_options(parse(**fields).options)
        own = {"include": ["reasoning.encrypted_content"], "store": False}
        assert translated == ({**fields, **own}, ())
        assert RESPONSES.translate_options(RequestOptions(top_k=3, stop=("a",))).dropped == ("top_k", "stop")

    @pytest.mark.parametrize(
        "input_",
        [
            None,
            [],
            5,
            ["text"],
            [{"role": "tool", "content": "x"}],
            [{"type": 3}],
            [{"type": "item_reference", "id": "rs_1"}],
        ],
    )
    def test_a_body_that_cannot_be_stored(self, input_: object):
        with pytest.raises(UnreadableBody):
            parse(input_)

    def test_tools_of_namespaces_count(self):
        namespace = {"type": "namespace", "name": "n", "tools": [FUNCTION] * MAX_REQUEST_TOOLS}
        RESPONSES.check_limits({"tools": [namespace]})
        with pytest.raises(RequestLimitExceeded):
            RESPONSES.check_limits({"tools": [namespace, FUNCTION]})

    @pytest.mark.parametrize(
        "items",
        [
            [user("Hi")],
            [user("a"), user("b", id="u", type="message")],
            [
                user("Hi"),
                {
                    "type": "message",
                    "id": "m",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "x", "annotations": []}],
                },
                user("Go on"),
            ],
            [
                user("Hi"),
                {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "sealed"},
                {
                    "type": "function_call",
                    "id": "fc",
                    "call_id": "c",
                    "name": "read",
                    "arguments": "{}",
                    "status": "completed",
                },
                {"type": "function_call_output", "call_id": "c", "output": "one"},
            ],
        ],
    )
    def test_the_log_renders_what_the_client_sent(self, items: list[Json]):
        request = parse(items)
        format_ = OpenAIResponsesFormat()
        rendered = [item for each in request.messages for item in format_.render_message(each.message)]
        sent = RESPONSES.list_sent(request, start=0) or ()
        assert RESPONSES.is_equivalent(rendered, sent)
        assert not RESPONSES.is_equivalent([*rendered, user("more")], sent)


class TestTools:
    def test_functions_stand_for_other_kinds(self):
        hosted = {"type": "web_search", "external_web_access": True}
        translated = RESPONSES.translate_tools(parse(tools=[FUNCTION, CUSTOM, NAMESPACE, hosted]))
        assert [tool.name for tool in translated.definitions] == ["read", "apply_patch", "files__read", "files__sh"]
        assert "start: LINE+" in translated.definitions[1].description
        assert translated.definitions[1].parameters["required"] == ["input"]
        assert translated.dropped == ("tools[web_search]",)

    def test_a_native_tool_of_another_kind_is_stored_whole(self):
        assert RESPONSES.to_tool_definition(CUSTOM).parameters == {"tool": CUSTOM}
        assert RESPONSES.to_tool_definition(FUNCTION).parameters == FUNCTION["parameters"]

    @pytest.mark.parametrize("arguments", ['{"input": "a\\nb"}', '{"input":"x","more":1}', "not JSON"])
    def test_a_restored_call_equals_the_one_that_the_client_sends_back(self, arguments: str):
        encoder = make_encoder(tools=[CUSTOM, NAMESPACE])
        calls = tuple(
            ToolCallPart(id=f"c{index}", name=name, arguments=arguments)
            for index, name in enumerate(("apply_patch", "files__read", "files__sh", "unknown"))
        )
        recorded = encoder.restore_calls(Message(role="assistant", parts=calls))
        items = build_items(recorded, request_id="01ABC")
        assert [(item["type"], item.get("namespace"), item["name"]) for item in items] == [
            ("custom_tool_call", None, "apply_patch"),
            ("function_call", "files", "read"),
            ("custom_tool_call", "files", "sh"),
            ("function_call", None, "unknown"),
        ]
        sent_back = parse([user("Hi"), *items, user("Go on")]).messages[1]
        assert sent_back.normalized == normalize_message(recorded)

    def test_a_name_that_upstreams_get_changed_is_restored(self):
        name = "n." + "x" * 70
        encoder = make_encoder(tools=[{"type": "function", "name": name}])
        rendered = OpenAIResponsesFormat().render_tool(
            RESPONSES.translate_tools(encoder.context.client_request).definitions[0]
        )
        assert rendered["name"] != name
        recorded = encoder.restore_calls(
            Message(role="assistant", parts=(ToolCallPart(id="c", name=rendered["name"]),))
        )
        assert recorded.tool_calls[0].name == build_items(recorded, request_id="r")[0]["name"] == name


class TestEncoder:
    def test_a_text(self):
        events = stream(make_encoder(), ReplyText("Hello"), ReplyText(""), ReplyText(" world"))
        check_events(events)
        assert [event["type"].removeprefix("response.") for event in events] == [
            "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
            "output_text.delta", "output_text.done", "content_part.done", "output_item.done", "completed",
        ]  # fmt: skip
        response = events[-1]["response"]
        assert response["id"] == "resp_01ABC"
        assert response["output"][0]["content"][0]["text"] == "Hello world"
        assert response["usage"] == {
            "input_tokens": 40, "input_tokens_details": {"cached_tokens": 30, "cache_write_tokens": 0},
            "output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 4}, "total_tokens": 49,
        }  # fmt: skip

    def test_reasoning_text_and_calls_in_order(self):
        deltas = (
            ReplyThinking("hm"), ReplyText("I read."), ReplyToolCall(0, "c0", "read"),
            ReplyToolCall(0, arguments='{"a":'),
            ReplyToolCall(0, arguments="1}"), ReplyToolCall(1, "c1", "read", "{}"),
        )  # fmt: skip
        events = stream(make_encoder(tools=[FUNCTION]), *deltas, reason="tool_calls")
        check_events(events)
        assert [item["id"] for item in events[-1]["response"]["output"]] == [
            "rs_01ABC_0", "msg_01ABC_1", "fc_01ABC_2", "fc_01ABC_3",
        ]  # fmt: skip
        done = [index for index, event in enumerate(events) if event["type"] == "response.output_item.done"]
        added = [index for index, event in enumerate(events) if event["type"] == "response.output_item.added"]
        assert all(end < start for end, start in zip(done, added[1:], strict=False))

    def test_calls_that_alternate(self):
        deltas = (
            ReplyToolCall(0, "c0", "read", '{"a":'), ReplyToolCall(1, "c1", "read", '{"b":'),
            ReplyToolCall(0, arguments="1}"), ReplyToolCall(1, arguments="2}"),
        )  # fmt: skip
        events = stream(make_encoder(), *deltas, reason="tool_calls")
        check_events(events)
        assert [item["arguments"] for item in events[-1]["response"]["output"]] == ['{"a":1}', '{"b":2}']

    def test_custom_and_namespace_calls(self):
        deltas = (
            ReplyToolCall(0, "c0", "apply_patch", '{"inp'), ReplyToolCall(0, arguments='ut": "*** Begin"}'),
            ReplyToolCall(1, "c1", "files__read", "{}"),
        )  # fmt: skip
        events = stream(make_encoder(tools=[CUSTOM, NAMESPACE]), *deltas, reason="tool_calls")
        check_events(events, is_open=False)
        assert [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"] == [
            "*** Begin"
        ]
        custom, function = events[-1]["response"]["output"]
        assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "apply_patch", "*** Begin")
        assert (function["namespace"], function["name"]) == ("files", "read")

    @pytest.mark.parametrize(
        ("reason", "name"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
    )
    def test_a_reply_that_is_cut_off_is_incomplete(self, reason: Any, name: str):
        events = stream(make_encoder(), ReplyText("Hel"), reason=reason)
        check_events(events)
        response = events[-1]["response"]
        assert (events[-1]["type"], response["incomplete_details"]) == ("response.incomplete", {"reason": name})
        assert response["output"][0]["status"] == "incomplete"

    def test_an_error_ends_the_stream(self):
        encoder = make_encoder()
        events = parse_events(
            encoder.start()
            + encoder.encode(ReplyText("Hel"))
            + encoder.fail("Too long.", code="model_context_overflow")
        )
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        assert events[-1]["response"]["error"] == {"code": "context_length_exceeded", "message": "Too long."}
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        unknown = parse_events(make_encoder().start() + make_encoder().fail("Broken.", code="strange"))
        assert unknown[-1]["response"]["error"]["code"] == "server_error"

    def test_a_whole_reply_equals_the_end_of_its_stream_and_a_later_read(self):
        fields: Json = {
            "tools": [FUNCTION], "metadata": {"a": "b"}, "instructions": "Be brief.", "store": False,
            "temperature": 0.2, "reasoning": {"summary": "auto"}, "text": {"verbosity": "low"}, "max_output_tokens": 99,
        }  # fmt: skip
        message = Message(
            role="assistant",
            parts=(
                ThinkingPart(text="hm"), TextPart(text="One. "), TextPart(text="Two."),
                ToolCallPart(id="c", name="read", arguments='{"a":1}'),
            ),
        )  # fmt: skip
        reply = Reply(message, USAGE, "stop")
        encoder = make_encoder(**fields)
        streamed = stream(encoder, *to_deltas(message), reply=reply, reason="tool_calls")[-1]["response"]
        whole = json.loads(make_encoder(**fields).encode_response(reply, "tool_calls"))
        read = build_response_object(
            message, request_id="01ABC", request_fields={"model": "m", **fields}, created_at=1_000,
            completed_at=whole["completed_at"], finish_reason="tool_calls", usage=USAGE,
        )  # fmt: skip
        check_response(whole)
        assert whole == read == {**streamed, "completed_at": whole["completed_at"]}
        assert (whole["store"], whole["metadata"], whole["temperature"], whole["truncation"]) == (
            False,
            {"a": "b"},
            0.2,
            "disabled",
        )

    def test_a_native_reply_is_read_with_its_own_ids(self):
        output = [
            {
                "type": "reasoning",
                "id": "rs_up",
                "summary": [{"type": "summary_text", "text": "hm"}],
                "encrypted_content": "sealed",
            },
            {
                "type": "message",
                "id": "msg_up",
                "status": "completed",
                "role": "assistant",
                "content": [
                    {"type": "output_text", "text": "a", "annotations": [], "logprobs": []},
                    {"type": "refusal", "refusal": "No."},
                ],
            },
            {
                "type": "web_search_call",
                "id": "ws_up",
                "status": "completed",
                "action": {"type": "search", "query": "q"},
            },
            {
                "type": "custom_tool_call",
                "id": "ctc_up",
                "status": "completed",
                "call_id": "c",
                "name": "sh",
                "input": "ls",
            },
        ]
        [reply] = RESPONSES.parse_response({"id": "resp_up", "status": "completed", "output": output})
        assert build_items(reply.message, request_id="01ABC") == output


def make_stream(*events: Json) -> list[bytes]:
    return [
        encode_event({**event, "sequence_number": number}, name=event["type"]) for number, event in enumerate(events)
    ]


STARTED: Json = {
    "type": "response.created",
    "response": {"id": "resp_up", "model": "m", "status": "in_progress", "output": []},
}
TEXT_ITEM: Json = {
    "type": "message",
    "id": "msg_up",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hello", "annotations": []}],
}


class TestDecoder:
    def test_the_end_is_withheld(self):
        response = {
            **STARTED["response"],
            "status": "completed",
            "output": [TEXT_ITEM],
            "usage": {"input_tokens": 5, "output_tokens": 2},
        }
        events = make_stream(STARTED, {"type": "response.completed", "response": response})
        decoder = ResponsesStreamDecoder()
        assert decoder.feed(b"".join(events)) == events[0]
        assert (decoder.is_finished, decoder.remainder, decoder.response_id) == (True, events[1], "resp_up")
        [reply] = decoder.build_replies()
        assert (reply.message.text, reply.finish_reason, reply.usage and reply.usage.input_tokens) == (
            "Hello",
            "completed",
            5,
        )

    def test_a_stream_that_breaks_off_has_what_arrived(self):
        call = {"type": "function_call", "id": "fc", "call_id": "c", "name": "read", "arguments": ""}
        custom = {"type": "custom_tool_call", "id": "ctc", "call_id": "d", "name": "sh", "input": ""}
        events = make_stream(
            STARTED,
            {
                "type": "response.output_item.added",
                "output_index": 0,
                "item": {"type": "reasoning", "id": "rs", "summary": []},
            },
            {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0, "delta": "h"},
            {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0, "delta": "m"},
            {"type": "response.output_item.added", "output_index": 1, "item": {**TEXT_ITEM, "content": []}},
            {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "Hel"},
            {"type": "response.refusal.delta", "output_index": 1, "content_index": 1, "delta": "No"},
            {"type": "response.output_item.added", "output_index": 2, "item": call},
            {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": '{"a'},
            {"type": "response.output_item.added", "output_index": 3, "item": custom},
            {"type": "response.custom_tool_call_input.delta", "output_index": 3, "delta": "rm -rf /tmp"},
        )
        decoder = ResponsesStreamDecoder(is_translated=True)
        decoder.feed(b"".join(events))
        [reply] = decoder.build_replies()
        assert [part.type for part in reply.message.parts] == ["thinking", "text", "text", "tool_call"]
        assert reply.message.text == "HelNo"
        # Without its end, the input of a custom tool could be taken for a whole one.
        assert [part.arguments for part in reply.message.tool_calls] == ['{"a']
        assert reply.finish_reason is None
        assert decoder.take_deltas() == [
            ReplyThinking("h"), ReplyThinking("m"), ReplyText("Hel"), ReplyText("No"), ReplyToolCall(0, "c", "read"),
            ReplyToolCall(0, arguments='{"a'), ReplyToolCall(1, "d", "sh"),
        ]  # fmt: skip
        failure = parse_events(decoder.fail("Cut.", code="model_unavailable"))
        assert [event["sequence_number"] for event in failure] == [len(events), len(events) + 1]
        assert failure[1]["response"]["id"] == "resp_up"

    def test_items_without_deltas_are_translated(self):
        call = {
            "type": "function_call",
            "id": "fc",
            "call_id": "c",
            "name": "read",
            "arguments": "{}",
            "namespace": "files",
        }
        custom = {"type": "custom_tool_call", "id": "ctc", "call_id": "d", "name": "sh", "input": "ls"}
        decoder = ResponsesStreamDecoder(is_translated=True)
        for index, item in enumerate((TEXT_ITEM, call, custom)):
            decoder.feed(make_stream({"type": "response.output_item.done", "output_index": index, "item": item})[0])
        assert decoder.take_deltas() == [
            ReplyText("Hello"), ReplyToolCall(0, "c", "files__read"), ReplyToolCall(0, arguments="{}"),
            ReplyToolCall(1, "d", "sh"), ReplyToolCall(1, arguments='{"input":"ls"}'),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        "event",
        [
            {"type": "error", "code": "rate_limit_exceeded", "message": "Slow down."},
            {
                "type": "response.failed",
                "response": {"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "Slow down."}},
            },
        ],
    )
    def test_an_error_of_the_upstream(self, event: Json):
        decoder = ResponsesStreamDecoder()
        decoder.feed(b"".join(make_stream(STARTED, event)))
        assert decoder.error is not None
        assert (decoder.error["error"]["code"], decoder.error["error"]["message"]) == (
            "rate_limit_exceeded",
            "Slow down.",
        )

    def test_a_response_that_failed_has_no_reply(self):
        assert (
            RESPONSES.parse_response({"status": "failed", "output": [TEXT_ITEM], "error": {"code": "server_error"}})
            == []
        )
        assert RESPONSES.parse_response({"object": "list"}) == RESPONSES.parse_response([]) == []
        assert RESPONSES.read_response_id({"id": "resp_up"}) == "resp_up"
