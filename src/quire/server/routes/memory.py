"""What the agent remembers: listed, added, corrected, retired."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from quire.engine.surroundings import memory_shelf
from quire.log.found import Citation, Memory
from quire.server.asking import Reading, Shared, Writing, engine_of
from quire.server.paging import Cursor, Limit, Page

router = APIRouter(prefix="/api/memories", tags=["memory"])

MemoryId = Annotated[str, Path(min_length=1, max_length=200)]


class CitationShown(BaseModel):
    conversation: str
    branch: int
    seq: int


class MemoryShown(BaseModel):
    id: str
    agent: str
    text: str
    cites: CitationShown | None = Field(description="The message that it came from.")
    source: str | None
    created_at: int
    retired_at: int | None
    replaced_by: str | None

    @classmethod
    def of(cls, memory: Memory) -> "MemoryShown":
        fields = memory._asdict()
        cites: Citation | None = fields.pop("cites")
        return cls(**fields, cites=CitationShown(**cites._asdict()) if cites is not None else None)


class MemoryWritten(BaseModel):
    text: str = Field(min_length=1, max_length=20_000)


@router.get("")
async def list_memories(
    caller: Reading,
    serving: Shared,
    limit: Limit = 50,
    cursor: Cursor = None,
    retired: Annotated[bool, Query(description="Also those that were corrected or taken out of use.")] = False,
) -> Page[MemoryShown]:
    """The newest first."""
    engine = engine_of(serving, caller)
    before = await engine.store.memory(cursor) if cursor is not None else None
    found = await engine.store.memories(memory_shelf(engine.agent), retired=retired, limit=limit, before=before)
    return Page(items=[MemoryShown.of(each) for each in found], next=found[-1].id if len(found) == limit else None)


@router.post("", status_code=201)
async def remember(caller: Writing, serving: Shared, written: MemoryWritten) -> MemoryShown:
    engine = engine_of(serving, caller)
    return MemoryShown.of(await engine.store.remember(memory_shelf(engine.agent), written.text, source="user"))


@router.put("/{memory}")
async def correct_memory(caller: Writing, serving: Shared, memory: MemoryId, written: MemoryWritten) -> MemoryShown:
    """Retires a memory and gives the one that takes its place."""
    return MemoryShown.of(await engine_of(serving, caller).store.correct(memory, written.text, source="user"))


@router.delete("/{memory}")
async def retire_memory(caller: Writing, serving: Shared, memory: MemoryId) -> MemoryShown:
    """Takes a memory out of use and out of search."""
    return MemoryShown.of(await engine_of(serving, caller).store.retire(memory))
