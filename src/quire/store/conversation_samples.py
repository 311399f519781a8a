"""Random samples of conversations, drawn by an index instead of a pass over all."""

from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from quire.db.schema import conversations, entries, paths
from quire.db.store_part import StorePart, read, read_bulk
from quire.log.reads import check_in_database


def list_sample_frame(connection: Connection, tenant: str, *, limit: int) -> list[str]:
    """Ids of up to `limit` conversations that are not purged."""
    query = select(conversations.c.conversation).where(conversations.c.tenant == tenant)
    return list(connection.execute(query.where(conversations.c.purged_at.is_(None)).limit(limit)).scalars())


def draw_messages(connection: Connection, tenant: str, random_paths: Sequence[bytes]) -> list[str]:
    """The conversation of the message after each of these paths. Empty if the tenant has no message.

    The path of a message is a hash, so the message whose path follows a random one is a random message. A conversation
    is drawn with a probability proportional to the number of its messages, and may be repeated.
    """
    query = select(paths.c.conversation).where(paths.c.tenant == tenant).order_by(paths.c.path).limit(1)
    drawn: list[str] = []
    for path in random_paths:
        # After the last path comes the first.
        for start in (path, bytes(32)):
            found = connection.execute(query.where(paths.c.path >= start)).scalar()
            if found is not None:
                drawn.append(found)
                break
    return drawn


def count_messages(connection: Connection, tenant: str, conversation: str) -> int:
    """Number of messages on all branches of a conversation."""
    check_in_database(connection, tenant, [conversation])
    query = select(func.count()).select_from(entries)
    own = (entries.c.tenant == tenant, entries.c.conversation == conversation, entries.c.kind == "message")
    return connection.execute(query.where(*own)).scalar_one()


class ConversationSamples(StorePart):
    list_frame = read(list_sample_frame)
    draw_messages = read_bulk(draw_messages)
    count_messages = read(count_messages)
