"""Compaction: what it would do, done, edited, undone."""

from fastapi import APIRouter
from pydantic import BaseModel, Field

from quire.engine import Conversation
from quire.log import MAIN
from quire.model import Compaction, Entry, Shortened, Span
from quire.server.asking import BranchNumber, Chatting, ConversationId, Reading, Shared, Writing, conversation_of
from quire.view.plans import Plan

router = APIRouter(prefix="/api/conversations/{conversation}/compaction", tags=["compaction"])


class CompactionShown(BaseModel):
    seq: int = Field(description="Its entry.")
    at: int
    compaction: Compaction


class PlanShown(BaseModel):
    covers: Span | None = Field(description="What would be archived, the present summary's part included.")
    shortened: list[Shortened]
    tokens: int = Field(description="What it would free.")
    target: int
    summarize: bool

    @classmethod
    def of(cls, plan: Plan) -> "PlanShown":
        return cls(
            covers=plan.covers,
            shortened=list(plan.shortened),
            tokens=plan.tokens,
            target=plan.target,
            summarize=plan.summarize,
        )


class CompactionState(BaseModel):
    active: CompactionShown | None
    plan: PlanShown | None = Field(
        description="What a compaction by hand would do now; null if there is nothing to do."
    )


class CompactionWanted(BaseModel):
    instructions: str | None = Field(default=None, max_length=10_000, description="What the summary must keep.")


class SummaryEdited(BaseModel):
    summary: str = Field(min_length=1, max_length=200_000)


@router.get("")
async def get_compaction(
    caller: Reading, serving: Shared, conversation: ConversationId, branch: BranchNumber = MAIN
) -> CompactionState:
    return await _state(await conversation_of(serving, caller, conversation, branch))


@router.post("")
async def compact(
    caller: Chatting,
    serving: Shared,
    conversation: ConversationId,
    wanted: CompactionWanted,
    branch: BranchNumber = MAIN,
) -> CompactionState:
    """Compacts now, whatever the meter says. Nothing is deleted, and it can be undone."""
    found = await conversation_of(serving, caller, conversation, branch)
    await found.compact(instructions=wanted.instructions)
    return await _state(found)


@router.put("")
async def edit_summary(
    caller: Writing, serving: Shared, conversation: ConversationId, edited: SummaryEdited, branch: BranchNumber = MAIN
) -> CompactionState:
    """Puts other words in place of the active summary; undo brings the old one back."""
    found = await conversation_of(serving, caller, conversation, branch)
    await found.edit_summary(edited.summary)
    return await _state(found)


@router.delete("")
async def undo_compaction(
    caller: Writing, serving: Shared, conversation: ConversationId, branch: BranchNumber = MAIN
) -> CompactionState:
    """Takes the active compaction back: the model sees again what it saw before it."""
    found = await conversation_of(serving, caller, conversation, branch)
    await found.undo()
    return await _state(found)


async def _state(conversation: Conversation) -> CompactionState:
    store = conversation.engine.store
    active = (await store.branch(conversation.id, conversation.branch)).state.active
    entry = await store.entry(conversation.id, active.seq, branch=conversation.branch) if active is not None else None
    plan = await conversation.plan()
    return CompactionState(
        active=_shown(entry) if entry is not None else None, plan=PlanShown.of(plan) if plan is not None else None
    )


def _shown(entry: Entry) -> CompactionShown:
    body = entry.body
    assert isinstance(body, Compaction)
    return CompactionShown(seq=entry.seq, at=entry.at, compaction=body)
