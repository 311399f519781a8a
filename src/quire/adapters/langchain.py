"""`AgentMiddleware` of LangChain: requests fit the window, and the graph's state stays as it is.

Importing this module needs LangChain. The messages of the state are stored in the log before each model call, and the
call gets those that fit. The reply is recorded with the manifest of its request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
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
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.config import get_config
from langgraph.types import Command

from quire.adapters.langchain_messages import convert_message, parse_message, parse_reply, to_langchain
from quire.concurrency.event_loop_thread import enter_on_thread, run_on_loop
from quire.context.builtin_tool_schemas import HISTORY_TOOLS
from quire.engine import Conversation, Engine, open_engine
from quire.errors import InvalidRequest
from quire.model import ToolCallPart, ToolDefinition
from quire.model.json_values import dump_json, get_object
from quire.proxy.engine_variants import Envelope
from quire.proxy.framework_requests import (
    ConversionCache,
    FrameworkRequest,
    adapt_engine,
    build_request,
    make_match_key,
    read_history,
    store_messages,
)
from quire.wire.chat.render import OpenAIChatFormat

T = TypeVar("T")

_HISTORY_TOOL_NAMES = frozenset(tool.tool_name for tool in HISTORY_TOOLS)


@contextmanager
def open_middleware(url: str, *, conversation: str | None = None, **options: Any) -> Generator["QuireMiddleware"]:
    """Opens the log at `url` as a middleware for synchronous and asynchronous agents; `options` are those of
    `quire.open`. Its event loop runs in a thread."""
    with enter_on_thread(open_engine(url, **options)) as (thread, engine):
        yield QuireMiddleware(engine, conversation=conversation, loop=thread.loop)


class QuireMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """Give it to `create_agent(middleware=[…])`, as the last one, so that it sees the request as it will be sent.

    The conversation is the one that is named here, else that of the graph's `thread_id`. A thread whose state was lost
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
        """Runs the calls of Quire's history tools; all others are the agent's."""
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
        """Stores the new messages, and builds the request with those that fit; returns it in both forms."""
        history = self._conversions.convert(conversation, request.messages)
        match = await store_messages(self._engine, conversation, history)
        engine = adapt_engine(self._engine, offers_history_tools=True)
        envelope = _read_envelope(request, engine, dropped=history.dropped)
        fitted = await build_request(engine, match, envelope)
        pairs = zip(history.match_keys, request.messages, strict=True)
        # The messages that fit; those of the state are the same objects.
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
        if _get_running_loop() is self._loop:
            coroutine.close()
            raise InvalidRequest("A synchronous run would block the engine's own event loop; use `ainvoke`.")
        return run_on_loop(self._loop, coroutine)

    async def _run_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if asyncio.get_running_loop() is self._loop:
            return await coroutine
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))


def _get_running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


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
    schema = _list_schemas(request.response_format)
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


def _list_schemas(response_format: Any) -> list[dict[str, Any]]:
    """The JSON schemas of a response format."""
    if response_format is None:
        return []
    if isinstance(response_format, AutoStrategy):
        response_format = ToolStrategy(cast("Any", response_format).schema)
    specs = getattr(response_format, "schema_specs", None) or [getattr(response_format, "schema_spec", None)]
    return [spec.json_schema for spec in specs if spec is not None]


async def _record(fitted: FrameworkRequest, response: ModelResponse[Any]) -> None:
    """Stores the reply, and what follows it: the result of a tool that returns structured output."""
    reply = next((message for message in response.result if isinstance(message, AIMessage)), None)
    if reply is None:
        return
    entry = await fitted.record(parse_reply(reply))
    following = [parse_message(each) for each in response.result[response.result.index(reply) + 1 :]]
    if following:
        await Conversation(fitted.conversation.engine, entry.conversation, entry.branch).append(*following)
