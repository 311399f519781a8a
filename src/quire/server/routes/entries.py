"""The transcript: all of it, from the first entry or from the newest; one entry; messages kept without asking."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from quire.log import MAIN
from quire.model import BranchState, EntryKind, Message
from quire.server.asking import (
    BranchNumber,
    ConversationId,
    Managing,
    Reading,
    Seq,
    Shared,
    Writing,
    conversation_of,
    engine_of,
)
from quire.server.paging import Limit
from quire.server.repeats import append_once
from quire.server.shown import EntryShown, Shown, entry_shown

router = APIRouter(prefix="/api/conversations/{conversation}", tags=["entries"])

EntryNumber = Annotated[int, Query(ge=1, le=2**62)]
After = Annotated[
    int | None,
    Field(
        ge=0,
        le=2**62,
        description="The last entry that you know, 0 for none. With it the request can be repeated: what it brings "
        "goes right after that entry, once, and if something else is there, the answer is 409.",
    ),
]


class Entries(Shown):
    items: list[EntryShown] = Field(description="In the order of the log.")
    more: bool = Field(description="There are more of what was asked for: after the last, or with `newest` before.")
    head: int = Field(description="The number of the branch's newest entry.")
    state: BranchState = Field(description="What the branch's entries amount to: active compaction, pins, items.")


class NewMessages(Shown):
    messages: list[str | Message] = Field(
        min_length=1, max_length=1_000, description="All are kept, or none. A text is a user's message."
    )
    branch: int = Field(default=MAIN, ge=0, le=2**31 - 1)
    after: After = None


class EntriesKept(Shown):
    items: list[EntryShown]


@router.get("/entries")
async def list_entries(
    caller: Reading,
    serving: Shared,
    conversation: ConversationId,
    branch: BranchNumber = MAIN,
    first: EntryNumber = 1,
    last: EntryNumber | None = None,
    limit: Limit = 100,
    newest: Annotated[bool, Query(description="The newest of them, not the oldest.")] = False,
    kinds: Annotated[list[EntryKind] | None, Query(description="Only entries of these kinds.")] = None,
) -> Entries:
    """Entries `first` to `last`. Nothing is ever missing here, whatever was compacted."""
    store = engine_of(serving, caller).store
    line = await store.branch(conversation, branch)
    # Not beyond the head that is stated, although somebody may have appended since.
    last = min(last or line.head_seq, line.head_seq)
    if newest:
        found = await store.tail(conversation, limit + 1, branch=branch, last=last, kinds=kinds)
        found = [entry for entry in found if entry.seq >= first]
        shown = found[-limit:]
    else:
        found = await store.range(conversation, branch=branch, first=first, last=last, kinds=kinds, limit=limit + 1)
        shown = found[:limit]
    return Entries(
        items=[entry_shown(entry) for entry in shown], more=len(found) > limit, head=line.head_seq, state=line.state
    )


@router.get("/entries/{seq}")
async def get_entry(
    caller: Reading, serving: Shared, conversation: ConversationId, seq: Seq, branch: BranchNumber = MAIN
) -> EntryShown:
    return entry_shown(await engine_of(serving, caller).store.entry(conversation, seq, branch=branch))


@router.delete("/entries/{seq}", status_code=204)
async def purge_entry(
    caller: Managing, serving: Shared, conversation: ConversationId, seq: Seq, branch: BranchNumber = MAIN
) -> None:
    """Removes what one message says for good: from the log, summaries, search, memories and manifests."""
    await engine_of(serving, caller).store.purge(conversation, [seq], branch=branch)


@router.post("/messages", status_code=201)
async def keep_messages(
    caller: Writing, serving: Shared, conversation: ConversationId, new: NewMessages
) -> EntriesKept:
    """Keeps messages without asking a model anything."""
    found = await conversation_of(serving, caller, conversation, new.branch)
    messages = [Message.user(each) if isinstance(each, str) else each for each in new.messages]
    if new.after is None:
        kept = await found.append(*messages)
    else:
        kept = await append_once(found, messages, after=new.after)
    return EntriesKept(items=[entry_shown(entry) for entry in kept])
