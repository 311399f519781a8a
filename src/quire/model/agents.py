"""An agent: who answers, and all that may enter its requests besides messages.

Rules, references and tools are named here and nowhere else: a session and a request only point at them by name, so what
an item says and how it enters is changed in one place. Servers are configuration; their tools are known once asked.
"""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from quire.model.entries import ContextItem
from quire.model.tools import ToolDefinition
from quire.model.value import Foreign, Value

Include = Literal["always", "manual", "agent"]
"""How an item enters: with the session, by the user's hand, or where a message calls for it."""


class _Item(Value):
    name: str = Field(min_length=1)
    description: str = ""
    include: Include = "manual"
    priority: int = 0
    """Of two items that enter in the same way, the one with the higher priority stands first."""
    enabled: bool = True


class Rule(_Item):
    """What the agent is to keep to; its text is the user's own instruction."""

    text: str

    @property
    def item(self) -> ContextItem:
        return ContextItem(type="rule", name=self.name)


class Reference(_Item):
    """A document to draw on: its text, or the path to read it from when it is used."""

    text: str | None = None
    path: str | None = None

    @model_validator(mode="after")
    def _has_a_source(self) -> "Reference":
        if self.text is None and self.path is None:
            raise ValueError("give a text or a path")
        return self

    @property
    def item(self) -> ContextItem:
        return ContextItem(type="reference", name=self.name)


class OfferedTool(Value):
    """A tool as its server offers it, or one of the application's own; `include` is its own mode, if it has one."""

    definition: ToolDefinition
    include: Include | None = None
    enabled: bool = True

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def server(self) -> str | None:
        return self.definition.server

    @property
    def item(self) -> ContextItem:
        return ContextItem(type="tool", name=self.name, server=self.server)


class ToolOverride(Value):
    """What is set for one tool of a server, in place of the server's own."""

    include: Include | None = None
    enabled: bool = True


class ToolServer(Value):
    """How an MCP server is reached, and how its tools enter. Placeholders such as `${TOKEN}` stand as written."""

    name: str = Field(min_length=1)
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict[str, str], repr=False)
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict[str, str], repr=False)
    transport: Literal["stdio", "http", "sse"] = "stdio"
    enabled: bool = True
    include: Include | None = None
    tools: dict[str, ToolOverride] = Field(default_factory=dict[str, ToolOverride])
    extra: Foreign | None = None
    """Fields of other programs that share the file."""

    def offers(self, definition: ToolDefinition) -> OfferedTool:
        """One of its tools, with what is set for it."""
        own = self.tools.get(definition.name, ToolOverride())
        known = definition.model_copy(update={"server": self.name})
        return OfferedTool(definition=known, include=own.include, enabled=own.enabled and self.enabled)


class AgentMemory(Value):
    """What an agent remembers from: the project's files, and entries of its own, kept under `shelf`."""

    enabled: bool = True
    files: tuple[str, ...] = ("AGENTS.md",)
    shelf: str | None = None
    """The name that its entries are kept under; agents that name the same share them. Else the agent's name."""


class Agent(Value):
    name: str = Field(min_length=1)
    description: str = ""
    model: str | None = None
    instructions: str = ""
    settings: Foreign = Field(default_factory=dict)
    """Settings that hold for this agent, by name."""
    rules: tuple[Rule, ...] = ()
    references: tuple[Reference, ...] = ()
    servers: tuple[ToolServer, ...] = ()
    tools: tuple[OfferedTool, ...] = ()
    """The application's own, and what the servers offered when they were asked."""
    memory: AgentMemory = AgentMemory()

    @field_validator("rules", "references", "servers")
    @classmethod
    def _names_differ(cls, named: tuple[_Item | ToolServer, ...]) -> tuple[_Item | ToolServer, ...]:
        names = [each.name for each in named]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two have the name {name!r}")
        return named

    @property
    def own_settings(self) -> Foreign:
        """What it sets in place of the settings at large, its model included."""
        return {**({"model": self.model} if self.model else {}), **self.settings}

    def server(self, name: str | None) -> ToolServer | None:
        return next((server for server in self.servers if server.name == name), None)

    def offering(self, *tools: OfferedTool) -> "Agent":
        """The agent with these tools in place of those that it had."""
        return self.model_copy(update={"tools": tools})

    def include_of(self, tool: OfferedTool) -> Include:
        return effective_include(tool, self.server(tool.server))


def effective_include(tool: OfferedTool, server: ToolServer | None) -> Include:
    """The tool's own mode, else its server's, else `always`."""
    if tool.include is not None:
        return tool.include
    if server is not None and server.include is not None:
        return server.include
    return "always"
