"""`Model` implementation for a chat completions server on this machine, such as Ollama, llama.cpp, LM Studio or vLLM.

The SDKs behind `PydanticAIModel` take longer to import than such a server needs for a short answer, and what they know
about hosted providers it does not need. Requests are rendered and replies parsed by `quire.wire.chat`, as in the
gateway. A call is made once: the caller controls retries.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import cache
from types import TracebackType
from typing import Any, Literal, Self, cast
from urllib.parse import urlsplit

import httpx2

from quire.errors import InvalidEntry, ModelRefused, ModelUnavailable
from quire.llm.error_mapping import TransportErrorBuilder, classify_error, classify_response, map_transport_errors
from quire.llm.protocol import ModelChunk, Prompt, TextDelta, ThinkingDelta, ToolCallDelta
from quire.model import Message, Part, ThinkingPart, ToolCallPart
from quire.model.base import JsonObject
from quire.model.ids import new_id
from quire.model.json_values import filter_objects, get_object, get_text, is_object
from quire.wire import Reply, WireMessage
from quire.wire.chat.parse import REASONING_FIELDS, parse_reply
from quire.wire.chat.render import OpenAIChatFormat
from quire.wire.chat.stream import ChatStreamDecoder
from quire.wire.replies import ReplyDelta, ReplyText, ReplyThinking, ReplyToolCall

DEFAULT_TIMEOUT_SECONDS = 600.0
"""Longest wait for a piece of a response, where the prompt has no timeout."""
THINKING_TAGS = ("<think>", "</think>")
PROVIDER_KEY = "pydantic_ai"
"""Key of a part's provider fields by which it goes back to where it came from."""
COMPATIBLE_PROVIDER_NAME = "openai-compatible"
"""Name of any server at `base_url` in those fields."""

OPENAI_NAME_PATTERN = re.compile(r"gpt-(?!oss)|chatgpt-|o\d")
"""OpenAI's own models. What parameters each of them takes is known to pydantic-ai."""
_LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")


def is_called_directly(name: str, base_url: str) -> bool:
    """Whether `ChatCompletionsModel` calls this model: on this machine, by chat completions, and not OpenAI's own."""
    try:
        host = urlsplit(base_url).hostname
    except ValueError:
        return False
    if name.startswith(("anthropic:", "openai-responses:")) or OPENAI_NAME_PATTERN.match(name.removeprefix("openai:")):
        return False
    return host in _LOOPBACK_HOSTS


class ChatCompletionsModel:
    """One model of one server. Tasks can share it. Event loops can use it one after the other."""

    def __init__(self, name: str, *, base_url: str, api_key: str | None = None) -> None:
        self.name, self.base_url = name, base_url
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key is not None else {}
        self._client: httpx2.AsyncClient | None = None
        self._users = 0

    async def complete(self, prompt: Prompt) -> Reply:
        with map_transport_errors(target=self.name):
            async with asyncio.timeout(prompt.timeout), self._request(prompt, streamed=False) as response:
                await response.aread()
        try:
            body: object = response.json()
        except ValueError as exc:
            raise ModelUnavailable(f"{self.name} returned a response that is not JSON; check `base_url`.") from exc
        choices = filter_objects(body.get("choices")) if is_object(body) else []
        if not is_object(body) or not choices:
            raise classify_error(200, body, model=self.name)
        splitter = ThinkingSplitter()
        splitter.split(get_text(get_object(choices[0], "message"), "content") or "")
        splitter.end()
        return self._build_reply({**body, "choices": choices}, splitter)

    async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelChunk, None]:
        decoder, splitter = ChatStreamDecoder(is_translated=True), ThinkingSplitter()
        call_ids: dict[int, str] = {}
        with map_transport_errors(target=self.name):
            async with (
                self._request(prompt, streamed=True) as response,
                aclosing(response.aiter_bytes()) as pieces,
            ):
                while not decoder.has_done_marker:
                    async with asyncio.timeout(prompt.timeout):
                        piece = await anext(pieces, None)
                    if piece is None:
                        break
                    decoder.feed(piece)
                    for delta in decoder.take_deltas():
                        for chunk in _to_chunks(delta, splitter, call_ids):
                            yield chunk
                    if decoder.error is not None:
                        raise classify_error(None, decoder.error, model=self.name)
        for chunk in splitter.end():
            yield chunk
        responses = decoder.build_responses()
        if not responses:
            raise ModelUnavailable(f"{self.name} returned an empty stream; retry, or check `base_url`.")
        yield self._build_reply(responses[0], splitter, call_ids)

    async def __aenter__(self) -> Self:
        if self._client is None:
            context = get_ssl_context() if self.base_url.startswith("https:") else _get_empty_ssl_context()
            self._client = httpx2.AsyncClient(verify=context)
        self._users += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._users -= 1
        if self._users == 0 and self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    @asynccontextmanager
    async def _request(self, prompt: Prompt, *, streamed: bool) -> AsyncGenerator[httpx2.Response]:
        """Yields the response once its status is known. Raises the `ModelError` of one that is no success."""
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        timeout = prompt.timeout or DEFAULT_TIMEOUT_SECONDS
        async with self:
            client = cast(httpx2.AsyncClient, self._client)
            request = client.build_request(
                "POST", url, json=self._build_body(prompt, streamed=streamed),
                headers={**self._headers, **(prompt.headers or {})}, timeout=timeout,
            )  # fmt: skip
            async with asyncio.timeout(prompt.timeout):
                response = await client.send(request, stream=True)
            try:
                if response.is_redirect:
                    raise TransportErrorBuilder(response.url.host, "`base_url`", "the timeout").redirected()
                if response.status_code >= 300:
                    async with asyncio.timeout(prompt.timeout):
                        await response.aread()
                    raise classify_response(response, model=self.name)
                yield response
            finally:
                await response.aclose()

    def _build_body(self, prompt: Prompt, *, streamed: bool) -> dict[str, Any]:
        wire_format = OpenAIChatFormat(self.name)
        body = wire_format.build_payload(
            model=self.name,
            system=prompt.system,
            tools=[wire_format.render_tool(each) for each in prompt.tools],
            messages=[
                {**rendered, **_render_thinking(message)}
                for message in prompt.messages
                for rendered in wire_format.render_message(message, load_blob=prompt.load_blob)
            ],
            max_tokens=prompt.max_tokens,
        )
        if prompt.temperature is not None:
            body["temperature"] = prompt.temperature
        if streamed:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    def _build_reply(
        self, body: dict[str, Any], splitter: "ThinkingSplitter", call_ids: Mapping[int, str] | None = None
    ) -> Reply:
        """Builds the reply of a response. Its text, thinking and call ids are those that a stream has yielded."""
        choice = body["choices"][0]
        message, reason = get_object(choice, "message"), get_text(choice, "finish_reason")
        content = get_text(message, "content")
        if (refusal := get_text(message, "refusal")) or reason == "content_filter":
            raise ModelRefused(f"{self.name} refused: {refusal or content or 'no reason given'}")
        if content is not None:
            message = {**message, "content": splitter.text or None}
        try:
            parsed = parse_reply({**body, "choices": [{**choice, "message": message}]})
        except (InvalidEntry, ValueError) as exc:
            raise ModelUnavailable(f"{self.name} returned an unreadable response: {exc}") from exc
        field = next((name for name in REASONING_FIELDS if message.get(name)), None)
        parts: list[Part] = [ThinkingPart(text=splitter.thinking)] if splitter.thinking else []
        position = 0
        for part in parsed.message.parts:
            if isinstance(part, ThinkingPart):
                origin: JsonObject = {"id": field, "provider_name": COMPATIBLE_PROVIDER_NAME}
                part = part.model_copy(update={"provider_fields": {PROVIDER_KEY: origin}})
            elif isinstance(part, ToolCallPart):
                if not part.id:
                    part = part.model_copy(update={"id": (call_ids or {}).get(position) or _create_call_id()})
                position += 1
            parts.append(part)
        return Reply(parsed.message.model_copy(update={"parts": tuple(parts)}), parsed.usage, reason)


class ThinkingSplitter:
    """Separates the thinking at the start of a reply from its text, where a server leaves it there in `<think>` tags.

    `split` takes the reply in pieces, wherever they are cut.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._place: Literal["start", "thinking", "gap", "text"] = "start"
        self._pending = ""
        """The end of what has arrived, as far as it may be a part of a tag, or of the white space around one."""

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def thinking(self) -> str:
        return "".join(self._thoughts)

    def split(self, piece: str) -> list[TextDelta | ThinkingDelta]:
        opening, closing = THINKING_TAGS
        chunks: list[TextDelta | ThinkingDelta] = []
        rest = self._pending + piece
        if self._place == "start":
            head = rest.lstrip()
            if opening.startswith(head[: len(opening)]) and len(head) < len(opening):
                self._pending = rest
                return chunks
            is_thinking = head.startswith(opening)
            self._place, rest = ("thinking", head.removeprefix(opening)) if is_thinking else ("text", rest)
        if self._place == "thinking":
            thought, tag, after = rest.partition(closing)
            held = 0 if tag else next(n for n in range(len(closing), -1, -1) if thought.endswith(closing[:n]))
            thought, self._pending = thought[: len(thought) - held], thought[len(thought) - held :]
            if thought:
                self._thoughts.append(thought)
                chunks.append(ThinkingDelta(thought))
            if not tag:
                return chunks
            self._place, rest = "gap", after
        if self._place == "gap" and (rest := rest.lstrip()):
            self._place = "text"
        self._pending = ""
        if rest:
            self._texts.append(rest)
            chunks.append(TextDelta(rest))
        return chunks

    def end(self) -> list[TextDelta | ThinkingDelta]:
        """Returns what was pending when the reply ended."""
        rest, self._pending = self._pending, ""
        if not rest:
            return []
        if self._place == "thinking":
            self._thoughts.append(rest)
            return [ThinkingDelta(rest)]
        self._texts.append(rest)
        return [TextDelta(rest)]


def _to_chunks(delta: ReplyDelta, splitter: ThinkingSplitter, call_ids: dict[int, str]) -> Sequence[ModelChunk]:
    match delta:
        case ReplyText(text):
            return splitter.split(text)
        case ReplyThinking(text):
            return [ThinkingDelta(text)]
        case ReplyToolCall(position, id_, name, arguments):
            is_first = position not in call_ids
            if is_first:
                # Some servers give calls no id, and a result needs one to name its call.
                call_ids[position] = id_ or _create_call_id()
            return [
                ToolCallDelta(
                    index=position, id=call_ids[position] if is_first else None, name=name or None, arguments=arguments
                )
            ]


def _render_thinking(message: Message) -> WireMessage:
    """The field in which the thinking of a reply goes back to servers of this kind, and to no others."""
    thoughts: dict[str, str] = {}
    for part in message.parts:
        origin = get_object(part.provider_fields or {}, PROVIDER_KEY) if isinstance(part, ThinkingPart) else {}
        field = origin.get("id")
        if origin.get("provider_name") == COMPATIBLE_PROVIDER_NAME and field in REASONING_FIELDS:
            thoughts[field] = thoughts.get(field, "") + cast(ThinkingPart, part).text
    return thoughts


def _create_call_id() -> str:
    return f"call_{new_id()}"


@cache
def get_ssl_context() -> ssl.SSLContext:
    """The context of all clients. Loading its certificates takes 40 ms on the event loop."""
    return httpx2.create_ssl_context()


@cache
def _get_empty_ssl_context() -> ssl.SSLContext:
    """A context for plain HTTP. It trusts no certificate, so that none must be loaded."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
