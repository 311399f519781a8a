"""A capability of Pydantic AI: originals are stored first, and each model request fits the window.

Importing this module needs Pydantic AI. The run's own message history stays as it is.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_ai import RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import InstructionPart, ModelMessage, ModelResponse
from pydantic_ai.models import ModelRequestContext, ModelRequestParameters
from pydantic_ai.tools import ToolDefinition as PydanticAITool
from pydantic_ai.toolsets import AgentToolset, FunctionToolset
from pydantic_core import to_json

from quire.adapters.pydantic_ai_history import HistoryItem, build_history, convert_model_message, list_items
from quire.context.builtin_tool_schemas import HISTORY_TOOLS
from quire.engine import Engine, open_engine
from quire.llm.pydantic_ai_messages import to_reply
from quire.model import ToolCallPart, ToolDefinition
from quire.model.json_values import dump_json
from quire.proxy.engine_variants import Envelope
from quire.proxy.framework_requests import (
    ConversionCache,
    FrameworkRequest,
    adapt_engine,
    build_request,
    find_latest_branch,
    read_history,
    store_messages,
)
from quire.proxy.recognition import HistoryMatch

_HISTORY_TOOL_NAMES = frozenset(tool.tool_name for tool in HISTORY_TOOLS)


@asynccontextmanager
async def open_capability(url: str, **options: Any) -> AsyncGenerator["QuireCapability"]:
    """Opens the log at `url` as a capability; `options` are those of `quire.open`."""
    async with open_engine(url, **options) as engine:
        yield QuireCapability(engine)


@dataclass
class QuireCapability(AbstractCapability[Any]):
    """Give it to `Agent(capabilities=[…])`. The conversation is that of the run: `agent.run(conversation_id=…)`.

    A run without `message_history` continues its conversation from the log.
    """

    engine: Engine
    _match: HistoryMatch | None = field(default=None, init=False, repr=False)
    _dropped: tuple[str, ...] = field(default=(), init=False, repr=False)
    _originals: dict[bytes, HistoryItem] = field(default_factory=dict[bytes, HistoryItem], init=False, repr=False)
    _fitted: FrameworkRequest | None = field(default=None, init=False, repr=False)
    _offers_history_tools: bool = field(default=False, init=False, repr=False)
    _conversions: ConversionCache[ModelMessage] = field(
        default_factory=lambda: ConversionCache(convert_model_message), init=False, repr=False
    )

    async def for_run(self, ctx: RunContext[Any]) -> "QuireCapability":
        """A copy with the state of one run. Its tools stay the same for the whole run, so that the prefix does, too."""
        own = replace(self)
        own._conversions = self._conversions
        setting = self.engine.settings.context_tools
        own._offers_history_tools = await self._has_archive(ctx) if setting is None else setting
        return own

    def get_toolset(self) -> AgentToolset[Any]:
        """The tools that read what requests no longer have."""
        return FunctionToolset([self._make_tool(each.to_definition()) for each in HISTORY_TOOLS])

    async def prepare_tools(self, ctx: RunContext[Any], tool_defs: list[PydanticAITool]) -> list[PydanticAITool]:
        if self._offers_history_tools:
            return tool_defs
        return [each for each in tool_defs if each.name not in _HISTORY_TOOL_NAMES]

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Stores the messages of the run that are not in the log yet."""
        conversation = _get_conversation(ctx)
        history = self._conversions.convert(conversation, ctx.messages)
        keys = (key for each in history.match_keys for key in each)
        pairs = zip(keys, list_items(ctx.messages), strict=True)
        self._originals = {key: item for key, item in pairs if key is not None}
        self._dropped = history.dropped
        self._match = await store_messages(self.engine, conversation, history)
        return request_context

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Replaces the messages with those that fit, together with the instructions and tools."""
        if self._match is None:
            return request_context
        parameters, engine = request_context.model_request_parameters, adapt_engine(self.engine)
        envelope = _read_envelope(parameters, engine, dropped=self._dropped)
        fitted = await build_request(engine, self._match, envelope)
        self._fitted = fitted
        if fitted.instructions != envelope.system:
            parts = [InstructionPart(content=fitted.instructions or "")]
            parameters = replace(parameters, instruction_parts=parts)
        messages = build_history(fitted.messages, self._originals, load_blob=fitted.request.load_blob)
        return replace(request_context, messages=messages, model_request_parameters=parameters)

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Stores the reply with the manifest of its request."""
        if self._fitted is not None:
            fitted, self._fitted = self._fitted, None
            await fitted.record(to_reply(response))
        return response

    async def _has_archive(self, ctx: RunContext[Any]) -> bool:
        """Whether messages of the conversation are archived."""
        conversation = _get_conversation(ctx)
        number = await find_latest_branch(self.engine, conversation)
        return (await self.engine.store.get_branch(conversation, number)).state.active_compaction is not None

    def _make_tool(self, definition: ToolDefinition) -> Tool[Any]:
        return Tool[Any].from_schema(
            self._make_reader(definition.name),
            definition.name,
            definition.description,
            definition.parameters,
            takes_ctx=True,
        )

    def _make_reader(self, name: str) -> Callable[..., Awaitable[str]]:
        async def read(ctx: RunContext[Any], **arguments: Any) -> str:
            call = ToolCallPart(id=ctx.tool_call_id or "", name=name, arguments=dump_json(arguments))
            [result] = (await read_history(self.engine, _get_conversation(ctx), call)).tool_results
            return result.text

        return read


def _get_conversation(ctx: RunContext[Any]) -> str:
    return ctx.conversation_id or ctx.run_id or ""


def _read_envelope(parameters: ModelRequestParameters, engine: Engine, *, dropped: tuple[str, ...]) -> Envelope:
    """The instructions, tools and output schema, which Pydantic AI sends with the messages."""
    tools = [tool for tool in (*parameters.function_tools, *parameters.output_tools) if not tool.defer_loading]
    output = parameters.output_object
    return Envelope(
        base_agent=engine.agent,
        message_counter=engine.message_counter,
        system="\n\n".join(part.content for part in parameters.instruction_parts or ()) or None,
        tools=tuple(
            ToolDefinition(name=tool.name, description=tool.description or "", parameters=tool.parameters_json_schema)
            for tool in tools
        ),
        other_texts=(
            *(to_json(tool, fallback=str).decode() for tool in parameters.native_tools),
            *([dump_json(output.json_schema)] if output is not None else []),
        ),
        dropped=(
            *dropped,
            *(f"tools[{tool.kind}]" for tool in parameters.native_tools),
            *(["output_object"] if output is not None else []),
        ),
    )
