"""Which items of a request its reply used, and what that says about the next selection. Pure.

A tool is used if the reply calls it. A rule or reference if the reply names it or repeats words of its text that the
question does not have. Words prove little, so that what was learned changes a score by a fifth at most.
"""

from collections.abc import Sequence

from quire.context.selection import extract_keywords
from quire.model import Message
from quire.model.manifest import Decision, LearnedRank
from quire.view.inputs import ContextBlock

MIN_SHARED_TERMS = 3
"""Terms of a text that a reply repeats if it used the text."""
MAX_COMPARED_CHARS = 20_000
"""Characters of a text, a question and a reply that are compared."""
MIN_CHOSEN_REQUESTS = 5
"""Requests with an item after which it counts as never used."""
UNUSED_FACTOR = 0.8
ADDED_FACTOR, MAX_ADDED_TURNS = 0.05, 4
"""Gain for each turn that had the item because it was added by hand, up to this number of turns."""


def is_optional_item(row: Decision) -> bool:
    """Whether the row is an item in the request because of a message or by hand, not by the agent's configuration."""
    return row.included and row.kind in ("tool", "rule", "reference") and row.reason in ("agent", "manual", "carried")


def find_used_items(
    decisions: Sequence[Decision], blocks: Sequence[ContextBlock], *, question: str, reply: Message
) -> tuple[Decision, ...]:
    """The decisions, with `used` set for each optional tool, rule and reference that the request included."""
    texts = {(block.kind, block.name): block.text for block in blocks}
    called = {call.name for call in reply.tool_calls}
    said = "\n".join((reply.text[:MAX_COMPARED_CHARS], *(call.arguments for call in reply.tool_calls)))
    said = said[:MAX_COMPARED_CHARS]
    said_terms = set(extract_keywords(said)) - set(extract_keywords(question[:MAX_COMPARED_CHARS]))
    marked: list[Decision] = []
    for row in decisions:
        name = row.name or ""
        if not is_optional_item(row):
            marked.append(row)
            continue
        used = name in called
        if (text := texts.get((row.kind, name))) is not None:
            shared = said_terms.intersection(extract_keywords(text[:MAX_COMPARED_CHARS]))
            used = name.casefold() in said.casefold() or len(shared) >= MIN_SHARED_TERMS
        marked.append(row.model_copy(update={"used": used}))
    return tuple(marked)


def learn_rank(*, chosen: int, used: int, added: int) -> LearnedRank | None:
    """The rank of an item by its counts: added by hand it gains, chosen and never used it loses. None if neither."""
    factor = 1.0
    if added:
        factor += ADDED_FACTOR * min(added, MAX_ADDED_TURNS)
    elif chosen >= MIN_CHOSEN_REQUESTS and not used:
        factor = UNUSED_FACTOR
    return LearnedRank(factor=round(factor, 2), chosen=chosen, used=used, added=added) if factor != 1.0 else None
