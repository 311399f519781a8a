"""Compaction: plan, run, edit the summary, undo."""

from fastapi import APIRouter
from pydantic import BaseModel, Field

from quire.engine import Conversation
from quire.log import MAIN_BRANCH
from quire.schemas.context import ActiveCompactionSchema, CompactionPlanSchema
from quire.server.dependencies import (
    BranchQuery,
    ChatCaller,
    ConversationId,
    ReadCaller,
    StateDep,
    WriteCaller,
    load_conversation,
)

router = APIRouter(prefix="/api/conversations/{conversation}/compaction", tags=["compaction"])


class CompactionStatusSchema(BaseModel):
    active: ActiveCompactionSchema | None
    plan: CompactionPlanSchema | None = Field(
        description="What a manual compaction would do now; null if there is nothing to compact."
    )


class CompactBody(BaseModel):
    instructions: str | None = Field(default=None, max_length=10_000, description="What the summary must preserve.")


class EditSummaryBody(BaseModel):
    summary: str = Field(min_length=1, max_length=200_000)


@router.get("")
async def get_compaction(
    caller: ReadCaller, server_state: StateDep, conversation: ConversationId, branch: BranchQuery = MAIN_BRANCH
) -> CompactionStatusSchema:
    return await _load_status(await load_conversation(server_state, caller, conversation, branch))


@router.post("")
async def compact(
    caller: ChatCaller,
    server_state: StateDep,
    conversation: ConversationId,
    body: CompactBody,
    branch: BranchQuery = MAIN_BRANCH,
) -> CompactionStatusSchema:
    """Compacts now, even below the threshold. Nothing is deleted, and it can be undone."""
    loaded = await load_conversation(server_state, caller, conversation, branch)
    await loaded.compact(instructions=body.instructions)
    return await _load_status(loaded)


@router.put("")
async def edit_summary(
    caller: WriteCaller,
    server_state: StateDep,
    conversation: ConversationId,
    body: EditSummaryBody,
    branch: BranchQuery = MAIN_BRANCH,
) -> CompactionStatusSchema:
    """Replaces the text of the current summary; undo restores the previous one."""
    loaded = await load_conversation(server_state, caller, conversation, branch)
    await loaded.edit_summary(body.summary)
    return await _load_status(loaded)


@router.delete("")
async def undo_compaction(
    caller: WriteCaller, server_state: StateDep, conversation: ConversationId, branch: BranchQuery = MAIN_BRANCH
) -> CompactionStatusSchema:
    """Undoes the active compaction: the model sees again what it saw before."""
    loaded = await load_conversation(server_state, caller, conversation, branch)
    await loaded.undo_compaction()
    return await _load_status(loaded)


async def _load_status(conversation: Conversation) -> CompactionStatusSchema:
    store = conversation.engine.store
    active = (await store.get_branch(conversation.id, conversation.branch)).state.active_compaction
    entry = (
        await store.get_entry(conversation.id, active.seq, branch=conversation.branch) if active is not None else None
    )
    plan = await conversation.plan_compaction()
    return CompactionStatusSchema(
        active=ActiveCompactionSchema.from_entry(entry), plan=CompactionPlanSchema.from_plan(plan)
    )
