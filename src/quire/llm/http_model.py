"""`Model` implementation for every endpoint that speaks one of the four wire formats. Needs the `llm` extra.

Requests are rendered and replies parsed by `quire.wire`, as in the gateway: what is sent is what was counted. A call is
made once, so that the caller controls retries, spending and recording.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import cache
from types import TracebackType
from typing import Any, Self, cast

import httpx2

from quire.errors import ModelRefused, ModelUnavailable
from quire.llm.error_mapping import TransportErrorBuilder, classify_error, classify_response, map_transport_errors
from quire.llm.protocol import ModelChunk, Prompt, TextDelta, ThinkingDelta, ToolCallDelta
from quire.llm.thinking_tags import ThinkingSplitter
from quire.model import Part, TextPart, ThinkingPart, ToolCallPart
from quire.model.finish_reasons import normalize_finish_reason
from quire.model.ids import new_id
from quire.model.json_values import filter_objects, get_object, get_text, is_object
from quire.wire import Reply, WireFormatName, wire_format_for
from quire.wire.chat.parse import REASONING_FIELDS
from quire.wire.chat.render import REASONING_FIELD_KEY
from quire.wire.chat.stream import ChatStreamDecoder
from quire.wire.codec import RequestOptions
from quire.wire.codecs import CODECS
from quire.wire.fields import MADE_ID_PREFIX
from quire.wire.replies import ReplyDelta, ReplyText, ReplyThinking

DEFAULT_TIMEOUT_SECONDS = 600.0
"""Longest wait for a piece of a response, where the prompt has no timeout."""
REASONING_NAME = re.compile(r"o\d|gpt-[5-9](?![\w.]*-chat)")
"""OpenAI's reasoning models. They reject a temperature, and return their reasoning in encrypted form if asked."""
FIXED_TEMPERATURE_NAME = re.compile(r"claude-[a-z]+-(4-[7-9]|[5-9])")
"""Anthropic's models that reject a temperature."""


class HTTPModel:
    """One model of one endpoint. Tasks can share it. Event loops can use it one after the other."""

    def __init__(
        self, name: str, served_name: str, *, base_url: str, wire_format: WireFormatName, api_key: str | None
    ) -> None:
        self.name, self.base_url = name, base_url
        self._served_name, self._codec = served_name, CODECS[wire_format]
        credentials = self._codec.build_credentials(api_key) if api_key is not None else {}
        self._headers = {**self._codec.translated_headers, **credentials, "content-type": "application/json"}
        self._client: httpx2.AsyncClient | None = None
        self._users = 0

    @property
    def wire_format(self) -> WireFormatName:
        return self._codec.name

    async def complete(self, prompt: Prompt) -> Reply:
        with map_transport_errors(target=self.name):
            async with asyncio.timeout(prompt.timeout), self._request(prompt, streamed=False) as response:
                await response.aread()
        try:
            body: object = response.json()
        except ValueError as exc:
            raise ModelUnavailable(f"{self.name} returned a response that is not JSON; check `base_url`.") from exc
        replies = self._codec.parse_response(body)
        if not replies:
            raise classify_error(200, body, model=self.name)
        return self._finish_reply(replies[0], self._find_reasoning_field(body), {})

    async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelChunk, None]:
        decoder = self._codec.make_decoder(is_translated=True)
        splitter, call_ids = ThinkingSplitter(), dict[int, str]()
        with map_transport_errors(target=self.name):
            async with (
                self._request(prompt, streamed=True) as response,
                aclosing(response.aiter_bytes()) as pieces,
            ):
                while not decoder.is_done:
                    async with asyncio.timeout(prompt.timeout):
                        piece = await anext(pieces, None)
                    if piece is None:
                        break
                    decoder.feed(piece)
                    for delta in decoder.take_deltas():
                        for chunk in self._to_chunks(delta, splitter, call_ids):
                            yield chunk
                    if decoder.error is not None:
                        raise classify_error(None, decoder.error, model=self.name)
        for chunk in splitter.end():
            yield chunk
        replies = decoder.build_replies()
        if not replies:
            raise ModelUnavailable(f"{self.name} returned an empty stream; retry, or check `base_url`.")
        body = decoder.build_responses()[0] if isinstance(decoder, ChatStreamDecoder) else None
        yield self._finish_reply(replies[0], self._find_reasoning_field(body), call_ids)

    async def __aenter__(self) -> Self:
        if self._client is None:
            context = _get_ssl_context() if self.base_url.startswith("https:") else _get_empty_ssl_context()
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
        path = self._codec.build_create_path(self._served_name, stream=streamed)
        url = self._codec.build_url(self.base_url, path)
        if streamed and self._codec.stream_query:
            url += f"?{self._codec.stream_query}"
        timeout = prompt.timeout or DEFAULT_TIMEOUT_SECONDS
        async with self:
            client = cast(httpx2.AsyncClient, self._client)
            request = client.build_request(
                "POST", url, content=self._codec.encode_body(self.build_body(prompt, streamed=streamed)),
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

    def build_body(self, prompt: Prompt, *, streamed: bool = False) -> dict[str, Any]:
        """The request: what `RenderedRequest.to_payload` has for the same messages, and the options of the call."""
        wire_format = wire_format_for(self._codec.name, model=self._served_name)
        payload = wire_format.build_payload(
            model=self._served_name,
            system=prompt.system,
            tools=[wire_format.render_tool(each) for each in prompt.tools],
            messages=[
                rendered
                for message in prompt.messages
                for rendered in wire_format.render_message(message, load_blob=prompt.load_blob)
            ],
            max_tokens=prompt.max_tokens,
        )
        is_reasoning = REASONING_NAME.match(self._served_name) is not None
        has_temperature = not is_reasoning and FIXED_TEMPERATURE_NAME.match(self._served_name) is None
        options = RequestOptions(
            stream=streamed,
            # OpenAI's newer models reject `max_tokens`, so chat completions have the limit of the payload.
            max_tokens=None if self._codec.name == "chat" else payload.get("max_tokens", prompt.max_tokens),
            temperature=prompt.temperature if has_temperature else None,
        )
        body = {**payload, **self._codec.translate_options(options).fields, "model": self._served_name}
        if is_reasoning and self._codec.name == "responses":
            body["include"] = ["reasoning.encrypted_content"]
        return body

    def _to_chunks(
        self, delta: ReplyDelta, splitter: ThinkingSplitter, call_ids: dict[int, str]
    ) -> Sequence[ModelChunk]:
        if isinstance(delta, ReplyText):
            return splitter.split(delta.text) if self._codec.name == "chat" else [TextDelta(delta.text)]
        if isinstance(delta, ReplyThinking):
            return [ThinkingDelta(delta.text)]
        is_first = delta.position not in call_ids
        if is_first:
            call_ids[delta.position] = _make_call_id(delta.id)
        id_ = call_ids[delta.position] if is_first else None
        return [ToolCallDelta(index=delta.position, id=id_, name=delta.name or None, arguments=delta.arguments)]

    def _find_reasoning_field(self, body: object) -> str | None:
        choices = filter_objects(body.get("choices")) if is_object(body) and self._codec.name == "chat" else []
        message = get_object(choices[0], "message") if choices else {}
        return next((name for name in REASONING_FIELDS if message.get(name)), None)

    def _finish_reply(self, reply: Reply, reasoning_field: str | None, call_ids: dict[int, str]) -> Reply:
        """The reply with an ID for each call. Of a reply in chat completions, thinking in tags is no text, and thinking
        in a field goes back in that field. Raises the error of a refusal."""
        message = reply.message
        refusal = get_text(get_object(message.provider_fields or {}, "chat"), "refusal")
        if refusal or normalize_finish_reason(reply.finish_reason) == "content_filter":
            raise ModelRefused(f"{self.name} refused: {refusal or message.text or 'no reason given'}")
        parts: list[Part] = []
        splitter = ThinkingSplitter() if self._codec.name == "chat" else None
        position = 0
        for part in message.parts:
            if isinstance(part, ThinkingPart) and reasoning_field is not None:
                part = part.model_copy(update={"provider_fields": {"chat": {REASONING_FIELD_KEY: reasoning_field}}})
            elif isinstance(part, ToolCallPart):
                id_ = call_ids.get(position) or _make_call_id(part.id)
                part = part if part.id == id_ else part.model_copy(update={"id": id_})
                position += 1
            elif isinstance(part, TextPart) and splitter is not None and not splitter.text:
                splitter.split(part.text)
                splitter.end()
                if splitter.thinking:
                    parts.append(ThinkingPart(text=splitter.thinking))
                part = part.model_copy(update={"text": splitter.text})
            if not isinstance(part, TextPart) or part.text:
                parts.append(part)
        return reply._replace(message=message.model_copy(update={"parts": tuple(parts)}))


def _make_call_id(id_: str) -> str:
    """The ID of a call, or a unique one. Some servers give calls none, and a result needs one to name its call."""
    return id_ if id_ and not id_.startswith(MADE_ID_PREFIX) else f"{MADE_ID_PREFIX}{new_id()}"


@cache
def _get_ssl_context() -> ssl.SSLContext:
    """The context of all clients. Loading its certificates takes 40 ms on the event loop."""
    return httpx2.create_ssl_context()


@cache
def _get_empty_ssl_context() -> ssl.SSLContext:
    """A context for plain HTTP. It trusts no certificate, so that none must be loaded."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
