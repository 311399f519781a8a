"""`EngineConfig`: what an engine is built from, as one frozen value, and the values derived from it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.access.spending import NO_KEY, SpendingKey
from quire.compaction.summarizer import SUMMARY_TEMPERATURE, Summarizer
from quire.context.builtin_tool_schemas import build_builtin_tools
from quire.engine.reported_windows import ModelEndpoint
from quire.errors import UnknownPrice
from quire.llm import Model
from quire.llm.embeddings import Embedder
from quire.llm.protocol import ModelBuilder
from quire.model import Policy, ToolDefinition, Usage
from quire.model.agents import Agent, AgentMemory, AgentTool
from quire.model.base import lazy_property
from quire.model.ids import now
from quire.model.policy import ShareName
from quire.rows.manifests import UNKNOWN_WINDOW
from quire.settings import Settings
from quire.settings.schema import upstream_for
from quire.view.call_prices import UNKNOWN_COST, Cost
from quire.view.model_specs import ModelSpec, is_local_model, output_limit_for, thinking_tokens_for
from quire.view.model_table import PUBLIC_SOURCES, SpecLayer, find_layers, merge_layers
from quire.view.strategies import get_strategy
from quire.wire.tokens import counter_for

if TYPE_CHECKING:
    from quire.context.vault import Root, Vault

MAX_KNOWN_PRICES = 1_000
"""Maximum prices in the cache of a configuration."""
DEFAULT_AGENT = "default"
"""Name of the agent that an engine has when none is given."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineConfig:
    """Configuration of an engine. `create` builds one; `with_changes` derives another."""

    settings: Settings
    agent: Agent
    """The agent with the application's and the built-in tools."""
    vault: "Vault | None" = None
    summarizer_source: Model | Summarizer | ModelBuilder | None = None
    """What the summarizer is built from. A builder gets the name of the model that answers."""
    embedder: Embedder | None = None
    clock: Callable[[], int] = now
    runs_turns: bool = False
    """Whether Quire runs the turns, and with them the calls of its built-in tools."""
    spending_key: SpendingKey | None = None
    """The API key that calls are charged to, or None for calls without one."""

    @classmethod
    def create(
        cls,
        settings: Settings,
        *,
        instructions: str = "",
        tools: Sequence[ToolDefinition] = (),
        agent: Agent | None = None,
        vault: "Vault | Path | str | None" = None,
        summarizer: Model | Summarizer | ModelBuilder | None = None,
        embedder: Embedder | None = None,
        clock: Callable[[], int] = now,
        runs_turns: bool = False,
    ) -> "EngineConfig":
        """Builds a configuration: opens the vault, and adds instructions, tools and built-in tools to the agent."""
        opened = _open_vault(vault, settings)
        application_tools = tuple(AgentTool(definition=tool) for tool in tools)
        if agent is None:
            # A default agent reads the project's files and has no memories.
            memory = AgentMemory(enabled=False, files_enabled=True)
            complete = Agent(name=DEFAULT_AGENT, instructions=instructions, tools=application_tools, memory=memory)
        else:
            joined = "\n\n".join(text for text in (agent.instructions, instructions) if text)
            changes = {"instructions": joined, "tools": (*agent.tools, *application_tools)}
            complete = agent.model_copy(update=changes)
        if settings.context_tools:
            builtin = build_builtin_tools(has_vault=opened is not None, has_memory=complete.memory.enabled)
            complete = complete.with_tools(*complete.tools, *(AgentTool(definition=each) for each in builtin))
        return cls(
            settings=settings,
            agent=complete,
            vault=opened,
            summarizer_source=summarizer,
            embedder=embedder,
            clock=clock,
            runs_turns=runs_turns,
        )

    def with_changes(self, **changes: Any) -> "EngineConfig":
        """A configuration with some parts replaced. Every other name is a setting.

        The parts are `agent`, `vault`, `summarizer`, `embedder`, `clock` and `spending_key`. A new agent is used as it
        is: it brings its own tools.
        """
        parts = {name: changes.pop(name) for name in _PARTS if name in changes}
        settings = self.settings
        if changes:
            settings = Settings.model_validate({**settings.model_dump(), **changes})
        if "vault" in parts:
            parts["vault"] = _open_vault(parts["vault"], settings)
        if "summarizer" in parts:
            parts["summarizer_source"] = parts.pop("summarizer")
        changed = replace(self, settings=settings, **parts)
        if settings is self.settings:
            # What follows from the settings alone is shared: the gateway makes a configuration for every request.
            derived = {name: value for name, value in vars(self).items() if name in _DERIVED_FROM_SETTINGS}
            vars(changed).update(derived, known_prices=self.known_prices)
        return changed

    @lazy_property
    def policy(self) -> Policy:
        settings, spec = self.settings, self.model_spec
        reserved = settings.reserved_response_tokens
        return Policy(
            model=settings.model,
            wire_format=settings.wire_format or spec.wire_format or "chat",
            strategy=settings.strategy,
            window=resolve_window(settings, spec),
            reserved_response_tokens=reserved if spec.output_limit is None else min(reserved, spec.output_limit),
            context_threshold=settings.context_threshold,
            recent_messages_to_keep=settings.recent_messages_to_keep,
            min_recent_messages_to_keep=settings.min_recent_messages_to_keep,
            context_management_enabled=settings.context_management_enabled,
            shares=settings.shares,
            recall_tokens=settings.recall_tokens,
        )

    @property
    def client_shares(self) -> dict[ShareName, float]:
        """Shares for requests of a client or framework: it has chosen its tools, so they may take the whole budget."""
        if self.settings.shares is not None:
            return {**self.settings.shares, "tools": 1.0}
        return {**get_strategy(self.settings.strategy).shares, "tools": 1.0}

    @lazy_property
    def summarizer(self) -> Summarizer | None:
        """The model that writes summaries, with its limits. If its window is unknown, it has the window of the model
        that answers. Lazy: the table of models takes long to import."""
        source, settings = self.summarizer_source, self.settings
        if source is None or isinstance(source, Summarizer):
            return source
        model = source(settings.model) if callable(source) else source
        spec, served = _find_served_spec(settings, model.name)
        if spec.window is None or model.name == settings.model:
            chat_spec, _ = _find_served_spec(settings, settings.model)
            window = resolve_window(settings, chat_spec)
        else:
            window = spec.window
        return Summarizer(
            model=model,
            window=window,
            output_limit=spec.output_limit or output_limit_for(served),
            thinking_tokens=thinking_tokens_for(served),
            counter=counter_for(served, tokenizer=spec.tokenizer),
            prompt=settings.summary_prompt,
            temperature=SUMMARY_TEMPERATURE,
        )

    @lazy_property
    def model_spec(self) -> ModelSpec:
        return merge_layers(self.find_layers(self.settings.model))

    @property
    def model_problem(self) -> str | None:
        """What is not known of a model that no table lists, and what to set, or None for a known model."""
        if self.model_spec.window is not None or self.settings.context_limit is not None:
            return None
        model, counting = self.settings.model, "" if self.model_spec.tokenizer else ", and its tokens are estimated"
        return (
            f"No table lists the model {model!r}: its context window is not known, so nothing is compacted until the "
            f'provider names it{counting}. Set `window` and `tokenizer` under `[models."{model}"]` in the settings.'
        )

    def find_layers(self, model: str) -> list[SpecLayer]:
        """What the settings, the public table and the name say about a model, the most specific source first."""
        return find_layers(self.settings.models, model, upstream=upstream_for(self.settings, model))

    @lazy_property
    def known_prices(self) -> dict[tuple[str, str | None], ModelSpec | None]:
        """Cache of prices by model and reported model, cleared when full: reported names are the upstream's choice."""
        return {}

    @lazy_property
    def endpoint(self) -> ModelEndpoint:
        return self.endpoint_for(self.settings.model)

    def endpoint_for(self, model: str) -> ModelEndpoint:
        """Where requests for a model go, and its name there."""
        upstream = upstream_for(self.settings, model)
        return (
            ModelEndpoint("", model) if upstream is None else ModelEndpoint(upstream.base_url, upstream.model or model)
        )

    @property
    def has_background_compaction(self) -> bool:
        """Whether conversations are compacted in the background, at `context_background_threshold`, before they must
        be."""
        has_threshold = (
            self.settings.context_background_threshold is not None and self.settings.compact_when == "needed"
        )
        return has_threshold and self.policy.context_management_enabled and self.summarizer is not None

    @property
    def has_topic_index(self) -> bool:
        """Whether a model writes topics of archived messages."""
        return self.settings.topic_index and self.summarizer is not None

    @property
    def project_root(self) -> "Root | None":
        """The folder that files are read from: the vault's root, if there is a vault."""
        return self.vault.root if self.vault is not None else None

    @property
    def key_id(self) -> str:
        """Id of the API key that calls are charged to, as the store records it."""
        return self.spending_key.id if self.spending_key is not None else NO_KEY

    def compute_cost(self, usage: Usage | None, model: str, at: datetime | None = None) -> Cost:
        """Cost of a call at a time, or now; unknown without a usage, and for a model without a price.

        `model` is the name that the client uses. It may be an alias of the upstream's model. The model that the
        provider reports comes before both.
        """
        if usage is None:
            return UNKNOWN_COST
        known_prices, key = self.known_prices, (model, usage.model)
        try:
            spec = known_prices[key]
        except KeyError:
            if len(known_prices) >= MAX_KNOWN_PRICES:
                known_prices.clear()
            known_prices[key] = spec = self._find_price(model, reported_model=usage.model)
        return spec.compute_cost(usage, at=at or datetime.now(UTC)) if spec is not None else UNKNOWN_COST

    def require_prices(self) -> None:
        """Raises `UnknownPrice` if the price of the model or of the summarizer is unknown."""
        summarizers = [self.summarizer.model.name] if self.summarizer is not None else []
        for model in (self.settings.model, *summarizers):
            if self._find_price(model) is None:
                raise UnknownPrice(model)

    def _find_price(self, model: str, *, reported_model: str | None = None) -> ModelSpec | None:
        """The prices in the settings for the model, else the prices of the model that the provider reports, else of the
        upstream's model."""
        settings, served = self.settings, self.endpoint_for(model).model
        configured = (layer.spec for layer in self.find_layers(model) if layer.source not in PUBLIC_SOURCES)
        # A local server may report a name that a vendor charges for.
        names = (reported_model, served) if not is_local_model(served) else ()
        public = (merge_layers(find_layers(settings.models, name)) for name in names if name)
        return next((spec for spec in (*configured, *public) if spec.has_price), None)


_PARTS = ("agent", "vault", "summarizer", "embedder", "clock", "runs_turns", "spending_key")
"""Names that `with_changes` takes for parts. Some are settings too: those hold a file name or a model's name."""


_DERIVED_FROM_SETTINGS = frozenset({"policy", "model_spec", "endpoint"})
"""Lazy properties that depend on the settings only."""


def _open_vault(vault: "Vault | Path | str | None", settings: Settings) -> "Vault | None":
    if vault is None:
        return None
    from quire.context.vault import Vault

    return vault if isinstance(vault, Vault) else Vault(vault)


def _find_served_spec(settings: Settings, model: str) -> tuple[ModelSpec, str]:
    """What is known about a model, and its name at the upstream that serves it."""
    upstream = upstream_for(settings, model)
    served = (upstream.model if upstream is not None else None) or model
    return merge_layers(find_layers(settings.models, model, upstream=upstream)), served


def resolve_window(settings: Settings, spec: ModelSpec) -> int:
    """The model's own window, bounded by `context_limit`, which is the window of a model that no table lists."""
    window = spec.window or settings.context_limit or UNKNOWN_WINDOW
    return min(window, settings.context_limit or window)
