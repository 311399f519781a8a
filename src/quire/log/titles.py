"""Default titles: the first words of a conversation's first question, without what an agent puts before it."""

from sqlalchemy import Connection, bindparam, select

from quire.db.schema import conversations, entries
from quire.log.reads import list_offloaded
from quire.log.types import MAIN_BRANCH, ConversationRecord
from quire.model import Message, TextPart
from quire.wire.agent_boilerplate import remove_boilerplate

MAX_TITLE_CHARS = 80
"""Maximum length of a default title."""

MAX_TITLE_SEQ = 40
"""Last entry that is searched for the first question; before it come the agent's and the client's instructions."""

MAX_TITLE_MESSAGES = 4
"""Maximum number of user messages that are searched for the first question."""

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
    """Fills missing titles with the first words of the first question.

    One user message of each conversation is read; the next ones only where it has nothing but an agent's context.
    """
    titles: dict[str, str] = {}
    untitled = [each.id for each in items if not each.title]
    for position in range(MAX_TITLE_MESSAGES):
        if not untitled:
            break
        params = {"tenant": tenant, "untitled": untitled, "position": position}
        found = {name: Message.parse(body) for name, body in connection.execute(_USER_MESSAGES, params) if body}
        untitled = list[str]()
        for name, message in found.items():
            parts = remove_boilerplate(message).parts
            question = "\n".join(part.text for part in parts if isinstance(part, TextPart))
            # The fallback of a conversation without a question is its first message as it is.
            titles[name] = _build_title(question) or titles.get(name) or _build_title(message.text)
            if message.text and not question.strip():
                untitled.append(name)
    without = [each.id for each in items if not each.title and each.id not in titles]
    titles |= {each.conversation: each.title for each in list_offloaded(connection, tenant, without).values()}
    return [each._replace(title=each.title or titles.get(each.id, "")) for each in items]


def _build_title(text: str) -> str:
    """As many whole words as fit in `MAX_TITLE_CHARS`, on one line."""
    line = " ".join(text[: 4 * MAX_TITLE_CHARS].split())
    if len(line) <= MAX_TITLE_CHARS:
        return line
    words, _, _ = line[:MAX_TITLE_CHARS].rpartition(" ")
    return f"{words or line[: MAX_TITLE_CHARS - 1]}…"
