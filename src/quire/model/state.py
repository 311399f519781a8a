"""State of a branch, folded from its entries: the active compaction, the pins and the session's items.

`apply_entry` folds one entry at a time; the result is stored in the branch's row, so that the window loads without
reading the history. It rejects entries that were made for a state that has changed since (optimistic concurrency).
"""

from collections.abc import Callable
from typing import assert_never

from quire.errors import InvalidEntry, StaleCompaction
from quire.model.base import FrozenModel
from quire.model.entries import (
    Body,
    Compaction,
    ContextChange,
    ContextItem,
    Pin,
    Restore,
    SessionIncludeMode,
    Span,
    Unpin,
)
from quire.model.messages import Message


class ActiveCompaction(FrozenModel):
    """The active compaction: its entry number, what it covers, and the entry number of the one that it supersedes."""

    seq: int
    number: int
    covers: Span | None = None
    supersedes: int | None = None

    @classmethod
    def from_entry(cls, seq: int, compaction: Compaction) -> "ActiveCompaction":
        return cls(seq=seq, number=compaction.number, covers=compaction.covers, supersedes=compaction.supersedes)


class SessionItem(FrozenModel):
    """An item of the session, and how it was added."""

    item: ContextItem
    include: SessionIncludeMode


class BranchState(FrozenModel):
    """What the entries of a branch add up to."""

    active_compaction: ActiveCompaction | None = None
    compaction_count: int = 0
    pins: tuple[int, ...] = ()
    items: tuple[SessionItem, ...] = ()


def apply_entry(
    state: BranchState, seq: int, body: Body, *, compaction_at: Callable[[int], ActiveCompaction]
) -> BranchState:
    """The state after entry `seq`. `compaction_at` looks up an earlier compaction, which only an undo needs."""
    match body:
        case Message():
            return state
        case Compaction():
            return _apply_compaction(state, seq, body)
        case Restore(compaction=compaction):
            if state.active_compaction is None or state.active_compaction.seq != compaction:
                raise StaleCompaction(
                    f"Compaction #{compaction} is not the active one, so it cannot be undone; undo that one first."
                )
            seq_below = state.active_compaction.supersedes
            restored = None if seq_below is None else compaction_at(seq_below)
            return state.model_copy(update={"active_compaction": restored})
        case Pin(message=message):
            _check_earlier(seq, message)
            return state.model_copy(update={"pins": tuple(sorted({*state.pins, message}))})
        case Unpin(message=message):
            return state.model_copy(update={"pins": tuple(pin for pin in state.pins if pin != message)})
        case ContextChange(action=action, item=item, include=include):
            others = tuple(each for each in state.items if each.item != item)
            added = (SessionItem(item=item, include=include),) if action == "add" else ()
            return state.model_copy(update={"items": others + added})
    assert_never(body)


def _apply_compaction(state: BranchState, seq: int, compaction: Compaction) -> BranchState:
    active = state.active_compaction.seq if state.active_compaction else None
    if compaction.supersedes != active:
        raise StaleCompaction(
            f"The compaction was made on top of #{compaction.supersedes}, but #{active} is active now; plan it again."
        )
    if compaction.number != state.compaction_count + 1:
        raise StaleCompaction(
            f"The next compaction is number {state.compaction_count + 1}, not {compaction.number}; plan it again."
        )
    last_covered = compaction.covers.last if compaction.covers else 0
    _check_earlier(seq, max([last_covered, *(each.message for each in compaction.truncations or ())]))
    return state.model_copy(
        update={
            "active_compaction": ActiveCompaction.from_entry(seq, compaction),
            "compaction_count": compaction.number,
        }
    )


def _check_earlier(seq: int, target: int) -> None:
    if target >= seq:
        raise InvalidEntry(f"Entry #{seq} refers to #{target}, which is not an earlier entry.")
