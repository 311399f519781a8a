"""Envelopes, and LRU caches of them and of the gateway's engines.

An envelope is what a request has around its messages: instructions and tools. A client sends the same ones with every
request of a conversation, so they are parsed and counted once; they act as the agent of the request. The gateway has
one engine per tenant, model, reserve and upstream format.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cachetools import LRUCache

from quire.access.spending import SpendingKey
from quire.concurrency.worker_threads import run_sized
from quire.engine import Engine
from quire.engine.tenants import TenantEngines
from quire.log import Blob
from quire.model import Decision, Message, ToolDefinition
from quire.model.agents import Agent, AgentMemory, AgentTool
from quire.model.base import lazy_property
from quire.model.policy import WireFormatName
from quire.proxy.recognition import HistoryMatch
from quire.proxy.rendered_history import RenderedHistories, RenderedHistory
from quire.settings import Settings
from quire.view.budget import Budget, Calibration, allocate_budget
from quire.view.inputs import hash_text
from quire.view.rendered import MessageCounter, RenderedMessage, drop_unsupported_parts
from quire.view.strategies import get_strategy
from quire.wire import WireMessage
from quire.wire.client_messages import ClientMessage, compute_client_paths
from quire.wire.codec import ClientRequest, Codec

VARIANT_CACHE_SIZE = 500
"""Maximum number of cached engine variants."""
ENVELOPE_CACHE_BYTES = 64 * 1024 * 1024
"""Maximum size of all cached envelopes."""
MAX_ENVELOPE_BYTES = 4 * 1024 * 1024
"""A larger envelope is not cached. A coding agent's has a tenth of it."""
MAX_RESERVE_SHARE = 0.25
"""Share of the window that a reply limit can reserve: agents ask for as many tokens as any model can write."""
MAX_ENVELOPE_ENGINES = 100
"""Engines that are cached with one envelope: one for each key that is charged."""
MIN_ENVELOPE_BYTES = 1_000
"""Bytes that an envelope counts as at least."""
GATEWAY_AGENT = Agent(name="gateway", memory=AgentMemory(enabled=False))
"""The agent of the gateway's clients, which bring their own instructions and tools."""


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """Everything in a request except its messages, with token counts.

    The gateway parses it from a client's body, and the adapters from what a framework adds to the messages.
    """

    base_agent: Agent
    """The agent whose rules and memories the request has."""
    message_counter: MessageCounter
    system: str | None = None
    tools: tuple[ToolDefinition, ...] = ()
    wire_instructions: Sequence[WireMessage] | None = None
    """The instructions as the upstream gets them, or None if they are rendered from `system`."""
    wire_tools: Sequence[WireMessage] | None = None
    """The tools as the upstream gets them, or None if they are rendered from `tools`."""
    other_texts: tuple[str, ...] = ()
    """JSON that a framework adds to the request, such as an output schema. It reduces the room for messages."""
    replayable: bool = True
    """Whether a replay from the log reproduces instructions and tools as they were forwarded."""
    dropped: tuple[str, ...] = ()
    """Names of what has no place in Quire's messages and tools, or in the upstream's format."""
    engines: dict[Any, Engine] = field(default_factory=dict[Any, Engine], compare=False)
    """The engines that prepared requests with this envelope, by variant and charged key."""

    @lazy_property
    def agent(self) -> Agent:
        """The base agent with these instructions after its own, and with these tools in place of its tools."""
        return self.base_agent.model_copy(
            update={
                "instructions": "\n\n".join(filter(None, (self.base_agent.instructions, self.system))),
                "tools": tuple(AgentTool(definition=tool, include="always") for tool in self.tools),
            }
        )

    @lazy_property
    def blobs(self) -> tuple[Blob, ...]:
        texts = [*([self.system] if self.system else []), *(tool.canonical_json() for tool in self.tools)]
        return tuple(Blob("text/plain", text.encode()) for text in texts)

    @lazy_property
    def tokens(self) -> int:
        """Tokens of the instructions and tools."""
        wire_format, counter = self.message_counter.wire_format, self.message_counter.token_counter
        return self._system_tokens + wire_format.count_tools(self._rendered_tools, counter)

    @property
    def other_tokens(self) -> int:
        return sum(map(self.message_counter.token_counter.count, self.other_texts))

    @lazy_property
    def decisions(self) -> tuple[Decision, ...]:
        """A decision for the instructions, and one per tool. The first tool has the fixed token cost of having any."""
        rows: list[Decision] = []
        if self.system is not None:
            rows.append(
                Decision(
                    slot="system",
                    kind="instructions",
                    included=True,
                    reason="instructions",
                    tokens=self._system_tokens,
                    name="instructions",
                    blob=hash_text(self.system),
                )
            )
        if not self.tools:
            return tuple(rows)
        wire_format, counter = self.message_counter.wire_format, self.message_counter.token_counter
        counts = [wire_format.count_tools([tool], counter) for tool in self._rendered_tools]
        preamble = 2 * counts[0] - wire_format.count_tools([self._rendered_tools[0]] * 2, counter)
        for index, (tool, tokens) in enumerate(zip(self.tools, counts, strict=True)):
            rows.append(
                Decision(
                    slot="tools",
                    kind="tool",
                    included=True,
                    reason="always",
                    tokens=tokens - (preamble if index else 0),
                    name=tool.name,
                    blob=hash_text(tool.canonical_json()),
                )
            )
        return tuple(rows)

    @lazy_property
    def _system_tokens(self) -> int:
        wire_format, counter = self.message_counter.wire_format, self.message_counter.token_counter
        if self.wire_instructions is None:
            return wire_format.count_system(self.system, counter)
        return wire_format.count_messages(self.wire_instructions, counter)

    @lazy_property
    def _rendered_tools(self) -> Sequence[WireMessage]:
        if self.wire_tools is not None:
            return self.wire_tools
        return [self.message_counter.wire_format.render_tool(tool) for tool in self.tools]


def parse_envelope(request: ClientRequest, target: Codec, message_counter: MessageCounter) -> Envelope:
    """The envelope of a client's body, as an upstream of the format `target` gets it; counted."""
    codec = request.codec
    if target is codec:
        system, tools = codec.join_instructions(request), tuple(map(codec.to_tool_definition, request.tools))
        rendered_tools = [message_counter.wire_format.render_tool(tool) for tool in tools]
        envelope = Envelope(
            base_agent=GATEWAY_AGENT,
            message_counter=message_counter,
            system=system,
            tools=tools,
            wire_instructions=request.instructions,
            wire_tools=request.tools,
            replayable=rendered_tools == list(request.tools) and codec.is_plain_system(request, system),
        )
    else:
        translated = codec.translate_tools(request)
        envelope = Envelope(
            base_agent=GATEWAY_AGENT,
            message_counter=message_counter,
            system=codec.join_instructions(request, is_translated=True),
            tools=translated.definitions,
            dropped=translated.dropped,
        )
    # This may run in a worker thread, and the event loop needs all of these.
    _ = envelope.agent, envelope.tokens, envelope.decisions, envelope.blobs
    return envelope


@dataclass(slots=True)
class EngineVariant:
    """An engine for one tenant, model, reserve and upstream format."""

    engine: Engine
    target: Codec
    key: "VariantKey"
    envelopes: "LRUCache[EnvelopeKey, Envelope]"
    """The cache of all variants."""
    histories: RenderedHistories
    """The cache of all variants."""

    @property
    def tenant(self) -> str:
        return self.key[0]

    def get_engine(self, envelope: Envelope, spending_key: SpendingKey | None) -> Engine:
        """The engine of requests with this envelope, whose calls are charged to this key."""
        key, engines = (self.key, spending_key), envelope.engines
        engine = engines.get(key)
        if engine is None:
            if len(engines) >= MAX_ENVELOPE_ENGINES:
                engines.clear()
            engine = engines[key] = self.engine.with_changes(agent=envelope.agent, spending_key=spending_key)
        return engine

    async def load_envelope(self, request: ClientRequest) -> Envelope:
        """Returns the envelope of a request from the cache, or parses it."""
        key = (self.key, request.codec.name, await run_sized(request.work_bytes, request.compute_envelope_key))
        envelope = self.envelopes.get(key)
        if envelope is None:
            envelope = await run_sized(
                len(request.raw), parse_envelope, request, self.target, self.engine.message_counter
            )
            if measure_envelope(envelope) <= MAX_ENVELOPE_BYTES:
                self.envelopes[key] = envelope
        return envelope


class VariantOptions(NamedTuple):
    """How a variant differs from its tenant's engine."""

    model: str
    reserved_tokens: int | None
    """Tokens reserved for the reply, if the client or the upstream limits it."""
    limits_reserve: bool
    """Whether the reserve is at most `MAX_RESERVE_SHARE` of the window, whatever the client allows the reply."""
    wire_format: WireFormatName
    """The wire format of the upstream."""


VariantKey = tuple[str, VariantOptions]
"""Tenant and options."""
EnvelopeKey = tuple[VariantKey, str, bytes]
"""Variant, the client's format, and digest of the instructions and tools."""


def measure_envelope(envelope: Envelope) -> int:
    """Bytes of an envelope in the cache: its texts are there as such and as blobs."""
    return MIN_ENVELOPE_BYTES + 2 * sum(len(blob.data) for blob in envelope.blobs)


def render_client_message(message: Message, counter: MessageCounter) -> RenderedMessage:
    """Renders a message without counting it: the tokens of the whole list are known."""
    return counter.render_message(drop_unsupported_parts(message), tokens=0)


class EngineVariants:
    """Engine variants by tenant, model, reserve and upstream format. A change of settings empties the cache."""

    def __init__(self, engines: TenantEngines) -> None:
        self._engines = engines
        self._settings: Settings = engines.settings
        self._variants: LRUCache[VariantKey, EngineVariant] = LRUCache(VARIANT_CACHE_SIZE)
        self._envelopes: LRUCache[EnvelopeKey, Envelope] = LRUCache(ENVELOPE_CACHE_BYTES, measure_envelope)
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
        if self._settings is not self._engines.settings:
            self.clear()
        options = VariantOptions(model, reserved_tokens, limits_reserve, target.name)
        variant = self._variants.get((tenant, options))
        if variant is None:
            changes: dict[str, Any] = {"model": model, "wire_format": target.name}
            if reserved_tokens is not None:
                changes["reserved_response_tokens"] = reserved_tokens
            tenant_engine = self._engines(tenant)
            engine = tenant_engine.with_changes(
                agent=GATEWAY_AGENT,
                # Links in a client's messages do not refer to Quire's vault.
                vault=None,
                shares=tenant_engine.config.client_shares,
                # A client cannot run Quire's tools.
                context_tools=False,
                **changes,
            )
            max_reserve = int(engine.policy.window * MAX_RESERVE_SHARE)
            if limits_reserve and engine.policy.reserved_response_tokens > max_reserve:
                engine = engine.with_changes(reserved_response_tokens=max_reserve)
            variant = EngineVariant(engine, target, (tenant, options), self._envelopes, self._histories)
            self._variants[tenant, options] = variant
        return variant

    def clear(self) -> None:
        self._settings = self._engines.settings
        self._variants.clear()
        self._envelopes.clear()
        self._histories.clear()


@dataclass(frozen=True, kw_only=True)
class RecognizedRequest:
    """A client's request, matched to the log, with token counts."""

    client_request: ClientRequest
    match: HistoryMatch
    variant: EngineVariant
    envelope: Envelope
    calibration: Calibration
    """Correction of our token counts by the counts that the provider reported."""
    edit_decisions: tuple[Decision, ...] = ()
    """Decisions of the user's edits."""
    edit_tokens: int = 0
    """Tokens that the edits add."""

    @property
    def is_native(self) -> bool:
        """Whether the upstream uses the client's format."""
        return self.variant.target is self.client_request.codec

    @property
    def message_counter(self) -> MessageCounter:
        return self.variant.engine.message_counter

    @property
    def new_messages(self) -> tuple[ClientMessage, ...]:
        """Messages that are not in the log yet."""
        return self.client_request.messages[self.match.stored_end :]

    @property
    def answers_stored_call(self) -> bool:
        """Whether the new messages begin with the result of a stored tool call."""
        return bool(self.new_messages) and self.new_messages[0].role == "tool"

    def find_history(self) -> RenderedHistory | None:
        """The rendered history that the request continues, from the cache."""
        if self.match.client_path is None or self.match.compaction is not None:
            return None
        return self.variant.histories.find(self.variant.tenant, self.variant.target.name, self.match.head_path)

    def extend_client_path(self, path: bytes) -> bytes:
        """Computes the client's path after the new messages that follow `path`."""
        return compute_client_paths(self.new_messages, known_paths=[path])[-1]

    @lazy_property
    def new_counts(self) -> tuple[int, ...]:
        """Tokens of each new message."""
        return tuple([self.message_counter.count(each.message) for each in self.new_messages])

    @property
    def new_tokens(self) -> int:
        return sum(self.new_counts)

    @lazy_property
    def rendered_new(self) -> tuple[RenderedMessage, ...]:
        return tuple([render_client_message(each.message, self.message_counter) for each in self.new_messages])

    @lazy_property
    def stored_tokens(self) -> int:
        """Tokens of the stored messages; taken from the last manifest if the same counter made it."""
        if self.match.recorded_tokens is not None and self._has_recorded_tokens:
            return self.match.recorded_tokens[0]
        return sum(
            self.message_counter.count(each.message) for each in self.client_request.messages[: self.match.stored_end]
        )

    @property
    def _has_recorded_tokens(self) -> bool:
        recorded = self.match.recorded_tokens
        return recorded is not None and recorded[1] == self.message_counter.name

    @lazy_property
    def tokens(self) -> int:
        """Tokens of the whole request as the client sent it."""
        response_format = self.client_request.options.response_format
        format_tokens = (
            self.message_counter.token_counter.count(str(response_format)) if response_format is not None else 0
        )
        return (
            self.message_counter.wire_format.request_overhead
            + self.envelope.tokens
            + self.stored_tokens
            + self.new_tokens
            + self.edit_tokens
            + format_tokens
        )

    @property
    def uncounted_bytes(self) -> int:
        """Size of the work of `count_tokens` for `run_sized`."""
        return self.client_request.work_bytes if self._has_recorded_tokens else len(self.client_request.raw)

    def count_tokens(self) -> None:
        """Computes `tokens`, which is cached: a caller may do this in a thread before it reads any count."""
        _ = self.tokens

    @lazy_property
    def ratio(self) -> float:
        """Expected ratio of the provider's token count to ours."""
        return self.calibration.ratio_for(
            tokens=self.tokens,
            messages=len(self.client_request.messages),
            exact=self.message_counter.token_counter.exact,
        )

    @lazy_property
    def budget(self) -> Budget:
        policy = self.variant.engine.policy
        return allocate_budget(policy, get_strategy(policy.strategy).shares, ratio=self.ratio)

    @property
    def fits(self) -> bool:
        """Whether the request can be passed through. The margin above the trigger is for errors of estimates.

        After a fitted request, the client's list must be below the target, as after a change to a larger window. Each
        report of the provider moves the other limits, and a change between the two breaks the cached prefix.
        """
        if self.match.was_fitted:
            return self.tokens <= self.budget.target_tokens
        return self.tokens <= (
            self.budget.max_input_tokens if self.message_counter.token_counter.exact else self.budget.trigger_tokens
        )
