"""The timeline of a conversation: one row per request, from the manifests, the replies' usage and the entries that are
not messages.

It reads a thousand manifests at once. So it takes from their JSON what a row needs, and builds no `Manifest`.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast

from pydantic_core import from_json

from quire.concurrency.worker_threads import run_sized
from quire.log import MAIN_BRANCH
from quire.log.exchanges import ExchangeRecord
from quire.model import Compaction, Drop, Entry, Pin, Restore, Span, Undrop, Unpin
from quire.model.entry_bodies import IMPORTED_STRATEGY, ContextEpoch
from quire.model.policy import SLOTS
from quire.rows.manifests import UNKNOWN_WINDOW
from quire.store import SqlStore
from quire.usage.contribution import read_cost
from quire.usage.report import NO_SUB_AGENTS, SubAgentCost
from quire.wire.billed_calls import list_billed_calls

MAX_TIMELINE_ROWS = 1_000
"""Maximum number of requests on a page."""

Fate = Literal["w", "x", "c", "s", "r", "d", "k", "b", "o", "-"]
FATES: Mapping[Fate, str] = {
    "w": "whole",
    "x": "shortened",
    "c": "cleared: a stub names it",
    "s": "only in the summary",
    "r": "recalled",
    "d": "dropped by the user",
    "k": "preserved: pinned, of high priority, or the question of the turn",
    "b": "restored by the user",
    "o": "left out: no room",
    "-": "no part of the request",
}
"""What became of a message in a request, by the letter in `TimelineRow.fates`."""

TimelineAuthor = Literal["quire", "client", "provider", "user", "model"]
TimelineEventKind = Literal["compaction", "restore", "pin", "unpin", "drop", "undrop", "epoch", "provider_edit"]
_EVENT_KINDS = ("compaction", "restore", "pin", "unpin", "drop", "undrop", "epoch")

_Run = tuple[int, int, Fate]
_REASON_FATES: Mapping[str, Fate] = {
    "recalled": "r",
    "pinned": "k",
    "priority": "k",
    "question": "k",
    "restored": "b",
    "excerpted": "x",
    "cleared": "c",
    "cleared_by_provider": "c",
    "dropped": "d",
    "compacted_by_provider": "s",
}
"""Fates by reason of the decision. Other messages are whole if they are included, else left out."""
_OVERLAY_FATES = frozenset("rkbdcs")
"""Fates of messages within a range of archived ones, or of ones that the client's list has: they say more."""


class TimelineRow(NamedTuple):
    """One request."""

    reply: int
    """Number of its reply."""
    created_at: int
    turn: int
    step: int
    """Number of the model call within the turn."""
    model: str | None
    window: int | None
    """None for an imported request, of which only the usage is known."""
    trigger_tokens: int | None
    total_tokens: int
    full_history_tokens: int | None
    slots: tuple[int, ...]
    """Tokens by slot, in the order of `SLOTS`; empty if unknown."""
    fates: str
    """Run-length code of what became of entries 1, 2, ...: a letter of `FATES`, and the number of entries if more than
    one."""
    is_exact: bool
    input_tokens: int | None
    """Tokens by the provider's count."""
    output_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    cost_usd: float | None
    """A lower bound unless `is_cost_complete`, or None if nothing is known."""
    is_cost_complete: bool
    sub_agent_usd: float | None = None
    """At the last request of a turn that called sub-agents: what these cost."""


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """A compaction or an edit of the context; it acts on the requests after it."""

    seq: int
    """Sequence number of its entry; of the reply for an edit on the provider's side."""
    created_at: int
    kind: TimelineEventKind
    author: TimelineAuthor
    """Who made it: Quire, the client, the provider, the user or the model."""
    trigger: str | None = None
    """What triggered a compaction."""
    span: Span | None = None
    """The messages that it concerns."""
    freed_tokens: int | None = None
    undone: int | None = None
    """The compaction that a `restore` undoes."""
    cost_usd: float | None = None


class Timeline(NamedTuple):
    """Requests after `since`, oldest first, and what changed the context since then."""

    rows: list[TimelineRow]
    events: list[TimelineEvent]
    next_since: int | None
    """The last reply of the page, if there are more."""
    sub_agents: SubAgentCost = NO_SUB_AGENTS
    """What the sub-agents of the whole conversation cost."""
    unanswered: Sequence[ExchangeRecord] = ()
    """Requests without a whole reply, each with the entry that it came after."""


async def load_timeline(
    store: SqlStore,
    conversation: str,
    *,
    branch: int = MAIN_BRANCH,
    since: int = 0,
    limit: int | None = None,
) -> Timeline:
    """Loads the requests whose replies come after entry `since`, the oldest `limit` of them."""
    roles = await store.list_roles(conversation, branch=branch)
    after = [seq for seq, role in roles if role == "assistant" and seq > since]
    page, has_more = after[:limit], limit is not None and len(after) > limit
    last = page[-1] if has_more else None
    manifests: list[tuple[int, str]] = []
    replies: list[Entry] = []
    if page:
        manifests = await store.list_manifest_texts(conversation, branch=branch, first=page[0], last=page[-1])
        replies = await store.read_range(
            conversation, branch=branch, first=page[0], last=page[-1], kinds=["message"], roles=["assistant"]
        )
    changes = await store.read_range(conversation, branch=branch, last=last, kinds=_EVENT_KINDS)
    size = sum(len(text) for _, text in manifests) + sum(len(each.raw) for each in (*replies, *changes))
    rows, events = await run_sized(size, build_timeline, roles, replies, dict(manifests), changes, since=since)
    sub_agents = await store.usage.read_sub_agents(await store.get_conversation(conversation))
    unanswered = await list_unanswered(store, conversation, branch=branch, since=since, last=last)
    if sub_agents.turns:
        owners = list((await store.get_branch(conversation, branch)).split_ranges())
        called = {
            seq: cost.cost_usd
            for (owner, seq), cost in sub_agents.turns.items()
            if any(each.branch == owner and each.first <= seq <= each.last for each in owners)
        }
        rows = [row._replace(sub_agent_usd=called.get(row.reply)) for row in rows]
    return Timeline(rows, events, last, sub_agents.total, unanswered)


async def list_unanswered(
    store: SqlStore, conversation: str, *, branch: int = MAIN_BRANCH, since: int = 0, last: int | None = None
) -> list[ExchangeRecord]:
    """Requests of a branch that came after the entries `since` to `last` and got no whole reply."""
    found = await store.list_unanswered(conversation=conversation)
    if not found:
        return []
    owners = list((await store.get_branch(conversation, branch)).split_ranges())
    return [
        each
        for each in found
        if since <= each.after_seq <= (each.after_seq if last is None else last)
        and (
            each.branch == branch
            or any(owner.branch == each.branch and owner.first <= each.after_seq <= owner.last for owner in owners)
        )
    ]


def build_timeline(
    roles: Sequence[tuple[int, str]],
    replies: Iterable[Entry],
    manifests: Mapping[int, str],
    changes: Sequence[Entry],
    *,
    since: int = 0,
) -> tuple[list[TimelineRow], list[TimelineEvent]]:
    """Rows of these replies, and the events after `since`.

    `roles` has the questions and replies of the branch with their numbers, `changes` its other entries from the start.
    """
    users = [seq for seq, role in roles if role == "user"]
    known, assistants = set(users), [seq for seq, role in roles if role == "assistant"]
    starts = [seq for seq in users if seq - 1 not in known]
    compactions = [(entry.seq, body) for entry in changes if isinstance(body := entry.body, Compaction)]
    rows: list[TimelineRow] = []
    events = [event for entry in changes if entry.seq > since for event in _to_events(entry)]
    cleared: list[dict[str, Any]] = []
    for reply in replies:
        metadata, text = reply.metadata, manifests.get(reply.seq)
        usage = metadata.usage
        if text is None and (usage is None or not usage.input_tokens):
            continue  # Nothing is known about its request.
        turn = bisect_left(starts, reply.seq)
        turn_start = starts[turn - 1] if turn else 0
        manifest: dict[str, Any] | None = None if text is None else from_json(text)
        sent = manifest or {}
        window = sent["policy"]["window"] if manifest else None
        model = sent["policy"]["model"] if manifest else (usage.model if usage else None)
        calls = list_billed_calls(usage) if usage is not None else []
        reported = usage.model if usage else None
        cost = read_cost(metadata, calls, (reported, model), reply.created_at)
        # Of several samplings for one reply, the last one had the most in its window. An adviser has its own window.
        windows = [call.input_tokens for call in calls if call.model is None]
        rows.append(
            TimelineRow(
                reply=reply.seq,
                created_at=reply.created_at,
                turn=turn,
                step=bisect_left(assistants, reply.seq) - bisect_left(assistants, turn_start) + 1,
                model=model,
                window=window if window != UNKNOWN_WINDOW else None,
                trigger_tokens=sent.get("trigger_tokens") if window != UNKNOWN_WINDOW else None,
                total_tokens=sent["total_tokens"]
                if manifest
                else max(windows, default=usage.input_tokens if usage else 0),
                full_history_tokens=sent.get("full_history_tokens"),
                slots=_read_slots(manifest) if manifest else (),
                fates=encode_fates(manifest) if manifest else _infer_fates(reply.seq, compactions),
                is_exact=sent["exact"] if manifest else not (usage and usage.estimated),
                input_tokens=usage.input_tokens if usage else None,
                output_tokens=usage.output_tokens if usage else None,
                cache_read_tokens=usage.cache_read_tokens if usage else None,
                cache_write_tokens=usage.cache_write_tokens if usage else None,
                cost_usd=cost.usd if cost.usd or cost.is_complete else None,
                is_cost_complete=cost.is_complete,
            )
        )
        forwarded: dict[str, Any] = sent.get("forwarded") or {}
        edits: list[dict[str, Any]] = forwarded.get("provider_edits") or []
        if edits and edits != cleared:
            # The provider reports the same edit with every request until it clears more.
            freed = sum(each.get("cleared_input_tokens") or 0 for each in edits)
            events.append(
                TimelineEvent(reply.seq, reply.created_at, "provider_edit", "provider", freed_tokens=freed or None)
            )
        cleared = edits
    events.sort(key=lambda event: event.seq)
    return rows, events


def _read_slots(manifest: Mapping[str, Any]) -> tuple[int, ...]:
    used = {each["slot"]: each["used"] for each in manifest["slots"]}
    return tuple(used.get(slot, 0) for slot in SLOTS)


def encode_fates(manifest: Mapping[str, Any]) -> str:
    """The run-length code of a manifest's decisions on messages."""
    base: list[_Run] = []
    overlay: list[_Run] = []
    first_archived, last_archived = 0, 0
    has_summary = False
    for row in manifest["decisions"]:
        if (span := row.get("span")) is None:
            continue
        reason, first, last, included = row["reason"], span["first"], span["last"], row["included"]
        if reason == "archived" or (not included and row["slot"] == "recall"):
            # A recall candidate that did not fit is archived, like the messages around it.
            if first < first_archived or not first_archived:
                first_archived = first
            if last > last_archived:
                last_archived = last
        elif row["kind"] == "summary":
            has_summary = has_summary or included
        else:
            fate = _REASON_FATES.get(reason) or ("w" if included else "o")
            if row.get("excerpt_chars") == 0:
                fate = "c"
            elif row.get("turn_excerpt_chars") is not None:
                fate = "x"
            (overlay if fate in _OVERLAY_FATES else base).append((first, last, fate))
    base.sort()
    forwarded: dict[str, Any] = manifest.get("forwarded") or {}
    if (forwarded.get("unrecorded_messages") or forwarded.get("compaction")) and base and base[0][0] > 1:
        # The client's own summary replaces what its list no longer has.
        base.insert(0, (1, base[0][0] - 1, "s"))
    elif first_archived:
        base.insert(0, (first_archived, last_archived, "s" if has_summary else "o"))
        base.sort()
    overlay.sort()
    return _encode_runs(_overlay_runs(base, overlay))


def _overlay_runs(base: Sequence[_Run], overlay: Sequence[_Run]) -> Iterator[_Run]:
    """Runs in order without overlaps: the overlay's, and between them what is left of the base."""
    pending = list(reversed(base))
    for first, last, fate in overlay:
        while pending and pending[-1][0] < first:
            begin, end, below = pending.pop()
            yield begin, min(end, first - 1), below
            if end >= first:
                pending.append((first, end, below))
        while pending and pending[-1][0] <= last:
            _, end, below = pending.pop()
            if end > last:
                pending.append((last + 1, end, below))
        yield first, last, fate
    yield from reversed(pending)


def _encode_runs(runs: Iterable[_Run]) -> str:
    code: list[str] = []
    letter, start, position = "-", 1, 1
    for first, last, fate in runs:
        if last < position:
            continue
        if first > position and letter != "-":
            code.append(letter if position - start == 1 else f"{letter}{position - start}")
            letter, start = "-", position
        position = first if first > position else position
        if fate != letter:
            if position > start:
                code.append(letter if position - start == 1 else f"{letter}{position - start}")
            letter, start = fate, position
        position = last + 1
    if position > start:
        code.append(letter if position - start == 1 else f"{letter}{position - start}")
    return "".join(code)


def _infer_fates(reply: int, compactions: Sequence[tuple[int, Compaction]]) -> str:
    """Fates in an imported request: what the compaction before it covers is only in its summary."""
    active = next((body for seq, body in reversed(compactions) if seq < reply), None)
    if active is None or active.covers is None:
        return _encode_runs([(1, reply - 1, "w")])
    covers = active.covers
    preserved: list[_Run] = [(seq, seq, "k") for seq in active.preserved or ()]
    base: list[_Run] = [(covers.first, covers.last, "s"), (covers.last + 1, reply - 1, "w")]
    return _encode_runs(_overlay_runs(base, preserved))


def _to_events(entry: Entry) -> Iterator[TimelineEvent]:
    """The event of an entry that is not a message."""
    event = TimelineEvent(entry.seq, entry.created_at, cast(TimelineEventKind, entry.kind), "user")
    match entry.body:
        case Compaction() as body:
            yield replace(
                event,
                author=_find_author(body),
                trigger=body.trigger,
                span=body.covers,
                freed_tokens=body.freed_tokens or None,
                cost_usd=body.cost_usd,
            )
        case Restore(compaction=undone):
            yield replace(event, undone=undone)
        case Pin(message=seq) | Unpin(message=seq) | Drop(message=seq) | Undrop(message=seq):
            yield replace(event, span=Span(first=seq, last=seq))
        case ContextEpoch() as body:
            restored = body.summary.restored if body.summary is not None else None
            yield replace(event, author="quire", span=restored)
        case _:
            return


def _find_author(compaction: Compaction) -> TimelineAuthor:
    if compaction.strategy == IMPORTED_STRATEGY and compaction.trigger != "provider":
        return "client"
    match compaction.trigger:
        case "client" | "provider" | "model":
            return compaction.trigger
        case "manual" | "edit":
            return "user"
        case "threshold" | "background" | "overflow":
            return "quire"
