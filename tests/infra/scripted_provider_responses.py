"""Replies of the scripted provider in the format of OpenAI responses."""

from collections.abc import Iterator

from infra.scripted_provider_formats import (
    Json,
    ReplyContext,
    ScriptedCall,
    ScriptedError,
    ScriptedReply,
    encode_event,
    get_input_tokens,
    split_words,
)


class ResponsesEncoder:
    """OpenAI responses."""

    def encode_events(self, reply: ScriptedReply, context: ReplyContext) -> Iterator[bytes]:
        for number, event in enumerate(self._list_events(reply, context)):
            yield encode_event(event | {"sequence_number": number})

    def make_body(self, reply: ScriptedReply, context: ReplyContext) -> Json:
        tokens, output = get_input_tokens(reply, context), reply.usage.output_tokens
        usage = {
            "input_tokens": tokens,
            "input_tokens_details": {"cached_tokens": reply.usage.cached_tokens},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tokens + output,
            **reply.fields.get("usage", {}),
        }
        fields = {name: value for name, value in reply.fields.items() if name != "usage"}
        items = list(_list_items(reply, context))
        return _make_response(context) | {"status": "completed", "output": items, "usage": usage} | fields

    def make_compaction(self, reply: ScriptedReply, context: ReplyContext) -> Json:
        """What `/responses/compact` answers: the user's messages, then a compaction item."""
        body = self.make_body(reply, context)
        head = {"id": body["id"], "object": "response.compaction", "created_at": 1}
        return head | {"output": body["output"], "usage": body["usage"]}

    def make_error(self, error: ScriptedError, context: ReplyContext) -> Json:
        return {"error": {"message": error.message, "type": error.type, "param": None, "code": error.code}}

    def make_overflow(self, *, tokens: int, window_tokens: int) -> ScriptedError:
        message = "Your input exceeds the context window of this model. Please adjust your input and try again."
        return ScriptedError(400, "invalid_request_error", message, "context_length_exceeded")

    def _list_events(self, reply: ScriptedReply, context: ReplyContext) -> Iterator[Json]:
        pending = _make_response(context)
        yield {"type": "response.created", "response": pending}
        yield {"type": "response.in_progress", "response": pending}
        if reply.error is not None:
            error = {"code": reply.error.code, "message": reply.error.message}
            yield {"type": "response.failed", "response": pending | {"status": "failed", "error": error}}
            return
        body = self.make_body(reply, context)
        for index, item in enumerate(body["output"]):
            empty, events = _open_item(item)
            yield {"type": "response.output_item.added", "output_index": index, "item": empty}
            for event in events:
                yield event | {"item_id": item["id"], "output_index": index}
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        yield {"type": f"response.{body['status']}", "response": body}


def _make_response(context: ReplyContext) -> Json:
    return {
        "id": context.make_id("resp_"), "object": "response", "created_at": 1, "status": "in_progress",
        "model": context.model, "output": [], "error": None, "incomplete_details": None, "instructions": None,
        "metadata": {}, "parallel_tool_calls": True, "temperature": 1.0, "tool_choice": "auto", "tools": [],
        "top_p": 1.0,
    }  # fmt: skip


def _list_items(reply: ScriptedReply, context: ReplyContext) -> Iterator[Json]:
    yield from reply.content
    if reply.thinking:
        summary = [{"type": "summary_text", "text": reply.thinking}]
        sealed = context.make_id("sealed")
        yield {"id": context.make_id("rs_"), "type": "reasoning", "summary": summary, "encrypted_content": sealed}
    if reply.text:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        head = {"id": context.make_id("msg_"), "type": "message", "role": "assistant"}
        yield head | {"status": "completed", "content": [part]}
    if reply.compaction:
        yield {"id": context.make_id("cmp_"), "type": "compaction", "encrypted_content": reply.compaction}
    for index, call in enumerate(reply.calls):
        yield _make_call_item(call, index, context)


def _make_call_item(call: ScriptedCall, index: int, context: ReplyContext) -> Json:
    item: Json = {"status": "completed", "call_id": context.make_id("call_", index), "name": call.name}
    if call.custom_input is not None:
        item |= {"id": context.make_id("ctc_", index), "type": "custom_tool_call", "input": call.custom_input}
    else:
        item |= {"id": context.make_id("fc_", index), "type": "function_call", "arguments": call.arguments_json}
    return item | ({"namespace": call.namespace} if call.namespace else {})


def _open_item(item: Json) -> tuple[Json, list[Json]]:
    """Returns an item as it starts in a stream, and the events that complete it."""
    match item["type"]:
        case "message" if item["content"][0]["type"] == "output_text":
            (part,) = item["content"]
            place = {"content_index": 0}
            deltas = [
                {"type": "response.output_text.delta", **place, "delta": word, "logprobs": []}
                for word in split_words(part["text"])
            ]
            start = {"type": "response.content_part.added", **place, "part": part | {"text": ""}}
            text_done = {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
            part_done = {"type": "response.content_part.done", **place, "part": part}
            return item | {"status": "in_progress", "content": []}, [start, *deltas, text_done, part_done]
        case "reasoning" if item["summary"]:
            (part,) = item["summary"]
            place = {"summary_index": 0}
            events = [
                {"type": "response.reasoning_summary_part.added", **place, "part": part | {"text": ""}},
                {"type": "response.reasoning_summary_text.delta", **place, "delta": part["text"]},
                {"type": "response.reasoning_summary_text.done", **place, "text": part["text"]},
                {"type": "response.reasoning_summary_part.done", **place, "part": part},
            ]
            return item | {"summary": [], "encrypted_content": None}, events
        case "compaction":
            return item, []
        case "custom_tool_call":
            text = item["input"]
            delta = {"type": "response.custom_tool_call_input.delta", "delta": text}
            done = {"type": "response.custom_tool_call_input.done", "input": text}
            return item | {"status": "in_progress", "input": ""}, [delta, done]
        case "function_call":
            arguments = item["arguments"]
            delta = {"type": "response.function_call_arguments.delta", "delta": arguments}
            done = {"type": "response.function_call_arguments.done", "name": item["name"], "arguments": arguments}
            return item | {"status": "in_progress", "arguments": ""}, [delta, done]
        case _:
            # Items of hosted tools, compactions and refusals come whole.
            return item, []
