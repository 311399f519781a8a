"""An agent: its model and instructions, and the rules, references, tools and memory that its requests may include.

Rules, references and tools are defined here only. Sessions and requests refer to them by name, so that a change in one
place is enough. MCP servers are configuration. Their tools are known after connecting.
"""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from quire.model.base import FrozenModel, JsonObject
from quire.model.entry_bodies import ContextItem
from quire.model.messages import ToolDefinition

IncludeMode = Literal["always", "manual", "agent"]
"""When an item is included: in every request, when the user adds it, or when it is relevant to a message."""


class _AgentItem(FrozenModel):
    name: str = Field(min_length=1)
    description: str = ""
    include: IncludeMode = "manual"
    priority: int = 0
    """Among items included in the same way, higher priorities come first."""
    enabled: bool = True


class Rule(_AgentItem):
    """An instruction that the agent must follow."""

    text: str

    @property
    def item(self) -> ContextItem:
        return ContextItem(type="rule", name=self.name)


class Reference(_AgentItem):
    """A document for the agent: its text, or the path to read it from when it is included."""

    text: str | None = None
    path: str | None = None

    @model_validator(mode="after")
    def _check_source(self) -> "Reference":
        if self.text is None and self.path is None:
            raise ValueError("set either `text` or `path`")
        return self

    @property
    def item(self) -> ContextItem:
        return ContextItem(type="reference", name=self.name)


class AgentTool(FrozenModel):
    """A tool of an MCP server or of the application; `include` overrides the server's mode."""

    definition: ToolDefinition
    include: IncludeMode | None = None
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


class ToolOverride(FrozenModel):
    """Settings of one tool that override its server's."""

    include: IncludeMode | None = None
    enabled: bool = True


class ToolServer(FrozenModel):
    """How to connect to an MCP server, and how its tools are included. Placeholders such as `${TOKEN}` are not
    expanded."""

    name: str = Field(min_length=1)
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict[str, str], repr=False)
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict[str, str], repr=False)
    transport: Literal["stdio", "http", "sse"] = "stdio"
    enabled: bool = True
    include: IncludeMode | None = None
    tools: dict[str, ToolOverride] = Field(default_factory=dict[str, ToolOverride])
    extra: JsonObject | None = None
    """Fields of other programs that share the configuration file."""

    def make_tool(self, definition: ToolDefinition) -> AgentTool:
        """One of the server's tools, with its overrides applied."""
        override = self.tools.get(definition.name, ToolOverride())
        named = definition.model_copy(update={"server": self.name})
        return AgentTool(definition=named, include=override.include, enabled=override.enabled and self.enabled)


class AgentMemory(FrozenModel):
    """An agent's memory: files of the project, and memories stored in its namespace."""

    enabled: bool = True
    files: tuple[str, ...] = ("AGENTS.md",)
    files_enabled: bool | None = None
    """Whether the files are read, or None for the same as `enabled`."""
    namespace: str | None = None
    """Namespace of its memories, by default the agent's name; agents with the same namespace share them."""

    @property
    def reads_files(self) -> bool:
        return bool(self.files) and (self.enabled if self.files_enabled is None else self.files_enabled)


class Agent(FrozenModel):
    """The configuration of one agent."""

    name: str = Field(min_length=1)
    description: str = ""
    model: str | None = None
    instructions: str = ""
    settings: JsonObject = Field(default_factory=dict)
    """Settings that this agent overrides, by name."""
    rules: tuple[Rule, ...] = ()
    references: tuple[Reference, ...] = ()
    servers: tuple[ToolServer, ...] = ()
    tools: tuple[AgentTool, ...] = ()
    """Tools of the application, and those that the servers listed."""
    memory: AgentMemory = AgentMemory()

    @field_validator("rules", "references", "servers")
    @classmethod
    def _check_unique_names(cls, named: tuple[_AgentItem | ToolServer, ...]) -> tuple[_AgentItem | ToolServer, ...]:
        names = [each.name for each in named]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"the name {name!r} is used twice; names must be unique")
        return named

    @property
    def setting_overrides(self) -> JsonObject:
        """All settings that the agent overrides, its model included."""
        return {**({"model": self.model} if self.model else {}), **self.settings}

    def server(self, name: str | None) -> ToolServer | None:
        return next((server for server in self.servers if server.name == name), None)

    def with_tools(self, *tools: AgentTool) -> "Agent":
        """A copy of the agent in which these tools replace its tools."""
        return self.model_copy(update={"tools": tools})

    def include_mode_of(self, tool: AgentTool) -> IncludeMode:
        return effective_include_mode(tool, self.server(tool.server))


def effective_include_mode(tool: AgentTool, server: ToolServer | None) -> IncludeMode:
    """The tool's own mode, else its server's, else `always`."""
    if tool.include is not None:
        return tool.include
    if server is not None and server.include is not None:
        return server.include
    return "always"
