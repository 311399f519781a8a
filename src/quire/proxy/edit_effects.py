"""What edits of an agent's list will do to its next request, and when: known before they take effect.

The base is what the provider reported for the newest request, so that its own count of tokens carries over. Afterwards
the usage of the next reply says what it was.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from quire.concurrency.worker_threads import measure_entries, run_sized
from quire.engine import Conversation
from quire.ledger import load_sent_body
from quire.model import BranchState, Compaction, Decision, Entry, Manifest, Span, Usage
from quire.model.base import JsonObject
from quire.model.ids import now
from quire.model.json_values import get_object
from quire.model.manifest import EDIT_REASONS, FITTED_FORMS
from quire.model.messages import ThinkingPart
from quire.proxy.edited_requests import (
    COLD_CACHE_FACTOR,
    MANUAL_COMPACTION,
    STUB_TOKENS,
    choose_newest,
    has_prompt_cache,
    measure_restorable_tokens,
    read_restorable,
)
from quire.rows.branches import may_have_waiting_edits
from quire.view.call_prices import Cost
from quire.view.rendered import MessageCounter
from quire.wire import wire_format_for
from quire.wire.codecs import CODECS

MAX_READ_EPOCHS = 20

EditMoment = Literal["next_request", "next_turn", "cold_cache"]


class WaitingEdits(NamedTuple):
    """What was requested and is not in the list that the model is sent yet."""

    drops: tuple[int, ...] = ()
    restores: tuple[int, ...] = ()
    """Dropped messages that come back."""
    quotes: tuple[int, ...] = ()
    """Pinned messages that the client's own summary replaced."""
    summary: int | None = None
    """The client's compaction that was undone, or whose summary was edited."""

    @property
    def change_the_list(self) -> bool:
        """Whether they change what has been sent, and not only add to it."""
        return bool(self.drops or self.restores) or self.summary is not None


@dataclass(frozen=True, slots=True)
class RestoredCounts:
    """Of the messages and tool results that an agent's summary replaced, how many come back."""

    messages: int
    all_messages: int
    results: int
    all_results: int

    @classmethod
    def from_entries(cls, restored: Sequence[Entry], covered: Sequence[Entry]) -> "RestoredCounts":
        results, all_results = (sum(len(each.message.tool_results) for each in part) for part in (restored, covered))
        return cls(len(restored), len(covered), results, all_results)


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedTokens:
    """Tokens of what the edits take out of the list and add to it, by Quire's own count."""

    removed: int = 0
    added: int = 0
    recalled: int = 0
    """Tokens of messages that the newest request did not have in any form."""
    unchanged: int = 0
    """Tokens of the messages before the first change."""
    restored: RestoredCounts | None = None
    thinking_blocks: int = 0
    """Signed reasoning that is removed, since it was signed for another list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditEffect:
    """What the waiting edits do to the next request. Tokens are estimates of the provider's count."""

    waiting: WaitingEdits
    moment: EditMoment
    cold_in_seconds: int
    """Seconds until the prompt cache has expired, or 0 if it has."""
    removed_tokens: int
    added_tokens: int
    prompt_tokens: int
    """Tokens of the next request with the edits, before the user's message."""
    rewritten_tokens: int
    """Tokens that the provider writes to its cache again if the edits take effect while it is warm."""
    cost: Cost
    """Cost of the next request's input, if the edits take effect with it."""
    unedited_cost: Cost
    """The same without the edits."""
    restored: RestoredCounts | None
    """What comes back of what the client's summary replaced. None if no compaction was undone."""
    thinking_blocks: int
    """Blocks of signed reasoning that the edits remove."""


def find_waiting(state: BranchState, manifest: Manifest) -> WaitingEdits:
    """Compares what the log says with the epoch. `manifest` is of the newest request."""
    epoch = state.epoch
    effective = {each.message for each in epoch.drops or ()} if epoch is not None else set[int]()
    client = manifest.forwarded.compaction if manifest.forwarded is not None else None
    active, other = state.active_compaction, epoch.summary if epoch is not None else None
    summary, quotes = None, list[int]()
    if client is not None:
        is_own = active is not None and active.seq == client
        requested = active.seq if active is not None and not is_own else None
        is_effective = other is None if is_own else other is not None and other.compaction == requested
        summary = None if is_effective else client
        quoted = {each.message for each in epoch.quotes or ()} if epoch is not None else set[int]()
        quotes = [pin for pin in state.pins if pin < _find_list_start(manifest) and pin not in quoted]
    return WaitingEdits(
        drops=tuple(sorted(state.dropped - effective)),
        restores=tuple(sorted(effective - state.dropped)),
        quotes=tuple(quotes),
        summary=summary,
    )


def estimate_effect(
    waiting: WaitingEdits,
    tokens: EditedTokens,
    *,
    manifest: Manifest,
    usage: Usage,
    reply_tokens: int,
    cold_in_seconds: int,
    is_now: bool,
    compute_cost: Callable[[Usage], Cost],
) -> EditEffect:
    """Estimates the next request from the newest one and what the provider reported for it.

    A provider finds a changed list in its cache up to the change; Anthropic only up to the last marker before it, which
    agents put behind the tools and the instructions. Reading costs a tenth of writing, so that the change has a price
    while the cache is warm. Where it is cold, everything is written in any case.
    """
    wire, counted = manifest.policy.wire_format, manifest.full_history_tokens
    ratio = usage.input_tokens / counted if usage.input_tokens and counted else manifest.ratio
    unedited = round(usage.input_tokens + reply_tokens * ratio)
    removed, added = round(tokens.removed * ratio), round(tokens.added * ratio + tokens.recalled * manifest.ratio)
    edited = max(0, unedited - removed + added)
    fixed = sum(each.used for each in manifest.slots if each.slot in ("system", "tools"))
    cached = fixed if wire == "messages" else fixed + tokens.unchanged
    has_cache = has_prompt_cache(usage, wire)
    is_warm = has_cache and cold_in_seconds > 0
    read_after = min(usage.input_tokens, edited) if is_warm else 0
    if is_warm and waiting.change_the_list:
        read_after = min(round(cached * ratio), edited)

    def price(total: int, read: int) -> Cost:
        return compute_cost(_make_usage(usage, total, read, is_written=has_cache and wire == "messages"))

    moment: EditMoment = "next_request"
    if waiting.change_the_list:
        must_wait = is_warm and waiting.summary is None and not is_now
        moment = "cold_cache" if must_wait else "next_turn"
    return EditEffect(
        waiting=waiting,
        moment=moment,
        cold_in_seconds=cold_in_seconds if has_cache else 0,
        removed_tokens=removed,
        added_tokens=added,
        prompt_tokens=edited,
        rewritten_tokens=edited - read_after if is_warm and waiting.change_the_list else 0,
        cost=price(edited, read_after),
        unedited_cost=price(unedited, usage.input_tokens if is_warm else 0),
        restored=tokens.restored,
        thinking_blocks=tokens.thinking_blocks,
    )


def _make_usage(last: Usage, total: int, read: int, *, is_written: bool) -> Usage:
    written = total - read if is_written else 0
    lifetimes = get_object(last.provider_fields or {}, "cache_creation")
    name = "ephemeral_1h_input_tokens"
    fields: JsonObject | None = {"cache_creation": {name: written}} if lifetimes.get(name) else None
    return Usage(
        model=last.model,
        input_tokens=total,
        cache_read_tokens=read,
        cache_write_tokens=written,
        provider_fields=fields,
    )


async def load_effect(conversation: Conversation) -> EditEffect | None:
    """What the waiting edits will do, or None if none waits, or the conversation does not belong to an agent with its
    own list, where an edit takes effect with the next request."""
    store, branch_number = conversation.engine.store, conversation.branch
    state = (await store.get_branch(conversation.id, branch_number)).state
    if not may_have_waiting_edits(state):
        return None
    newest = await store.list_manifests(conversation.id, branch=branch_number, limit=1)
    if not newest:
        return None
    seq, manifest = newest[0]
    if manifest.forwarded is None or manifest.forwarded.form in (*FITTED_FORMS, "translated"):
        return None
    reply = await store.get_entry(conversation.id, seq, branch=branch_number)
    body = await load_sent_body(store, manifest, seq) or b""
    newest_request = _NewestRequest(
        manifest, reply.metadata.usage or Usage(), reply.tokens or 0, reply.created_at, body
    )
    compactions = await store.read_tail(conversation.id, 1, branch=branch_number, kinds=["compaction"])
    if compactions and compactions[0].seq > seq:
        newest_request = _expect_summary(newest_request, compactions[0])
    waiting = find_waiting(state, newest_request.manifest)
    if waiting == WaitingEdits():
        return None
    return await _Loader(conversation, state, newest_request).estimate(waiting)


async def load_restored(conversation: Conversation, manifest: Manifest) -> RestoredCounts | None:
    """What a request that was sent had of what the client's summary replaced. None if no compaction was undone."""
    row = next((each for each in manifest.included if each.reason == "restored"), None)
    client = manifest.forwarded.compaction if manifest.forwarded is not None else None
    if row is None or row.span is None or client is None:
        return None
    store, branch = conversation.engine.store, conversation.branch
    body = (await store.get_entry(conversation.id, client, branch=branch)).body
    if not isinstance(body, Compaction) or body.covers is None:
        return None
    covers = body.covers.model_copy(update={"last": max(row.span.last, body.covers.last)})
    covered = await read_restorable(store, conversation.id, covers, branch=branch)
    return RestoredCounts.from_entries([each for each in covered if each.seq in row.span], covered)


class _NewestRequest(NamedTuple):
    manifest: Manifest
    usage: Usage
    reply_tokens: int
    replied_at: int
    body: bytes
    """The body that was sent. Empty if it is not stored."""


def _expect_summary(request: _NewestRequest, announced: Entry) -> _NewestRequest:
    """The newest request as if the client had sent it with its new summary alone, with which its next list begins."""
    compaction, manifest = announced.body, request.manifest
    if not isinstance(compaction, Compaction) or compaction.trigger != "client" or manifest.forwarded is None:
        return request
    fixed = sum(each.used for each in manifest.slots if each.slot in ("system", "tools"))
    tokens, counted = fixed + compaction.tokens_after, manifest.full_history_tokens
    reported = round(request.usage.input_tokens * tokens / counted) if counted else tokens
    update = {"compaction": announced.seq, "client_list_tokens": compaction.tokens_after}
    span = Span(first=announced.seq, last=announced.seq)
    listed = Decision(slot="messages", kind="message", included=True, reason="recent", tokens=0, span=span)
    expected = manifest.model_copy(
        update={
            "forwarded": manifest.forwarded.model_copy(update=update),
            "full_history_tokens": tokens,
            "decisions": (listed,),
        }
    )
    usage = request.usage.model_copy(update={"input_tokens": reported})
    # After a compaction within a turn the next request is sent at once: the user started this one.
    return request._replace(manifest=expected, usage=usage, reply_tokens=0, body=MANUAL_COMPACTION)


@dataclass(frozen=True, slots=True)
class _Loader:
    conversation: Conversation
    state: BranchState
    request: _NewestRequest

    @property
    def _counter(self) -> MessageCounter:
        """The counter of the newest request."""
        policy, engine = self.request.manifest.policy, self.conversation.engine
        tokens = engine.with_changes(model=policy.model).message_counter.token_counter
        return MessageCounter(tokens, wire_format_for(policy.wire_format))

    async def estimate(self, waiting: WaitingEdits) -> EditEffect:
        engine = self.conversation.engine
        codec = CODECS[self.request.manifest.policy.wire_format]
        lifetime = codec.get_cache_seconds(self.request.body) * COLD_CACHE_FACTOR
        elapsed = (now() - self.request.replied_at) / 1_000_000
        model = self.request.manifest.policy.model
        return estimate_effect(
            waiting,
            await self._count_edits(waiting),
            manifest=self.request.manifest,
            usage=self.request.usage,
            reply_tokens=self.request.reply_tokens,
            cold_in_seconds=max(0, round(lifetime - elapsed)),
            is_now=bool(self.state.edits_now),
            compute_cost=lambda expected: engine.config.compute_cost(expected, model),
        )

    async def _count_edits(self, waiting: WaitingEdits) -> EditedTokens:
        store, conversation = self.conversation.engine.store, self.conversation
        entries = await store.read_range(
            conversation.id,
            branch=conversation.branch,
            first=_find_list_start(self.request.manifest),
            kinds=["message"],
        )
        dropped = sum(max(0, (each.tokens or 0) - STUB_TOKENS) for each in entries if each.seq in waiting.drops)
        restored = sum(max(0, (each.tokens or 0) - STUB_TOKENS) for each in entries if each.seq in waiting.restores)
        quoted = await store.get_entries(conversation.id, waiting.quotes, branch=conversation.branch)
        first = min((*waiting.drops, *waiting.restores), default=entries[-1].seq + 1 if entries else 1)
        tokens = EditedTokens(
            removed=dropped,
            added=restored,
            recalled=sum(each.tokens or 0 for each in quoted),
            unchanged=sum(each.tokens or 0 for each in entries if each.seq < first),
        )
        if waiting.summary is not None:
            tokens = await self._count_summary(waiting.summary, tokens)
        if waiting.change_the_list and self.request.manifest.policy.wire_format == "messages":
            thinking, blocks = await self._count_thinking(entries)
            tokens = replace(tokens, removed=tokens.removed + thinking, thinking_blocks=blocks)
        return tokens

    async def _count_summary(self, client_compaction: int, tokens: EditedTokens) -> EditedTokens:
        """Tokens of what takes the place of the client's summary, and of what has it now."""
        active = self.state.active_compaction
        epoch = self.state.epoch
        effective = epoch.summary.restored_tokens or 0 if epoch is not None and epoch.summary is not None else 0
        compaction = await self._get_compaction(client_compaction)
        if active is not None and active.seq >= client_compaction:
            # An edited summary, or the client's own again.
            text = (await self._get_compaction(active.seq)).summary or ""
            added = self._counter.token_counter.count(text) if active.seq != client_compaction else 0
            removed = compaction.tokens_after if active.seq != client_compaction else effective
            return replace(tokens, removed=tokens.removed + removed, recalled=tokens.recalled + added, unchanged=0)
        if compaction.covers is None:
            return tokens
        first = active.covers.last + 1 if active is not None and active.covers else compaction.covers.first
        store, name, branch = self.conversation.engine.store, self.conversation.id, self.conversation.branch
        last = max(first, _find_list_start(self.request.manifest) - 1)
        covered = await read_restorable(store, name, Span(first=first, last=last), branch=branch)
        forwarded = self.request.manifest.forwarded
        listed = (forwarded.client_list_tokens or 0) if forwarded is not None else 0
        room = await measure_restorable_tokens(
            store,
            compaction,
            self.request.manifest.policy,
            place=(name, branch, client_compaction),
            body=self.request.body,
            list_tokens=listed + self.request.reply_tokens,
        )
        chosen = choose_newest(covered, room)
        is_whole = len(chosen) == len(covered) and active is None
        # Reasoning is not restored: it was signed for another list.
        thinking, _ = await run_sized(measure_entries(chosen), _sum_thinking, chosen, self._counter)
        return replace(
            tokens,
            removed=tokens.removed + (compaction.tokens_after if is_whole else 0),
            recalled=tokens.recalled + sum(each.tokens or 0 for each in chosen) - thinking,
            unchanged=0,
            restored=RestoredCounts.from_entries(chosen, covered),
        )

    async def _get_compaction(self, seq: int) -> Compaction:
        store = self.conversation.engine.store
        body = (await store.get_entry(self.conversation.id, seq, branch=self.conversation.branch)).body
        assert isinstance(body, Compaction)
        return body

    async def _count_thinking(self, entries: Sequence[Entry]) -> tuple[int, int]:
        """Tokens and blocks of signed reasoning in the list, which an edit in place leaves out."""
        epochs = await self.conversation.engine.store.read_tail(
            self.conversation.id, MAX_READ_EPOCHS, branch=self.conversation.branch, kinds=["epoch"]
        )
        stripped = max((each.seq for each in epochs if getattr(each.body, "changes_in_place", None)), default=0)
        signed = [each for each in entries if each.seq > stripped and each.role == "assistant"]
        return await run_sized(measure_entries(signed), _sum_thinking, signed, self._counter)


def _sum_thinking(entries: Sequence[Entry], counter: MessageCounter) -> tuple[int, int]:
    total = blocks = 0
    for entry in entries:
        rest = tuple(part for part in entry.message.parts if not isinstance(part, ThinkingPart))
        if len(rest) < len(entry.message.parts):
            bare = entry.message.model_copy(update={"parts": rest})
            total += counter.count(entry.message) - (counter.count(bare) if rest else 0)
            blocks += len(entry.message.parts) - len(rest)
    return total, blocks


def _find_list_start(manifest: Manifest) -> int:
    """Number of the first stored message in the client's list. It may have none after a summary."""
    spans = [row.span for row in manifest.included if row.kind == "message" and row.reason not in EDIT_REASONS]
    compaction = manifest.forwarded.compaction if manifest.forwarded is not None else None
    return min((span.first for span in spans if span is not None), default=(compaction or 0) + 1)
