"""The edits of a conversation, applied to the request of a client that keeps its own list."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import NamedTuple, cast

from quire.concurrency.worker_threads import run_sized
from quire.engine import Engine
from quire.errors import EntryNotFound
from quire.ledger import load_sent_body
from quire.log import Branch
from quire.model import (
    ActiveCompaction,
    BranchState,
    Compaction,
    ContextEpoch,
    Decision,
    DecisionReason,
    Entry,
    Policy,
    Span,
    Usage,
    WireFormatName,
)
from quire.model.entry_bodies import EditedSummary, ListAnchor
from quire.model.ids import now
from quire.model.json_values import is_object
from quire.proxy.client_compactions import normalize_summary
from quire.proxy.context_edits import (
    DropTarget,
    LogTexts,
    RequestedEdits,
    edit_list,
    is_settled,
    plan_epoch,
    splice_items,
)
from quire.proxy.known_messages import find_list
from quire.proxy.recognition import HistoryMatch
from quire.store import SqlStore
from quire.view.batches import repair_tool_calls
from quire.wire import WireMessage
from quire.wire.client_messages import EditedStart
from quire.wire.codec import ClientRequest
from quire.wire.compaction_blocks import drop_summary_requests
from quire.wire.item_edits import ItemEditor
from quire.wire.labels import label_text

MIN_CACHED_TOKENS = 1_024
"""Shorter prompts are not cached by providers that report no writes."""
COLD_CACHE_FACTOR = 1.1
"""Factor on the lifetime of a prompt cache after which it counts as cold."""

STUB_TOKENS = 40
"""Tokens of a stub, approximately."""
MAX_RESTORED_SHARE = 0.5
"""Share of the room below the client's limit that restored messages take. The rest is for its next messages."""
MANUAL_COMPACTION = b"<command-name>/compact"
"""What Claude Code adds to its list after a compaction that the user started."""
_TURN_ID = re.compile(rb'"turn_id":\s*"([^"]+)"')
"""Where Codex names the turn of a request. A compaction that the user started is a turn of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedRequest:
    """A client's request with the edits of its conversation."""

    client_request: ClientRequest
    match: HistoryMatch
    decisions: tuple[Decision, ...] = ()
    tokens: int = 0
    """Tokens that the edits add; negative if they remove more."""
    branch: Branch | None = None
    """The branch, if it was read and has no edits."""


async def apply_edits(
    client_request: ClientRequest, match: HistoryMatch, engine: Engine, *, stores_epoch: bool = True
) -> EditedRequest:
    """Applies the edits of the conversation to the client's list.

    An epoch that begins with this request is stored before the request is sent: a later request, on any server, is
    edited in the same way. A list that is only counted begins none.
    """
    unedited = EditedRequest(client_request=client_request, match=match)
    if match.creates_conversation or match.delta_only:
        return unedited
    branch = match.read_branch or await engine.store.get_branch(match.conversation, match.branch)
    state = branch.state
    active = state.active_compaction
    is_undone = match.compaction is not None and (active is None or active.seq != match.compaction)
    has_edits = state.epoch is not None or bool(state.drops) or bool(_list_lacking_pins(state, match)) or is_undone
    items: object = client_request.body.get(client_request.codec.item_field)
    if not has_edits or not isinstance(items, list) or not items:
        return replace(unedited, branch=branch)
    return await ListEditor(client_request, match, engine, cast("list[object]", items), stores_epoch).apply(state)


def _list_lacking_pins(state: BranchState, match: HistoryMatch) -> list[int]:
    """Pinned messages that the client's own summary has replaced: all, if it has no stored message behind it."""
    if not match.stored_start:
        return []
    first = match.entry_range[0] if match.entry_range is not None else match.head_seq
    return [pin for pin in state.pins if pin < first]


@dataclass(frozen=True, slots=True)
class ListEditor:
    client_request: ClientRequest
    match: HistoryMatch
    engine: Engine
    items: Sequence[object]
    stores_epoch: bool

    @property
    def _editor(self) -> ItemEditor:
        return self.client_request.codec.item_editor

    async def apply(self, state: BranchState) -> EditedRequest:
        epoch, match = state.epoch, self.match
        pins = _list_lacking_pins(state, match)
        summary = await self._request_summary(state)
        restored = summary.restored if summary is not None else None
        # What is restored needs no quotation.
        pins = [pin for pin in pins if restored is None or pin not in restored]
        if epoch is None or not is_settled(
            self.items, epoch, self._editor, dropped=state.dropped, quotes=pins, summary=summary
        ):
            began = await self._plan(state, pins, summary)
            if began is not None and self.stores_epoch:
                stored = await self.engine.store.append(match.conversation, began, branch=match.branch)
                match = replace(match, head_seq=stored[-1].seq, read_branch=None)
            epoch = began or epoch
        if epoch is None:
            return EditedRequest(client_request=self.client_request, match=match)
        start, summary = await self._find_edited_start(epoch), epoch.summary
        # What an earlier request restored is in the edited start.
        missing = summary if summary is not None and summary.item.index >= start.item_count else None
        quotes = await self._load_messages([each.message for each in epoch.quotes or ()])
        texts = LogTexts(
            quotes={seq: _quote(entry) for seq, entry in quotes.items()},
            restored=await self.render_restored(missing) if missing is not None else (),
            summary=await self._load_summary(missing) if missing is not None else None,
        )
        edited, client_request = await run_sized(self.client_request.work_bytes, self._edit, epoch, texts, start)
        tokens = {each.message: each.tokens for each in epoch.drops or ()}
        decisions = [_decide(seq, tokens[seq], included=False, reason="dropped") for seq in sorted(edited.dropped)]
        decisions += [
            _decide(seq, quotes[seq].tokens or 0, included=True, reason="pinned") for seq in sorted(edited.quoted)
        ]
        restored = summary.restored if summary is not None else None
        if summary is not None and restored is not None and client_request.is_edited:
            row = _decide(restored.first, summary.restored_tokens or 0, included=True, reason="restored")
            decisions.append(row.model_copy(update={"span": restored}))
        return EditedRequest(
            client_request=client_request,
            match=match,
            decisions=tuple(decisions),
            tokens=sum(each.tokens if each.included else STUB_TOKENS - each.tokens for each in decisions),
        )

    async def _plan(
        self, state: BranchState, pins: Sequence[int], summary: EditedSummary | None
    ) -> ContextEpoch | None:
        """The epoch that begins with this list, if one does."""
        messages = await self._load_messages([*state.dropped, *pins])
        requested = RequestedEdits(
            drops=[
                DropTarget(
                    seq,
                    [(part.call_id, len(part.text)) for part in entry.message.tool_results],
                    entry.tokens or 0,
                    entry.message.role,
                    entry.message.text,
                )
                for seq in sorted(state.dropped)
                if (entry := messages.get(seq)) is not None
            ],
            quotes=[pin for pin in pins if pin in messages],
            summary=summary,
        )
        newest = await self.engine.store.read_tail(
            self.match.conversation, 1, branch=self.match.branch, kinds=["message"]
        )
        # A restored list is written to the cache as a whole, whenever that is.
        restores = summary != (state.epoch.summary if state.epoch is not None else None)
        may_break = bool(state.edits_now) or restores or self._is_cold(state, newest[-1] if newest else None)
        size = self.client_request.work_bytes
        return await run_sized(size, plan_epoch, self.items, state.epoch, requested, self._editor, may_break=may_break)

    async def _request_summary(self, state: BranchState) -> EditedSummary | None:
        """What the list should have in place of the client's own summary, or None for the summary itself.

        The user has undone the client's compaction, or written another summary. What has begun stays: the room for
        restored messages is measured once.
        """
        client_seq, active = self.match.compaction, state.active_compaction
        if client_seq is None or (active is not None and active.seq == client_seq):
            return None
        current = state.epoch.summary if state.epoch is not None else None
        other = active.seq if active is not None else None
        if current is not None and current.compaction == other and self._editor.holds_anchor(self.items, current.item):
            return current
        compaction = await self._get_compaction(client_seq)
        item = self._find_summary_item(compaction)
        if item is None:
            return None
        if active is not None and active.seq > client_seq:
            is_edit = (await self._get_compaction(active.seq)).trigger == "edit"
            return EditedSummary(item=item, compaction=active.seq) if is_edit else None
        return await self._measure_restored(item, compaction, active)

    async def _get_compaction(self, seq: int) -> Compaction:
        body = (await self.engine.store.get_entry(self.match.conversation, seq, branch=self.match.branch)).body
        assert isinstance(body, Compaction)
        return body

    def _find_summary_item(self, compaction: Compaction) -> ListAnchor | None:
        summary, editor = normalize_summary(compaction.summary or ""), self._editor
        for index, item in enumerate(self.items):
            if is_object(item) and (
                summary in normalize_summary(editor.join_texts(item)) if summary else editor.is_sealed_summary(item)
            ):
                return self._editor.make_anchor(self.items, index)
        return None

    async def _measure_restored(
        self, item: ListAnchor, compaction: Compaction, active: ActiveCompaction | None
    ) -> EditedSummary | None:
        """The newest of the covered messages that fit below the client's own limit: it must not compact again."""
        if compaction.covers is None:
            return None
        first = active.covers.last + 1 if active is not None and active.covers is not None else compaction.covers.first
        # Everything before the first stored message that the client has behind its summary.
        last = self.match.entry_range[0] - 1 if self.match.entry_range is not None else compaction.covers.last
        covered = await self._read_range(Span(first=first, last=max(first, last)))
        assert self.match.compaction is not None
        room = await measure_restorable_tokens(
            self.engine.store,
            compaction,
            self.engine.policy,
            place=(self.match.conversation, self.match.branch, self.match.compaction),
            body=self.client_request.raw,
            list_tokens=sum(self.engine.message_counter.count(each.message) for each in self.client_request.messages),
        )
        chosen = choose_newest(covered, room)
        if not chosen:
            return None
        return EditedSummary(
            item=item,
            restored=Span(first=chosen[0].seq, last=chosen[-1].seq),
            restored_tokens=sum(entry.tokens or 0 for entry in chosen),
            is_partial=len(chosen) < len(covered) or active is not None or None,
            compaction=active.seq if active is not None else None,
        )

    async def _read_range(self, span: Span) -> list[Entry]:
        return await read_restorable(self.engine.store, self.match.conversation, span, branch=self.match.branch)

    async def render_restored(self, summary: EditedSummary) -> Sequence[WireMessage]:
        """The restored messages as the log renders them: a purged one is not among them."""
        if summary.restored is None or self.match.compaction is None:
            return ()
        entries = await self._read_range(summary.restored)
        await self.engine.runtime.blobs.load(self.engine.store, entries)
        counter = self.engine.message_counter

        def render() -> list[WireMessage]:
            messages = repair_tool_calls(counter.render_entries(entries), counter).messages
            return [wire_message for each in messages for wire_message in each.wire_messages]

        return await run_sized(sum(len(entry.raw) for entry in entries), render)

    async def _load_summary(self, summary: EditedSummary) -> str | None:
        if summary.compaction is None:
            return None
        text = (await self._get_compaction(summary.compaction)).summary
        return label_text("summary", text) if text else None

    async def _load_messages(self, seqs: Sequence[int]) -> dict[int, Entry]:
        if not seqs:
            return {}
        entries = await self.engine.store.get_entries(self.match.conversation, seqs, branch=self.match.branch)
        return {entry.seq: entry for entry in entries if entry.kind == "message"}

    async def _find_edited_start(self, epoch: ContextEpoch) -> EditedStart:
        """The start of the list that an earlier request had, with the same edits; else an empty one.

        It has text of the log, so none is used in a conversation of which something was purged.
        """
        key = sha256(epoch.canonical_json().encode()).hexdigest()
        edited = next((each for each in self.client_request.known_start.edited if each.epoch == key), None)
        if edited is None or await self.engine.store.has_purged_content(self.match.conversation):
            return EditedStart(epoch=key)
        return edited

    def _edit(self, epoch: ContextEpoch, texts: LogTexts, start: EditedStart) -> tuple[EditedStart, ClientRequest]:
        """Edits the list. The known start of it, which the next request repeats, is edited once."""
        request, known = self.client_request, self.client_request.known_start
        position = find_list(request.raw.decode("latin-1"), request.codec.item_field)
        if position is None:
            return EditedStart(), request
        if known.size and start.item_count < len(known.items):
            raw = request.raw[position : position + known.size] + b"]"
            start, _ = self._extend(start, raw, len(known.items), epoch, texts)
            known.edited[:] = [start]
        whole, end = self._extend(start, request.raw[position:], len(self.items), epoch, texts)
        raw = request.raw[:position] + whole.content + request.raw[position + end :]
        return whole, request if raw == request.raw else replace(request, raw=raw, raw_digest=None, is_edited=True)

    def _extend(
        self, start: EditedStart, raw: bytes, stop: int, epoch: ContextEpoch, texts: LogTexts
    ) -> tuple[EditedStart, int]:
        """Edits the items after an edited start, up to `stop`; `raw` begins with the list's first item."""
        places = range(start.item_count, stop)
        edited = edit_list(self.items, epoch, texts, self._editor, places=places)
        content, end = splice_items(raw, start.size, edited, start=start.item_count)
        extended = EditedStart(
            epoch=start.epoch,
            item_count=stop,
            size=end,
            content=b",".join(filter(None, (start.content, content))),
            dropped=start.dropped | edited.dropped,
            quoted=start.quoted | edited.quoted,
        )
        return extended, end

    def _is_cold(self, state: BranchState, newest: Entry | None) -> bool:
        """Whether the provider's prompt cache has nothing of this list, or nothing any more."""
        epoch, codec = state.epoch, self.client_request.codec
        if newest is None or (epoch is not None and not codec.item_editor.holds_anchor(self.items, epoch.newest)):
            # The client has rewound or compacted its list.
            return True
        usage = newest.metadata.usage
        if usage is not None and not has_prompt_cache(usage, codec.name):
            return True
        lifetime = codec.get_cache_seconds(self.client_request.raw)
        return now() - newest.created_at > lifetime * COLD_CACHE_FACTOR * 1_000_000


def has_prompt_cache(usage: Usage, wire_format: WireFormatName) -> bool:
    """Whether the provider put the request with this usage into its prompt cache."""
    if usage.cache_read_tokens + usage.cache_write_tokens > 0:
        return True
    return wire_format != "messages" and usage.input_tokens >= MIN_CACHED_TOKENS


async def read_restorable(store: SqlStore, conversation: str, span: Span, *, branch: int) -> list[Entry]:
    """The messages of a range that a restore brings back."""
    # A compaction follows its summary.
    entries = await store.read_range(
        conversation, branch=branch, first=span.first, last=span.last + 1, kinds=["message", "compaction"]
    )
    return [entry for entry in drop_summary_requests(entries) if entry.seq <= span.last]


async def measure_restorable_tokens(
    store: SqlStore,
    compaction: Compaction,
    policy: Policy,
    *,
    place: tuple[str, int, int],
    body: bytes,
    list_tokens: int,
) -> int:
    """Tokens of covered messages that may come back in addition to a list of this number of tokens.

    The client compacts by the tokens that its provider reports: the newest list before the compaction had too
    many, unless the user had it compact. Quire's counts of both lists are corrected by what the provider reported.
    `place` is the conversation, branch and number of the compaction, `body` the request that has its summary.
    """
    conversation, branch, seq = place
    before = await _read_sent_tokens(store, conversation, branch, last=seq)
    after = await _read_sent_tokens(store, conversation, branch, first=seq + 1)
    limit, share = policy.trigger_tokens, MAX_RESTORED_SHARE
    if before is None:
        limit = min(limit, compaction.tokens_before or limit)
    else:
        is_manual = MANUAL_COMPACTION in body or await _is_own_turn(store, place, body)
        limit = limit if is_manual else min(limit, before.reported_tokens)
        # Covered messages are chosen by Quire's counts. If these are far too high, they may be right for some messages.
        share = min(1.0, share * before.tokens / before.reported_tokens)
        list_tokens += before.other_tokens
    list_tokens += after.reported_tokens - after.tokens if after is not None else 0
    return int(max(0, limit - list_tokens) * share)


async def _is_own_turn(store: SqlStore, place: tuple[str, int, int], body: bytes) -> bool:
    """Whether the request for a summary was of another turn than the first one after it, which may be `body`. An agent
    that compacts on its own does it within the turn that continues."""
    conversation, branch, seq = place
    requests = await store.read_tail(conversation, 1, branch=branch, last=seq, kinds=["message"], roles=["assistant"])
    later = await store.read_range(conversation, branch=branch, first=seq + 1, kinds=["message"])
    continued = [entry for entry in later if entry.role == "assistant"][:1]
    bodies = [await _load_body(store, entry, branch) for entry in (*requests, *continued)]
    turns = [found[1] for each in (*bodies, body)[:2] if (found := _TURN_ID.search(each)) is not None]
    return len(turns) == 2 and turns[0] != turns[1]


async def _load_body(store: SqlStore, reply: Entry, branch: int) -> bytes:
    """The request that a reply answered, as it was sent. Empty if it is not stored."""
    try:
        manifest = await store.get_manifest(reply.conversation, reply.seq, branch=branch)
    except EntryNotFound:
        return b""
    return await load_sent_body(store, manifest, reply.seq) or b""


class SentTokens(NamedTuple):
    """Tokens of a request that was sent."""

    tokens: int
    """As Quire counts them."""
    reported_tokens: int
    """As the provider reported them, or else as Quire counts them."""
    other_tokens: int
    """Of instructions and tools, as Quire counts them."""


async def _read_sent_tokens(
    store: SqlStore, conversation: str, branch: int, *, first: int = 1, last: int | None = None
) -> SentTokens | None:
    """Tokens of the request that led to the newest reply from `first` to `last`."""
    replies = await store.read_tail(conversation, 1, branch=branch, last=last, kinds=["message"], roles=["assistant"])
    if not replies or replies[0].seq < first:
        return None
    try:
        manifest = await store.get_manifest(conversation, replies[0].seq, branch=branch)
    except EntryNotFound:
        return None
    tokens = sum(row.tokens for row in manifest.included)
    tokens -= sum(row.tokens - STUB_TOKENS for row in manifest.excluded if row.reason == "dropped")
    usage = replies[0].metadata.usage
    return SentTokens(
        tokens=tokens,
        reported_tokens=(usage.input_tokens if usage is not None else 0) or max(1, tokens),
        other_tokens=sum(row.tokens for row in manifest.included if row.kind != "message"),
    )


def choose_newest(entries: Sequence[Entry], max_tokens: int) -> Sequence[Entry]:
    """The newest entries within a number of tokens, from a message of the user or a reply on."""
    tokens, fitting = 0, len(entries)
    while fitting and tokens + (entries[fitting - 1].tokens or 0) <= max_tokens:
        fitting -= 1
        tokens += entries[fitting].tokens or 0
    while fitting < len(entries) and entries[fitting].role not in ("user", "assistant"):
        fitting += 1
    return entries[fitting:]


def _quote(entry: Entry) -> str:
    """A message of the log as labelled data."""
    message = entry.message
    calls = (f"{call.name} {call.arguments}" for call in message.tool_calls)
    texts = [message.text, *calls, *(part.text for part in message.tool_results)]
    return label_text("pinned", "\n".join(filter(None, texts)), message=f"#{entry.seq}", role=message.role)


def _decide(seq: int, tokens: int, *, included: bool, reason: DecisionReason) -> Decision:
    span = Span(first=seq, last=seq)
    return Decision(slot="messages", kind="message", included=included, reason=reason, tokens=tokens, span=span)
