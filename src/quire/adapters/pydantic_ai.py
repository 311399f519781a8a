"""A capability of Pydantic AI: originals are stored first, and each model request fits the window.

Importing this module needs Pydantic AI. The run's own message history stays as it is.
"""

from base64 import b64encode
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_ai import RunContext, Tool
from pydantic_ai import messages as pai
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models import ModelRequestContext, ModelRequestParameters
from pydantic_ai.tools import ToolDefinition as PydanticAITool
from pydantic_ai.toolsets import AgentToolset, FunctionToolset
from pydantic_core import to_json

from quire.adapters.pydantic_ai_messages import to_pydantic_ai, to_reply
from quire.context.builtin_tool_schemas import HISTORY_TOOLS
from quire.engine import Engine, open_engine
from quire.model import FilePart, ImagePart, Message, TextPart, ToolCallPart, ToolDefinition, ToolResultPart
from quire.model.json_values import dump_json
from quire.model.messages import ToolResultContent
from quire.proxy.engine_variants import Envelope
from quire.proxy.framework_requests import (
    ConversionCache,
    ConvertedMessage,
    FrameworkRequest,
    adapt_engine,
    build_request,
    find_latest_branch,
    make_match_key,
    read_history,
    store_messages,
)
from quire.proxy.recognition import HistoryMatch
from quire.wire import BlobLoader
from quire.wire.media import build_data_url

HistoryItem = pai.ModelRequestPart | pai.ModelResponse
"""What one of Quire's messages is in Pydantic AI: a part of a request, or a response."""

_ENVELOPE_PARTS = (
    "capability-load-delta", "instruction-baseline", "instruction-delta", "model-settings-delta",
    "tool-availability-delta",
)  # fmt: skip
"""Parts that record changes of instructions, tools and settings. Each request has the current ones anyway."""
_UNTRANSLATED_PARTS = ("builtin-tool-call", "builtin-tool-return", "compaction", "speech")
"""Parts of responses that are in the log only by their kind."""

_HISTORY_TOOL_NAMES = frozenset(tool.tool_name for tool in HISTORY_TOOLS)


@asynccontextmanager
async def open_capability(url: str, **options: Any) -> AsyncGenerator["QuireCapability"]:
    """Opens the log at `url` as a capability; it takes the options of `quire.open`."""
    async with open_engine(url, **options) as engine:
        yield QuireCapability(engine)


@dataclass
class QuireCapability(AbstractCapability[Any]):
    """Give it to `Agent(capabilities=[…])`. The run names the conversation: `agent.run(conversation_id=…)`.

    A run without `message_history` continues its conversation from the log.
    """

    engine: Engine
    _match: HistoryMatch | None = field(default=None, init=False, repr=False)
    _dropped: tuple[str, ...] = field(default=(), init=False, repr=False)
    _originals: dict[bytes, HistoryItem] = field(default_factory=dict[bytes, HistoryItem], init=False, repr=False)
    _fitted: FrameworkRequest | None = field(default=None, init=False, repr=False)
    _offers_history_tools: bool = field(default=False, init=False, repr=False)
    _conversions: ConversionCache[pai.ModelMessage] = field(
        default_factory=lambda: ConversionCache(convert_model_message), init=False, repr=False
    )

    async def for_run(self, ctx: RunContext[Any]) -> "QuireCapability":
        """A copy with the state of one run. Its tools stay the same for the whole run, so that the prefix does, too."""
        own = replace(self)
        own._conversions = self._conversions
        offers_tools = self.engine.settings.context_tools
        if offers_tools is None:
            conversation = _get_conversation(ctx)
            number = await find_latest_branch(self.engine, conversation)
            branch = await self.engine.store.get_branch(conversation, number)
            offers_tools = branch.state.active_compaction is not None
        own._offers_history_tools = offers_tools
        return own

    def get_toolset(self) -> AgentToolset[Any]:
        """The tools that read what requests no longer have."""

        def make_tool(definition: ToolDefinition) -> Tool[Any]:
            async def read(ctx: RunContext[Any], **arguments: Any) -> str:
                call = ToolCallPart(id=ctx.tool_call_id or "", name=definition.name, arguments=dump_json(arguments))
                [result] = (await read_history(self.engine, _get_conversation(ctx), call)).tool_results
                return result.text

            return Tool[Any].from_schema(
                read, definition.name, definition.description, definition.parameters, takes_ctx=True
            )

        return FunctionToolset([make_tool(each.to_definition()) for each in HISTORY_TOOLS])

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
            parts = [pai.InstructionPart(content=fitted.instructions or "")]
            parameters = replace(parameters, instruction_parts=parts)
        messages = build_history(fitted.messages, self._originals, load_blob=fitted.request.load_blob)
        return replace(request_context, messages=messages, model_request_parameters=parameters)

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: pai.ModelResponse
    ) -> pai.ModelResponse:
        """Stores the reply with the manifest of its request."""
        if self._fitted is not None:
            fitted, self._fitted = self._fitted, None
            await fitted.record(to_reply(response))
        return response


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


def convert_model_message(source: pai.ModelMessage) -> list[ConvertedMessage]:
    """Converts each item of a message: a response, or the parts of a request."""
    if not isinstance(source, pai.ModelResponse):
        return [_convert_part(part) for part in source.parts]
    native = [part.part_kind for part in source.parts if part.part_kind in _UNTRANSLATED_PARTS]
    return [ConvertedMessage(to_reply(source).message, tuple(f"messages[{kind}]" for kind in native))]


def list_items(history: Iterable[pai.ModelMessage]) -> Iterator[HistoryItem]:
    for each in history:
        if isinstance(each, pai.ModelResponse):
            yield each
        else:
            yield from each.parts


def build_history(
    messages: Sequence[Message], originals: Mapping[bytes, HistoryItem], *, load_blob: BlobLoader | None
) -> list[pai.ModelMessage]:
    """The history with these messages. A message whose match key is in `originals` is the same part or response."""
    converted = list_items(to_pydantic_ai(messages, load_blob=load_blob))
    history: list[pai.ModelMessage] = []
    requested: list[pai.ModelRequestPart] = []
    for message in messages:
        count = len(message.tool_results) if message.role == "tool" else 1
        items: list[HistoryItem] = [next(converted) for _ in range(count)]
        original = originals.get(make_match_key(message))
        for item in [original] if original is not None else items:
            if not isinstance(item, pai.ModelResponse):
                requested.append(item)
                continue
            history += [pai.ModelRequest(parts=requested)] if requested else []
            history.append(item)
            requested = []
    return [*history, pai.ModelRequest(parts=requested)] if requested else history


def _convert_part(part: pai.ModelRequestPart) -> ConvertedMessage:
    match part:
        case pai.SystemPromptPart():
            return ConvertedMessage(Message.system(part.content))
        case pai.UserPromptPart():
            content = [part.content] if isinstance(part.content, str) else part.content
            pieces, dropped = _parse_content(content)
            return ConvertedMessage(Message(role="user", parts=pieces), dropped)
        case pai.ToolReturnPart():
            pieces, dropped = _parse_content([part.model_response_str(wrap_if_error=False), *part.files])
            is_error = part.outcome != "success"
            result = ToolResultPart(call_id=part.tool_call_id, content=pieces, is_error=is_error)
            return ConvertedMessage(Message(role="tool", parts=(result,)), dropped)
        case pai.RetryFeedbackPart():
            return ConvertedMessage(Message.user(part.model_response()))
        case _:
            kind = part.part_kind
            message = None if kind in _ENVELOPE_PARTS else Message.user(f"[{kind}]")
            return ConvertedMessage(message, (f"messages[{kind}]",))


def _parse_content(content: Iterable[Any]) -> tuple[tuple[ToolResultContent, ...], tuple[str, ...]]:
    parts: list[ToolResultContent] = []
    dropped: list[str] = []
    for each in content:
        match each:
            case str():
                parts.append(TextPart(text=each))
            case pai.TextContent():
                parts.append(TextPart(text=each.content))
            case pai.ImageUrl():
                parts.append(ImagePart(url=each.url))
            case pai.DocumentUrl():
                parts.append(FilePart(url=each.url))
            case pai.BinaryContent() if not (each.is_audio or each.is_video):
                media = ImagePart if each.is_image else FilePart
                url = build_data_url(each.media_type, b64encode(each.data).decode())
                parts.append(media(url=url, media_type=each.media_type))
            case _:
                dropped.append(f"messages[{each.kind}]")
                parts.append(TextPart(text=f"[{each.kind}]"))
    return tuple(parts), tuple(dropped)
