"""Schemas of the set-up: settings, agents, models, database, background jobs, and the findings of `quire doctor`."""

from typing import Any, Literal

from pydantic import Field

from quire.model.agents import Agent, AgentMemory, IncludeMode
from quire.schemas import JsonModel

FindingStatus = Literal["ok", "note", "problem"]


class SettingValueSchema(JsonModel):
    name: str
    value: Any
    origin: str = Field(description="File, environment variable or option that sets it, or `default`.")


class ListedSettingSchema(SettingValueSchema):
    description: str


class SettingListSchema(JsonModel):
    settings: list[ListedSettingSchema]


class ChangedSettingSchema(JsonModel):
    name: str
    value: Any
    path: str


class TrustedFileSchema(JsonModel):
    path: str
    decision: Literal["trusted", "refused", "changed", "revoked"] = Field(
        description="`changed`: the file is not as it was when the user decided, so the decision does not count."
    )


class TrustedFilesSchema(JsonModel):
    files: list[TrustedFileSchema]


class ListedAgentSchema(JsonModel):
    name: str
    path: str
    active: bool
    description: str
    model: str | None
    problem: str | None = Field(description="Why the agent cannot be loaded.")


class AgentFilesSchema(JsonModel):
    agents: list[ListedAgentSchema]


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


class ChangedAgentSchema(JsonModel):
    agent: str
    path: str
    key: str
    value: Any


class ModelFactSchema(JsonModel):
    name: str
    label: str
    value: int | float | str | None
    source: str


class ModelFactsSchema(JsonModel):
    model: str
    base_url: str | None
    served_model: str
    window: int | None
    facts: list[ModelFactSchema]


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


class UpgradedDatabaseSchema(JsonModel):
    database: str
    previous: str | None
    version: str
    queue: str | None
    role: str | None


class DatabaseStatusSchema(JsonModel):
    database: str
    version: str | None
    required: str
    current: bool


class JobCountSchema(JsonModel):
    kind: str
    done: int
    failed: int


class JobCountsSchema(JsonModel):
    jobs: list[JobCountSchema]


class FindingSchema(JsonModel):
    """What one check found. A note needs no action; a problem names its cause and the remedy."""

    check: str
    status: FindingStatus
    detail: str
    remedy: str = ""


class FindingsSchema(JsonModel):
    problems: int
    findings: list[FindingSchema]
