"""Reads the messages from which default titles are made (`quire.rows.conversations`)."""

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, bindparam, select

from quire.db.schema import conversations, entries
from quire.log.reads import list_offloaded
from quire.log.types import MAIN_BRANCH, ConversationRecord
from quire.rows.conversations import MAX_TITLE_SEQ, find_titles

_USER_MESSAGE = (
    select(entries.c.body)
    .where(
        entries.c.tenant == conversations.c.tenant,
        entries.c.conversation == conversations.c.conversation,
        entries.c.branch == MAIN_BRANCH,
        entries.c.seq <= MAX_TITLE_SEQ,
        entries.c.role == "user",
        entries.c.purged_at.is_(None),
    )
    .order_by(entries.c.seq)
    .limit(1)
    .offset(bindparam("position"))
    .scalar_subquery()
)
_USER_MESSAGES = select(conversations.c.conversation, _USER_MESSAGE).where(
    conversations.c.tenant == bindparam("tenant"),
    conversations.c.conversation.in_(bindparam("untitled", expanding=True)),
)


def fill_titles(connection: Connection, tenant: str, *items: ConversationRecord) -> list[ConversationRecord]:
    """Fills missing titles with the first words of the first question."""

    def read_messages(untitled: Sequence[str], position: int) -> Iterable[tuple[str, str | None]]:
        params = {"tenant": tenant, "untitled": untitled, "position": position}
        return ((name, body) for name, body in connection.execute(_USER_MESSAGES, params))

    titles = find_titles([each.id for each in items if not each.title], read_messages)
    without = [each.id for each in items if not each.title and each.id not in titles]
    titles |= {each.conversation: each.title for each in list_offloaded(connection, tenant, without).values()}
    return [each._replace(title=each.title or titles.get(each.id, "")) for each in items]
