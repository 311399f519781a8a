"""LRU caches of the gateway's engines, one per tenant, model, reserve and upstream format, and of envelopes.

An envelope is the instructions and tools around the messages. A client sends the same ones with every request of a
conversation, so they are parsed and counted once; they act as the agent of the request.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cachetools import LRUCache

from quire.engine import Engine
from quire.log import Blob
from quire.log.worker_threads import run_sized
from quire.model import Decision, ToolDefinition
from quire.model.agents import Agent, AgentMemory, AgentTool
from quire.model.policy import Provider
from quire.server.gateway.codecs.base import ClientRequest, Codec
from quire.server.gateway.rendered_history import RenderedHistories
from quire.server.state import ServerState
from quire.settings import Settings
from quire.view.inputs import hash_text
from quire.view.rendered import MessageCounter
from quire.view.strategies import get_strategy
from quire.view.wire_formats import WireMessage

VARIANT_CACHE_SIZE = 500
"""Maximum number of cached engine variants."""
ENVELOPE_CACHE_BYTES = 64 * 1024 * 1024
"""Maximum size of all cached envelopes."""
MAX_RESERVE_SHARE = 0.25
"""Share of the window that a reply limit can reserve: agents ask for as many tokens as any model can write."""
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
    """Whether a replay from the log reproduces instructions and tools as they were forwarded."""
    dropped: tuple[str, ...] = ()
    """Tools that have no place in the upstream's format."""


@dataclass(slots=True)
class EngineVariant:
    """An engine for one tenant, model, reserve and upstream format."""

    engine: Engine
    target: Codec
    key: "VariantKey"
    envelopes: "LRUCache[EnvelopeKey, RequestEnvelope]"
    """The cache of all variants."""
    histories: RenderedHistories
    """The cache of all variants."""

    @property
    def tenant(self) -> str:
        return self.key[0]

    async def load_envelope(self, request: ClientRequest) -> RequestEnvelope:
        """Returns the envelope of a request from the cache, or builds it."""
        key = (self.key, request.codec.name, await run_sized(request.work_bytes, request.compute_envelope_key))
        envelope = self.envelopes.get(key)
        if envelope is None:
            envelope = await run_sized(
                len(request.raw), _build_envelope, request, self.target, self.engine.message_counter
            )
            if measure_envelope(envelope) <= ENVELOPE_CACHE_BYTES:
                self.envelopes[key] = envelope
        return envelope


class VariantOptions(NamedTuple):
    """How a variant differs from its tenant's engine."""

    model: str
    reserved_tokens: int | None
    """Tokens reserved for the reply, if the client or the upstream limits it."""
    limits_reserve: bool
    """Whether the reserve is at most `MAX_RESERVE_SHARE` of the window, whatever the client allows the reply."""
    provider: Provider
    """The wire format of the upstream."""


VariantKey = tuple[str, VariantOptions]
"""Tenant and options."""
EnvelopeKey = tuple[VariantKey, str, bytes]
"""Variant, the client's format, and digest of the instructions and tools."""


def measure_envelope(envelope: RequestEnvelope) -> int:
    """Bytes of an envelope in the cache: its texts are there as such and as blobs."""
    return MIN_ENVELOPE_BYTES + 2 * sum(len(blob.data) for blob in envelope.blobs)


class EngineVariants:
    """Engine variants by tenant, model, reserve and upstream format. A change of settings empties the cache."""

    def __init__(self, server_state: ServerState) -> None:
        self._server_state = server_state
        self._settings: Settings = server_state.settings
        self._variants: LRUCache[VariantKey, EngineVariant] = LRUCache(VARIANT_CACHE_SIZE)
        self._envelopes: LRUCache[EnvelopeKey, RequestEnvelope] = LRUCache(ENVELOPE_CACHE_BYTES, measure_envelope)
        self._histories = RenderedHistories()

    def get(
        self,
        tenant: str,
        model: str,
        *,
        reserved_tokens: int | None = None,
        limits_reserve: bool = False,
        target: Codec,
    ) -> EngineVariant:
        if self._settings is not self._server_state.settings:
            self.clear()
        options = VariantOptions(model, reserved_tokens, limits_reserve, target.provider)
        variant = self._variants.get((tenant, options))
        if variant is None:
            variant = self._variants[tenant, options] = self._build_variant(tenant, options, target)
        return variant

    def clear(self) -> None:
        self._settings = self._server_state.settings
        self._variants.clear()
        self._envelopes.clear()
        self._histories.clear()

    def _build_variant(self, tenant: str, options: VariantOptions, target: Codec) -> EngineVariant:
        # Links in a client's messages do not refer to Quire's vault.
        engine = self._server_state.engine_for(tenant).with_changes(
            agent=_make_anonymous_agent(), vault=None, **self._build_overrides(options)
        )
        max_reserve = int(engine.policy.window * MAX_RESERVE_SHARE)
        if options.limits_reserve and engine.policy.reserved_response_tokens > max_reserve:
            engine = engine.with_changes(reserved_response_tokens=max_reserve)
        return EngineVariant(engine, target, (tenant, options), self._envelopes, self._histories)

    def _build_overrides(self, options: VariantOptions) -> dict[str, Any]:
        """Builds the settings of a variant.

        Tools may take the whole budget, because the client has chosen them.
        """
        settings = self._server_state.settings
        overrides: dict[str, Any] = {"model": options.model}
        if options.reserved_tokens is not None:
            overrides["reserved_response_tokens"] = options.reserved_tokens
        shares = settings.shares or get_strategy(settings.strategy).shares
        # A client cannot run Quire's tools.
        return {**overrides, "provider": options.provider, "shares": {**shares, "tools": 1.0}, "context_tools": False}


def _make_anonymous_agent() -> Agent:
    return Agent(name="gateway", memory=AgentMemory(enabled=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class _WireEnvelope:
    """Instructions and tools in the log's form and as the upstream gets them."""

    system: str | None
    tools: tuple[ToolDefinition, ...]
    wire_instructions: Sequence[WireMessage]
    wire_tools: Sequence[WireMessage]
    replayable: bool
    dropped: tuple[str, ...] = ()


def _build_envelope(request: ClientRequest, target: Codec, message_counter: MessageCounter) -> RequestEnvelope:
    is_native = target is request.codec
    wire = _read_envelope(request, message_counter) if is_native else _translate_envelope(request, message_counter)
    wire_format, token_counter = message_counter.wire_format, message_counter.token_counter
    system_tokens = wire_format.count_messages(wire.wire_instructions, token_counter)
    if not is_native:
        system_tokens = wire_format.count_system(wire.system, token_counter)
    texts_to_store = [*([wire.system] if wire.system else []), *(tool.canonical_json() for tool in wire.tools)]
    agent_tools = tuple(AgentTool(definition=tool, include="always") for tool in wire.tools)
    return RequestEnvelope(
        agent=_make_anonymous_agent().model_copy(update={"instructions": wire.system or "", "tools": agent_tools}),
        system=wire.system,
        tools=wire.tools,
        blobs=tuple(Blob("text/plain", text.encode()) for text in texts_to_store),
        decisions=(
            *_build_system_decisions(wire.system, system_tokens),
            *_build_tool_decisions(wire, message_counter),
        ),
        tokens=system_tokens + wire_format.count_tools(wire.wire_tools, token_counter),
        replayable=wire.replayable,
        dropped=wire.dropped,
    )


def _read_envelope(request: ClientRequest, message_counter: MessageCounter) -> _WireEnvelope:
    codec = request.codec
    system, tools = codec.join_instructions(request), tuple(map(codec.to_tool_definition, request.tools))
    rendered_tools = [message_counter.wire_format.render_tool(tool) for tool in tools]
    return _WireEnvelope(
        system=system,
        tools=tools,
        wire_instructions=request.instructions,
        wire_tools=request.tools,
        replayable=rendered_tools == list(request.tools) and codec.is_plain_system(request, system),
    )


def _translate_envelope(request: ClientRequest, message_counter: MessageCounter) -> _WireEnvelope:
    translated = request.codec.translate_tools(request)
    return _WireEnvelope(
        system=request.codec.join_instructions(request, is_translated=True),
        tools=translated.definitions,
        wire_instructions=(),
        wire_tools=[message_counter.wire_format.render_tool(tool) for tool in translated.definitions],
        replayable=True,
        dropped=translated.dropped,
    )


def _build_system_decisions(system: str | None, tokens: int) -> list[Decision]:
    if system is None:
        return []
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


def _build_tool_decisions(wire: _WireEnvelope, message_counter: MessageCounter) -> list[Decision]:
    """Builds a decision per tool. The first includes the fixed token cost of having tools."""
    if not wire.tools:
        return []
    wire_format, token_counter = message_counter.wire_format, message_counter.token_counter
    token_counts = [wire_format.count_tools([tool], token_counter) for tool in wire.wire_tools]
    preamble = 2 * token_counts[0] - wire_format.count_tools([wire.wire_tools[0]] * 2, token_counter)
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
        for index, (tool, tokens) in enumerate(zip(wire.tools, token_counts, strict=True))
    ]
