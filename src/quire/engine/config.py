"""`EngineConfig`: what an engine is built from, as one frozen value, and the values derived from it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.compaction.execution import Summarizer
from quire.context.builtin_tool_schemas import build_builtin_tools
from quire.errors import UnknownPrice
from quire.llm import Model
from quire.llm.embeddings import Embedder
from quire.log.ids import now
from quire.model import Policy, ToolDefinition, Usage
from quire.model.agents import Agent, AgentMemory, AgentTool
from quire.settings import Settings
from quire.settings.schema import upstream_for
from quire.view.model_specs import ModelSpec, context_window_for, is_local_model, model_spec_for
from quire.view.wire_formats import provider_for

if TYPE_CHECKING:
    from quire.context.vault import Root, Vault

DEFAULT_AGENT = "default"
"""Name of the agent that an engine has when none is given."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineConfig:
    """Configuration of an engine. `create` builds one; `with_changes` derives another."""

    settings: Settings
    agent: Agent
    """The agent with the application's and the built-in tools."""
    vault: "Vault | None" = None
    summarizer: Summarizer | None = None
    embedder: Embedder | None = None
    clock: Callable[[], int] = now

    @classmethod
    def create(
        cls,
        settings: Settings,
        *,
        instructions: str = "",
        tools: Sequence[ToolDefinition] = (),
        agent: Agent | None = None,
        vault: "Vault | Path | str | None" = None,
        summarizer: Model | Summarizer | None = None,
        embedder: Embedder | None = None,
        clock: Callable[[], int] = now,
    ) -> "EngineConfig":
        """Builds a configuration: opens the vault, and adds instructions, tools and built-in tools to the agent."""
        opened = _open_vault(vault, settings)
        complete = _build_agent(agent, instructions=instructions, tools=tools)
        if settings.context_tools:
            builtin = build_builtin_tools(has_vault=opened is not None, has_memory=complete.memory.enabled)
            complete = complete.with_tools(*complete.tools, *(AgentTool(definition=each) for each in builtin))
        return cls(
            settings=settings,
            agent=complete,
            vault=opened,
            summarizer=_make_summarizer(summarizer, settings),
            embedder=embedder,
            clock=clock,
        )

    def with_changes(self, **changes: Any) -> "EngineConfig":
        """A configuration with some parts replaced; every other name is a setting.

        The parts are `agent`, `vault`, `summarizer`, `embedder` and `clock`. A new agent is used as it is: it brings
        its own tools.
        """
        parts = {name: changes.pop(name) for name in _PARTS if name in changes}
        settings = self.settings
        if changes:
            settings = Settings.model_validate({**settings.model_dump(), **changes})
        if "vault" in parts:
            parts["vault"] = _open_vault(parts["vault"], settings)
        if "summarizer" in parts:
            parts["summarizer"] = _make_summarizer(parts["summarizer"], settings)
        return replace(self, settings=settings, **parts)

    @cached_property
    def policy(self) -> Policy:
        return policy_for(self.settings)

    @property
    def has_background_compaction(self) -> bool:
        """Whether conversations are compacted in the background, at `context_background_threshold`, before they must
        be."""
        has_threshold = self.settings.context_background_threshold is not None
        return has_threshold and self.policy.context_management_enabled and self.summarizer is not None

    @property
    def project_root(self) -> "Root | None":
        """The folder that files are read from: the vault's root, if there is a vault."""
        return self.vault.root if self.vault is not None else None

    def estimate_cost(self, usage: Usage | None, model: str) -> float:
        """Cost of a call in dollars; 0 if the price is unknown.

        `model` is the name that the client uses; it may be an alias of the upstream's model. The model that the
        provider reports comes before both.
        """
        if usage is None:
            return 0.0
        spec = self._find_price(model, reported_model=usage.model)
        return (spec.compute_cost(usage) or 0.0) if spec is not None else 0.0

    def check_prices(self) -> None:
        """Raises `UnknownPrice` if `max_spend` is set and the price of the model or of the summarizer is unknown."""
        if self.settings.max_spend is None:
            return
        summarizers = [self.summarizer.model.name] if self.summarizer is not None else []
        for model in (self.settings.model, *summarizers):
            if self._find_price(model) is None:
                raise UnknownPrice(model)

    def _find_price(self, model: str, *, reported_model: str | None = None) -> ModelSpec | None:
        """Prices of the upstream, else of the settings, else of the table. The settings also price other models, such
        as the summarizer, that the table does not list."""
        settings, upstream = self.settings, upstream_for(self.settings, model)
        configured = _to_price(settings.input_price, settings.output_price)
        own = _to_price(upstream.input_price, upstream.output_price) if upstream is not None else None
        if own is None and model == settings.model:
            own = configured
        if own is not None:
            return own
        upstream_model = (upstream.model if upstream is not None else None) or model
        # A local server may report a name that a vendor charges for.
        names = (reported_model, upstream_model) if not is_local_model(upstream_model) else ()
        specs = (model_spec_for(name) for name in names if name)
        return next((spec for spec in specs if spec.has_price), configured)


_PARTS = ("agent", "vault", "summarizer", "embedder", "clock")
"""Names that `with_changes` takes for parts. Some are settings too: those hold a file name or a model's name."""


def _to_price(input_price: float | None, output_price: float | None) -> ModelSpec | None:
    if input_price is None or output_price is None:
        return None
    return ModelSpec(input_price=Decimal(str(input_price)), output_price=Decimal(str(output_price)))


def _build_agent(agent: Agent | None, *, instructions: str, tools: Sequence[ToolDefinition]) -> Agent:
    """Adds instructions and tools to the agent; without one, builds a default agent that has no memory."""
    application_tools = tuple(AgentTool(definition=tool) for tool in tools)
    if agent is None:
        memory = AgentMemory(enabled=False)
        return Agent(name=DEFAULT_AGENT, instructions=instructions, tools=application_tools, memory=memory)
    joined = "\n\n".join(text for text in (agent.instructions, instructions) if text)
    return agent.model_copy(update={"instructions": joined, "tools": (*agent.tools, *application_tools)})


def _open_vault(vault: "Vault | Path | str | None", settings: Settings) -> "Vault | None":
    if vault is None:
        return None
    from quire.context.vault import Vault

    return vault if isinstance(vault, Vault) else Vault(vault, on_ambiguous=settings.ambiguous_links)


def _make_summarizer(summarizer: Model | Summarizer | None, settings: Settings) -> Summarizer | None:
    """Wraps a bare model with its known context window, or with the window of the policy if it is unknown."""
    if summarizer is None or isinstance(summarizer, Summarizer):
        return summarizer
    window = context_window_for(summarizer.name) or policy_for(settings).window
    return Summarizer(model=summarizer, window=window, timeout=settings.summary_timeout)


DEFAULT_CONTEXT_WINDOW = 8_192
"""Tokens. For models that no table lists: small enough for most models in use."""


def policy_for(settings: Settings) -> Policy:
    window = settings.context_limit or context_window_for(settings.model) or DEFAULT_CONTEXT_WINDOW
    if settings.max_prompt_tokens is not None:
        window = min(window, settings.max_prompt_tokens)
    return Policy(
        model=settings.model,
        provider=settings.provider or provider_for(settings.model),
        strategy=settings.strategy,
        window=window,
        reserved_response_tokens=settings.reserved_response_tokens,
        context_threshold=settings.context_threshold,
        context_target=settings.context_target,
        recent_messages_to_keep=settings.recent_messages_to_keep,
        min_recent_messages_to_keep=settings.min_recent_messages_to_keep,
        context_management_enabled=settings.context_management_enabled,
        shares=settings.shares,
        recall_tokens=settings.recall_tokens,
    )
