"""Compaction strategies: where to cut a history, and which messages stay in the view because of their priority. Pure.

The built-in strategies are `discard`, `summarize` and `hybrid`; users can register their own. A cut at `n` preserves
the batches from `n` on. It never splits a batch, since cut points are indexes of batches. The other invariants are
named functions, and a cut is legal if it satisfies all of them. A cut may be inside a turn, whose question then stays
in the view.

A priority acts when a compaction is planned and not on each request, so that the prefix stays stable in between.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from quire.errors import UnknownStrategy
from quire.model import Entry
from quire.model.policy import Policy, PriorityClass, Slot
from quire.view.batches import MessageBatch

Invariant = Callable[[Sequence[MessageBatch], Policy], range]

DEFAULT_PRIORITY = 5
"""Priority of a message for which none is set."""
CLASS_MINIMUMS: Mapping[PriorityClass, int] = {"critical": 8, "important": 6, "normal": 3, "low": 1}
"""Lowest priority of each class, the highest class first."""


def keep_newest_batch(batches: Sequence[MessageBatch], policy: Policy) -> range:
    """The newest message, or the newest tool call with its results, is never archived or split."""
    return range(len(batches))


def keep_recent_messages(batches: Sequence[MessageBatch], policy: Policy) -> range:
    """At least `min_recent_messages_to_keep` messages stay unchanged."""
    return range(find_cut_keeping(batches, policy.min_recent_messages_to_keep) + 1)


def cut_only_stored(batches: Sequence[MessageBatch], policy: Policy) -> range:
    """A compaction can cover only stored messages."""
    first_unstored = next((index for index, batch in enumerate(batches) if not batch.seqs), len(batches))
    return range(first_unstored + 1)


INVARIANTS: tuple[Invariant, ...] = (keep_newest_batch, keep_recent_messages, cut_only_stored)


def find_legal_cuts(batches: Sequence[MessageBatch], policy: Policy) -> list[int]:
    """Cut points that satisfy every invariant, the one that preserves most messages first."""
    allowed = set(range(len(batches) + 1)).intersection(*(invariant(batches, policy) for invariant in INVARIANTS))
    return sorted(allowed)


def find_cut_keeping(batches: Sequence[MessageBatch], messages: int) -> int:
    """Last cut point with at least `messages` messages after it. An empty question is not one of them."""
    count, cut = 0, len(batches)
    while cut > 0 and count < messages:
        cut -= 1
        count += 0 if batches[cut].is_empty_question else len(batches[cut].messages)
    return cut


def classify_priority(priority: int) -> PriorityClass:
    return next(each for each, minimum in CLASS_MINIMUMS.items() if priority >= minimum)


def spread_priorities(entries: Iterable[Entry], priorities: Mapping[int, int]) -> dict[int, int]:
    """The priorities of these messages, raised to the highest one within each batch: a tool call and its results stay
    together."""
    if not priorities:
        return {}
    batches: list[list[int]] = []
    for entry in entries:
        if entry.role == "tool" and batches:
            batches[-1].append(entry.seq)
        else:
            batches.append([entry.seq])
    spread: dict[int, int] = {}
    for batch in batches:
        if values := [priorities[seq] for seq in batch if seq in priorities]:
            spread.update(dict.fromkeys(batch, max(values)))
    return spread


def list_protected(pins: frozenset[int], priorities: Mapping[int, int]) -> frozenset[int]:
    """Numbers of the messages whose tool results are not cleared: pinned, important and critical ones."""
    return pins.union(seq for seq, priority in priorities.items() if priority >= CLASS_MINIMUMS["important"])


def classify_batch(batch: MessageBatch, priorities: Mapping[int, int]) -> PriorityClass:
    """Class of a batch; `priorities` are spread over its messages."""
    return classify_priority(max([priorities.get(seq, 0) for seq in batch.seqs], default=0) or DEFAULT_PRIORITY)


def select_preserved(
    candidates: Sequence[MessageBatch],
    priorities: Mapping[int, int],
    *,
    shares: Mapping[PriorityClass, float],
    max_input_tokens: int,
    max_tokens: int,
) -> list[MessageBatch]:
    """Chooses the batches that stay in the view: the highest class first, and the newest first within a class.

    A class may use its share of the input tokens and the shares of the classes below it, which are filled after it, so
    that no batch is omitted for one of a lower class. All of them together use at most `max_tokens`.
    """
    classes: list[PriorityClass] = [each for each in CLASS_MINIMUMS if each in shares]
    preserved: list[MessageBatch] = []
    for index, priority_class in enumerate(classes):
        class_tokens = min(max_tokens, int(sum(shares[each] for each in classes[index:]) * max_input_tokens))
        for batch in reversed(candidates):
            if batch.tokens <= class_tokens and classify_batch(batch, priorities) == priority_class:
                preserved.append(batch)
                class_tokens -= batch.tokens
                max_tokens -= batch.tokens
    return preserved


DEFAULT_SLOT_SHARES: Mapping[Slot, float] = {
    "system": 0.10,
    "tools": 0.30,
    "memory": 0.10,
    "references": 0.20,
    "recall": 0.10,
}
NO_PRIORITY_SHARES: Mapping[PriorityClass, float] = {}


def find_first_fitting_cut(batches: Sequence[MessageBatch], *, legal_cuts: Sequence[int], max_tokens: int) -> int:
    """Earliest legal cut whose messages fit into `max_tokens`. The last legal one if none does."""
    tokens, cut, best = 0, len(batches), legal_cuts[-1]
    allowed = set(legal_cuts)
    while cut > 0 and tokens + batches[cut - 1].tokens <= max_tokens:
        cut -= 1
        tokens += batches[cut].tokens
        if cut in allowed:
            best = cut
    return best


class DiscardStrategy:
    """Archives old messages without a summary."""

    name = "discard"
    summarizes = False
    recalls = False
    shares = DEFAULT_SLOT_SHARES
    priority_shares = NO_PRIORITY_SHARES

    def choose_cut(
        self, batches: Sequence[MessageBatch], *, legal_cuts: Sequence[int], max_tokens: int, policy: Policy
    ) -> int:
        return find_first_fitting_cut(batches, legal_cuts=legal_cuts, max_tokens=max_tokens)


class SummarizeStrategy:
    """Replaces old messages by a summary and preserves a fixed number of recent ones."""

    name = "summarize"
    summarizes = True
    recalls = False
    shares = DEFAULT_SLOT_SHARES
    priority_shares = NO_PRIORITY_SHARES

    def choose_cut(
        self, batches: Sequence[MessageBatch], *, legal_cuts: Sequence[int], max_tokens: int, policy: Policy
    ) -> int:
        """Preserves `recent_messages_to_keep` messages. Fewer, down to the legal minimum, if they do not fit."""
        preferred = find_cut_keeping(batches, policy.recent_messages_to_keep)
        fitting = find_first_fitting_cut(batches, legal_cuts=legal_cuts, max_tokens=max_tokens)
        return max((cut for cut in legal_cuts if cut <= max(preferred, fitting)), default=legal_cuts[0])


HYBRID_SLOT_SHARES: Mapping[Slot, float] = {**DEFAULT_SLOT_SHARES, "memory": 0.20, "recall": 0.20}
HYBRID_PRIORITY_SHARES: Mapping[PriorityClass, float] = {"critical": 0.30, "important": 0.25}


class HybridStrategy:
    """Replaces old messages by a summary, preserves messages of high priority, and recalls relevant ones."""

    name = "hybrid"
    summarizes = True
    recalls = True
    shares = HYBRID_SLOT_SHARES
    priority_shares = HYBRID_PRIORITY_SHARES

    def choose_cut(
        self, batches: Sequence[MessageBatch], *, legal_cuts: Sequence[int], max_tokens: int, policy: Policy
    ) -> int:
        """Reserves a fifth of the budget for the summary and recall, and preserves what fits into the rest."""
        return find_first_fitting_cut(batches, legal_cuts=legal_cuts, max_tokens=int(max_tokens * 0.8))


class Strategy(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def summarizes(self) -> bool:
        """Whether archived messages are replaced by a summary."""
        ...

    @property
    def shares(self) -> Mapping[Slot, float]:
        """Share of the budget that each slot may use. Unused tokens go to messages."""
        ...

    @property
    def priority_shares(self) -> Mapping[PriorityClass, float]:
        """Share of the input tokens that archived messages of each class may use in the view; empty to ignore
        priorities."""
        ...

    @property
    def recalls(self) -> bool:
        """Whether archived messages that are relevant to a question are recalled."""
        ...

    def choose_cut(
        self, batches: Sequence[MessageBatch], *, legal_cuts: Sequence[int], max_tokens: int, policy: Policy
    ) -> int:
        """Returns one of `legal_cuts`. The batches after it should fit into `max_tokens`, if possible.

        Args:
            batches: The history. A tool call and its results are one batch.
            legal_cuts: Places where a cut separates nothing that belongs together, the one that keeps most first.
            max_tokens: What should remain after the cut.
            policy: Model, window and thresholds of the request.
        """
        ...


_strategies: dict[str, Strategy] = {}


def register_strategy(strategy: Strategy) -> None:
    """Registers a strategy under its name. Replaces an earlier one with that name.

    Args:
        strategy: An object with the attributes of `Strategy`.
    """
    _strategies[strategy.name] = strategy


def get_strategy(name: str) -> Strategy:
    try:
        return _strategies[name]
    except KeyError:
        known = ", ".join(sorted(_strategies))
        raise UnknownStrategy(f"Unknown strategy {name!r}; use one of {known}, or register your own.") from None


def priority_shares_for(policy: Policy) -> Mapping[PriorityClass, float]:
    """The shares of the priority classes: the policy's, if it has any, else the strategy's."""
    shares = policy.shares or {}
    own: dict[PriorityClass, float] = {each: shares[each] for each in CLASS_MINIMUMS if each in shares}
    return own or get_strategy(policy.strategy).priority_shares


for _strategy in (DiscardStrategy(), SummarizeStrategy(), HybridStrategy()):
    register_strategy(_strategy)
