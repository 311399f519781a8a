"""Schemas of the set-up: settings, agents, models, database, background jobs, and the findings of `quire doctor`."""

from typing import Any, Literal

from pydantic import Field

from quire.model.agents import Agent, AgentMemory, IncludeMode
from quire.schemas import JsonModel

FindingStatus = Literal["ok", "note", "problem"]


class AgentRuleSchema(JsonModel):
    name: str
    description: str
    include: IncludeMode
    priority: int
    enabled: bool


class AgentReferenceSchema(AgentRuleSchema):
    path: str | None


class AgentServerSchema(JsonModel):
    """An MCP server without its environment and headers, which hold secrets."""

    name: str
    command: str | None
    url: str | None
    transport: Literal["stdio", "http", "sse"]
    include: IncludeMode | None
    enabled: bool


class AgentFileSchema(JsonModel):
    name: str
    path: str
    description: str
    model: str | None
    instructions: str
    settings: dict[str, Any]
    rules: list[AgentRuleSchema]
    references: list[AgentReferenceSchema]
    servers: list[AgentServerSchema]
    memory: AgentMemory

    @classmethod
    def from_agent(cls, agent: Agent, path: str) -> "AgentFileSchema":
        return cls.model_validate({**dict(agent), "path": path}, from_attributes=True)


class ModelAlternativeSchema(JsonModel):
    """Another model that was found, and the command that selects it."""

    name: str
    command: str


class InitSchema(JsonModel):
    path: str
    written: bool
    model: str | None
    base_url: str | None
    context_limit: int | None
    summarizer: str | None = Field(description="Model that writes summaries: the one that answers, until set.")
    vault: str | None
    source: Literal["option", "key", "server", "none"]
    explanation: str = Field(description="Where the model comes from, or what to do to get one.")
    alternatives: list[ModelAlternativeSchema]
    next_steps: list[str]


class FindingSchema(JsonModel):
    """What one check found. A note needs no action; a problem names its cause and the remedy."""

    check: str
    status: FindingStatus
    detail: str
    remedy: str = ""


class FindingsSchema(JsonModel):
    problems: int
    findings: list[FindingSchema]
