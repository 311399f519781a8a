"""One client for each wire format, all by the official SDKs, with the same questions and one form of replies."""

import json
import struct
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, Protocol

import httpx2
import pytest
from anthropic import AsyncAnthropic
from gateway_fixtures import GatewayHarness, run_gateway
from openai import AsyncOpenAI

from infra.scripted_provider import Script, ScriptedProvider, ScriptedReply, WireFormatName, run_scripted_provider
from quire.store import SqlStore

Json = dict[str, Any]

MODEL = "gpt-4o"
FORMATS: tuple[WireFormatName, ...] = ("chat", "messages", "responses", "gemini")
TRANSLATED_FORMATS = FORMATS[:3]
SERVED_PAIRS = [*product(TRANSLATED_FORMATS, TRANSLATED_FORMATS), ("gemini", "gemini")]
"""Formats of a client and of an upstream that the gateway serves together."""
served_pairs = pytest.mark.parametrize(
    ("client", "speaks"), SERVED_PAIRS, ids=["-to-".join(each) for each in SERVED_PAIRS]
)
PATHS: dict[WireFormatName, str] = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "gemini": f"/v1beta/models/{MODEL}:generateContent",
}
try:
    from google.genai.errors import APIError  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

    GEMINI_ERRORS: tuple[type[Exception], ...] = (APIError,)
except ImportError:
    GEMINI_ERRORS = ()
"""Errors of Google's SDK, if it is installed."""
INSTRUCTIONS = "Be brief."
MAX_REPLY_TOKENS = 300
PARAMETERS: Json = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOL_NAME = "read"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PNG = b"".join(
    (
        b"\x89PNG\r\n\x1a\n",
        _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)),
        _chunk(b"IDAT", zlib.compress(b"\x00\xff\x00\x00")),
        _chunk(b"IEND", b""),
    )
)
"""A red pixel."""
PNG_BASE64 = b64encode(PNG).decode()
PNG_URL = f"data:image/png;base64,{PNG_BASE64}"


class Call(NamedTuple):
    id: str
    name: str
    arguments: Json


@dataclass(frozen=True)
class Reply:
    """A reply as the SDK's accumulator gives it, and its messages or items as the client sends them back."""

    text: str
    thinking: str
    calls: tuple[Call, ...]
    finish: str
    input_tokens: int
    output_tokens: int
    items: list[Json]


class FormatClient(Protocol):
    """A client of one wire format."""

    format: WireFormatName

    async def send(self, history: Sequence[Json], *, stream: bool, has_tools: bool = False, **more: Any) -> Reply: ...
    def make_question(self, text: str, *, has_image: bool = False) -> Json: ...
    def make_results(self, calls: Sequence[Call], texts: Sequence[str]) -> list[Json]: ...
    def make_body(self, history: Sequence[Json], *, stream: bool, has_tools: bool = False) -> Json: ...
    def replace_key(self, key: str) -> None: ...


class ChatClient:
    format: WireFormatName = "chat"

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client

    def replace_key(self, key: str) -> None:
        self._client = self._client.with_options(api_key=key)

    async def send(self, history: Sequence[Json], *, stream: bool, has_tools: bool = False, **more: Any) -> Reply:
        options = self.make_body(history, stream=stream, has_tools=has_tools) | more
        is_stream = options.pop("stream", False)
        if is_stream:
            async with self._client.chat.completions.stream(**options) as events:
                completion = await events.get_final_completion()
        else:
            completion = await self._client.chat.completions.create(**options)
        (choice,) = completion.choices
        message, usage = choice.message, completion.usage
        calls = tuple(
            Call(call.id, call.function.name, json.loads(call.function.arguments))  # pyright: ignore
            for call in message.tool_calls or ()
        )
        sent_back: Json = message.to_dict(mode="json")
        for call in sent_back.get("tool_calls") or ():
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
        sent_back.pop("parsed", None)
        return Reply(
            message.content or "",
            (message.model_extra or {}).get("reasoning_content") or "",
            calls,
            choice.finish_reason,
            usage.prompt_tokens if usage else 0,
            usage.completion_tokens if usage else 0,
            [{name: value for name, value in sent_back.items() if value is not None}],
        )

    def make_body(self, history: Sequence[Json], *, stream: bool, has_tools: bool = False) -> Json:
        function = {"name": TOOL_NAME, "description": "Reads a file.", "parameters": PARAMETERS}
        system = {"role": "system", "content": INSTRUCTIONS}
        return {
            "model": MODEL,
            "messages": [system, *history],
            "max_tokens": MAX_REPLY_TOKENS,
            **({"tools": [{"type": "function", "function": function}]} if has_tools else {}),
            **({"stream": True, "stream_options": {"include_usage": True}} if stream else {}),
        }

    def make_question(self, text: str, *, has_image: bool = False) -> Json:
        if not has_image:
            return {"role": "user", "content": text}
        image = {"type": "image_url", "image_url": {"url": PNG_URL}}
        return {"role": "user", "content": [{"type": "text", "text": text}, image]}

    def make_results(self, calls: Sequence[Call], texts: Sequence[str]) -> list[Json]:
        pairs = zip(calls, texts, strict=True)
        return [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text in pairs]


class MessagesClient:
    format: WireFormatName = "messages"

    def __init__(self, client: AsyncAnthropic) -> None:
        self._client = client

    def replace_key(self, key: str) -> None:
        self._client = self._client.with_options(api_key=key)

    async def send(self, history: Sequence[Json], *, stream: bool, has_tools: bool = False, **more: Any) -> Reply:
        options = self.make_body(history, stream=stream, has_tools=has_tools) | more
        is_stream = options.pop("stream", False)
        if is_stream:
            async with self._client.messages.stream(**options) as events:
                message = await events.get_final_message()
        else:
            message = await self._client.messages.create(**options)
        blocks = message.content
        usage = message.usage
        cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
        return Reply(
            "".join(block.text for block in blocks if block.type == "text"),
            "".join(block.thinking for block in blocks if block.type == "thinking"),
            tuple(Call(block.id, block.name, dict(block.input)) for block in blocks if block.type == "tool_use"),
            message.stop_reason or "",
            usage.input_tokens + cached,
            usage.output_tokens,
            [{"role": "assistant", "content": [block.to_dict(mode="json") for block in blocks]}],
        )

    def make_body(self, history: Sequence[Json], *, stream: bool, has_tools: bool = False) -> Json:
        tool = {"name": TOOL_NAME, "description": "Reads a file.", "input_schema": PARAMETERS}
        return {
            "model": MODEL,
            "system": INSTRUCTIONS,
            "messages": list(history),
            "max_tokens": MAX_REPLY_TOKENS,
            **({"tools": [tool]} if has_tools else {}),
            **({"stream": True} if stream else {}),
        }

    def make_question(self, text: str, *, has_image: bool = False) -> Json:
        if not has_image:
            return {"role": "user", "content": text}
        source = {"type": "base64", "media_type": "image/png", "data": PNG_BASE64}
        return {"role": "user", "content": [{"type": "text", "text": text}, {"type": "image", "source": source}]}

    def make_results(self, calls: Sequence[Call], texts: Sequence[str]) -> list[Json]:
        pairs = zip(calls, texts, strict=True)
        blocks = [{"type": "tool_result", "tool_use_id": call.id, "content": text} for call, text in pairs]
        return [{"role": "user", "content": blocks}]


class ResponsesClient:
    format: WireFormatName = "responses"

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client

    def replace_key(self, key: str) -> None:
        self._client = self._client.with_options(api_key=key)

    async def send(self, history: Sequence[Json], *, stream: bool, has_tools: bool = False, **more: Any) -> Reply:
        options = self.make_body(history, stream=stream, has_tools=has_tools) | more
        is_stream = options.pop("stream", False)
        if is_stream:
            async with self._client.responses.stream(**options) as events:
                response = await events.get_final_response()
        else:
            response = await self._client.responses.create(**options)
        output, usage = response.output, response.usage
        calls = [item for item in output if item.type == "function_call"]
        reasoning = [item for item in output if item.type == "reasoning"]
        sent_back: list[Json] = [item.to_dict(mode="json") for item in output]
        for item in sent_back:
            item.pop("parsed_arguments", None)
            for piece in item.get("content") or ():
                piece.pop("parsed", None)
        return Reply(
            response.output_text,
            "".join(piece.text for item in reasoning for piece in item.summary),
            tuple(Call(item.call_id, item.name, json.loads(item.arguments)) for item in calls),
            response.status or "",
            usage.input_tokens if usage else 0,
            usage.output_tokens if usage else 0,
            sent_back,
        )

    def make_body(self, history: Sequence[Json], *, stream: bool, has_tools: bool = False) -> Json:
        tool = {"type": "function", "name": TOOL_NAME, "description": "Reads a file.", "parameters": PARAMETERS}
        return {
            "model": MODEL,
            "instructions": INSTRUCTIONS,
            "input": list(history),
            "max_output_tokens": MAX_REPLY_TOKENS,
            **({"tools": [{**tool, "strict": False}]} if has_tools else {}),
            **({"stream": True} if stream else {}),
        }

    def make_question(self, text: str, *, has_image: bool = False) -> Json:
        if not has_image:
            return {"type": "message", "role": "user", "content": text}
        image = {"type": "input_image", "image_url": PNG_URL, "detail": "auto"}
        return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}, image]}

    def make_results(self, calls: Sequence[Call], texts: Sequence[str]) -> list[Json]:
        pairs = zip(calls, texts, strict=True)
        return [{"type": "function_call_output", "call_id": call.id, "output": text} for call, text in pairs]


class GeminiClient:
    """Google's SDK. The body of a streamed request has `stream`, which `post_body` moves into the path."""

    format: WireFormatName = "gemini"

    def __init__(self, client: Any, types: Any) -> None:
        self._client, self._types = client, types

    def replace_key(self, key: str) -> None:
        self._client._api_client._http_options.headers["x-goog-api-key"] = key

    async def send(self, history: Sequence[Json], *, stream: bool, has_tools: bool = False, **more: Any) -> Reply:
        body = self.make_body(history, stream=stream, has_tools=has_tools)
        config = {
            **{name: body[name] for name in ("systemInstruction", "tools") if name in body},
            **body["generationConfig"],
            **more,
        }
        contents = [self._types.Content.model_validate_json(json.dumps(each)) for each in history]
        options: Json = {"model": MODEL, "contents": contents, "config": config}
        if stream:
            chunks = [each async for each in await self._client.aio.models.generate_content_stream(**options)]
        else:
            chunks = [await self._client.aio.models.generate_content(**options)]
        candidates = [chunk.candidates[0] for chunk in chunks]
        received = [each.content for each in candidates if each.content and each.content.parts]
        parts = [part for content in received for part in content.parts]
        usage = chunks[-1].usage_metadata
        calls = [part.function_call for part in parts if part.function_call]
        return Reply(
            "".join(part.text for part in parts if part.text and not part.thought),
            "".join(part.text for part in parts if part.text and part.thought),
            tuple(Call(call.id, call.name, call.args or {}) for call in calls),
            candidates[-1].finish_reason.value,
            usage.prompt_token_count,
            (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0),
            # As the SDK's own chats send them back: each chunk is a content.
            [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in received],
        )

    def make_body(self, history: Sequence[Json], *, stream: bool, has_tools: bool = False) -> Json:
        function = {"name": TOOL_NAME, "description": "Reads a file.", "parametersJsonSchema": PARAMETERS}
        return {
            "contents": list(history),
            "systemInstruction": {"parts": [{"text": INSTRUCTIONS}]},
            "generationConfig": {"maxOutputTokens": MAX_REPLY_TOKENS},
            **({"tools": [{"functionDeclarations": [function]}]} if has_tools else {}),
            **({"stream": True} if stream else {}),
        }

    def make_question(self, text: str, *, has_image: bool = False) -> Json:
        image = [{"inlineData": {"mimeType": "image/png", "data": PNG_BASE64}}] if has_image else []
        return {"role": "user", "parts": [{"text": text}, *image]}

    def make_results(self, calls: Sequence[Call], texts: Sequence[str]) -> list[Json]:
        results = [
            {"id": call.id, "name": call.name, "response": {"output": text}}
            for call, text in zip(calls, texts, strict=True)
        ]
        return [{"role": "user", "parts": [{"functionResponse": each} for each in results]}]


def build_post(format: WireFormatName, body: Json | bytes) -> tuple[str, bytes]:
    """The path and the bytes of a request in a client's format."""
    path = PATHS[format]
    if isinstance(body, bytes):
        return path, body
    if format == "gemini" and body.get("stream"):
        path = path.replace(":generateContent", ":streamGenerateContent?alt=sse")
        body = {name: value for name, value in body.items() if name != "stream"}
    return path, json.dumps(body).encode()


@dataclass
class MatrixHarness:
    """A gateway with an upstream of one format and a client of another, or of the same."""

    client: FormatClient
    provider: ScriptedProvider
    gateway: GatewayHarness

    async def post(self, body: Json | bytes, **headers: str) -> Any:
        """Posts a body in the client's format, and returns the bytes of the response as they came."""
        path, content = build_post(self.client.format, body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.gateway.http.post(path, content=content, headers=named)


@asynccontextmanager
async def make_client(gateway: GatewayHarness, format: WireFormatName) -> AsyncIterator[FormatClient]:
    """A client of a running gateway."""
    match format:
        case "chat":
            yield ChatClient(gateway.openai)
        case "messages":
            async with make_anthropic(gateway) as anthropic:
                yield MessagesClient(anthropic)
        case "responses":
            yield ResponsesClient(gateway.openai)
        case "gemini":
            genai = pytest.importorskip("google.genai", reason="google-genai is not installed")
            key = gateway.http.headers["authorization"].removeprefix("Bearer ")
            async with httpx2.AsyncClient() as http_client:
                options = {"base_url": str(gateway.http.base_url), "httpx_async_client": http_client}
                yield GeminiClient(genai.Client(api_key=key, vertexai=False, http_options=options), genai.types)


@asynccontextmanager
async def make_anthropic(gateway: GatewayHarness) -> AsyncIterator[AsyncAnthropic]:
    """Anthropic's SDK with the key of a running gateway."""
    key = gateway.http.headers["authorization"].removeprefix("Bearer ")
    async with (
        httpx2.AsyncClient() as http_client,
        AsyncAnthropic(
            base_url=str(gateway.http.base_url), api_key=key, max_retries=0, http_client=http_client
        ) as anthropic,
    ):
        yield anthropic


@asynccontextmanager
async def run_matrix_gateway(
    store: SqlStore,
    script: Script | Sequence[ScriptedReply] | str,
    *,
    client: WireFormatName,
    speaks: WireFormatName,
    window_tokens: int | None = None,
    **settings: Any,
) -> AsyncIterator[MatrixHarness]:
    """A gateway whose only upstream is a scripted provider of the format `speaks`."""
    with run_scripted_provider(script, window_tokens=window_tokens) as provider:
        settings["upstreams"] = {"*": {"base_url": provider.openai_url, "speaks": [speaks]}}
        async with (
            run_gateway(store, provider.openai_url, **settings) as gateway,
            make_client(gateway, client) as format_client,
        ):
            yield MatrixHarness(format_client, provider, gateway)
