"""What conversations are called that nobody gave a title: by the first words that a user said in them."""

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, select

from quire.log.records import MAIN, Conversation
from quire.log.schema import conversations, entries
from quire.model import Message

LONGEST = 80
FIRST_ENTRIES = 40
"""A user's first words stand early: after what the agent always has, and a client's instructions."""

_SAID_FIRST = (
    select(entries.c.body)
    .where(
        entries.c.tenant == conversations.c.tenant,
        entries.c.conversation == conversations.c.conversation,
        entries.c.branch == MAIN,
        entries.c.seq <= FIRST_ENTRIES,
        entries.c.role == "user",
        entries.c.purged_at.is_(None),
    )
    .order_by(entries.c.seq)
    .limit(1)
    .scalar_subquery()
)
_OPENINGS = select(conversations.c.conversation, _SAID_FIRST).where(
    conversations.c.tenant == bindparam("tenant"),
    conversations.c.conversation.in_(bindparam("nameless", expanding=True)),
)


def with_titles(connection: Connection, tenant: str, found: Sequence[Conversation]) -> list[Conversation]:
    nameless = [each.id for each in found if not each.title]
    if not nameless:
        return list(found)
    rows = connection.execute(_OPENINGS, {"tenant": tenant, "nameless": nameless})
    words = {name: _first_words(Message.parse(body).text) for name, body in rows if body is not None}
    return [each._replace(title=each.title or words.get(each.id, "")) for each in found]


def _first_words(text: str) -> str:
    """As many whole words as there is room for, on one line."""
    line = " ".join(text[: 4 * LONGEST].split())
    if len(line) <= LONGEST:
        return line
    whole, _, _ = line[:LONGEST].rpartition(" ")
    return f"{whole or line[: LONGEST - 1]}…"
