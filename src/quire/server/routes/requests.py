"""The ledger: what was sent for every reply, built again, compared, explained."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from quire.ledger import Change
from quire.log import MAIN
from quire.model import Decision, Entry, Manifest, Span, Usage
from quire.server.asking import BranchNumber, ConversationId, Reading, Seq, Shared, conversation_of, engine_of
from quire.server.paging import Limit

router = APIRouter(tags=["requests"])
PREFIX = "/api/conversations/{conversation}/requests"


class RequestShown(BaseModel):
    """One request in a few numbers."""

    reply: int = Field(description="The number of the reply; requests go by it.")
    at: int
    model: str
    total: int = Field(description="Tokens that were sent.")
    wanted: int = Field(description="What it would have been with the whole history.")
    window: int
    trigger: int
    room: int
    summary: int | None = Field(description="The entry of the compaction that stood in it.")
    usage: Usage | None = Field(description="What the provider reported.")


class Requests(BaseModel):
    items: list[RequestShown] = Field(description="Oldest first.")


class Replayed(BaseModel):
    same: bool = Field(description="Whether the request comes out again to the byte.")
    recorded: str
    rebuilt: str | None
    missing: list[str] = Field(description="What was purged since, by number or name.")
    payload: dict[str, Any] | None = Field(description="The request itself.")


class ChangeShown(BaseModel):
    what: str
    name: str | None
    span: Span | None
    before: Decision | None = Field(description="Null where it was no candidate at all.")
    after: Decision | None

    @classmethod
    def of(cls, change: Change) -> "ChangeShown":
        return cls(**change._asdict())


class Compared(BaseModel):
    reply: int
    other: int
    changes: list[ChangeShown]


class RequestFound(BaseModel):
    conversation: str
    branch: int
    reply: int
    manifest: Manifest


@router.get(PREFIX)
async def list_requests(
    caller: Reading,
    serving: Shared,
    conversation: ConversationId,
    branch: BranchNumber = MAIN,
    limit: Limit = 100,
    last: Annotated[int | None, Query(ge=1, le=2**62, description="The last reply to list.")] = None,
) -> Requests:
    """The newest requests up to `last`, oldest first."""
    store = engine_of(serving, caller).store
    found = await store.manifests(conversation, branch=branch, limit=limit, last=last)
    replies = {
        entry.seq: entry for entry in await store.entries(conversation, [seq for seq, _ in found], branch=branch)
    }
    return Requests(items=[_shown(manifest, replies[seq]) for seq, manifest in found if seq in replies])


def _shown(manifest: Manifest, reply: Entry) -> RequestShown:
    summary = next((row.span.first for row in manifest.included if row.what == "summary" and row.span), None)
    return RequestShown(
        reply=reply.seq,
        at=reply.at,
        model=manifest.policy.model,
        total=manifest.total,
        wanted=manifest.wanted,
        window=manifest.policy.window,
        trigger=manifest.trigger,
        room=manifest.room,
        summary=summary,
        usage=reply.notes.usage,
    )


@router.get(PREFIX + "/{seq}")
async def get_request(
    caller: Reading, serving: Shared, conversation: ConversationId, seq: Seq, branch: BranchNumber = MAIN
) -> Manifest:
    """What the request was made of that this reply answered: every candidate, in or out, and why."""
    return await (await conversation_of(serving, caller, conversation, branch)).manifest(seq)


@router.get(PREFIX + "/{seq}/replay")
async def replay_request(
    caller: Reading, serving: Shared, conversation: ConversationId, seq: Seq, branch: BranchNumber = MAIN
) -> Replayed:
    """The request, built again from its record."""
    made = await (await conversation_of(serving, caller, conversation, branch)).replay(seq)
    pages = made.pages
    return Replayed(
        same=made.matches,
        recorded=made.manifest.digest,
        rebuilt=pages.digest if pages is not None else None,
        missing=list(made.missing),
        payload=pages.payload() if pages is not None else None,
    )


@router.get(PREFIX + "/{seq}/diff")
async def compare_requests(
    caller: Reading,
    serving: Shared,
    conversation: ConversationId,
    seq: Seq,
    other: Annotated[int, Query(ge=1, le=2**62, description="The reply to the other request.")],
    branch: BranchNumber = MAIN,
) -> Compared:
    """What changed from this request to the other."""
    changes = await (await conversation_of(serving, caller, conversation, branch)).diff(seq, other)
    return Compared(reply=seq, other=other, changes=[ChangeShown.of(change) for change in changes])


@router.get(PREFIX + "/{seq}/why")
async def explain_item(
    caller: Reading,
    serving: Shared,
    conversation: ConversationId,
    seq: Seq,
    item: Annotated[str, Query(min_length=1, max_length=1_000, description="A message's number, or an item's name.")],
    branch: BranchNumber = MAIN,
) -> Decision:
    """Why something was in that request, or was not."""
    bare = item.removeprefix("#")
    # A number of more digits is no message's.
    named = int(bare) if bare.isascii() and bare.isdecimal() and len(bare) < 19 else item
    return await (await conversation_of(serving, caller, conversation, branch)).why(named, reply=seq)


@router.get("/api/requests/{id}")
async def find_request(
    caller: Reading, serving: Shared, id: Annotated[str, Path(min_length=1, max_length=100)]
) -> RequestFound:
    """The record of the request that the gateway named in `X-Quire-Request`."""
    found = await engine_of(serving, caller).store.request(id)
    return RequestFound(conversation=found.conversation, branch=found.branch, reply=found.seq, manifest=found.manifest)
