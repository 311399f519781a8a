"""What a backtest compares and replays: variants of the settings, and conversations.

Conversations are named ones, all of a project, or a random sample. A sample of many conversations needs no pass over
them. The paths of messages are hashes, so the message that follows a random path is a random message, found by the
index. It draws its conversation with a probability proportional to the number of its messages, and the inverse of that
number is the conversation's weight.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any, NamedTuple

from quire.errors import ConversationNotFound, InvalidRequest
from quire.store import SqlStore
from quire.view.strategies import get_strategy

MAX_VARIANTS = 24
"""Variants of one backtest: each one has a scratch log in memory."""
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
    store: SqlStore,
    ids: Sequence[str] = (),
    *,
    project: str | None = None,
    sample: int | None = None,
    seed: int | None = None,
) -> ConversationSelection:
    """These conversations, or all of a project, or all of the store; with `sample`, a random sample of that size.

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
        ids = await store.samples.list_frame(limit=MAX_LISTED_CONVERSATIONS + 1)
        if sample is not None and len(ids) > MAX_LISTED_CONVERSATIONS:
            drawn = Counter(await store.samples.draw_messages([random.randbytes(32) for _ in range(sample)]))
            conversations = [
                SelectedConversation(conversation, times / max(1, await store.samples.count_messages(conversation)))
                for conversation, times in drawn.items()
            ]
            return ConversationSelection(conversations=tuple(conversations), is_sample=True)
    if sample is None or sample >= len(ids):
        return ConversationSelection(conversations=tuple(map(SelectedConversation, ids)))
    chosen = random.sample(sorted(ids), sample)
    return ConversationSelection(conversations=tuple(map(SelectedConversation, chosen)), is_sample=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class BacktestVariant:
    """Settings that replace the settings of the engine. None leaves a setting as it is."""

    name: str
    strategy: str
    window: int | None = None
    model: str | None = None

    @property
    def changes(self) -> dict[str, Any]:
        named = {"strategy": self.strategy, "context_limit": self.window, "model": self.model}
        return {name: value for name, value in named.items() if value is not None}


def combine_variants(
    strategies: Sequence[str], *, windows: Sequence[int] = (), models: Sequence[str] = ()
) -> list[BacktestVariant]:
    """Every combination. The names have the strategy, and what else differs."""
    combinations = list(
        product(dict.fromkeys(strategies), dict.fromkeys(windows) or [None], dict.fromkeys(models) or [None])
    )
    if len(combinations) > MAX_VARIANTS:
        raise InvalidRequest(
            f"These are {len(combinations)} combinations, and a backtest compares at most {MAX_VARIANTS}; "
            "give fewer strategies, windows or models."
        )
    variants: list[BacktestVariant] = []
    for strategy, window, model in combinations:
        get_strategy(strategy)  # Raises an error that lists the strategies.
        parts = [
            strategy,
            *([f"{window:,}"] if window and len(windows) > 1 else []),
            *([model] if model and len(models) > 1 else []),
        ]
        variants.append(BacktestVariant(name=" ".join(parts), strategy=strategy, window=window, model=model))
    return variants
