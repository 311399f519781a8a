"""Engines for what clients ask: one a tenant, model and length of reply, and what stands around the messages.

A client's instructions and tools are the agent of its request, and come with every request of a conversation: they are
read and counted once.
"""

from dataclasses import dataclass, field
from typing import Any

from quire.engine import Engine
from quire.log import Blob
from quire.model import Decision, ToolDefinition
from quire.model.agents import Agent, AgentMemory, OfferedTool
from quire.server.gateway.asking import Asking
from quire.server.gateway.recent import Recent
from quire.server.serving import Serving
from quire.settings import Settings
from quire.settings.upstreams import settings_for
from quire.view.leaves import Meter
from quire.view.material import text_digest
from quire.view.shapes.fields import compact, is_object, object_in, objects, text_in
from quire.view.strategies import strategy_named

VARIANTS, FRAMES = 500, 200
"""So many are kept, those used last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What stands around the messages of a request: the client's instructions and tools, counted."""

    agent: Agent
    system: str | None
    tools: tuple[ToolDefinition, ...]
    blobs: tuple[Blob, ...]
    rows: tuple[Decision, ...]
    tokens: int
    same: bool
    """Whether the log gives them again as they came."""


@dataclass(slots=True)
class Variant:
    """An engine for one tenant, model and length of reply."""

    engine: Engine
    frames: Recent[bytes, Frame] = field(default_factory=lambda: Recent[bytes, Frame](FRAMES))

    def frame(self, asking: Asking) -> Frame:
        key = asking.frame_key()
        return self.frames.get(key) or self.frames.put(key, _framed(asking, self.engine.meter))


class Variants:
    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._settings: Settings = serving.settings
        self._made: Recent[tuple[str, str, int | None], Variant] = Recent(VARIANTS)
        self._meters: Recent[tuple[str, str], Meter] = Recent(VARIANTS)
        self.windows: dict[str, int] = {}
        """What upstreams said of their models' windows when a request was too long for them."""

    def of(self, tenant: str, model: str, reserve: int | None) -> Variant:
        if self._settings is not self._serving.settings:
            self.clear()
        key = (tenant, model, reserve)
        return self._made.get(key) or self._made.put(key, self._variant(tenant, model, reserve))

    def clear(self) -> None:
        self._settings = self._serving.settings
        self._made.clear()
        self._meters.clear()

    def narrow(self, model: str, window: int) -> None:
        """From now on this model's window is taken to be what its upstream says."""
        self.windows[model] = window
        self._made.clear()

    def _variant(self, tenant: str, model: str, reserve: int | None) -> Variant:
        engine = self._serving.engine(tenant).like(agent=_nobody(), **self._changes(model, reserve))
        # Links in a client's messages are the client's own.
        engine.vault = None
        known = self._meters.get((tenant, model))
        if known is None:
            self._meters.put((tenant, model), engine.meter)
        else:
            engine.meter = known
        return Variant(engine)

    def _changes(self, model: str, reserve: int | None) -> dict[str, Any]:
        """Clients and upstreams speak OpenAI's shape, whoever made the model; and the client chose its tools itself."""
        settings = self._serving.settings
        changes = settings_for(settings, model)
        if model == settings.model:
            changes = {name: getattr(settings, name) if value is None else value for name, value in changes.items()}
        if model in self.windows:
            changes["context_limit"] = self.windows[model]
        if reserve is not None:
            changes["reserved_response_tokens"] = reserve
        shares = settings.shares or strategy_named(settings.strategy).shares
        return {**changes, "provider": "openai", "shares": {**shares, "tools": 1.0}}


def _nobody() -> Agent:
    return Agent(name="gateway", memory=AgentMemory(enabled=False))


def _framed(asking: Asking, meter: Meter) -> Frame:
    texts = [_text(message) for message in asking.leading]
    system = "\n\n".join(texts) or None
    tools = tuple(_definition(tool) for tool in asking.tools)
    quoted = [*([system] if system else []), *(tool.canonical() for tool in tools)]
    offered = tuple(OfferedTool(definition=tool, include="always") for tool in tools)
    return Frame(
        agent=_nobody().model_copy(update={"instructions": system or "", "tools": offered}),
        system=system,
        tools=tools,
        blobs=tuple(Blob("text/plain", text.encode()) for text in quoted),
        rows=(*_system_row(asking, system, meter), *_tool_rows(asking, tools, meter)),
        tokens=meter.shape.count_units(asking.leading, meter.counter)
        + meter.shape.count_tools(asking.tools, meter.counter),
        same=_same(asking, system, tools, meter),
    )


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(text for piece in objects(content) if (text := text_in(piece, "text")))


def _definition(tool: dict[str, Any]) -> ToolDefinition:
    """A tool as the log keeps it; one of a kind that Quire does not know has its whole JSON for parameters."""
    function = object_in(tool, "function", "custom")
    name = text_in(function, "name") or text_in(tool, "name") or text_in(tool, "type") or "tool"
    known = "function" in tool and is_object(function.get("parameters", {}))
    parameters: dict[str, Any] = function.get("parameters", {}) if known else {"tool": tool}
    return ToolDefinition(name=name, description=text_in(function, "description") or "", parameters=parameters)


def _system_row(asking: Asking, system: str | None, meter: Meter) -> list[Decision]:
    if system is None:
        return []
    tokens = meter.shape.count_units(asking.leading, meter.counter)
    return [
        Decision(
            slot="system",
            what="instructions",
            included=True,
            reason="instructions",
            tokens=tokens,
            name="instructions",
            blob=text_digest(system),
        )
    ]


def _tool_rows(asking: Asking, tools: tuple[ToolDefinition, ...], meter: Meter) -> list[Decision]:
    """The first carries what it costs to have tools at all."""
    if not tools:
        return []
    alone = [meter.shape.count_tools([tool], meter.counter) for tool in asking.tools]
    preamble = 2 * alone[0] - meter.shape.count_tools([asking.tools[0]] * 2, meter.counter)
    return [
        Decision(
            slot="tools",
            what="tool",
            included=True,
            reason="always",
            tokens=tokens - (preamble if place else 0),
            name=tool.name,
            blob=text_digest(tool.canonical()),
        )
        for place, (tool, tokens) in enumerate(zip(tools, alone, strict=True))
    ]


def _same(asking: Asking, system: str | None, tools: tuple[ToolDefinition, ...], meter: Meter) -> bool:
    shown = [{"role": "system", "content": system}] if system else []
    rendered = [meter.shape.tool(tool) for tool in tools]
    given = not asking.body.get("functions") and rendered == list(asking.tools)
    return given and compact(shown) == compact(list(asking.leading))
