"""Conversations and their branches: made, listed, renamed, forked, verified, purged."""

from fastapi import APIRouter
from pydantic import BaseModel, Field

from quire.engine import Engine
from quire.log.records import MAIN, Branch, Conversation
from quire.server.asking import ConversationId, Managing, Reading, Shared, Writing, engine_of
from quire.server.paging import Cursor, Limit, Page, cursor_after, mark_in

router = APIRouter(prefix="/api/conversations", tags=["conversations"])


class ConversationShown(BaseModel):
    id: str
    title: str = Field(description="The one that it was given; else the first words that a user said in it.")
    created_at: int
    used_at: int

    @classmethod
    def of(cls, found: Conversation) -> "ConversationShown":
        return cls(**found._asdict())


class BranchShown(BaseModel):
    number: int
    name: str
    created_at: int
    head: int = Field(description="The number of its newest entry.")
    forked_at: int = Field(description="The last entry that it shares with the branch it left; 0 if it left none.")
    parent: int | None

    @classmethod
    def of(cls, branch: Branch) -> "BranchShown":
        return cls(
            number=branch.number,
            name=branch.name,
            created_at=branch.created_at,
            head=branch.head_seq,
            forked_at=branch.fork_seq,
            parent=branch.lineage[-1][0] if branch.lineage else None,
        )


class ConversationWhole(ConversationShown):
    spent: float = Field(description="What its model calls have cost so far, in dollars.")
    branches: list[BranchShown]


class NewConversation(BaseModel):
    id: str | None = Field(default=None, min_length=1, max_length=200)
    title: str = Field(default="", max_length=1_000)


class Renamed(BaseModel):
    title: str = Field(max_length=1_000)


class NewBranch(BaseModel):
    at: int = Field(ge=0, le=2**62, description="The last entry that it shares; 0 for none.")
    branch: int = Field(default=MAIN, ge=0, le=2**31 - 1)
    name: str | None = Field(default=None, max_length=200)


class FaultShown(BaseModel):
    branch: int
    seq: int
    problem: str


class Verified(BaseModel):
    faults: list[FaultShown]


class _Mark(BaseModel):
    """The last conversation of a page."""

    id: str
    used_at: int


@router.get("")
async def list_conversations(
    caller: Reading, serving: Shared, limit: Limit = 50, cursor: Cursor = None
) -> Page[ConversationShown]:
    """Those used last first."""
    mark = mark_in(cursor, _Mark)
    before = Conversation(mark.id, "", 0, mark.used_at) if mark is not None else None
    store = engine_of(serving, caller).store
    found = await store.titled(*await store.conversations(limit=limit, before=before))
    last = {"id": found[-1].id, "used_at": found[-1].used_at} if len(found) == limit else None
    return Page(items=[ConversationShown.of(each) for each in found], next=cursor_after(last))


@router.post("", status_code=201)
async def create_conversation(caller: Writing, serving: Shared, new: NewConversation) -> ConversationWhole:
    """A new conversation, which begins with the items that the agent always has."""
    engine = engine_of(serving, caller)
    made = await engine.store.create_conversation(new.id, title=new.title)
    await engine.conversation(made.id)
    return await _whole(engine, made.id)


@router.get("/{conversation}")
async def get_conversation(caller: Reading, serving: Shared, conversation: ConversationId) -> ConversationWhole:
    return await _whole(engine_of(serving, caller), conversation)


@router.patch("/{conversation}")
async def rename_conversation(
    caller: Writing, serving: Shared, conversation: ConversationId, renamed: Renamed
) -> ConversationWhole:
    engine = engine_of(serving, caller)
    await engine.store.rename(conversation, renamed.title)
    return await _whole(engine, conversation)


@router.delete("/{conversation}", status_code=204)
async def purge_conversation(caller: Managing, serving: Shared, conversation: ConversationId) -> None:
    """Removes every message for good: from the log, summaries, search, memories and manifests."""
    await engine_of(serving, caller).store.purge(conversation)


@router.post("/{conversation}/branches", status_code=201)
async def fork_conversation(
    caller: Writing, serving: Shared, conversation: ConversationId, new: NewBranch
) -> BranchShown:
    """Another line that shares everything up to and with entry `at`."""
    store = engine_of(serving, caller).store
    return BranchShown.of(await store.fork(conversation, at=new.at, branch=new.branch, name=new.name))


@router.get("/{conversation}/verify")
async def verify_conversation(caller: Reading, serving: Shared, conversation: ConversationId) -> Verified:
    """Checks the digests of every entry; what is not as it was written is named."""
    faults = await engine_of(serving, caller).store.verify(conversation)
    return Verified(faults=[FaultShown(**fault._asdict()) for fault in faults])


async def _whole(engine: Engine, conversation: str) -> ConversationWhole:
    store = engine.store
    [found] = await store.titled(await store.conversation(conversation))
    branches = [BranchShown.of(branch) for branch in await store.branches(conversation)]
    return ConversationWhole(**found._asdict(), spent=await store.spent(conversation), branches=branches)
