"""What a branch's entries amount to: the active compaction, the pins, the session's items.

`fold` takes one entry after the other; the result is kept on the branch's row, so that the active window loads without
reading the history. It refuses entries that were decided on a state that has changed since.
"""

from collections.abc import Callable
from typing import assert_never

from quire.errors import InvalidEntry, StaleCompaction
from quire.model.entries import (
    Body,
    Compaction,
    ContextChange,
    ContextItem,
    Pin,
    Restore,
    SessionInclude,
    Span,
    Unpin,
)
from quire.model.messages import Message
from quire.model.value import Value


class Coverage(Value):
    """The active compaction: its entry, what it covers, and the entry of the one that it stands on."""

    seq: int
    number: int
    covers: Span | None = None
    beneath: int | None = None

    @classmethod
    def of(cls, seq: int, compaction: Compaction) -> "Coverage":
        return cls(seq=seq, number=compaction.number, covers=compaction.covers, beneath=compaction.supersedes)


class SessionItem(Value):
    item: ContextItem
    include: SessionInclude


class BranchState(Value):
    active: Coverage | None = None
    compactions: int = 0
    pins: tuple[int, ...] = ()
    items: tuple[SessionItem, ...] = ()


def fold(state: BranchState, seq: int, body: Body, *, coverage_at: Callable[[int], Coverage]) -> BranchState:
    """The state after the entry `seq`. `coverage_at` looks up an earlier compaction, which only an undo needs."""
    match body:
        case Message():
            return state
        case Compaction():
            return _compacted(state, seq, body)
        case Restore(compaction=compaction):
            if state.active is None or state.active.seq != compaction:
                raise StaleCompaction(f"Compaction #{compaction} is not the active one, so it cannot be undone.")
            beneath = state.active.beneath
            return state.model_copy(update={"active": None if beneath is None else coverage_at(beneath)})
        case Pin(message=message):
            _check_earlier(seq, message)
            return state.model_copy(update={"pins": tuple(sorted({*state.pins, message}))})
        case Unpin(message=message):
            return state.model_copy(update={"pins": tuple(pin for pin in state.pins if pin != message)})
        case ContextChange(action=action, item=item, include=include):
            others = tuple(known for known in state.items if known.item != item)
            added = (SessionItem(item=item, include=include),) if action == "add" else ()
            return state.model_copy(update={"items": others + added})
    assert_never(body)


def _compacted(state: BranchState, seq: int, compaction: Compaction) -> BranchState:
    active = state.active.seq if state.active else None
    if compaction.supersedes != active:
        raise StaleCompaction(
            f"The compaction was made on top of #{compaction.supersedes}, but #{active} is active now; plan it again."
        )
    if compaction.number != state.compactions + 1:
        raise StaleCompaction(f"The next compaction is number {state.compactions + 1}, not {compaction.number}.")
    last_covered = compaction.covers.last if compaction.covers else 0
    _check_earlier(seq, max([last_covered, *(each.message for each in compaction.shortened or ())]))
    return state.model_copy(update={"active": Coverage.of(seq, compaction), "compactions": compaction.number})


def _check_earlier(seq: int, named: int) -> None:
    if named >= seq:
        raise InvalidEntry(f"Entry #{seq} speaks of #{named}, which does not stand before it.")
