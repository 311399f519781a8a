"""Manifests: what follows from their decisions."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

UNKNOWN_WINDOW = 10_000_000
"""Placeholder for a context window that is not known: larger than any, so that nothing is compacted automatically."""


class DecisionLike(Protocol):
    @property
    def included(self) -> bool: ...
    @property
    def kind(self) -> str: ...
    @property
    def slot(self) -> str: ...
    @property
    def tokens(self) -> int: ...
    @property
    def document_tokens(self) -> int | None: ...


D = TypeVar("D", bound=DecisionLike)


def select_decisions(decisions: Sequence[D], *, included: bool) -> tuple[D, ...]:
    return tuple(each for each in decisions if each.included == included)


def sum_document_tokens(included: Sequence[DecisionLike]) -> int:
    """Tokens of documents that were added to messages. Without them, the messages count as written."""
    return sum(
        each.tokens if each.kind == "document" and each.slot == "newest" else each.document_tokens or 0
        for each in included
    )
