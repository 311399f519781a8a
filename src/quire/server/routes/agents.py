"""Agents: the agent of the server, and its items."""

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel

from quire.context.items import get_include_mode, index_agent_items
from quire.engine import Engine
from quire.errors import NotFound
from quire.model.agents import Agent, IncludeMode
from quire.server.dependencies import ReadCaller, StateDep, engine_for_caller

router = APIRouter(prefix="/api/agents", tags=["agents"])


class AgentItemSchema(BaseModel):
    type: str
    name: str
    server: str | None
    include: IncludeMode
    enabled: bool


class AgentSchema(BaseModel):
    name: str
    description: str
    model: str
    instructions: str
    memory_enabled: bool
    items: list[AgentItemSchema]


class AgentListSchema(BaseModel):
    items: list[AgentSchema]


@router.get("")
async def list_agents(caller: ReadCaller, server_state: StateDep) -> AgentListSchema:
    """Lists the agents of the server, which has exactly one."""
    return AgentListSchema(items=[_to_schema(engine_for_caller(server_state, caller))])


@router.get("/{name}")
async def get_agent(
    caller: ReadCaller, server_state: StateDep, name: Annotated[str, Path(min_length=1, max_length=200)]
) -> AgentSchema:
    agent = _to_schema(engine_for_caller(server_state, caller))
    if agent.name != name:
        raise NotFound(f"This server has no agent {name!r}; its agent is {agent.name!r}.")
    return agent


def _to_schema(engine: Engine) -> AgentSchema:
    agent = engine.agent
    return AgentSchema(
        name=agent.name,
        description=agent.description,
        model=engine.settings.model,
        instructions=agent.instructions,
        memory_enabled=agent.memory.enabled,
        items=_list_items(agent),
    )


def _list_items(agent: Agent) -> list[AgentItemSchema]:
    return [
        AgentItemSchema(
            type=item.type,
            name=item.name,
            server=item.server,
            include=get_include_mode(agent, agent_item),
            enabled=agent_item.enabled,
        )
        for item, agent_item in index_agent_items(agent).items()
    ]
