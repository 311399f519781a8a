"""The JSON of manifests that differ in a few values, without building the objects.

Most turns of a gateway pass a known list through: policy, instructions and tools are the same as in the turn before,
and only numbers and digests differ. A template is made from the JSON of one such manifest, so that `Manifest` alone
decides the form of the JSON.
"""

from operator import itemgetter
from typing import Any, NamedTuple

from pydantic_core import to_json

from quire.model import Manifest, Span

_MARKER_BASE = 8_160_350_000_000_000
"""Numbers from here on mark the places of values. No manifest counts that many tokens."""
_RATIO_MARKER = 81_603_517.25


class MessageRow(NamedTuple):
    """The values of a decision about messages: its tokens, and the first and last message if it has numbers."""

    tokens: int
    first: int | None
    last: int | None


class ManifestValues(NamedTuple):
    """What differs between manifests of one form. A value that one of them lacks, all of them lack."""

    conversation: str
    branch: int
    head: int
    ratio: float
    slots: tuple[tuple[int, int], ...]
    """Budget and used tokens of each slot."""
    total_tokens: int
    full_history_tokens: int
    max_input_tokens: int
    trigger_tokens: int
    rows: tuple[MessageRow, ...]
    """The decisions about messages, which are the last ones."""
    stable_messages: int
    digest: str
    body_digest: str
    client_list_tokens: int | None
    unrecorded_messages: int | None
    compaction: int | None
    request_blob: str | None

    def list_texts(self) -> list[object]:
        """The values as they are in JSON, strings without quotes."""
        values: list[object] = [
            to_json(self.conversation)[1:-1].decode(),
            self.branch,
            self.head,
            self.ratio,
            self.total_tokens,
            self.full_history_tokens,
            self.max_input_tokens,
            self.trigger_tokens,
            self.stable_messages,
            self.digest,
            self.body_digest,
            self.client_list_tokens,
            self.unrecorded_messages,
            self.compaction,
            self.request_blob,
        ]
        for pair in self.slots:
            values += pair
        for row in self.rows:
            values += row
        return values


class ManifestTemplate:
    """Encodes manifests of the form of `manifest`, whose last `row_count` decisions are about messages."""

    def __init__(self, manifest: Manifest, row_count: int) -> None:
        marked = mark_values(manifest, row_count)
        text = marked.canonical_json().replace("%", "%%")
        found: list[tuple[int, int, str]] = []
        for index, value in enumerate(read_values(marked, row_count).list_texts()):
            if value is None:
                continue
            if text.count(str(value)) != 1:
                raise ValueError(f"{value} is not one value of the manifest")
            found.append((text.index(str(value)), index, str(value)))
        found.sort()
        for _, _, value in found:
            text = text.replace(value, "%s")
        self._text, self._pick = text, itemgetter(*[index for _, index, _ in found])

    def encode(self, values: ManifestValues) -> str:
        """The canonical JSON of the manifest with these values."""
        return self._text % self._pick(values.list_texts())


def read_values(manifest: Manifest, row_count: int) -> ManifestValues:
    """The values of a manifest that a template replaces."""
    forwarded = manifest.forwarded
    if forwarded is None:
        raise ValueError("only a forwarded request has a template")
    rows = manifest.decisions[len(manifest.decisions) - row_count :]
    return ManifestValues(
        conversation=manifest.conversation,
        branch=manifest.branch,
        head=manifest.head,
        ratio=manifest.ratio,
        slots=tuple([(each.budget, each.used) for each in manifest.slots]),
        total_tokens=manifest.total_tokens,
        full_history_tokens=manifest.full_history_tokens,
        max_input_tokens=manifest.max_input_tokens,
        trigger_tokens=manifest.trigger_tokens,
        rows=tuple(
            [MessageRow(row.tokens, *((row.span.first, row.span.last) if row.span else (None, None))) for row in rows]
        ),
        stable_messages=manifest.stable_messages,
        digest=manifest.digest,
        body_digest=forwarded.digest,
        client_list_tokens=forwarded.client_list_tokens,
        unrecorded_messages=forwarded.unrecorded_messages,
        compaction=forwarded.compaction,
        request_blob=forwarded.request_blob,
    )


def mark_values(manifest: Manifest, row_count: int) -> Manifest:
    """The manifest with another marker in the place of each value."""
    number = _MARKER_BASE

    def mark(model: Any, *names: str) -> Any:
        nonlocal number
        update: dict[str, object] = {}
        for name in names:
            value = getattr(model, name)
            if value is not None:
                number += 1
                update[name] = f"marker {number}" if isinstance(value, str) else number
        return model.model_copy(update=update)

    decisions = [*manifest.decisions]
    for index in range(len(decisions) - row_count, len(decisions)):
        row = mark(decisions[index], "tokens")
        if row.span is not None:
            first, last = number + 1, number + 2
            number += 2
            row = row.model_copy(update={"span": Span(first=first, last=last)})
        decisions[index] = row
    numbers = ("branch", "head", "total_tokens", "full_history_tokens", "max_input_tokens", "trigger_tokens")
    marked = mark(manifest, "conversation", *numbers, "stable_messages", "digest")
    names = ("digest", "client_list_tokens", "unrecorded_messages", "compaction", "request_blob")
    return marked.model_copy(
        update={
            "ratio": _RATIO_MARKER,
            "slots": tuple([mark(slot, "budget", "used") for slot in manifest.slots]),
            "decisions": tuple(decisions),
            "forwarded": mark(manifest.forwarded, *names),
        }
    )
