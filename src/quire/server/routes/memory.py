"""Memories of the agent: list, add, correct, retire."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from quire.engine.context_gatherer import memory_namespace
from quire.schemas.records import MemorySchema
from quire.server.dependencies import Page, PageCursor, PageLimit, ReadCaller, StateDep, WriteCaller, engine_for_caller

router = APIRouter(prefix="/api/memories", tags=["memory"])

MemoryId = Annotated[str, Path(min_length=1, max_length=200)]


class MemoryBody(BaseModel):
    text: str = Field(min_length=1, max_length=20_000)


@router.get("")
async def list_memories(
    caller: ReadCaller,
    server_state: StateDep,
    limit: PageLimit = 50,
    cursor: PageCursor = None,
    include_retired: Annotated[bool, Query(description="Include memories that were corrected or retired.")] = False,
) -> Page[MemorySchema]:
    """Lists memories, newest first."""
    engine = engine_for_caller(server_state, caller)
    before = await engine.store.get_memory(cursor) if cursor is not None else None
    memories = await engine.store.list_memories(
        memory_namespace(engine.agent), include_retired=include_retired, limit=limit, before=before
    )
    return Page(
        items=[MemorySchema.from_record(each) for each in memories],
        next_cursor=memories[-1].id if len(memories) == limit else None,
    )


@router.post("", status_code=201)
async def create_memory(caller: WriteCaller, server_state: StateDep, body: MemoryBody) -> MemorySchema:
    engine = engine_for_caller(server_state, caller)
    return MemorySchema.from_record(
        await engine.store.add_memory(memory_namespace(engine.agent), body.text, source="user")
    )


@router.put("/{memory}")
async def correct_memory(
    caller: WriteCaller, server_state: StateDep, memory: MemoryId, body: MemoryBody
) -> MemorySchema:
    """Retires a memory and returns its replacement."""
    return MemorySchema.from_record(
        await engine_for_caller(server_state, caller).store.replace_memory(memory, body.text, source="user")
    )


@router.delete("/{memory}")
async def retire_memory(caller: WriteCaller, server_state: StateDep, memory: MemoryId) -> MemorySchema:
    """Retires a memory: requests and search no longer use it."""
    return MemorySchema.from_record(await engine_for_caller(server_state, caller).store.retire_memory(memory))
