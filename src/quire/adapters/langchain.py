"""`AgentMiddleware` of LangChain: requests fit the window, and the graph's state stays as it is.

Importing this module needs LangChain. The messages of the state are stored in the log before each model call, and the
call gets those that fit. The reply is recorded with the manifest of its request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from langchain.agents.middleware.types import (
    AgentMiddleware,
    AgentState,
    ModelRequest,
    ModelResponse,
    ToolCallRequest,
)
from langchain.agents.structured_output import AutoStrategy, ToolStrategy
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.config import get_config
from langgraph.types import Command

from quire.concurrency.event_loop_thread import enter_on_thread, run_on_loop
from quire.context.builtin_tool_schemas import HISTORY_TOOLS
from quire.engine import Conversation, Engine, open_engine
from quire.errors import InvalidRequest
from quire.model import (
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolDefinition,
    ToolResultPart,
    Usage,
)
from quire.model.json_values import dump_json, get_object, parse_object
from quire.model.messages import ToolResultContent
from quire.proxy.engine_variants import Envelope
from quire.proxy.framework_requests import (
    ConversionCache,
    ConvertedMessage,
    FrameworkRequest,
    adapt_engine,
    build_request,
    make_match_key,
    read_history,
    store_messages,
)
from quire.wire import BlobLoader, Reply
from quire.wire.chat.render import OpenAIChatFormat
from quire.wire.media import build_data_url, describe_media, resolve_url, split_data_url

T = TypeVar("T")

_HISTORY_TOOL_NAMES = frozenset(tool.tool_name for tool in HISTORY_TOOLS)
_CALL_TYPES = ("tool_call", "tool_call_chunk", "invalid_tool_call")
_ROLES = {"human": "user", "ai": "assistant", "system": "system"}


@contextmanager
def open_middleware(url: str, *, conversation: str | None = None, **options: Any) -> Generator["QuireMiddleware"]:
    """Opens the log at `url` as a middleware for synchronous and asynchronous agents; it takes the options of
    `quire.open`. Its event loop runs in a thread."""
    with enter_on_thread(open_engine(url, **options)) as (thread, engine):
        yield QuireMiddleware(engine, conversation=conversation, loop=thread.loop)


class QuireMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """Give it to `create_agent(middleware=[…])`, as the last one, so that it sees the request as it will be sent.

    The conversation is the one that is named here, else the graph's `thread_id`. A thread whose state was lost
    continues from the log.
    """

    tools = ()

    def __init__(
        self, engine: Engine, *, conversation: str | None = None, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """`loop` is the event loop that the engine was opened on, by default the running one."""
        super().__init__()
        self._engine, self._conversation = engine, conversation
        self._loop = loop or asyncio.get_running_loop()
        self._conversions = ConversionCache[BaseMessage](lambda message: [convert_message(message)])

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        fitted, replaced = self._run(self._fit(request, self._get_conversation()))
        response = handler(replaced)
        self._run(_record(fitted, response))
        return response

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        fitted, replaced = await self._run_async(self._fit(request, self._get_conversation()))
        response = await handler(replaced)
        await self._run_async(_record(fitted, response))
        return response

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """Runs the calls of Quire's history tools. All others are the agent's."""
        if not _reads_history(request):
            return handler(request)
        return self._run(self._read_history(request, self._get_conversation()))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        if not _reads_history(request):
            return await handler(request)
        return await self._run_async(self._read_history(request, self._get_conversation()))

    async def _fit(self, request: ModelRequest[Any], conversation: str) -> tuple[FrameworkRequest, ModelRequest[Any]]:
        """Stores the new messages, and builds the request with those that fit. Returns it in both forms."""
        history = self._conversions.convert(conversation, request.messages)
        match = await store_messages(self._engine, conversation, history)
        engine = adapt_engine(self._engine, offers_history_tools=True)
        envelope = _read_envelope(request, engine, dropped=history.dropped)
        fitted = await build_request(engine, match, envelope)
        pairs = zip(history.match_keys, request.messages, strict=True)
        # The messages that fit. Messages of the state are the same objects.
        originals = {key: message for (key,), message in pairs if key is not None}
        messages: list[BaseMessage] = []
        converted = to_langchain(fitted.messages, load_blob=fitted.request.load_blob)
        for message, group in zip(fitted.messages, converted, strict=True):
            original = originals.get(make_match_key(message))
            messages += [original] if original is not None else group
        own = {tool.name for tool in envelope.tools}
        added = [OpenAIChatFormat().render_tool(tool) for tool in fitted.tools if tool.name not in own]
        system = request.system_message
        if fitted.instructions != envelope.system:
            system = SystemMessage(fitted.instructions or "")
        return fitted, request.override(
            messages=cast("Any", messages), tools=[*request.tools, *added], system_message=system
        )

    async def _read_history(self, request: ToolCallRequest, conversation: str) -> ToolMessage:
        call = request.tool_call
        part = ToolCallPart(id=call["id"] or "", name=call["name"], arguments=dump_json(call["args"]))
        [result] = (await read_history(self._engine, conversation, part)).tool_results
        status = "error" if result.is_error else "success"
        return ToolMessage(result.text, tool_call_id=part.id, name=part.name, status=status)

    def _get_conversation(self) -> str:
        thread = self._conversation or get_config().get("configurable", {}).get("thread_id")
        if thread is None:
            raise InvalidRequest("Name the conversation: QuireMiddleware(conversation=…), or a `thread_id` of the run.")
        return str(thread)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            blocks_engine = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            blocks_engine = False
        if blocks_engine:
            coroutine.close()
            raise InvalidRequest("A synchronous run would block the engine's own event loop; use `ainvoke`.")
        return run_on_loop(self._loop, coroutine)

    async def _run_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if asyncio.get_running_loop() is self._loop:
            return await coroutine
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))


def _reads_history(request: ToolCallRequest) -> bool:
    """Whether the call is one of Quire's tools, and the agent has none of the same name."""
    return request.tool is None and request.tool_call["name"] in _HISTORY_TOOL_NAMES


def _read_envelope(request: ModelRequest[Any], engine: Engine, *, dropped: Sequence[str]) -> Envelope:
    """The system message, the tools and the response format, which LangChain sends with the messages."""
    tools: list[ToolDefinition] = []
    others: list[dict[str, Any]] = []
    for tool in request.tools:
        converted = convert_to_openai_tool(tool)
        function = converted.get("function")
        if function is None:
            others.append(converted)
        else:
            parameters = get_object(function, "parameters")
            description = function.get("description") or ""
            tools.append(ToolDefinition(name=function["name"], description=description, parameters=parameters))
    schema: list[dict[str, Any]] = []
    if (output := request.response_format) is not None:
        if isinstance(output, AutoStrategy):
            output = ToolStrategy(cast("Any", output).schema)
        specs = getattr(output, "schema_specs", None) or [getattr(output, "schema_spec", None)]
        schema = [spec.json_schema for spec in specs if spec is not None]
    return Envelope(
        base_agent=engine.agent,
        message_counter=engine.message_counter,
        system=request.system_prompt or None,
        tools=tuple(tools),
        other_texts=(*map(dump_json, others), *map(dump_json, schema)),
        dropped=(
            *dropped,
            *(f"tools[{tool.get('type')}]" for tool in others),
            *(["response_format"] if schema else []),
        ),
    )


async def _record(fitted: FrameworkRequest, response: ModelResponse[Any]) -> None:
    """Stores the reply, and what follows it: the result of a tool that returns structured output."""
    reply = next((message for message in response.result if isinstance(message, AIMessage)), None)
    if reply is None:
        return
    entry = await fitted.record(parse_reply(reply))
    following = [parse_message(each) for each in response.result[response.result.index(reply) + 1 :]]
    if following:
        await Conversation(fitted.conversation.engine, entry.conversation, entry.branch).append(*following)


def convert_message(source: BaseMessage) -> ConvertedMessage:
    """Converts one message. Equal messages give equal ones, whatever their ids and metadata."""
    message, dropped = _parse_message(source)
    return ConvertedMessage(message, dropped)


def parse_message(source: BaseMessage) -> Message:
    return _parse_message(source)[0]


def _parse_message(source: BaseMessage) -> tuple[Message, tuple[str, ...]]:
    content = [_parse_block(cast("dict[str, Any]", block)) for block in source.content_blocks]
    parts = [part for part, _ in content if part is not None]
    dropped = tuple(f"messages[{name}]" for _, name in content if name is not None)
    if isinstance(source, ToolMessage):
        pieces = tuple(part for part in parts if isinstance(part, TextPart | ImagePart | FilePart))
        result = ToolResultPart(call_id=source.tool_call_id, content=pieces, is_error=source.status == "error")
        return Message(role="tool", parts=(result,)), dropped
    if source.type not in _ROLES:
        raise InvalidRequest(f"A message of LangChain's type {source.type!r} has no place in a request.")
    if isinstance(source, AIMessage):
        parts += [
            ToolCallPart(id=call["id"] or "", name=call["name"], arguments=dump_json(call["args"]))
            for call in source.tool_calls
        ]
        parts += [
            ToolCallPart(id=call["id"] or "", name=call["name"] or "", arguments=call["args"] or "")
            for call in source.invalid_tool_calls
        ]
    return Message(role=cast("Any", _ROLES[source.type]), parts=tuple(parts), name=source.name), dropped


def parse_reply(source: AIMessage) -> Reply:
    usage = None
    if (reported := source.usage_metadata) is not None:
        details = reported.get("input_token_details") or {}
        model = source.response_metadata.get("model_name")
        usage = Usage(
            model=model if isinstance(model, str) else None,
            input_tokens=reported["input_tokens"],
            output_tokens=reported["output_tokens"],
            cache_read_tokens=details.get("cache_read") or 0,
            cache_write_tokens=details.get("cache_creation") or 0,
        )
    return Reply(parse_message(source), usage, source.response_metadata.get("finish_reason"))


def to_langchain(messages: Sequence[Message], *, load_blob: BlobLoader | None) -> Iterator[list[BaseMessage]]:
    """Yields the messages of LangChain for each of Quire's messages."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    for message in messages:
        match message.role:
            case "user":
                content = _render_content(
                    [part for part in message.parts if isinstance(part, TextPart | ImagePart | FilePart)], load_blob
                )
                yield [HumanMessage(cast("Any", content), name=message.name)]
            case "system":
                yield [SystemMessage(message.text)]
            case "assistant":
                calls: list[Any] = [
                    {"name": call.name, "args": parse_object(call.arguments) or {}, "id": call.id, "type": "tool_call"}
                    for call in message.tool_calls
                ]
                yield [AIMessage(message.text, tool_calls=calls)]
            case "tool":
                yield [
                    ToolMessage(
                        cast("Any", _render_content(result.content, load_blob)),
                        tool_call_id=result.call_id,
                        name=names.get(result.call_id),
                        status="error" if result.is_error else "success",
                    )
                    for result in message.tool_results
                ]


def _parse_block(block: dict[str, Any]) -> tuple[Part | None, str | None]:
    """The part of a content block, or None for a call; and the block's type if only that is in the part."""
    match block:
        case {"type": "text", "text": str(text)}:
            return TextPart(text=text), "annotations" if block.get("annotations") else None
        case {"type": "reasoning"}:
            signature = get_object(block, "extras").get("signature")
            return ThinkingPart(text=str(block.get("reasoning") or ""), signature=signature), None
        case {"type": "image" | "file" as kind}:
            data, url = block.get("base64"), block.get("url")
            if isinstance(data, str):
                url = build_data_url(str(block.get("mime_type") or "application/octet-stream"), data)
            media = ImagePart if kind == "image" else FilePart
            if isinstance(url, str):
                return media(url=url, media_type=block.get("mime_type")), None
            return TextPart(text=f"[{kind}]"), kind
        case _:
            kind = str(block.get("type"))
            return (None, None) if kind in _CALL_TYPES else (TextPart(text=f"[{kind}]"), kind)


def _render_content(parts: Iterable[ToolResultContent], load_blob: BlobLoader | None) -> str | list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, TextPart):
            blocks.append({"type": "text", "text": part.text})
            continue
        url = resolve_url(part, load_blob, media_type=part.media_type or "application/octet-stream")
        if url is None:
            blocks.append({"type": "text", "text": describe_media(part)})
        elif (data := split_data_url(url)) is not None:
            blocks.append({"type": part.type, "base64": data[1], "mime_type": data[0]})
        else:
            blocks.append({"type": part.type, "url": url})
    if all(block["type"] == "text" for block in blocks):
        return "".join(block["text"] for block in blocks)
    return blocks
