"""Events of running turns that event streams of other processes show. Rows are short-lived, and are no part of the log.

Only turns that another process watches are written. The process that runs the turn deletes its rows soon after the end;
if it dies, they expire, and the next such turn of the tenant deletes them.
"""

from sqlalchemy import Connection, bindparam, delete, insert, select

from quire.db.dialects import sanitize_text
from quire.db.schema import turn_events
from quire.db.store_part import StorePart, read, write
from quire.log.tenant_masker import mask_text
from quire.model.ids import now

EXPIRY_SECONDS = 86_400
"""Seconds after which an event that its process has not deleted may be deleted: longer than a turn takes."""

_EVENTS = (
    select(turn_events.c.events)
    .where(
        turn_events.c.tenant == bindparam("tenant"),
        turn_events.c.conversation == bindparam("conversation"),
        turn_events.c.turn == bindparam("turn"),
        turn_events.c.number >= bindparam("first"),
    )
    .order_by(turn_events.c.number)
)


def append_events(connection: Connection, tenant: str, conversation: str, turn: str, number: int, events: str) -> None:
    """Stores a JSON array with the events of a turn from this number on, the first of which is 0."""
    at = now()
    if number == 0:
        expired = (turn_events.c.tenant == tenant, turn_events.c.expires_at <= at)
        connection.execute(delete(turn_events).where(*expired))
    row = {
        "tenant": tenant,
        "conversation": conversation,
        "turn": turn,
        "number": number,
        "events": sanitize_text(mask_text(connection, events)),
        "expires_at": at + EXPIRY_SECONDS * 1_000_000,
    }
    connection.execute(insert(turn_events), row)


def list_events(connection: Connection, tenant: str, conversation: str, turn: str, *, first: int) -> list[str]:
    """The stored arrays that start at this number or later, in order."""
    params = {"tenant": tenant, "conversation": conversation, "turn": turn, "first": first}
    return list(connection.execute(_EVENTS, params).scalars())


def delete_events(connection: Connection, tenant: str, conversation: str, turn: str) -> None:
    key = (turn_events.c.tenant == tenant, turn_events.c.conversation == conversation, turn_events.c.turn == turn)
    connection.execute(delete(turn_events).where(*key))


def delete_conversation_events(connection: Connection, tenant: str, conversation: str) -> None:
    """Deletes the events of all turns of a conversation, for a purge."""
    key = (turn_events.c.tenant == tenant, turn_events.c.conversation == conversation)
    connection.execute(delete(turn_events).where(*key))


class TurnEvents(StorePart):
    """Events of running turns."""

    append = write(append_events)
    list = read(list_events)
    delete = write(delete_events)
