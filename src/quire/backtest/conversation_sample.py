"""Selects the conversations of a backtest: named ones, those of a project, or a random sample.

A sample of many conversations needs no pass over them. The paths of messages are hashes, so the message that follows a
random path is a random message, found by the index. It draws its conversation with a probability proportional to the
number of its messages, and the inverse of that number is the conversation's weight.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from quire.errors import ConversationNotFound
from quire.log import Store

MAX_LISTED_CONVERSATIONS = 10_000
"""Up to this number the ids are listed, and a sample is drawn from the list without repetition."""


class SelectedConversation(NamedTuple):
    id: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSelection:
    conversations: tuple[SelectedConversation, ...]
    is_sample: bool = False


async def select_conversations(
    store: Store,
    ids: Sequence[str] = (),
    *,
    project: str | None = None,
    sample: int | None = None,
    seed: int | None = None,
) -> ConversationSelection:
    """These conversations, or those of a project, or all; with `sample`, a random sample of that size.

    Raises `ConversationNotFound` if one that is named does not exist.
    """
    random = Random(seed)  # noqa: S311 (a sample, not a secret)
    if ids:
        for conversation in ids:
            await store.get_conversation(conversation)
    elif project is not None:
        ids = await store.list_conversation_ids(project=project)
        if not ids:
            raise ConversationNotFound(f"There is no conversation of the project {project!r}.")
    else:
        ids = await store.list_sample_frame(limit=MAX_LISTED_CONVERSATIONS + 1)
        if sample is not None and len(ids) > MAX_LISTED_CONVERSATIONS:
            return await _draw(store, sample, random)
    if sample is None or sample >= len(ids):
        return ConversationSelection(conversations=tuple(map(SelectedConversation, ids)))
    drawn = random.sample(sorted(ids), sample)
    return ConversationSelection(conversations=tuple(map(SelectedConversation, drawn)), is_sample=True)


async def _draw(store: Store, sample: int, random: Random) -> ConversationSelection:
    drawn = Counter(await store.draw_messages([random.randbytes(32) for _ in range(sample)]))
    conversations = [
        SelectedConversation(conversation, times / max(1, await store.count_messages(conversation)))
        for conversation, times in drawn.items()
    ]
    return ConversationSelection(conversations=tuple(conversations), is_sample=True)
