"""Replies of the scripted provider, and their encoding in two wire formats: chat completions and messages.

The responses format and Gemini have modules of their own."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

WireFormatName = Literal["chat", "messages", "responses", "gemini"]
Json = dict[str, Any]


@dataclass(frozen=True)
class ScriptedCall:
    """A tool call; a namespace and a free-form input exist only in the Responses format."""

    name: str
    arguments: Json = field(default_factory=dict[str, Any])
    namespace: str | None = None
    custom_input: str | None = None

    @property
    def arguments_json(self) -> str:
        return json.dumps(self.arguments)


@dataclass(frozen=True)
class ScriptedUsage:
    """Token counts of a reply; an input of None is estimated from the request's size."""

    input_tokens: int | None = None
    cached_tokens: int = 0
    output_tokens: int = 20
    written_tokens: int = 0
    """Written to the prompt cache; only Anthropic reports it."""


@dataclass(frozen=True)
class ScriptedError:
    """An error response, with a type and a message in the provider's words."""

    status: int
    type: str
    message: str
    code: str | None = None


@dataclass(frozen=True)
class ScriptedReply:
    """What the provider responds with: thinking, then text, then parallel tool calls; or an error."""

    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    thinking: str = ""
    usage: ScriptedUsage = ScriptedUsage()
    content: tuple[Json, ...] = ()
    """In place of thinking, text, calls: choices of chat, blocks of messages, items of responses, parts of Gemini."""
    fields: Json = field(default_factory=dict[str, Any])
    """Further fields of the response, such as `stop_reason`. Those of `usage` are added to the counts."""
    compaction: str = ""
    """Sealed content of a compaction item, which exists only in the Responses format."""
    applied_edits: tuple[Json, ...] = ()
    """What a provider of Anthropic's format reports to have cleared on its side."""
    error: ScriptedError | None = None
    cut_after_events: int | None = None
    """The connection is aborted after that many events of the stream, or in the middle of a body."""


@dataclass(frozen=True)
class ReplyContext:
    """What an encoder needs of the request: the model, a number unique to the request, and its estimated tokens."""

    model: str
    number: int
    input_tokens: int

    def make_id(self, prefix: str, index: int | None = None) -> str:
        return f"{prefix}{self.number:04d}" + ("" if index is None else f"_{index}")


class ReplyEncoder(Protocol):
    """One wire format of the provider."""

    def encode_events(self, reply: ScriptedReply, context: ReplyContext) -> Iterator[bytes]: ...
    def make_body(self, reply: ScriptedReply, context: ReplyContext) -> Json: ...
    def make_error(self, error: ScriptedError, context: ReplyContext) -> Json: ...
    def make_overflow(self, *, tokens: int, window_tokens: int) -> ScriptedError: ...


def split_words(text: str) -> list[str]:
    words = text.split(" ")
    return [word if index == 0 else f" {word}" for index, word in enumerate(words)]


def encode_event(data: Json) -> bytes:
    """Encodes an event with its `event:` line, as both newer formats do."""
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


def get_input_tokens(reply: ScriptedReply, context: ReplyContext) -> int:
    return context.input_tokens if reply.usage.input_tokens is None else reply.usage.input_tokens


class ChatEncoder:
    """OpenAI chat completions."""

    def encode_events(self, reply: ScriptedReply, context: ReplyContext) -> Iterator[bytes]:
        if reply.content:
            yield from self._encode_choices(reply, context)
            return
        yield self._encode_chunk(context, {"role": "assistant", "content": ""})
        if reply.thinking:
            yield self._encode_chunk(context, {"reasoning_content": reply.thinking})
        if reply.text:
            for word in split_words(reply.text):
                yield self._encode_chunk(context, {"content": word})
        for index, call in enumerate(self._make_calls(reply, context)):
            function = call["function"]
            start = {"index": index, **call, "function": {"name": function["name"], "arguments": ""}}
            yield self._encode_chunk(context, {"tool_calls": [start]})
            yield self._encode_chunk(
                context, {"tool_calls": [{"index": index, "function": {"arguments": function["arguments"]}}]}
            )
        yield self._encode_chunk(context, {}, finish=_choose_finish(reply))
        yield _encode_data(
            self._make_head(context, "chat.completion.chunk", []) | {"usage": _chat_usage(reply, context)}
        )
        yield b"data: [DONE]\n\n"

    def _encode_choices(self, reply: ScriptedReply, context: ReplyContext) -> Iterator[bytes]:
        """A chunk for each choice, its end, and the usage."""
        head = self._make_head(context, "chat.completion.chunk", []) | reply.fields
        for index, choice in enumerate(reply.content):
            calls = [{"index": number, **call} for number, call in enumerate(choice["message"].get("tool_calls", ()))]
            delta = choice["message"] | ({"tool_calls": calls} if calls else {})
            chunk = {"index": index, "delta": delta, "logprobs": choice.get("logprobs"), "finish_reason": None}
            yield _encode_data(head | {"choices": [chunk]})
            end = {"index": index, "delta": {}, "finish_reason": choice["finish_reason"]}
            yield _encode_data(head | {"choices": [end]})
        yield _encode_data(head | {"usage": _chat_usage(reply, context)})
        yield b"data: [DONE]\n\n"

    def make_body(self, reply: ScriptedReply, context: ReplyContext) -> Json:
        if reply.content:
            choices = [{"index": index, **choice} for index, choice in enumerate(reply.content)]
            head = self._make_head(context, "chat.completion", choices) | reply.fields
            return head | {"usage": _chat_usage(reply, context)}
        message: Json = {"role": "assistant", "content": reply.text or None}
        if reply.thinking:
            message["reasoning_content"] = reply.thinking
        if reply.calls:
            message["tool_calls"] = self._make_calls(reply, context)
        choice = {"index": 0, "message": message, "finish_reason": _choose_finish(reply)}
        return self._make_head(context, "chat.completion", [choice]) | {"usage": _chat_usage(reply, context)}

    def make_error(self, error: ScriptedError, context: ReplyContext) -> Json:
        return {"error": {"message": error.message, "type": error.type, "param": None, "code": error.code}}

    def make_overflow(self, *, tokens: int, window_tokens: int) -> ScriptedError:
        message = (
            f"This model's maximum context length is {window_tokens} tokens. However, your messages resulted in "
            f"{tokens} tokens. Please reduce the length of the messages."
        )
        return ScriptedError(400, "invalid_request_error", message, "context_length_exceeded")

    def _make_calls(self, reply: ScriptedReply, context: ReplyContext) -> list[Json]:
        return [
            {
                "id": context.make_id("call_", index),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments_json},
            }
            for index, call in enumerate(reply.calls)
        ]

    def _make_head(self, context: ReplyContext, kind: str, choices: list[Json]) -> Json:
        head = {"id": context.make_id("chatcmpl-"), "object": kind, "created": 1, "model": context.model}
        return head | {"choices": choices}

    def _encode_chunk(self, context: ReplyContext, delta: Json, *, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _encode_data(self._make_head(context, "chat.completion.chunk", [choice]))


def _encode_data(data: Json) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def _choose_finish(reply: ScriptedReply) -> str:
    return "tool_calls" if reply.calls else "stop"


def _chat_usage(reply: ScriptedReply, context: ReplyContext) -> Json:
    tokens, output = get_input_tokens(reply, context), reply.usage.output_tokens
    return {
        "prompt_tokens": tokens,
        "completion_tokens": output,
        "total_tokens": tokens + output,
        "prompt_tokens_details": {"cached_tokens": reply.usage.cached_tokens},
        **reply.fields.get("usage", {}),
    }


class MessagesEncoder:
    """Anthropic messages."""

    def encode_events(self, reply: ScriptedReply, context: ReplyContext) -> Iterator[bytes]:
        body = self.make_body(reply, context)
        usage = body["usage"]
        start = body | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
        yield encode_event({"type": "message_start", "message": start})
        yield encode_event({"type": "ping"})
        for index, block in enumerate(body["content"]):
            empty, deltas = _open_block(block)
            yield encode_event({"type": "content_block_start", "index": index, "content_block": empty})
            for delta in deltas:
                yield encode_event({"type": "content_block_delta", "index": index, "delta": delta})
            yield encode_event({"type": "content_block_stop", "index": index})
        names = ("stop_reason", "stop_sequence", "stop_details", "container")
        delta = {name: body[name] for name in names if name in body}
        edits = {name: body[name] for name in ("context_management",) if name in body}
        yield encode_event({"type": "message_delta", "delta": delta, "usage": usage, **edits})
        yield encode_event({"type": "message_stop"})

    def make_body(self, reply: ScriptedReply, context: ReplyContext) -> Json:
        blocks: list[Json] = list(reply.content)
        if reply.thinking:
            signature = context.make_id("signature")
            blocks.append({"type": "thinking", "thinking": reply.thinking, "signature": signature})
        if reply.text:
            blocks.append({"type": "text", "text": reply.text})
        for index, call in enumerate(reply.calls):
            block = {"type": "tool_use", "id": context.make_id("toolu_", index), "name": call.name}
            blocks.append(block | {"input": call.arguments})
        usage = {
            "input_tokens": get_input_tokens(reply, context) - reply.usage.cached_tokens - reply.usage.written_tokens,
            "cache_creation_input_tokens": reply.usage.written_tokens,
            "cache_read_input_tokens": reply.usage.cached_tokens,
            "output_tokens": reply.usage.output_tokens,
            **reply.fields.get("usage", {}),
        }
        calls_tool = reply.calls or any(block["type"] == "tool_use" for block in blocks)
        reason = "tool_use" if calls_tool else "end_turn"
        return {
            "id": context.make_id("msg_"), "type": "message", "role": "assistant", "model": context.model,
            "content": blocks, "stop_reason": reason, "stop_sequence": None, "usage": usage,
            **({"context_management": {"applied_edits": list(reply.applied_edits)}} if reply.applied_edits else {}),
            **{name: value for name, value in reply.fields.items() if name != "usage"},
        }  # fmt: skip

    def make_error(self, error: ScriptedError, context: ReplyContext) -> Json:
        detail = {"type": error.type, "message": error.message}
        return {"type": "error", "error": detail, "request_id": context.make_id("req_")}

    def make_overflow(self, *, tokens: int, window_tokens: int) -> ScriptedError:
        return ScriptedError(
            400, "invalid_request_error", f"prompt is too long: {tokens} tokens > {window_tokens} maximum"
        )


def _open_block(block: Json) -> tuple[Json, list[Json]]:
    """Returns a block as it starts in a stream, and the deltas that complete it."""
    match block["type"]:
        case "text":
            deltas = [{"type": "text_delta", "text": word} for word in split_words(block["text"])]
            cited = [{"type": "citations_delta", "citation": each} for each in block.get("citations") or ()]
            return {"type": "text", "text": ""}, [*deltas, *cited]
        case "thinking":
            text = {"type": "thinking_delta", "thinking": block["thinking"]}
            signature = {"type": "signature_delta", "signature": block["signature"]}
            return {"type": "thinking", "thinking": "", "signature": ""}, [text, signature]
        case _ if "input" in block:
            return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        case _:
            # Results of server tools, redacted thinking, compactions and fallbacks come whole.
            return block, []
