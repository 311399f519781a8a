"""Seeded schedule of faults: the same seed, count and kinds give the same faults in the same order."""

import random
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    KILL_PRIMARY = "kill_primary"
    """PostgreSQL of the primary is killed together with its Patroni, as the loss of its machine would."""
    KILL_POSTGRES = "kill_postgres"
    """PostgreSQL of the primary is killed; its Patroni lives."""
    FREEZE_PRIMARY = "freeze_primary"
    SWITCH_OVER = "switch_over"
    FILL_DISK = "fill_disk"
    KILL_NODE = "kill_node"
    FREEZE_NODE = "freeze_node"
    JUMP_CLOCK = "jump_clock"
    KILL_WORKER = "kill_worker"
    FREEZE_WORKER = "freeze_worker"
    RESET_DATABASE = "reset_database"
    """Resets the connections of a node to the database."""
    DELAY_DATABASE = "delay_database"
    BLOCK_DATABASE = "block_database"
    """Nothing passes between a node and the database; connections stay open."""
    RESTART_POOLER = "restart_pooler"
    END_SESSIONS = "end_sessions"
    """The database ends all sessions of the application."""
    LOCK_CONVERSATION = "lock_conversation"
    """A transaction holds the lock of a conversation's branches."""
    RESET_CLIENTS = "reset_clients"
    RESET_UPSTREAM = "reset_upstream"
    CUT_REPLY = "cut_reply"
    """The upstream resets the connection in the middle of a reply."""
    END_REPLY_EARLY = "end_reply_early"
    """The upstream ends a reply in its middle as if it were complete."""
    REFUSE_CALL = "refuse_call"
    """The upstream answers 500."""
    RESET_CALL = "reset_call"
    """The upstream resets the connection before it answers."""
    GARBLE_REPLY = "garble_reply"
    """The upstream answers with bytes that are no JSON."""
    DELAY_REPLY = "delay_reply"


DATABASE_FAULTS = frozenset(
    {
        FaultKind.KILL_PRIMARY,
        FaultKind.KILL_POSTGRES,
        FaultKind.FREEZE_PRIMARY,
        FaultKind.SWITCH_OVER,
        FaultKind.FILL_DISK,
    }
)

WEIGHTS = {
    FaultKind.KILL_PRIMARY: 4, FaultKind.KILL_POSTGRES: 4, FaultKind.FREEZE_PRIMARY: 3, FaultKind.SWITCH_OVER: 6,
    FaultKind.FILL_DISK: 3, FaultKind.KILL_NODE: 15, FaultKind.FREEZE_NODE: 20, FaultKind.JUMP_CLOCK: 20,
    FaultKind.KILL_WORKER: 15, FaultKind.FREEZE_WORKER: 10, FaultKind.RESET_DATABASE: 110,
    FaultKind.DELAY_DATABASE: 80, FaultKind.BLOCK_DATABASE: 40, FaultKind.RESTART_POOLER: 20,
    FaultKind.END_SESSIONS: 60, FaultKind.LOCK_CONVERSATION: 40, FaultKind.RESET_CLIENTS: 110,
    FaultKind.RESET_UPSTREAM: 110,
    FaultKind.CUT_REPLY: 90, FaultKind.END_REPLY_EARLY: 60, FaultKind.REFUSE_CALL: 70, FaultKind.RESET_CALL: 60,
    FaultKind.GARBLE_REPLY: 40, FaultKind.DELAY_REPLY: 30,
}  # fmt: skip
"""Relative frequency: a fail-over takes half a minute, a reset a millisecond."""

MAX_PAUSE_SECONDS = 0.4
"""Maximum time between the starts of two faults."""
MAX_FAULT_SECONDS = 3.0
"""Maximum time that a fault with a duration lasts."""


@dataclass(frozen=True, slots=True)
class Fault:
    number: int
    kind: FaultKind
    target: int
    """Selects the node, worker or client, modulo their number."""
    seconds: float
    """How long it lasts, where a fault has a duration."""
    pause_seconds: float
    """Time before it starts, after the start of the one before."""


def build_schedule(seed: int, count: int, *, kinds: Collection[FaultKind]) -> list[Fault]:
    """Draws faults by their weights; each kind occurs at least once if there are enough."""
    draw = random.Random(seed)
    ordered = [kind for kind in FaultKind if kind in kinds]
    drawn = ordered[:count]
    drawn += draw.choices(ordered, weights=[WEIGHTS[kind] for kind in ordered], k=count - len(drawn))
    draw.shuffle(drawn)
    return [
        Fault(
            number,
            kind,
            target=draw.randrange(1_000),
            seconds=draw.uniform(0.2, MAX_FAULT_SECONDS),
            pause_seconds=draw.uniform(0.0, MAX_PAUSE_SECONDS),
        )
        for number, kind in enumerate(drawn, start=1)
    ]
