"""Replay: a request built again from its manifest, the log and the blobs, and held against its recorded digest."""

from collections.abc import Sequence
from dataclasses import dataclass

from quire.errors import BlobNotFound, QuireError
from quire.log import Store
from quire.model import Decision, Entry, Manifest, ToolDefinition
from quire.model.entries import Compaction
from quire.view.batches import bind, distinct, leaves_of
from quire.view.gather import summary_text
from quire.view.labels import labelled
from quire.view.leaves import Leaf, Meter
from quire.view.pages import Pages
from quire.view.recalled import Candidate, recalled_text
from quire.view.select import excerpted
from quire.view.shapes import Load, shape_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    manifest: Manifest
    pages: Pages | None
    """None if a text that the request quoted is gone."""
    missing: tuple[str, ...]
    """What was purged since, by number or name."""

    @property
    def matches(self) -> bool:
        """Whether the request came out again to the byte."""
        return self.pages is not None and self.pages.digest == self.manifest.digest


class _NoCounter:
    """Rendering asks for no counts, and a replay adds none."""

    name, exact = "none", False

    def count(self, text: str) -> int:
        return 0


async def replay(store: Store, manifest: Manifest, *, load: Load | None = None) -> Replay:
    meter = Meter(_NoCounter(), shape_for(manifest.policy.provider), load=load)
    texts, missing = await _texts(store, manifest)
    entries = await _entries(store, manifest)
    missing += [f"#{entry.seq}" for entry in entries.values() if entry.purged_at is not None]
    if any(name.startswith("blob") for name in missing):
        return Replay(manifest=manifest, pages=None, missing=tuple(missing))
    return Replay(manifest=manifest, pages=_rebuilt(manifest, texts, entries, meter), missing=tuple(missing))


def _rebuilt(manifest: Manifest, texts: dict[str, str], entries: dict[int, Entry], meter: Meter) -> Pages:
    rows = manifest.included
    place = next((index for index, row in enumerate(rows) if row.what == "summary"), 0)
    pinned = _leaves([row for row in rows[:place] if row.what == "message"], entries, meter)
    later = [row for row in rows[place:] if row.what == "message" and row.slot != "recall"]
    history = bind(_leaves([row for row in later if row.slot != "newest"], entries, meter), meter).batches
    asked = [row for row in later if row.slot == "newest"]
    newest = bind(_leaves(asked, entries, meter), meter).batches
    limit = next((row.excerpt for row in asked if row.excerpt is not None), None)
    if limit is not None:
        newest = excerpted(newest, limit, meter)
    kept = bind(pinned, meter).batches
    told = distinct([*kept, *history, *newest], meter)
    summary = [_summary(row, entries, meter) for row in rows if row.what == "summary"]
    stable = [
        *_blocks(rows, "memory", texts, meter),
        *_blocks(rows, "references", texts, meter),
        *leaves_of(told[: len(kept)]),
        *summary,
        *leaves_of(told[len(kept) : len(kept) + len(history)]),
    ]
    recalled = [*_blocks(rows, "recall", texts, meter), *_recalled(rows, entries, meter)]
    system = [texts[row.blob] for row in rows if row.slot == "system" and row.blob is not None]
    tools = [ToolDefinition.parse(texts[row.blob]) for row in rows if row.what == "tool" and row.blob is not None]
    return Pages(
        model=manifest.policy.model,
        shape=meter.shape,
        system="\n\n".join(system) or None,
        tools=tuple(tools),
        leaves=(*stable, *recalled, *leaves_of(told[len(kept) + len(history) :])),
        stable=len(stable),
        tokens=manifest.total,
    )


async def _texts(store: Store, manifest: Manifest) -> tuple[dict[str, str], list[str]]:
    texts: dict[str, str] = {}
    missing: list[str] = []
    for row in manifest.included:
        if row.blob is not None and row.blob not in texts:
            try:
                texts[row.blob] = (await store.blob(row.blob)).data.decode()
            except BlobNotFound:
                missing.append(f"blob of {row.what} {row.name!r}")
    return texts, missing


async def _entries(store: Store, manifest: Manifest) -> dict[int, Entry]:
    entries: dict[int, Entry] = {}
    for row in manifest.included:
        if row.span is not None:
            found = await store.range(
                manifest.conversation, branch=manifest.branch, first=row.span.first, last=row.span.last
            )
            entries.update((entry.seq, entry) for entry in found)
    return entries


def _leaves(rows: Sequence[Decision], entries: dict[int, Entry], meter: Meter) -> list[Leaf]:
    leaves: list[Leaf] = []
    for row in rows:
        if row.span is not None:
            spoken = (entries[seq] for seq in range(row.span.first, row.span.last + 1) if seq in entries)
            limit = row.excerpt if row.slot != "newest" else None
            own = [meter.entry(entry, limit=limit) for entry in spoken if entry.kind == "message"]
            # What was not in the log when it was asked went out without a number.
            leaves += [leaf._replace(seq=None) for leaf in own] if row.asked else own
    return leaves


def _recalled(rows: Sequence[Decision], entries: dict[int, Entry], meter: Meter) -> list[Leaf]:
    shown = [
        Candidate(entries[row.span.first], row.score or 0.0, row.pieces)
        for row in rows
        if row.slot == "recall" and row.span is not None and row.span.first in entries
    ]
    return [meter.data(recalled_text(shown))] if shown else []


def _summary(row: Decision, entries: dict[int, Entry], meter: Meter) -> Leaf:
    body = entries[row.span.first].body if row.span is not None else None
    if not isinstance(body, Compaction) or body.covers is None:
        raise QuireError("The manifest names a summary that is not in the log.")
    return meter.data(summary_text(body, body.covers))


def _blocks(rows: Sequence[Decision], slot: str, texts: dict[str, str], meter: Meter) -> list[Leaf]:
    return [
        meter.data(labelled(row.what, texts[row.blob], name=row.name))
        for row in rows
        if row.slot == slot and row.blob is not None
    ]
