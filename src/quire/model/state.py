"""State of a branch, folded from its entries: the active compaction, pins, drops, priorities and the session's items.

`apply_entry` folds one entry at a time. The result is stored in the branch's row, so that the window loads without
reading the history. It rejects entries that were made for a state that has changed since (optimistic concurrency).
"""

from collections.abc import Callable
from typing import assert_never

from quire.errors import InvalidEntry, StaleCompaction
from quire.model.base import FrozenModel
from quire.model.entry_bodies import (
    IMPORTED_STRATEGY,
    Body,
    Compaction,
    ContextChange,
    ContextEpoch,
    ContextItem,
    Drop,
    Pin,
    Priority,
    Restore,
    SessionIncludeMode,
    Span,
    TopicIndex,
    Undrop,
    Unpin,
)
from quire.model.messages import Message

MAX_BRANCH_PRIORITIES = 1_000
"""Maximum messages of a branch with a priority: they are part of the state, which each append writes."""


MAX_BRANCH_DROPS = 500
"""Maximum dropped messages of a branch, for the same reason."""


class ActiveCompaction(FrozenModel):
    """The active compaction: its entry number, what it hides in the view, and the entry number of the one that it
    supersedes."""

    seq: int
    number: int
    covers: Span | None = None
    question: int | None = None
    """Number of the covered question that stays in the view, because the range ends inside its turn."""
    preserved: tuple[int, ...] | None = None
    """Numbers of the covered messages that stay in the view because of their priority."""
    cleared_through: int | None = None
    supersedes: int | None = None

    @property
    def hides_content(self) -> bool:
        """Whether messages are archived or tool results are cleared."""
        return self.covers is not None or self.cleared_through is not None

    @classmethod
    def from_entry(cls, seq: int, compaction: Compaction) -> "ActiveCompaction":
        is_imported = compaction.strategy == IMPORTED_STRATEGY
        return cls(
            seq=seq,
            number=compaction.number,
            # A client's list has a sealed summary in place of the messages. An import has it nowhere.
            covers=compaction.covers if not compaction.is_sealed or is_imported else None,
            question=compaction.question,
            preserved=compaction.preserved,
            cleared_through=compaction.cleared_through,
            supersedes=compaction.supersedes,
        )


class SessionItem(FrozenModel):
    """An item of the session, and how it was added."""

    item: ContextItem
    include: SessionIncludeMode


class BranchState(FrozenModel):
    """What the entries of a branch add up to."""

    active_compaction: ActiveCompaction | None = None
    compaction_count: int = 0
    pins: tuple[int, ...] = ()
    priorities: tuple[Priority, ...] = ()
    """Priorities that are set, by message number."""
    items: tuple[SessionItem, ...] = ()
    removed_items: tuple[ContextItem, ...] = ()
    """Items that were removed from the session and not added again."""
    drops: tuple[Drop, ...] | None = None
    """Dropped messages, by number."""
    epoch: ContextEpoch | None = None
    """The edits that apply to the client's list."""
    edits_now: bool | None = None
    """Whether edits wait for the next possible request only, and not for a cold prompt cache."""

    offloaded: bool | None = None
    """Whether the entries are in object storage. They are restored before they are read or continued."""

    @property
    def dropped(self) -> frozenset[int]:
        return frozenset(each.message for each in self.drops or ())


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
            drops = _set_drop(state.drops or (), message, None)
            return state.model_copy(update={"pins": tuple(sorted({*state.pins, message})), "drops": drops})
        case Unpin(message=message):
            return state.model_copy(update={"pins": tuple(pin for pin in state.pins if pin != message)})
        case Priority(message=message):
            _check_earlier(seq, message)
            return state.model_copy(update={"priorities": _set_priority(state.priorities, body)})
        case ContextChange(action=action, item=item, include=include):
            others = tuple(each for each in state.items if each.item != item)
            removed = tuple(each for each in state.removed_items if each != item)
            if action == "remove":
                return state.model_copy(update={"items": others, "removed_items": (*removed, item)})
            added = SessionItem(item=item, include=include)
            return state.model_copy(update={"items": (*others, added), "removed_items": removed})
        case Drop(message=message):
            _check_earlier(seq, message)
            pins = tuple(pin for pin in state.pins if pin != message)
            drops = _set_drop(state.drops or (), message, body)
            return state.model_copy(update={"drops": drops, "pins": pins, "edits_now": body.now or state.edits_now})
        case Undrop(message=message):
            drops = _set_drop(state.drops or (), message, None)
            return state.model_copy(update={"drops": drops, "edits_now": body.now or state.edits_now})
        case ContextEpoch():
            edits_now = None if body.changes_in_place else state.edits_now
            return state.model_copy(update={"epoch": body, "edits_now": edits_now})
        case TopicIndex(covers=covers):
            _check_earlier(seq, covers.last)
            return state
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
    in_view = [*(each.message for each in compaction.truncations or ()), *(compaction.preserved or ())]
    _check_earlier(seq, max(last_covered, compaction.cleared_through or 0, compaction.question or 0, *in_view))
    return state.model_copy(
        update={
            "active_compaction": ActiveCompaction.from_entry(seq, compaction),
            "compaction_count": compaction.number,
        }
    )


def _set_priority(priorities: tuple[Priority, ...], changed: Priority) -> tuple[Priority, ...]:
    by_message = {each.message: each for each in priorities if each.message != changed.message}
    if changed.priority is not None:
        by_message[changed.message] = changed
    if len(by_message) > MAX_BRANCH_PRIORITIES:
        raise InvalidEntry(
            f"A branch has at most {MAX_BRANCH_PRIORITIES:,} messages with a priority; reset one that is not needed."
        )
    return tuple(by_message[message] for message in sorted(by_message))


def _set_drop(drops: tuple[Drop, ...], message: int, changed: Drop | None) -> tuple[Drop, ...] | None:
    by_message = {each.message: each for each in drops if each.message != message}
    if changed is not None:
        by_message[message] = changed
    if len(by_message) > MAX_BRANCH_DROPS:
        raise InvalidEntry(f"A branch has at most {MAX_BRANCH_DROPS} dropped messages; restore one that is needed.")
    return tuple(by_message[number] for number in sorted(by_message)) or None


def _check_earlier(seq: int, target: int) -> None:
    if target >= seq:
        raise InvalidEntry(f"Entry #{seq} refers to #{target}, which is not an earlier entry.")
