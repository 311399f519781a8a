"""Replay: gives a request back as it was sent, and rebuilds it from its manifest, the log and the blobs.

What the gateway sent is stored to the byte, and compared with the digest that was recorded when it was sent. A rebuilt
request is Quire's own rendering: its digest proves that the log still has what the manifest names. Of a tenant whose
secrets are masked before storage, a request with a secret is given back with the mask, and the replay says so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from quire.concurrency.worker_threads import run_sized
from quire.errors import BlobNotFound, IntegrityViolation, QuireError
from quire.model import Decision, Entry, Manifest, Slot, Span, ToolDefinition
from quire.model.entry_bodies import Compaction
from quire.model.manifest import PROVIDER_REASONS, ForwardedRequest
from quire.store import SqlStore
from quire.view.batches import MessageBatch, group_batches, narrow_batch, repair_tool_calls
from quire.view.counted_input import build_block_text, build_summary_text, join_system_texts
from quire.view.layout import RENDERER_VERSION, RenderedRequest, RequestContents, lay_out
from quire.view.recalled_messages import RecallCandidate, render_recalled
from quire.view.rendered import MessageCounter
from quire.view.selection import excerpt_batches
from quire.wire import BlobLoader, wire_format_for

_MessageRow = tuple[Decision, Span]
"""The decision on a range of messages, and that range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A rebuilt request."""

    manifest: Manifest
    rendered: RenderedRequest | None
    """None if a text of the request was purged, or its manifest was thinned."""
    missing: tuple[str, ...]
    """What was purged since the request was made, by number or name."""
    sent_body: bytes | None = None
    """The body as it was sent upstream, to the byte, or with masked secrets, or None if it is not stored."""

    @property
    def is_as_sent(self) -> bool:
        """Whether `sent_body` has the bytes that were sent."""
        forwarded = self.manifest.forwarded
        return self.sent_body is not None and forwarded is not None and forwarded.masked_digest is None

    @property
    def matches(self) -> bool:
        """Whether the rebuilt request has the digest that was recorded."""
        return self.mismatch is None

    @property
    def unknown(self) -> str | None:
        """What would have to be known to give back the bytes that were sent, or None if they are given back."""
        forwarded = self.manifest.forwarded
        if self.is_as_sent:
            return None
        if self.sent_body is not None:
            return "the secrets in the bytes that were sent: they were masked before the request was stored"
        if forwarded is None or forwarded.form == "adapted":
            return "the bytes that were sent: the client of the model wrote them, not Quire"
        return (
            "the bytes that were sent: an earlier version recorded the request without them, "
            "or they were deleted with purged content"
        )

    @property
    def changed_by_provider(self) -> str | None:
        """What the model read differs from what was sent, and what would have to be known to rebuild it."""
        rows = [row for row in self.manifest.decisions if row.reason in PROVIDER_REASONS]
        edits = self.manifest.forwarded.provider_edits if self.manifest.forwarded is not None else ()
        if not rows and not edits:
            return None
        tokens = sum(edit.cleared_input_tokens or 0 for edit in edits)
        names = ", ".join(edit.type for edit in edits) or "its compaction"
        cleared = f"{tokens:,} tokens ({names})" if tokens else f"messages ({names})"
        return (
            f"the provider left out {cleared} before the model read the request; "
            "the text that it put in their place would have to be known"
        )

    @property
    def mismatch(self) -> str | None:
        """Why the rebuilt request does not match, or None if it does."""
        if self.rendered is not None and self.rendered.digest == self.manifest.digest:
            return None
        if self.manifest.thinned:
            return _THINNED
        if self.manifest.renderer != RENDERER_VERSION:
            # Another layout may have given other bytes, so the digest says nothing about the content of the log.
            return f"recorded by version {self.manifest.renderer} of the renderer; this is version {RENDERER_VERSION}"
        if self.missing:
            return "content was purged"
        return _MASKED if self.manifest.masked else "the log differs from what was sent"


_THINNED = "the manifest is old, and what a replay needs was removed from it (`thin_manifests_after_days`)"
_MASKED = "secrets in the request were masked before it was stored"


class _NullCounter:
    """A token counter that counts nothing: a replay takes its counts from the manifest."""

    name, exact = "none", False

    def count(self, text: str) -> int:
        return 0


async def load_sent_body(store: SqlStore, manifest: Manifest, reply_seq: int) -> bytes | None:
    """The body of a recorded request as it was sent upstream, or with masked secrets, or None if it is not stored.

    Raises `IntegrityViolation` if the stored bytes are not the ones that were recorded.
    """
    if manifest.forwarded is None:
        return None
    body = await store.get_request_body(manifest.conversation, reply_seq, branch=manifest.branch)
    if body is not None:
        check_sent_body(body, manifest.forwarded, reply_seq)
    return body


def check_sent_body(body: bytes, forwarded: ForwardedRequest, reply_seq: int) -> None:
    """Raises `IntegrityViolation` if the stored bytes are not the ones that were recorded."""
    if sha256(body).hexdigest() != forwarded.stored_body_digest:
        raise IntegrityViolation(
            f"The stored body of the request that #{reply_seq} answered is not the one that was recorded; "
            "run `quire conversation verify`."
        )


async def replay(store: SqlStore, manifest: Manifest, *, load_blob: BlobLoader | None = None) -> Replay:
    """Rebuilds the request that the manifest describes, unless it was thinned."""
    if manifest.thinned:
        return Replay(manifest=manifest, rendered=None, missing=("texts of items",))
    counter = MessageCounter(_NullCounter(), wire_format_for(manifest.policy.wire_format), load_blob=load_blob)
    texts: dict[str, str] = {}
    entries: dict[int, Entry] = {}
    missing: list[str] = []
    for row in manifest.included:
        if row.blob is not None and row.blob not in texts:
            try:
                texts[row.blob] = (await store.get_blob(row.blob)).data.decode()
            except BlobNotFound:
                missing.append(f"blob of {row.kind} {row.name!r}")
        spans = [row.span] if row.span is not None else []
        if row.summarized_by is not None and row.summarized_by not in entries:
            spans.append(Span(first=row.summarized_by, last=row.summarized_by))
        for span in spans:
            read = await store.read_range(
                manifest.conversation, branch=manifest.branch, first=span.first, last=span.last
            )
            entries.update((entry.seq, entry) for entry in read)
    missing += [f"#{entry.seq}" for entry in entries.values() if entry.purged_at is not None]
    if any(name.startswith("blob") for name in missing):
        return Replay(manifest=manifest, rendered=None, missing=tuple(missing))

    def render() -> RenderedRequest:
        contents = _RecordedContents(manifest.included, texts, entries, counter).rebuild()
        return lay_out(contents, counter, model=manifest.policy.model, tokens=manifest.total_tokens)

    size = sum(len(entry.raw) for entry in entries.values()) + sum(map(len, texts.values()))
    rendered = await run_sized(size, render)
    return Replay(manifest=manifest, rendered=rendered, missing=tuple(missing))


@dataclass(frozen=True, slots=True)
class _RecordedContents:
    """The contents of a request, read from the included rows of its manifest by slot and kind."""

    rows: Sequence[Decision]
    texts: dict[str, str]
    entries: dict[int, Entry]
    message_counter: MessageCounter

    def rebuild(self) -> RequestContents:
        summary = self._find_summary()
        stored, newest = self._list_messages("messages"), self._list_messages("newest")
        recalled = [
            RecallCandidate(self.entries[span.first], row.score or 0.0, row.excerpt_spans)
            for row, span in self._list_messages("recall")
            if span.first in self.entries
        ]
        # Of the messages that the summary covers, a request includes those that are pinned or have priority.
        pinned = self._render_excerpted([row for row in stored if _is_covered(row, summary)])
        newest_batches = self._render_excerpted(newest)
        max_results = next((row.max_results for row, _ in newest if row.max_results is not None), None)
        if max_results is not None:
            narrowed = narrow_batch(newest_batches[-1], max_results, self.message_counter)
            newest_batches = (*newest_batches[:-1], narrowed)
        return RequestContents(
            system=join_system_texts([self.texts[blob] for _, blob in self._list_blobs("system")]),
            tools=tuple(ToolDefinition.parse(self.texts[blob]) for _, blob in self._list_blobs("tools")),
            batches={
                "memory": self._render_blocks("memory"),
                "references": self._render_blocks("references"),
                "pinned": pinned,
                "summary": self._render_summary(summary),
                "history": self._render_batches([row for row in stored if not _is_covered(row, summary)]),
                "recall": [
                    *self._render_blocks("recall"),
                    *([self._render_data(render_recalled(recalled))] if recalled else ()),
                ],
                "newest": newest_batches,
            },
        )

    def _list_blobs(self, slot: Slot) -> list[tuple[Decision, str]]:
        return [(row, row.blob) for row in self.rows if row.slot == slot and row.blob is not None]

    def _list_messages(self, slot: Slot) -> list[_MessageRow]:
        return [
            (row, row.span) for row in self.rows if row.slot == slot and row.kind == "message" and row.span is not None
        ]

    def _find_summary(self) -> Compaction | None:
        row = next((row for row in self.rows if row.kind == "summary"), None)
        if row is None:
            return None
        body = self.entries[row.span.first].body if row.span is not None else None
        if not isinstance(body, Compaction) or body.covers is None:
            raise QuireError(
                "The manifest refers to a summary that is not in the log; run `quire conversation verify`."
            )
        return body

    def _render_blocks(self, slot: Slot) -> list[MessageBatch]:
        return [
            self._render_data(build_block_text(row.kind, self.texts[blob], name=row.name))
            for row, blob in self._list_blobs(slot)
        ]

    def _render_summary(self, summary: Compaction | None) -> list[MessageBatch]:
        if summary is None or summary.covers is None:
            return []
        row = next(row for row in self.rows if row.kind == "summary")
        return [self._render_data(build_summary_text(summary, summary.covers, level=row.summary_level))]

    def _render_data(self, text: str) -> MessageBatch:
        return MessageBatch.from_messages(self.message_counter.render_data(text))

    def _render_excerpted(self, rows: Sequence[_MessageRow]) -> tuple[MessageBatch, ...]:
        """Renders pinned messages or the newest turn, which are excerpted together if they exceed the budget."""
        limit = next((row.turn_excerpt_chars for row, _ in rows if row.turn_excerpt_chars is not None), None)
        batches = self._render_batches(rows)
        return batches if limit is None else excerpt_batches(batches, limit, self.message_counter)

    def _render_batches(self, rows: Iterable[_MessageRow]) -> tuple[MessageBatch, ...]:
        entries: list[Entry] = []
        reductions: dict[int, int] = {}
        pending: set[int] = set()
        pinned_results: dict[int | None, int] = {}
        for row, span in rows:
            seqs = range(span.first, span.last + 1)
            entries += [
                self.entries[seq] for seq in seqs if seq in self.entries and self.entries[seq].kind == "message"
            ]
            if row.excerpt_chars is not None:
                reductions.update(dict.fromkeys(seqs, row.excerpt_chars))
            if row.pending:
                pending.update(seqs)
            if row.max_results is not None and row.slot != "newest":
                pinned_results.update(dict.fromkeys(seqs, row.max_results))
        # Summaries of shortened messages, from the compactions that hold them.
        numbers = {row.summarized_by for row in self.rows if row.summarized_by is not None}
        bodies = [self.entries[number].body for number in numbers if number in self.entries]
        truncations = [each for body in bodies if isinstance(body, Compaction) for each in body.truncations or ()]
        summaries = {each.message: each.summary for each in truncations if each.summary is not None}
        rendered = self.message_counter.render_reduced(entries, reductions, summaries)
        # A pending message was not in the log yet, so it was sent without a number.
        messages = [each._replace(seq=None) if each.seq in pending else each for each in rendered]
        batches = group_batches(repair_tool_calls(messages, self.message_counter).messages)
        return tuple(
            narrow_batch(batch, pinned_results[seq], self.message_counter)
            if (seq := batch.messages[0].seq) in pinned_results
            else batch
            for batch in batches
        )


def _is_covered(message_row: _MessageRow, summary: Compaction | None) -> bool:
    row, span = message_row
    is_covered = summary is not None and summary.covers is not None and span.first in summary.covers
    return is_covered and row.reason != "question"
