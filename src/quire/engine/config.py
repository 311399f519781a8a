"""`EngineConfig`: what an engine is built from, as one frozen value, and the values derived from it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.compaction.execution import Summarizer
from quire.context.builtin_tool_schemas import build_builtin_tools
from quire.llm import Model
from quire.llm.embeddings import Embedder
from quire.log.ids import now
from quire.model import Policy, ToolDefinition, Usage
from quire.model.agents import Agent, AgentMemory, AgentTool
from quire.settings import Settings
from quire.view.model_specs import ModelSpec, context_window_for, model_spec_for
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
        """Cost of a call in dollars; 0 if the model's price is unknown. Prices in the settings override the table."""
        if usage is None:
            return 0.0
        spec, settings = model_spec_for(model), self.settings
        if model == settings.model and settings.input_price is not None and settings.output_price is not None:
            spec = ModelSpec(
                input_price=Decimal(str(settings.input_price)), output_price=Decimal(str(settings.output_price))
            )
        return spec.compute_cost(usage) or 0.0


_PARTS = ("agent", "vault", "summarizer", "embedder", "clock")
"""Names that `with_changes` takes for parts. Some are settings too: those hold a file name or a model's name."""


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
