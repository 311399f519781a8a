"""LRU caches of the gateway's engines, one per tenant, model and reply limit, and of request envelopes.

An envelope is the instructions and tools around the messages. A client sends the same ones with every request of a
conversation, so they are parsed and counted once; they act as the agent of the request.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from cachetools import LRUCache

from quire.engine import Engine
from quire.log import Blob
from quire.log.worker_threads import run_sized
from quire.model import Decision, ToolDefinition
from quire.model.agents import Agent, AgentMemory, AgentTool
from quire.server.gateway.chat_request import ChatRequest
from quire.server.state import ServerState
from quire.settings import Settings
from quire.view.inputs import hash_text
from quire.view.rendered import MessageCounter
from quire.view.strategies import get_strategy
from quire.view.wire_formats.fields import dump_json, filter_objects, get_object, get_text, is_object

VARIANT_CACHE_SIZE = 500
"""Maximum number of cached engine variants."""
ENVELOPE_CACHE_BYTES = 64 * 1024 * 1024
"""Maximum size of all cached envelopes."""
MIN_ENVELOPE_BYTES = 1_000
"""Bytes that an envelope counts as at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnvelope:
    """The client's instructions and tools around the messages of a request, with token counts."""

    agent: Agent
    system: str | None
    tools: tuple[ToolDefinition, ...]
    blobs: tuple[Blob, ...]
    decisions: tuple[Decision, ...]
    tokens: int
    replayable: bool
    """Whether a replay from the log reproduces instructions and tools as the client sent them."""


@dataclass(slots=True)
class EngineVariant:
    """An engine for one tenant, model and reply limit."""

    engine: Engine
    key: "VariantKey"
    envelopes: "LRUCache[EnvelopeKey, RequestEnvelope]"
    """The cache of all variants."""

    async def load_envelope(self, chat_request: ChatRequest) -> RequestEnvelope:
        """Returns the envelope of a request from the cache, or builds it."""
        body_bytes = len(chat_request.raw)
        key = (self.key, await run_sized(body_bytes, chat_request.compute_envelope_key))
        envelope = self.envelopes.get(key)
        if envelope is None:
            envelope = await run_sized(body_bytes, _build_envelope, chat_request, self.engine.message_counter)
            if measure_envelope(envelope) <= ENVELOPE_CACHE_BYTES:
                self.envelopes[key] = envelope
        return envelope


class VariantOptions(NamedTuple):
    """How a variant differs from its tenant's engine."""

    model: str
    max_reply_tokens: int | None
    """The client's limit on reply tokens, if it sets one."""


VariantKey = tuple[str, VariantOptions]
"""Tenant and options."""
EnvelopeKey = tuple[VariantKey, bytes]
"""Variant, and digest of the instructions and tools."""


def measure_envelope(envelope: RequestEnvelope) -> int:
    """Bytes of an envelope in the cache: its texts are there as such and as blobs."""
    return MIN_ENVELOPE_BYTES + 2 * sum(len(blob.data) for blob in envelope.blobs)


class EngineVariants:
    """Engine variants by tenant, model and reply limit. A change of settings empties the cache."""

    def __init__(self, server_state: ServerState) -> None:
        self._server_state = server_state
        self._settings: Settings = server_state.settings
        self._variants: LRUCache[VariantKey, EngineVariant] = LRUCache(VARIANT_CACHE_SIZE)
        self._envelopes: LRUCache[EnvelopeKey, RequestEnvelope] = LRUCache(ENVELOPE_CACHE_BYTES, measure_envelope)

    def get(self, tenant: str, model: str, max_reply_tokens: int | None) -> EngineVariant:
        if self._settings is not self._server_state.settings:
            self.clear()
        options = VariantOptions(model, max_reply_tokens)
        variant = self._variants.get((tenant, options))
        if variant is None:
            variant = self._variants[tenant, options] = self._build_variant(tenant, options)
        return variant

    def clear(self) -> None:
        self._settings = self._server_state.settings
        self._variants.clear()
        self._envelopes.clear()

    def _build_variant(self, tenant: str, options: VariantOptions) -> EngineVariant:
        # Links in a client's messages do not refer to Quire's vault.
        engine = self._server_state.engine_for(tenant).with_changes(
            agent=_make_anonymous_agent(), vault=None, **self._build_overrides(options)
        )
        return EngineVariant(engine, (tenant, options), self._envelopes)

    def _build_overrides(self, options: VariantOptions) -> dict[str, Any]:
        """Builds the settings of a variant.

        The provider is always "openai", the wire format of clients and upstreams. Tools may take the whole budget,
        because the client has chosen them.
        """
        settings = self._server_state.settings
        overrides: dict[str, Any] = {"model": options.model}
        if options.max_reply_tokens is not None:
            overrides["reserved_response_tokens"] = options.max_reply_tokens
        shares = settings.shares or get_strategy(settings.strategy).shares
        # A client cannot run Quire's tools.
        return {**overrides, "provider": "openai", "shares": {**shares, "tools": 1.0}, "context_tools": False}


def _make_anonymous_agent() -> Agent:
    return Agent(name="gateway", memory=AgentMemory(enabled=False))


def _build_envelope(chat_request: ChatRequest, message_counter: MessageCounter) -> RequestEnvelope:
    texts = [_extract_text(message) for message in chat_request.system_messages]
    system = "\n\n".join(texts) or None
    tools = tuple(_to_tool_definition(tool) for tool in chat_request.tools)
    texts_to_store = [*([system] if system else []), *(tool.canonical_json() for tool in tools)]
    agent_tools = tuple(AgentTool(definition=tool, include="always") for tool in tools)
    return RequestEnvelope(
        agent=_make_anonymous_agent().model_copy(update={"instructions": system or "", "tools": agent_tools}),
        system=system,
        tools=tools,
        blobs=tuple(Blob("text/plain", text.encode()) for text in texts_to_store),
        decisions=(
            *_build_system_decisions(chat_request, system, message_counter),
            *_build_tool_decisions(chat_request, tools, message_counter),
        ),
        tokens=message_counter.wire_format.count_messages(chat_request.system_messages, message_counter.token_counter)
        + message_counter.wire_format.count_tools(chat_request.tools, message_counter.token_counter),
        replayable=_is_replayable(chat_request, system, tools, message_counter),
    )


def _extract_text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(text for piece in filter_objects(content) if (text := get_text(piece, "text")))


def _to_tool_definition(tool: dict[str, Any]) -> ToolDefinition:
    """Converts a tool to the form of the log; the parameters of an unknown kind of tool are its whole JSON."""
    function = get_object(tool, "function", "custom")
    name = get_text(function, "name") or get_text(tool, "name") or get_text(tool, "type") or "tool"
    is_function = "function" in tool and is_object(function.get("parameters", {}))
    parameters: dict[str, Any] = function.get("parameters", {}) if is_function else {"tool": tool}
    return ToolDefinition(name=name, description=get_text(function, "description") or "", parameters=parameters)


def _build_system_decisions(
    chat_request: ChatRequest, system: str | None, message_counter: MessageCounter
) -> list[Decision]:
    if system is None:
        return []
    tokens = message_counter.wire_format.count_messages(chat_request.system_messages, message_counter.token_counter)
    return [
        Decision(
            slot="system",
            kind="instructions",
            included=True,
            reason="instructions",
            tokens=tokens,
            name="instructions",
            blob=hash_text(system),
        )
    ]


def _build_tool_decisions(
    chat_request: ChatRequest, tools: tuple[ToolDefinition, ...], message_counter: MessageCounter
) -> list[Decision]:
    """Builds a decision per tool. The first includes the fixed token cost of having tools."""
    if not tools:
        return []
    token_counts = [
        message_counter.wire_format.count_tools([tool], message_counter.token_counter) for tool in chat_request.tools
    ]
    preamble = 2 * token_counts[0] - message_counter.wire_format.count_tools(
        [chat_request.tools[0]] * 2, message_counter.token_counter
    )
    return [
        Decision(
            slot="tools",
            kind="tool",
            included=True,
            reason="always",
            tokens=tokens - (preamble if index else 0),
            name=tool.name,
            blob=hash_text(tool.canonical_json()),
        )
        for index, (tool, tokens) in enumerate(zip(tools, token_counts, strict=True))
    ]


def _is_replayable(
    chat_request: ChatRequest, system: str | None, tools: tuple[ToolDefinition, ...], message_counter: MessageCounter
) -> bool:
    rendered_system = [{"role": "system", "content": system}] if system else []
    rendered_tools = [message_counter.wire_format.render_tool(tool) for tool in tools]
    same_tools = not chat_request.body.get("functions") and rendered_tools == list(chat_request.tools)
    return same_tools and dump_json(rendered_system) == dump_json(list(chat_request.system_messages))
