"""What the model sees next: the meter, the next request in full, the session's items, pins."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from quire.context.items import Available, InSession, available, mode_of
from quire.engine import Engine
from quire.log import MAIN
from quire.model import ContextItem, Manifest
from quire.model.agents import Include, OfferedTool
from quire.model.manifest import SlotUse
from quire.server.asking import BranchNumber, ConversationId, Reading, Seq, Shared, Writing, conversation_of
from quire.view.budget import UsageReport

router = APIRouter(prefix="/api/conversations/{conversation}", tags=["context"])

ItemType = Literal["rule", "reference", "tool"]


class UsageShown(BaseModel):
    """The meter: `total` over `trigger` is what leads to a compaction."""

    slots: list[SlotUse]
    total: int
    window: int
    reserved: int = Field(description="Left free for the reply.")
    trigger: int
    exact: bool = Field(description="Counted with the model's own vocabulary, not estimated.")

    @classmethod
    def of(cls, usage: UsageReport) -> "UsageShown":
        return cls(
            slots=list(usage.slots),
            total=usage.total,
            window=usage.window,
            reserved=usage.reserved,
            trigger=usage.trigger,
            exact=usage.exact,
        )


class ItemShown(BaseModel):
    type: ItemType
    name: str
    server: str | None
    description: str
    mode: Include | None = Field(description="How the agent has it; null if the agent has it no more.")
    session: Include | None = Field(description="How it came into the session; null if it is not in it.")
    enabled: bool


class Items(BaseModel):
    items: list[ItemShown] = Field(description="Those of the session first, then what else the agent has.")


class ItemNamed(BaseModel):
    name: str = Field(min_length=1, max_length=500)
    type: ItemType | None = None
    server: str | None = Field(default=None, max_length=500)


class PinNamed(BaseModel):
    number: int = Field(ge=1, le=2**62, description="The message's number.")


class Pins(BaseModel):
    pins: list[int]


@router.get("/usage")
async def get_usage(
    caller: Reading, serving: Shared, conversation: ConversationId, branch: BranchNumber = MAIN
) -> UsageShown:
    """What the next request holds before anything is asked, and the number that triggers."""
    found = await conversation_of(serving, caller, conversation, branch)
    return UsageShown.of(await found.usage())


@router.get("/context")
async def preview_context(
    caller: Reading,
    serving: Shared,
    conversation: ConversationId,
    branch: BranchNumber = MAIN,
    message: Annotated[str, Query(max_length=8_000, description="What would be asked.")] = "",
) -> Manifest:
    """The record that a request would have now. Nothing is changed by asking."""
    return await (await conversation_of(serving, caller, conversation, branch)).preview(message)


@router.get("/items")
async def list_items(
    caller: Reading, serving: Shared, conversation: ConversationId, branch: BranchNumber = MAIN
) -> Items:
    found = await conversation_of(serving, caller, conversation, branch)
    return _items(found.engine, await found.items())


@router.post("/items", status_code=201)
async def add_item(
    caller: Writing, serving: Shared, conversation: ConversationId, item: ItemNamed, branch: BranchNumber = MAIN
) -> Items:
    """Brings a rule, a reference or a tool of the agent's into the session."""
    found = await conversation_of(serving, caller, conversation, branch)
    await found.add(_named(item))
    return _items(found.engine, await found.items())


@router.delete("/items/{type}/{name:path}")
async def remove_item(
    caller: Writing,
    serving: Shared,
    conversation: ConversationId,
    type: ItemType,
    name: Annotated[str, Path(min_length=1, max_length=500)],
    branch: BranchNumber = MAIN,
    server: Annotated[str | None, Query(max_length=500, description="The server of a tool.")] = None,
) -> Items:
    """Takes an item out of the session, however it came in."""
    found = await conversation_of(serving, caller, conversation, branch)
    await found.remove(ContextItem(type=type, name=name, server=server))
    return _items(found.engine, await found.items())


@router.post("/pins", status_code=201)
async def pin_message(
    caller: Writing, serving: Shared, conversation: ConversationId, pin: PinNamed, branch: BranchNumber = MAIN
) -> Pins:
    """Keeps a message in view, word for word, whatever is compacted."""
    found = await conversation_of(serving, caller, conversation, branch)
    await found.pin(pin.number)
    return await _pins(found.engine, conversation, branch)


@router.delete("/pins/{seq}")
async def unpin_message(
    caller: Writing, serving: Shared, conversation: ConversationId, seq: Seq, branch: BranchNumber = MAIN
) -> Pins:
    found = await conversation_of(serving, caller, conversation, branch)
    await found.unpin(seq)
    return await _pins(found.engine, conversation, branch)


async def _pins(engine: Engine, conversation: str, branch: int) -> Pins:
    return Pins(pins=list((await engine.store.branch(conversation, branch)).state.pins))


def _named(item: ItemNamed) -> ContextItem | str:
    return item.name if item.type is None else ContextItem(type=item.type, name=item.name, server=item.server)


def _items(engine: Engine, session: list[InSession]) -> Items:
    agent, entered = engine.agent, {each.item: each for each in session}
    shown = [_item(engine, each.item, each) for each in session]
    shown += [_item(engine, item, None) for item in available(agent) if item not in entered]
    return Items(items=shown)


def _item(engine: Engine, item: ContextItem, session: InSession | None) -> ItemShown:
    known = available(engine.agent).get(item)
    return ItemShown(
        type=item.type,
        name=item.name,
        server=item.server,
        description=_description(known) if known is not None else "",
        mode=mode_of(engine.agent, known) if known is not None else None,
        session=session.include if session is not None else None,
        enabled=known.enabled if known is not None else False,
    )


def _description(known: Available) -> str:
    return known.definition.description if isinstance(known, OfferedTool) else known.description
