"""Manifests: what follows from their decisions, and the values of one that is decoded without `quire.model`."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, TypeVar, cast

UNKNOWN_WINDOW = 10_000_000
"""Placeholder for a context window that is not known: larger than any, so that nothing is compacted automatically."""


class StoredObject:
    """A stored JSON object with its fields as attributes. A missing one is None: canonical JSON has no null."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def __getattr__(self, name: str) -> Any:
        return _wrap(self._fields.get(name))


def _wrap(value: Any) -> Any:
    match value:
        case dict():
            return StoredObject(cast("dict[str, Any]", value))
        case list():
            return tuple(map(_wrap, cast("list[Any]", value)))
        case _:
            return value


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


class StoredManifest(StoredObject):
    """A manifest as it is stored, with what `quire.model.Manifest` derives from it."""

    @cached_property
    def decisions(self) -> tuple[Any, ...]:
        return _wrap(self._fields["decisions"])

    @cached_property
    def included(self) -> tuple[Any, ...]:
        return select_decisions(self.decisions, included=True)

    @cached_property
    def excluded(self) -> tuple[Any, ...]:
        return select_decisions(self.decisions, included=False)

    @property
    def document_tokens(self) -> int:
        return sum_document_tokens(self.included)
