"""A scripted provider on loopback that speaks chat completions, messages, responses and Gemini, streamed and not.

It runs in threads, for clients of any kind: SDKs, the gateway, and agents that run as processes.
"""

import json
import re
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import unquote

from splintr import AnyTokenizer, Tokenizer

from infra.scripted_provider_formats import (
    ChatEncoder,
    Json,
    MessagesEncoder,
    ReplyContext,
    ReplyEncoder,
    ScriptedCall,
    ScriptedError,
    ScriptedReply,
    ScriptedUsage,
    WireFormatName,
)
from infra.scripted_provider_gemini import GeminiEncoder
from infra.scripted_provider_responses import ResponsesEncoder

__all__ = [
    "ProviderRequest",
    "Script",
    "ScriptedCall",
    "ScriptedError",
    "ScriptedProvider",
    "ScriptedReply",
    "ScriptedUsage",
    "WireFormatName",
    "call_tool",
    "count_tokens_of_texts",
    "play",
    "run_scripted_provider",
]  # fmt: skip

CHARS_PER_TOKEN = 4
"""Estimate of the provider's own token count; a test that needs another passes `count_tokens`."""

_PATHS: dict[str, WireFormatName] = {
    "/chat/completions": "chat",
    "/messages": "messages",
    "/messages/count_tokens": "messages",
    "/responses": "responses",
    "/responses/input_tokens": "responses",
    "/responses/compact": "responses",
}
_RESPONSES_ENCODER = ResponsesEncoder()
_GEMINI_ENCODER = GeminiEncoder()
_ENCODERS: dict[WireFormatName, ReplyEncoder] = {
    "chat": ChatEncoder(),
    "messages": MessagesEncoder(),
    "responses": _RESPONSES_ENCODER,
    "gemini": _GEMINI_ENCODER,
}
_COUNT_PATHS = ("/count_tokens", "/input_tokens", ":countTokens")
_GEMINI_PATH = re.compile(r"/models/(?P<model>.+):(?:generateContent|streamGenerateContent|countTokens)")
_ITEM_FIELDS: dict[WireFormatName, str] = {"responses": "input", "gemini": "contents"}


@dataclass(frozen=True, eq=False)
class ProviderRequest:
    """One received request, as its bytes came."""

    format: WireFormatName
    path: str
    headers: dict[str, str]
    raw: bytes

    @cached_property
    def body(self) -> Json:
        return json.loads(self.raw)

    @property
    def is_count(self) -> bool:
        """Whether it only counts tokens."""
        return self.path.partition("?")[0].endswith(_COUNT_PATHS)

    @property
    def model(self) -> str:
        match = _GEMINI_PATH.search(unquote(self.path))
        return match["model"] if match is not None else self.body["model"]

    @property
    def is_stream(self) -> bool:
        return ":streamGenerateContent" in self.path or bool(self.body.get("stream"))

    @property
    def items(self) -> list[Json]:
        """The messages, the input items of a responses request, or the contents of a Gemini request."""
        items = self.body[_ITEM_FIELDS.get(self.format, "messages")]
        return [{"role": "user", "content": items}] if isinstance(items, str) else items

    @property
    def tool_names(self) -> list[str]:
        """Names of the offered functions; those of a namespace as `<namespace>__<name>`."""
        return [name for tool in self.body.get("tools") or () for name in _list_names(tool)]

    @property
    def newest_results(self) -> list[str]:
        """Texts of the tool results at the end of the request."""
        if self.format == "gemini":
            parts = self.items[-1]["parts"]
            responses = [part["functionResponse"]["response"] for part in parts if "functionResponse" in part]
            return [next(iter(response.values()), "") for response in responses]
        if self.format == "messages":
            # Claude Code adds messages of the system's after the user's.
            content = next(item["content"] for item in reversed(self.items) if item["role"] != "system")
            blocks = [] if isinstance(content, str) else content
            return [_to_text(block.get("content", "")) for block in blocks if block["type"] == "tool_result"]
        results: list[str] = []
        for item in reversed(self.items):
            if item.get("role") != "tool" and not item.get("type", "").endswith("_output"):
                break
            results.insert(0, _to_text(item.get("content") or item.get("output") or ""))
        return results


def _list_names(tool: Json) -> list[str]:
    if tool.get("type") == "namespace":
        return [f"{tool['name']}__{inner['name']}" for inner in tool["tools"]]
    if "functionDeclarations" in tool:
        return [each["name"] for each in tool["functionDeclarations"]]
    name = tool.get("name") or tool.get("function", {}).get("name")
    return [name] if name else []


def _to_text(content: str | list[Json]) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


Script = Callable[[ProviderRequest], ScriptedReply]
"""Chooses the reply to a request; called in the thread of the connection."""


def play(*replies: ScriptedReply, tool: str | None = None, otherwise: str = "Noted.") -> Script:
    """Replies in turn and repeats the last. With `tool`, only to requests that offer it: others get `otherwise`."""
    remaining, lock = list(replies), Lock()

    def choose(request: ProviderRequest) -> ScriptedReply:
        if tool is not None and tool not in request.tool_names:
            return ScriptedReply(otherwise)
        with lock:
            return remaining.pop(0) if len(remaining) > 1 else remaining[0]

    return choose


def call_tool(*calls: ScriptedCall, times: int = 1, text: str = "Done.") -> Script:
    """Makes these calls in parallel the first `times`, then replies with a text."""
    first = calls[0]
    name = f"{first.namespace}__{first.name}" if first.namespace else first.name
    return play(*[ScriptedReply(calls=calls)] * times, ScriptedReply(text), tool=name)


def estimate_tokens(request: ProviderRequest) -> int:
    return max(1, len(request.raw) // CHARS_PER_TOKEN)


def count_tokens_of_texts(request: ProviderRequest) -> int:
    """Counts every text of the request by a public vocabulary, as a real server would."""
    return sum(len(_get_vocabulary().encode(text)) for text in _iter_texts(request.body))


@lru_cache(maxsize=1)
def _get_vocabulary() -> AnyTokenizer:
    return Tokenizer.from_pretrained("o200k_base")


def _iter_texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for name, inner in value.items():
                yield str(name)
                yield from _iter_texts(inner)
        case list():
            for inner in value:
                yield from _iter_texts(inner)
        case _:
            yield str(value)


@dataclass
class ScriptedProvider:
    """The running provider. A test may replace `script` and `window_tokens` at any time."""

    script: Script
    window_tokens: int | None = None
    count_tokens: Callable[[ProviderRequest], int] = estimate_tokens
    url: str = ""
    """Without `/v1`, as Anthropic's clients expect it."""
    received: list[ProviderRequest] = field(default_factory=list[ProviderRequest])
    """Every POST in the order of arrival, requests for a token count among them."""
    refused: list[ProviderRequest] = field(default_factory=list[ProviderRequest])
    """Requests that exceeded the window."""
    replies: dict[ProviderRequest, ScriptedReply] = field(default_factory=dict[ProviderRequest, ScriptedReply])
    listed_window: int | None = None
    """Context window of its model in the list of models, in vLLM's field."""

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def requests(self) -> list[ProviderRequest]:
        """The requests for a reply."""
        return [request for request in self.received if not request.is_count]

    def choose_reply(self, request: ProviderRequest, tokens: int) -> ScriptedReply:
        if self.window_tokens is not None and tokens > self.window_tokens:
            self.refused.append(request)
            overflow = _ENCODERS[request.format].make_overflow(tokens=tokens, window_tokens=self.window_tokens)
            return ScriptedReply(error=overflow)
        return self.script(request)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    provider: ScriptedProvider

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._send_head(200, "application/json", length=0)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.endswith("/models"):
            model: Json = {"id": "scripted", "object": "model"}
            if self.provider.listed_window is not None:
                model["max_model_len"] = self.provider.listed_window
            listed = {"object": "list", "data": [model], "has_more": False}
            google = {"models": [{"name": "models/scripted", "inputTokenLimit": 1000, "outputTokenLimit": 100}]}
            self._send_json(200, google if "x-goog-api-key" in self.headers else listed)
        else:
            self._send_json(404, {"error": {"message": f"no route {path}", "type": "not_found_error"}})

    def do_POST(self) -> None:
        raw = self._read_body()
        path = self.path.partition("?")[0].removeprefix("/v1beta").removeprefix("/v1")
        wire_format: WireFormatName | None = "gemini" if _GEMINI_PATH.fullmatch(path) else _PATHS.get(path)
        if wire_format is None:
            self._send_json(404, {"error": {"message": f"no route {path}", "type": "not_found_error"}})
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = ProviderRequest(wire_format, self.path, headers, raw)
        self.provider.received.append(request)
        tokens = self.provider.count_tokens(request)
        if request.is_count:
            kind = {"object": "response.input_tokens"} if request.format == "responses" else {}
            self._send_json(
                200, {"totalTokens": tokens} if wire_format == "gemini" else kind | {"input_tokens": tokens}
            )
            return
        context = ReplyContext(request.model, len(self.provider.received), tokens)
        with suppress(ConnectionError):
            reply = self.provider.replies[request] = self.provider.choose_reply(request, tokens)
            self._send_reply(request, reply, context)

    def _send_reply(self, request: ProviderRequest, reply: ScriptedReply, context: ReplyContext) -> None:
        encoder, is_stream = _ENCODERS[request.format], request.is_stream
        fails_in_stream = request.format == "responses" and is_stream and reply.error and reply.error.status == 400
        if reply.error is not None and not fails_in_stream:
            self._send_json(reply.error.status, encoder.make_error(reply.error, context))
        elif request.path.partition("?")[0].endswith("/compact"):
            self._send_json(200, _RESPONSES_ENCODER.make_compaction(reply, context))
        elif is_stream and request.format == "gemini" and "alt=sse" not in request.path:
            self._send_json(200, _GEMINI_ENCODER.make_chunks(reply, context))
        elif is_stream:
            self._send_events(encoder.encode_events(reply, context), cut_after=reply.cut_after_events)
        else:
            self._send_json(200, encoder.make_body(reply, context), is_cut=reply.cut_after_events is not None)

    def _send_events(self, events: Iterable[bytes], *, cut_after: int | None) -> None:
        self._send_head(200, "text/event-stream", length=None)
        for number, event in enumerate(events):
            if number == cut_after:
                return self._abort_connection()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")
        return None

    def _send_json(self, status: int, body: Json | list[Json], *, is_cut: bool = False) -> None:
        data = json.dumps(body).encode()
        self._send_head(status, "application/json", length=len(data))
        self.wfile.write(data[: len(data) // 2] if is_cut else data)
        if is_cut:
            self._abort_connection()

    def _send_head(self, status: int, media_type: str, *, length: int | None) -> None:
        self.send_response(status)
        self.send_header("content-type", media_type)
        length_header = ("transfer-encoding", "chunked") if length is None else ("content-length", str(length))
        self.send_header(*length_header)
        self.end_headers()

    def _read_body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        pieces: list[bytes] = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _abort_connection(self) -> None:
        """Resets the connection, so that the client sees no proper end."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that disconnects is no error of the test; others still print a traceback."""
        if not isinstance(sys.exception(), (ConnectionError, ValueError)):
            super().handle_error(request, client_address)  # pyright: ignore[reportArgumentType]


@contextmanager
def run_scripted_provider(
    script: Script | Sequence[ScriptedReply] | str = "Done.",
    *,
    window_tokens: int | None = None,
    count_tokens: Callable[[ProviderRequest], int] = estimate_tokens,
) -> Iterator[ScriptedProvider]:
    """Runs the provider. A text, or replies in turn, stand for the script that gives them."""
    if isinstance(script, str):
        script = [ScriptedReply(script)]
    chosen = script if callable(script) else play(*script)
    provider = ScriptedProvider(chosen, window_tokens=window_tokens, count_tokens=count_tokens)
    handler = type("Handler", (_Handler,), {"provider": provider})
    with _Server(("127.0.0.1", 0), handler) as server:
        provider.url = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.05}).start()
        try:
            yield provider
        finally:
            server.shutdown()
