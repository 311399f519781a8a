"""The agent of the server: its items and its memories."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from quire.context.items import get_include_mode, index_agent_items
from quire.engine import Engine, memory_writer
from quire.engine.context_gatherer import memory_namespace
from quire.errors import NotFound
from quire.log import Memory
from quire.model.agents import IncludeMode
from quire.schemas.records import MemorySchema
from quire.server.dependencies import Page, PageCursor, PageLimit, ReadEngine, WriteEngine

router = APIRouter(prefix="/api/agents", tags=["agents"])
memory_router = APIRouter(prefix="/api/memories", tags=["memory"])


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
async def list_agents(engine: ReadEngine) -> AgentListSchema:
    """Lists the agents of the server, which has exactly one."""
    return AgentListSchema(items=[_to_schema(engine)])


@router.get("/{name}")
async def get_agent(engine: ReadEngine, name: Annotated[str, Path(min_length=1, max_length=200)]) -> AgentSchema:
    agent = _to_schema(engine)
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
        items=[
            AgentItemSchema(
                type=item.type,
                name=item.name,
                server=item.server,
                include=get_include_mode(agent, agent_item),
                enabled=agent_item.enabled,
            )
            for item, agent_item in index_agent_items(agent).items()
        ],
    )


MemoryId = Annotated[str, Path(min_length=1, max_length=200)]


class MemoryBody(BaseModel):
    text: str = Field(min_length=1, max_length=20_000)


@memory_router.get("")
async def list_memories(
    engine: ReadEngine,
    limit: PageLimit = 50,
    cursor: PageCursor = None,
    include_retired: Annotated[bool, Query(description="Include memories that were corrected or retired.")] = False,
) -> Page[MemorySchema]:
    """Lists memories, newest first."""
    before = await engine.store.memories.get(cursor) if cursor is not None else None
    memories = await engine.store.memories.list(
        memory_namespace(engine.agent), include_retired=include_retired, limit=limit, before=before
    )
    cursor = memories[-1].id if len(memories) == limit else None
    return Page[MemorySchema].model_validate({"items": memories, "next_cursor": cursor})


@memory_router.post("", status_code=201, response_model=MemorySchema)
async def create_memory(engine: WriteEngine, body: MemoryBody) -> Memory:
    return await engine.store.memories.add(memory_namespace(engine.agent), body.text, source="user")


@memory_router.put("/{memory}", response_model=MemorySchema)
async def correct_memory(engine: WriteEngine, memory: MemoryId, body: MemoryBody) -> Memory:
    """Retires a memory and its paraphrases, and returns its replacement."""
    return (await memory_writer.correct_memory(engine, memory, body.text, source="user")).memory


@memory_router.delete("/{memory}", response_model=MemorySchema)
async def retire_memory(engine: WriteEngine, memory: MemoryId) -> Memory:
    """Retires a memory: requests and search no longer use it."""
    return await engine.store.memories.retire(memory)
