"""The agent that answers, and what it brings."""

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel

from quire.context.items import available, mode_of
from quire.engine import Engine
from quire.errors import NotFound
from quire.model.agents import Agent, Include
from quire.server.asking import Reading, Shared, engine_of

router = APIRouter(prefix="/api/agents", tags=["agents"])


class Brought(BaseModel):
    type: str
    name: str
    server: str | None
    include: Include
    enabled: bool


class AgentShown(BaseModel):
    name: str
    description: str
    model: str
    instructions: str
    remembers: bool
    items: list[Brought]


class Agents(BaseModel):
    items: list[AgentShown]


@router.get("")
async def list_agents(caller: Reading, serving: Shared) -> Agents:
    """A server has one."""
    return Agents(items=[_shown(engine_of(serving, caller))])


@router.get("/{name}")
async def get_agent(
    caller: Reading, serving: Shared, name: Annotated[str, Path(min_length=1, max_length=200)]
) -> AgentShown:
    shown = _shown(engine_of(serving, caller))
    if shown.name != name:
        raise NotFound(f"There is no agent {name!r} here; this server answers as {shown.name!r}.")
    return shown


def _shown(engine: Engine) -> AgentShown:
    agent = engine.agent
    return AgentShown(
        name=agent.name,
        description=agent.description,
        model=engine.settings.model,
        instructions=agent.instructions,
        remembers=agent.memory.enabled,
        items=_brought(agent),
    )


def _brought(agent: Agent) -> list[Brought]:
    return [
        Brought(
            type=item.type,
            name=item.name,
            server=item.server,
            include=mode_of(agent, known),
            enabled=known.enabled,
        )
        for item, known in available(agent).items()
    ]
